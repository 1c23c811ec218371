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
	"github.com/treeline-edge/treeline/internal/access"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/grant"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

func (a *API) registerInstances() {
	instances := rest.Tag("instances")
	answer(a, instances.Get("/v1/instances/{id}/why", "Explain instance", 404).
		About("Why the instance is where it is, or nowhere, at both tiers. Nodes are named to users who may see them."), rights.AppsRead, a.why)
	answer(a, instances.Post("/v1/instances/{id}/move", "Move instance", 404, 409, 503, 504).About(access.AboutMove), rights.ClustersRead, a.move)
	handle(a, instances.Get("/v1/instances/{id}/logs", "Read logs", 404, 409, 503).
		About("The output of the workload, from its node: the node dials a stream out, and nothing is stored on the way.").
		Answers("The bytes as they come.", "text/plain", &huma.Schema{Type: "string"}), rights.AppsLogs, a.logs)
}

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

// instanceKey is a sort key that orders instance 10 after instance 2.
func instanceKey(i api.Instance) string {
	return fmt.Sprintf("%s#%010d", i.Service, i.Number)
}

func (a *API) listInstances(ctx context.Context, p rights.Principal, in *struct {
	ListInput
	Cluster api.ClusterID `query:"cluster" doc:"Only instances on this cluster."`
	State   api.State     `query:"state" doc:"Only instances in this state."`
},
) (*listOut[api.Instance], error) {
	out, err := list(ctx, a, p, &in.ListInput, listing[api.Instance]{
		path: "/v1/instances", action: rights.AppsRead, all: a.objects.Instances, key: instanceKey,
		tenant: func(o api.Instance) api.Tenant { return o.ID.Tenant() },
		id:     func(o api.Instance) string { return string(o.ID) },
		only: func(o api.Instance) bool {
			return (in.Cluster == "" || o.Cluster == in.Cluster) && (in.State == "" || o.State == in.State)
		},
	})
	if err != nil {
		return nil, err
	}
	for i, o := range out.Body.Items {
		out.Body.Items[i] = a.shownInstance(p, o)
	}
	return out, nil
}

// instance returns an instance on which the principal may do the action.
func (a *API) instance(ctx context.Context, p rights.Principal, action rights.Action, segment string) (api.Instance, error) {
	return read(ctx, a, p, action, "instance", api.InstanceFromPath(segment), a.objects.Instance)
}

func (a *API) getInstance(ctx context.Context, p rights.Principal, in *objectIn) (*objectOut[api.Instance], error) {
	i, err := a.instance(ctx, p, rights.AppsRead, in.ID)
	return object(a.shownInstance(p, i), i.Revision, in.IfNoneMatch), err
}

// move has an instance moved by its cluster, which checks the rights again and decides.
func (a *API) move(ctx context.Context, p rights.Principal, in *struct {
	ID   string `path:"id" doc:"The instance's id, with ~ for / and #."`
	Body api.MoveRequest
},
) (i api.Instance, err error) {
	id := api.InstanceFromPath(in.ID)
	owns := rights.Allowed(p, rights.AppsWrite, id.Tenant())
	ok := false
	if err := a.owner.Read(ctx, func() { i, ok = a.core.Instance(id) }); err != nil {
		return i, err
	}
	if owns != nil {
		if !ok || i.Cluster == "" {
			return i, owns
		}
		if _, err := a.cluster(ctx, p, rights.NodesWrite, i.Cluster); err != nil {
			return i, owns
		}
	}
	switch {
	case !ok:
		return i, missing("instance", id)
	case i.Cluster == "":
		return i, fmt.Errorf("move %s: it is on no node: it is %s; see treeline why: %w", id, i.Standing(), api.ErrConflict)
	case in.Body.To != "" && !a.sees(p, i.Cluster):
		return i, access.NoNodes(id)
	}
	record := root.Accessed{Instance: id, Text: access.DescribeMove(api.MoveRequest{}) + " by " + p.User, By: p.User} // tenants see no nodes
	if err := a.owner.Do(ctx, record, nil); err != nil {
		return i, fmt.Errorf("record the move of %s: %w", id, err)
	}
	var now api.Instance
	if err := a.ask(ctx, i.Cluster, http.MethodPost, "/v1/instances/"+api.PathOf(id)+"/move", in.Body, &now); err != nil {
		if p := (&api.Problem{}); errors.As(err, &p) && p.Status == http.StatusNotFound && strings.Contains(p.Detail, ": no such path: ") {
			return i, fmt.Errorf("move %s: cluster %s has an earlier release, which does not move instances by request: update it: %w", id, i.Cluster, api.ErrConflict)
		}
		return i, err
	}
	if api.ValidMachineName(string(now.Node)) { // the cluster's word counts for its nodes only
		i.Node = now.Node
	}
	if now.State != api.Running {
		i.State = api.NodeScheduled
	}
	return a.shownInstance(p, i), nil
}

type logsIn struct {
	ID string `path:"id" doc:"The instance's id, with ~ for / and #."`
	access.LogsIn
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
	r := in.Request(i.ID)
	r.Epoch = i.Epoch
	body, err := a.dial(ctx, i.Cluster, r)
	if err != nil {
		return nil, fmt.Errorf("logs of %s: %w", i.ID, err)
	}
	return a.stream("text/plain; charset=utf-8", body, body), nil
}

// stream returns an answer that copies body to the client and then closes conn, the connection of
// body.
func (a *API) stream(mediaType string, body io.Reader, conn io.Closer) *streamOut {
	return &streamOut{func(hc huma.Context) {
		defer conn.Close()
		_, w := humachi.Unwrap(hc)
		w.Header().Set("Content-Type", mediaType)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		a.grants.Offer(hc.Context(), w.Header(), authenticated(hc.Context()))
		a.copyStream(hc.Context(), w, body, conn)
	}}
}

// copyStream copies the stream to the client until either side ends. If the stream breaks or the
// user loses the right to read it, it aborts the answer, so that the client does not take it for
// complete.
func (a *API) copyStream(ctx context.Context, w http.ResponseWriter, body io.Reader, conn io.Closer) {
	fairshare.ReleasePlace(ctx)
	rc := http.NewResponseController(w)
	w.WriteHeader(http.StatusOK)
	_ = rc.Flush()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
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
