package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strconv"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/wire"
)

func (a *API) registerNet() {
	tags := []string{"network"}
	fails := []int{404, 409, 503, 504}
	for _, r := range api.NodeRoutes {
		schema := a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeOf(r.New()), true, r.ID)
		handle(a, huma.Operation{
			Method: http.MethodGet, Path: "/v1/clusters/{id}/nodes/{node}" + r.Path, Summary: r.Summary, Description: r.Description, Tags: tags, Errors: fails,
			Responses: map[string]*huma.Response{"200": {Content: map[string]*huma.MediaType{"application/json": {Schema: schema}}}},
		}, rights.NodesRead, func(ctx context.Context, p rights.Principal, in *nodeIn) (*struct{ Body any }, error) {
			out := &struct{ Body any }{r.New()}
			return out, a.onNode(ctx, p, rights.NodesRead, http.MethodGet, in, r.Path, nil, out.Body)
		})
	}
	handle(a, huma.Operation{
		Method: http.MethodGet, Path: "/v1/instances/{id}/trace", Summary: "Trace a flow", Tags: tags, Errors: fails,
		Description: "Where a new flow of the instance would go, step by step, as its node sees it. No packet is sent.",
	}, rights.AppsRead, a.trace)
	handle(a, huma.Operation{
		Method: http.MethodGet, Path: "/v1/instances/{id}/capture", Summary: "Capture packets", Tags: tags, Errors: fails,
		Description: "The packets of the instance as they pass its node, as pcap, until a limit is reached or the client closes the connection.",
		Responses: map[string]*huma.Response{"200": {
			Description: "pcap",
			Content:     map[string]*huma.MediaType{"application/vnd.tcpdump.pcap": {Schema: &huma.Schema{Type: "string", Format: "binary"}}},
		}},
	}, rights.AppsLogs, a.capture)
}

// placed returns an instance that is on a cluster, if p may do the action on it.
func (a *API) placed(ctx context.Context, p rights.Principal, action rights.Action, segment, what string) (api.Instance, error) {
	i, err := a.instance(ctx, p, action, segment)
	if err == nil && i.Cluster == "" {
		err = fmt.Errorf("%s %s: it is %s and on no cluster: %w", what, i.ID, i.State, api.ErrConflict)
	}
	return i, err
}

func (a *API) trace(ctx context.Context, p rights.Principal, in *struct {
	ID string `path:"id" doc:"The instance."`
	To string `query:"to" maxLength:"512" doc:"The name or the address that the flow would go to."`
},
) (*struct{ Body api.NetTrace }, error) {
	i, err := a.placed(ctx, p, rights.AppsRead, in.ID, "trace from")
	if err == nil && in.To == "" {
		err = fmt.Errorf("trace from %s: the target is missing, add ?to=<name or address>: %w", i.ID, api.ErrInvalid)
	}
	if err != nil {
		return nil, err
	}
	out := &struct{ Body api.NetTrace }{}
	q := url.Values{"to": {in.To}}
	return out, a.ask(ctx, i.Cluster, http.MethodGet, "/v1/instances/"+api.PathOf(i.ID)+"/trace?"+q.Encode(), nil, &out.Body)
}

func (a *API) capture(ctx context.Context, p rights.Principal, in *struct {
	ID      string `path:"id" doc:"The instance."`
	Seconds int    `query:"seconds" default:"60" minimum:"1" maximum:"3600" doc:"When to stop."`
	Bytes   int    `query:"bytes" default:"67108864" minimum:"1" maximum:"1073741824" doc:"After how much to stop."`
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
	return &streamOut{func(hc huma.Context) {
		defer stream.Close()
		_, w := humachi.Unwrap(hc)
		w.Header().Set("Content-Type", "application/vnd.tcpdump.pcap")
		w.Header().Set("Cache-Control", "no-store")
		a.grants.Offer(hc.Context(), w.Header(), asker(hc.Context()))
		a.pour(hc.Context(), w, &both{resp.Body, stream})
	}}, nil
}

// both reads the body of an answer and closes the stream that carries it.
type both struct {
	io.Reader
	io.Closer
}
