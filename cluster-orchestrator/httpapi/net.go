package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/jsonsize"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/internal/streams"
	"github.com/treeline-edge/treeline/internal/wire"
)

// maxNetAnswer bounds a node's answer about its network.
var maxNetAnswer = jsonsize.Limit{Bytes: 16 << 20, Objects: 1 << 15, Values: 1 << 19}

type traceIn struct {
	ID string `path:"id" maxLength:"512" doc:"The instance's id, with ~ for / and #."`
	To string `query:"to" required:"true" maxLength:"512" doc:"The name or the address of the flow's destination."`
}

type captureIn struct {
	ID      string `path:"id" maxLength:"512" doc:"The instance's id, with ~ for / and #."`
	Seconds int    `query:"seconds" default:"60" minimum:"1" maximum:"3600" doc:"When to stop."`
	Bytes   int    `query:"bytes" default:"67108864" minimum:"1" maximum:"1073741824" doc:"After how much to stop."`
}

func (a *API) registerNet() {
	tag := rest.Tag("network")
	for _, r := range api.NodeRoutes {
		schema := a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeOf(r.New()), true, r.ID)
		op := tag.Get("/v1/nodes/{id}"+r.Path, r.Summary, 404, 409, 503, 504).Named(r.ID).About(r.Description)
		answer(a, op.Answers("", "application/json", schema), rights.NodesRead,
			func(ctx context.Context, p rights.Principal, in *nodeIn) (any, error) {
				n, err := a.node(ctx, p, in)
				if err != nil {
					return nil, err
				}
				out := r.New()
				return out, a.askNet(ctx, n.ID, r.Netmanager, out)
			})
	}
	trace := tag.Get("/v1/instances/{id}/trace", "Show step by step where a new flow of an instance would go", 404, 409, 503, 504)
	answer(a, trace.Named("traceInstance"), "", a.trace)
	capture := tag.Get("/v1/instances/{id}/capture", "Stream the packets of an instance, as pcap", 404, 409, 503, 504)
	handle(a, capture.Named("captureInstance").Answers("pcap", "application/vnd.tcpdump.pcap", &huma.Schema{Type: "string", Format: "binary"}), "", a.capture)
}

// askNet requests a path from a node's netmanager and decodes the answer into out.
func (a *API) askNet(ctx context.Context, n api.NodeID, path string, out any) error {
	from, err := a.opt.Nodes.Stream(ctx, n, wire.StreamRequest{Kind: "net", Method: http.MethodGet, Path: path, For: onBehalf(ctx)})
	if err != nil {
		return fmt.Errorf("ask the network of node %s: %w", n, err)
	}
	defer from.Close()
	defer context.AfterFunc(ctx, func() { _ = from.Close() })()
	text, err := maxNetAnswer.Read(from)
	if err == nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil { // do not wrap err: with ErrTooLarge, the answer is too large, not the request
		return fmt.Errorf("read the answer of node %s: %s: %w", n, err.Error(), api.ErrUnavailable)
	}
	return nil
}

// placed returns an instance if p may see it and it is on a node.
func (a *API) placed(ctx context.Context, p rights.Principal, segment, what string) (api.Instance, error) {
	i, err := a.find(ctx, p, segment)
	if err == nil && i.Node == "" {
		err = fmt.Errorf("%s %s: it is %s and on no node: %w", what, i.ID, i.State, api.ErrConflict)
	}
	return i, err
}

func (a *API) trace(ctx context.Context, p rights.Principal, in *traceIn) (out api.NetTrace, err error) {
	i, err := a.placed(ctx, p, in.ID, "trace from")
	if err != nil {
		return out, err
	}
	q := url.Values{"from": {string(i.ID)}, "to": {in.To}}
	err = a.askNet(ctx, i.Node, "/v1/trace?"+q.Encode(), &out)
	return out, err
}

// onBehalf identifies the caller for fair shares at the node.
func onBehalf(ctx context.Context) string {
	p := principalOf(ctx)
	return streams.For(p.Tenant, p.User)
}

// capture requires the right to read logs, because packets reveal as much.
func (a *API) capture(ctx context.Context, p rights.Principal, in *captureIn) (*streamOut, error) {
	id := api.InstanceFromPath(in.ID)
	if err := rights.Allowed(p, rights.AppsLogs, id.Tenant()); err != nil {
		return nil, err
	}
	i, err := a.placed(ctx, p, in.ID, "capture packets of")
	if err != nil {
		return nil, err
	}
	q := url.Values{"instance": {string(i.ID)}, "seconds": {strconv.Itoa(in.Seconds)}, "bytes": {strconv.Itoa(in.Bytes)}}
	from, err := a.opt.Nodes.Stream(ctx, i.Node, wire.StreamRequest{
		Kind: "net", Instance: i.ID, Epoch: i.Epoch, Method: http.MethodGet, Path: "/v1/capture?" + q.Encode(), For: onBehalf(ctx),
	})
	if err != nil {
		return nil, fmt.Errorf("capture packets of %s: %w", i.ID, err)
	}
	a.opt.Log.Info("packet capture started", "instance", i.ID, "node", i.Node, "seconds", in.Seconds, "by", p.User)
	return a.streamed(from, "application/vnd.tcpdump.pcap"), nil
}
