package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/internal/wire"
)

func (a *API) registerNet() {
	network := rest.Tag("network")
	forwarded := []int{404, 409, 503, 504}
	for _, r := range api.NodeRoutes {
		schema := a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeOf(r.New()), true, r.ID)
		op := network.Get("/v1/clusters/{id}/nodes/{node}"+r.Path, r.Summary, forwarded...).About(r.Description)
		answer(a, op.Answers("", "application/json", schema), rights.NodesRead,
			func(ctx context.Context, p rights.Principal, in *NodeInput) (any, error) {
				out := r.New()
				return out, a.callNode(ctx, p, rights.NodesRead, http.MethodGet, *in, r.Path, nil, out)
			})
	}
	answer(a, network.Get("/v1/instances/{id}/trace", "Trace a flow", forwarded...).
		About("Where a new flow of the instance would go, step by step, as its node sees it. No packet is sent."), rights.AppsRead, a.trace)
	handle(a, network.Get("/v1/instances/{id}/capture", "Capture packets", forwarded...).
		About("The packets of the instance as they pass its node, as pcap, until a limit is reached or the client closes the connection.").
		Answers("pcap", "application/vnd.tcpdump.pcap", &huma.Schema{Type: "string", Format: "binary"}), rights.AppsLogs, a.capture)
}

// placed returns an instance that is placed on a cluster and on which p may do the action. what is
// for the error.
func (a *API) placed(ctx context.Context, p rights.Principal, action rights.Action, segment, what string) (api.Instance, error) {
	i, err := a.instance(ctx, p, action, segment)
	if err == nil && i.Cluster == "" {
		err = fmt.Errorf("%s %s: the instance is %s and not placed on a cluster: %w", what, i.ID, i.State, api.ErrConflict)
	}
	return i, err
}

func (a *API) trace(ctx context.Context, p rights.Principal, in *struct {
	ID string `path:"id" doc:"The instance."`
	To string `query:"to" maxLength:"512" doc:"The name or the address that the flow would go to."`
},
) (out api.NetTrace, err error) {
	i, err := a.placed(ctx, p, rights.AppsRead, in.ID, "trace from")
	if err == nil && in.To == "" {
		err = fmt.Errorf("trace from %s: the target is missing, add ?to=<name or address>: %w", i.ID, api.ErrInvalid)
	}
	if err != nil {
		return out, err
	}
	q := url.Values{"to": {in.To}}
	return out, a.ask(ctx, i.Cluster, http.MethodGet, "/v1/instances/"+api.PathOf(i.ID)+"/trace?"+q.Encode(), nil, &out)
}

func (a *API) capture(ctx context.Context, p rights.Principal, in *struct {
	ID      string `path:"id" doc:"The instance."`
	Seconds int    `query:"seconds" default:"60" minimum:"1" maximum:"3600" doc:"Stop after this time."`
	Bytes   int    `query:"bytes" default:"67108864" minimum:"1" maximum:"1073741824" doc:"Stop after this much."`
},
) (*streamOut, error) {
	i, err := a.placed(ctx, p, rights.AppsLogs, in.ID, "capture packets of")
	if err != nil {
		return nil, err
	}
	q := url.Values{"seconds": {strconv.Itoa(in.Seconds)}, "bytes": {strconv.Itoa(in.Bytes)}}
	stream, err := a.dial(ctx, i.Cluster, wire.StreamRequest{
		Kind: "api", Method: http.MethodGet, Path: "/v1/instances/" + api.PathOf(i.ID) + "/capture?" + q.Encode(),
	})
	if err != nil {
		return nil, fmt.Errorf("capture packets of %s: %w", i.ID, err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(stream), &http.Request{Method: http.MethodGet})
	if err != nil {
		_ = stream.Close()
		return nil, fmt.Errorf("read the answer of cluster %s: %w: %w", i.Cluster, err, api.ErrUnavailable)
	}
	if resp.StatusCode != http.StatusOK {
		defer stream.Close()
		return nil, clusterProblem(i.Cluster, resp)
	}
	return a.stream("application/vnd.tcpdump.pcap", resp.Body, stream), nil
}
