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
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/jsonsize"
	"github.com/treeline-edge/treeline/internal/streams"
	"github.com/treeline-edge/treeline/internal/wire"
)

// maxNetAnswer bounds a node's answer about its network.
var maxNetAnswer = jsonsize.Limit{Bytes: 16 << 20, Objects: 1 << 15, Values: 1 << 19}

type traceIn struct {
	ID string `path:"id" maxLength:"512" doc:"The instance's id, with ~ for / and #."`
	To string `query:"to" required:"true" maxLength:"512" doc:"The name or the address that a flow of it would go to."`
}

type captureIn struct {
	ID      string `path:"id" maxLength:"512" doc:"The instance's id, with ~ for / and #."`
	Seconds int    `query:"seconds" default:"60" minimum:"1" maximum:"3600" doc:"When to stop."`
	Bytes   int    `query:"bytes" default:"67108864" minimum:"1" maximum:"1073741824" doc:"After how much to stop."`
}

func (a *API) registerNet() {
	tags := []string{"network"}
	fails := []int{404, 409, 503, 504}
	for _, r := range api.NodeRoutes {
		schema := a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeOf(r.New()), true, r.ID)
		handle(a, huma.Operation{
			OperationID: r.ID, Method: http.MethodGet, Path: "/v1/nodes/{id}" + r.Path, Summary: r.Summary, Description: r.Description, Tags: tags, Errors: fails,
			Responses: map[string]*huma.Response{"200": {Content: map[string]*huma.MediaType{"application/json": {Schema: schema}}}},
		}, func(ctx context.Context, p rights.Principal, in *nodeIn) (*body[any], error) {
			n, err := a.node(ctx, p, in)
			if err != nil {
				return nil, err
			}
			out := &body[any]{r.New()}
			return out, a.askNet(ctx, n.Body.ID, r.Netmanager, out.Body)
		})
	}
	handle(a, huma.Operation{OperationID: "traceInstance", Method: http.MethodGet, Path: "/v1/instances/{id}/trace", Summary: "Say step by step what would become of a new flow of an instance", Tags: tags, Errors: fails}, a.trace)
	handle(a, huma.Operation{OperationID: "captureInstance", Method: http.MethodGet, Path: "/v1/instances/{id}/capture", Summary: "Stream the packets of an instance, as pcap", Tags: tags, Errors: fails}, a.capture)
}

// askNet asks the netmanager of a node.
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
	if err != nil { // of ErrTooLarge, too, only the text: the node's answer is large, not the request
		return fmt.Errorf("read the answer of node %s: %s: %w", n, err.Error(), api.ErrUnavailable)
	}
	return nil
}

func (a *API) trace(ctx context.Context, p rights.Principal, in *traceIn) (*body[api.NetTrace], error) {
	i, err := a.find(ctx, p, in.ID)
	if err == nil && i.Node == "" {
		err = fmt.Errorf("trace from %s: it is %s and on no node: %w", i.ID, i.State, api.ErrConflict)
	}
	if err != nil {
		return nil, err
	}
	out := &body[api.NetTrace]{}
	q := url.Values{"from": {string(i.ID)}, "to": {in.To}}
	return out, a.askNet(ctx, i.Node, "/v1/trace?"+q.Encode(), &out.Body)
}

// onBehalf identifies the holder of the token, for fair shares at the node.
func onBehalf(ctx context.Context) string {
	p := principalOf(ctx)
	return streams.For(p.Tenant, p.User)
}

// capture requires the right to read logs: packets reveal as much.
func (a *API) capture(ctx context.Context, p rights.Principal, in *captureIn) (*streamOut, error) {
	id := api.InstanceFromPath(in.ID)
	if err := rights.Allowed(p, rights.AppsLogs, id.Tenant()); err != nil {
		return nil, err
	}
	i, err := a.find(ctx, p, in.ID)
	if err == nil && i.Node == "" {
		err = fmt.Errorf("capture packets of %s: it is %s and on no node: %w", i.ID, i.State, api.ErrConflict)
	}
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
	a.opt.Log.Info("packets are captured", "instance", i.ID, "node", i.Node, "seconds", in.Seconds, "by", p.User)
	return &streamOut{func(hc huma.Context) {
		defer from.Close()
		fairshare.Endures(hc.Context())
		_, w := humachi.Unwrap(hc)
		w.Header().Set("Content-Type", "application/vnd.tcpdump.pcap")
		w.Header().Set("Cache-Control", "no-store")
		defer context.AfterFunc(hc.Context(), func() { _ = from.Close() })()
		a.grants.Offer(hc.Context(), w.Header(), principalOf(hc.Context()))
		pour(hc.Context(), w, from)
	}}, nil
}
