package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/rights"
)

func (a *API) registerNet() {
	tags := []string{"network"}
	fails := []int{404, 409, 503, 504}
	handle(a, huma.Operation{
		Method: http.MethodGet, Path: "/v1/clusters/{id}/nodes/{node}/net", Summary: "Get a node's part in the network", Tags: tags, Errors: fails,
	}, rights.NodesRead, nodeNet[api.NetStatus](a, "/net"))
	handle(a, huma.Operation{
		Method: http.MethodGet, Path: "/v1/clusters/{id}/nodes/{node}/net/routes", Summary: "List a node's routes to services", Tags: tags, Errors: fails,
	}, rights.NodesRead, nodeNet[api.Page[api.RouteStatus]](a, "/net/routes"))
	handle(a, huma.Operation{
		Method: http.MethodGet, Path: "/v1/clusters/{id}/nodes/{node}/net/peers", Summary: "List a node's peers", Tags: tags, Errors: fails,
		Description: "The nodes that it talks to, by which path, and why by no better one.",
	}, rights.NodesRead, nodeNet[api.Page[api.PeerStatus]](a, "/net/peers"))
	handle(a, huma.Operation{
		Method: http.MethodGet, Path: "/v1/instances/{id}/trace", Summary: "Trace a flow", Tags: tags, Errors: fails,
		Description: "What would become of a new flow of the instance, step by step, as its node sees it. Nothing is sent.",
	}, rights.AppsRead, a.trace)
	handle(a, huma.Operation{
		Method: http.MethodGet, Path: "/v1/instances/{id}/capture", Summary: "Capture packets", Tags: tags, Errors: fails,
		Description: "The packets of the instance as they pass its node, as pcap, until the time or the amount is reached or the asker ends it.",
		Responses: map[string]*huma.Response{"200": {
			Description: "pcap",
			Content:     map[string]*huma.MediaType{"application/vnd.tcpdump.pcap": {Schema: &huma.Schema{Type: "string", Format: "binary"}}},
		}},
	}, rights.AppsLogs, a.capture)
}

func nodeNet[T any](a *API, path string) func(context.Context, rights.Principal, *nodeIn) (*struct{ Body T }, error) {
	return func(ctx context.Context, p rights.Principal, in *nodeIn) (*struct{ Body T }, error) {
		out := &struct{ Body T }{}
		return out, a.onNode(ctx, p, rights.NodesRead, http.MethodGet, in, path, nil, &out.Body)
	}
}

// placed is an instance that some cluster has, if p may do that to it.
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
		err = fmt.Errorf("trace from %s to nowhere: say ?to=<name or address>: %w", i.ID, api.ErrInvalid)
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
	stream, err := a.dial(ctx, i.Cluster, api.StreamRequest{
		Kind: "api", Method: http.MethodGet, Path: "/v1/instances/" + api.PathOf(i.ID) + "/capture?" + q.Encode(),
	})
	if err != nil {
		return nil, fmt.Errorf("capture packets of %s: %w", i.ID, err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(stream), &http.Request{Method: http.MethodGet})
	if err != nil {
		_ = stream.Close()
		return nil, fmt.Errorf("cluster %s answered badly: %w: %w", i.Cluster, err, api.ErrUnavailable)
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
		defer a.renewable(hc.Context(), w.Header())()
		a.pour(hc.Context(), w, &both{resp.Body, stream})
	}}, nil
}

// both reads an answer's body and closes the stream that it comes by.
type both struct {
	io.Reader
	io.Closer
}
