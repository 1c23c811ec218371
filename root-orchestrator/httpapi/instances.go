package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/grant"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/wire"
)

func (a *API) registerInstances() {
	tags := []string{"instances"}
	handle(a, huma.Operation{
		Method: http.MethodGet, Path: "/v1/instances", Summary: "List instances", Tags: tags,
		Middlewares: huma.Middlewares{a.watchable("instance", rights.AppsRead)},
	}, rights.AppsRead, a.listInstances)
	handle(a, huma.Operation{
		Method: http.MethodGet, Path: "/v1/instances/{id}", Summary: "Get instance", Tags: tags, Errors: []int{404},
	}, rights.AppsRead, a.getInstance)
	handle(a, huma.Operation{
		Method: http.MethodGet, Path: "/v1/instances/{id}/why", Summary: "Explain instance", Tags: tags, Errors: []int{404},
		Description: "Why the instance is where it is, or nowhere, at both tiers. Nodes are named to those who may see them.",
	}, rights.AppsRead, a.why)
	handle(a, huma.Operation{
		Method: http.MethodGet, Path: "/v1/instances/{id}/logs", Summary: "Read logs", Tags: tags, Errors: []int{404, 409, 503},
		Description: "What the workload writes, as its node has it: the node dials a stream out, nothing is stored on the way.",
		Responses: map[string]*huma.Response{"200": {
			Description: "The bytes as they come.",
			Content:     map[string]*huma.MediaType{"text/plain": {Schema: &huma.Schema{Type: "string"}}},
		}},
	}, rights.AppsLogs, a.logs)
}

// sees reports whether the principal may see the nodes of the cluster.
func (a *API) sees(p rights.Principal, c api.ClusterID) bool {
	a.mu.RLock()
	tenant, ok := a.owners[c]
	a.mu.RUnlock()
	return ok && rights.Allowed(p, rights.NodesRead, tenant) == nil
}

func (a *API) shownInstance(p rights.Principal, i api.Instance) api.Instance {
	if (i.Node != "" || i.Devices != nil) && !a.sees(p, i.Cluster) {
		i.Node, i.Devices = "", nil
	}
	return i
}

func (a *API) shownEvent(p rights.Principal, e api.Event) api.Event {
	if strings.HasPrefix(e.Tier, "node ") && !a.sees(p, e.Cluster) {
		e.Tier = "node"
	}
	return e
}

// instanceKey sorts the tenth instance behind the second.
func instanceKey(i api.Instance) string {
	return fmt.Sprintf("%s#%010d", i.Service, i.Number)
}

func (a *API) listInstances(ctx context.Context, p rights.Principal, in *struct {
	ListInput
	Cluster api.ClusterID `query:"cluster" doc:"On this cluster alone."`
	State   api.State     `query:"state" doc:"In this state alone."`
},
) (*listOut[api.Instance], error) {
	t, err := tenantOf(p, rights.AppsRead, in.Tenant)
	if err != nil {
		return nil, err
	}
	var all []api.Instance
	var rev api.Revision
	if err := a.owner.Read(ctx, func() { all, rev = a.core.Instances(t), a.core.Revision() }); err != nil {
		return nil, err
	}
	out, err := listed("/v1/instances", &in.ListInput, rev, all,
		func(o api.Instance) bool {
			return within(string(o.ID), in.Under) && (in.Cluster == "" || o.Cluster == in.Cluster) &&
				(in.State == "" || o.State == in.State) && rights.Allowed(p, rights.AppsRead, o.ID.Tenant()) == nil
		}, instanceKey)
	if err != nil {
		return nil, err
	}
	for i := range out.Body.Items {
		out.Body.Items[i] = a.shownInstance(p, out.Body.Items[i])
	}
	return out, nil
}

// instance reads an instance that the principal may do the action on.
func (a *API) instance(ctx context.Context, p rights.Principal, action rights.Action, segment string) (api.Instance, error) {
	id := api.InstanceFromPath(segment)
	if err := rights.Allowed(p, action, id.Tenant()); err != nil {
		return api.Instance{}, err
	}
	var i api.Instance
	var ok bool
	if err := a.owner.Read(ctx, func() { i, ok = a.core.Instance(id) }); err != nil {
		return i, err
	}
	if !ok {
		return i, missing("instance", id)
	}
	return i, nil
}

func (a *API) getInstance(ctx context.Context, p rights.Principal, in *objectIn) (*objectOut[api.Instance], error) {
	i, err := a.instance(ctx, p, rights.AppsRead, in.ID)
	if err != nil {
		return nil, err
	}
	return object(a.shownInstance(p, i), i.Revision, in.IfNoneMatch), nil
}

type logsIn struct {
	ID     string `path:"id" doc:"The instance's id, with ~ for / and #."`
	Follow bool   `query:"follow" doc:"Go on as the workload writes."`
	Tail   int    `query:"tail" default:"-1" minimum:"-1" doc:"Lines from the end; -1 all that is kept."`
}

type streamOut struct {
	Body func(huma.Context)
}

func (a *API) logs(ctx context.Context, p rights.Principal, in *logsIn) (*streamOut, error) {
	i, err := a.instance(ctx, p, rights.AppsLogs, in.ID)
	if err != nil {
		return nil, err
	}
	if i.Cluster == "" {
		return nil, fmt.Errorf("logs of %s: it has not started: it is %s: %w", i.ID, i.Standing(), api.ErrConflict)
	}
	body, err := a.dial(ctx, i.Cluster, wire.StreamRequest{
		Kind: "logs", Instance: i.ID, Epoch: i.Epoch, Follow: in.Follow, Tail: in.Tail,
	})
	if err != nil {
		return nil, fmt.Errorf("logs of %s: %w", i.ID, err)
	}
	return &streamOut{func(hc huma.Context) {
		defer body.Close()
		_, w := humachi.Unwrap(hc)
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		a.grants.Offer(hc.Context(), w.Header(), asker(hc.Context()))
		a.pour(hc.Context(), w, body)
	}}, nil
}

// pour copies the stream to the client as it arrives, until either side ends. If
// the stream breaks or the user loses the right to read it, the answer is aborted,
// so that the client does not take it for complete.
func (a *API) pour(ctx context.Context, w http.ResponseWriter, body io.ReadCloser) {
	fairshare.Endures(ctx)
	rc := http.NewResponseController(w)
	w.WriteHeader(http.StatusOK)
	_ = rc.Flush()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with ctx, at the latest when pour returns
		select {
		case <-ctx.Done():
		case <-a.closing:
		}
		_ = body.Close()
	}()
	buf := make([]byte, 32<<10)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil || rc.Flush() != nil {
				return
			}
		}
		switch {
		case errors.Is(context.Cause(ctx), grant.ErrEnded):
			panic(http.ErrAbortHandler)
		case err == io.EOF, ctx.Err() != nil:
			return
		case err != nil:
			panic(http.ErrAbortHandler)
		}
	}
}
