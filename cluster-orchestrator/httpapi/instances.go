package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/grant"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/streams"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

type instanceIn struct {
	ID string `path:"id" maxLength:"512" doc:"The instance's id, with ~ for / and #."`
}

type logsIn struct {
	ID     string `path:"id" maxLength:"512" doc:"The instance's id, with ~ for / and #."`
	Follow bool   `query:"follow" doc:"Go on as the workload writes."`
	Tail   int    `query:"tail" default:"-1" minimum:"-1" doc:"Lines from the end; -1 all that is kept."`
}

type scaleIn struct {
	ID   string `path:"id" maxLength:"512" doc:"The service's id, with ~ for /."`
	Body api.Replicas
}

func (a *API) registerInstances() {
	tags := []string{"instances"}
	handle(a, huma.Operation{OperationID: "listInstances", Method: http.MethodGet, Path: "/v1/instances", Summary: "List instances", Tags: tags}, a.instances)
	handle(a, huma.Operation{OperationID: "getInstance", Method: http.MethodGet, Path: "/v1/instances/{id}", Summary: "Show an instance", Tags: tags, Errors: []int{404}}, a.instance)
	handle(a, huma.Operation{OperationID: "whyInstance", Method: http.MethodGet, Path: "/v1/instances/{id}/why", Summary: "Explain, node by node, where an instance could be placed now", Tags: tags, Errors: []int{404}}, a.why)
	handle(a, huma.Operation{OperationID: "why", Method: http.MethodPost, Path: "/v1/why", Summary: "Explain, node by node, where an instance that is not here could be placed now", Tags: tags}, a.whyOf)
	handle(a, huma.Operation{OperationID: "plan", Method: http.MethodPost, Path: "/v1/plan", Summary: "Say which nodes instances would get that are not here, one after the other", Tags: tags, MaxBodyBytes: maxPlanBody, Errors: []int{413, 429}, Middlewares: huma.Middlewares{a.planTurn}}, a.plan)
	handle(a, huma.Operation{OperationID: "instanceLogs", Method: http.MethodGet, Path: "/v1/instances/{id}/logs", Summary: "Stream what an instance writes", Tags: tags, Errors: []int{404, 409, 503, 504}}, a.logs)
	handle(a, huma.Operation{OperationID: "scaleService", Method: http.MethodPost, Path: "/v1/services/{id}/scale", Summary: "Scale a service here, while the root is away", Tags: tags, Errors: []int{404, 409}}, a.scale)
}

// sees reports whether p may see the instance: the operator of its node may, and those who
// may see the application.
func (a *API) sees(p rights.Principal, id api.InstanceID) error {
	if err := a.allowed(p, rights.NodesRead); err == nil || errors.Is(err, api.ErrUnauthenticated) {
		return err
	}
	return rights.Allowed(p, rights.AppsRead, id.Tenant())
}

func (a *API) instances(ctx context.Context, p rights.Principal, _ *none) (*body[api.Page[api.Instance]], error) {
	if p.User == "" {
		return nil, fmt.Errorf("list instances: sign in first: %w", api.ErrUnauthenticated)
	}
	var all []api.Instance
	if err := a.opt.Owner.Read(ctx, func() { all = a.opt.Core.Instances() }); err != nil {
		return nil, err
	}
	out := api.Page[api.Instance]{Items: []api.Instance{}}
	for _, i := range all {
		if a.sees(p, i.ID) == nil {
			out.Items = append(out.Items, a.shown(p, i))
		}
	}
	return &body[api.Page[api.Instance]]{out}, nil
}

// shown returns the instance as p may see it: only the operator sees nodes.
func (a *API) shown(p rights.Principal, i api.Instance) api.Instance {
	if a.allowed(p, rights.NodesRead) != nil {
		i.Node, i.Devices = "", nil
	}
	return i
}

// find returns the instance, if p may see it.
func (a *API) find(ctx context.Context, p rights.Principal, segment string) (i api.Instance, err error) {
	id := api.InstanceFromPath(segment)
	if err := a.sees(p, id); err != nil {
		return i, err
	}
	var ok bool
	if err := a.opt.Owner.Read(ctx, func() { i, ok = a.opt.Core.Instance(id) }); err != nil {
		return i, err
	}
	if !ok {
		return i, fmt.Errorf("instance %q: %w", id, api.ErrNotFound)
	}
	return i, nil
}

func (a *API) instance(ctx context.Context, p rights.Principal, in *instanceIn) (*body[api.Instance], error) {
	i, err := a.find(ctx, p, in.ID)
	return &body[api.Instance]{a.shown(p, i)}, err
}

func (a *API) why(ctx context.Context, p rights.Principal, in *instanceIn) (*body[api.Explanation], error) {
	i, err := a.find(ctx, p, in.ID)
	if err != nil {
		return nil, err
	}
	var why api.Explanation
	var ok bool
	if err := a.opt.Owner.Read(ctx, func() { why, ok = a.opt.Core.Why(i.ID) }); err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("instance %q: %w", i.ID, api.ErrNotFound)
	}
	if a.allowed(p, rights.NodesRead) != nil {
		why = sched.Redact(why)
	}
	return &body[api.Explanation]{why}, nil
}

func (a *API) whyOf(ctx context.Context, p rights.Principal, in *body[api.WhyRequest]) (*body[api.Explanation], error) {
	if err := a.allowed(p, rights.NodesRead); err != nil {
		return nil, err
	}
	var why api.Explanation
	err := a.opt.Owner.Read(ctx, func() { why = a.opt.Core.WhyOf(in.Body) })
	return &body[api.Explanation]{why}, err
}

// plan returns where instances that the cluster does not have would be placed. Those who may
// see the application may ask; only the operator sees nodes.
func (a *API) plan(ctx context.Context, p rights.Principal, in *body[api.ClusterPlanRequest]) (*body[api.ClusterPlan], error) {
	if n := len(in.Body.Instances); n > maxPlan {
		return nil, fmt.Errorf("plan %d instances: at most %d at once: %w", n, maxPlan, api.ErrTooLarge)
	}
	for _, i := range in.Body.Instances {
		if err := a.sees(p, i.Instance); err != nil {
			return nil, err
		}
	}
	var out api.ClusterPlan
	if err := a.opt.Owner.Read(ctx, func() { out = a.opt.Core.Plan(in.Body) }); err != nil {
		return nil, err
	}
	if a.allowed(p, rights.NodesRead) != nil {
		for i := range out.Instances {
			v := &out.Instances[i]
			all := len(v.MakeWay)
			v.MakeWay = slices.DeleteFunc(v.MakeWay, func(id api.InstanceID) bool { return a.sees(p, id) != nil })
			v.Others = all - len(v.MakeWay)
			if v.Node = ""; v.Why != nil {
				redacted := sched.Redact(*v.Why)
				v.Why = &redacted
			}
		}
	}
	return &body[api.ClusterPlan]{out}, nil
}

func (a *API) scale(ctx context.Context, p rights.Principal, in *scaleIn) (*none, error) {
	id := api.ServiceID(api.FromPath(in.ID))
	if err := a.allowed(p, rights.ClustersWrite); err != nil {
		if err := rights.Allowed(p, rights.AppsWrite, id.Tenant()); err != nil {
			return nil, err
		}
	}
	if err := a.opt.Owner.Do(ctx, cluster.LocalScale{Service: id, Replicas: in.Body.Replicas}, nil); err != nil {
		return nil, fmt.Errorf("scale %q here: %w", id, err)
	}
	a.opt.Log.Info("service scaled locally", "service", id, "replicas", in.Body.Replicas, "by", p.User)
	return &none{}, nil
}

type streamOut struct {
	Body func(huma.Context)
}

func (a *API) logs(ctx context.Context, p rights.Principal, in *logsIn) (*streamOut, error) {
	from, err := a.OpenLogs(ctx, p, wire.StreamRequest{
		Kind: "logs", Instance: api.InstanceFromPath(in.ID), Follow: in.Follow, Tail: in.Tail, For: streams.For(p.Tenant, p.User),
	})
	if err != nil {
		return nil, err
	}
	return &streamOut{func(hc huma.Context) {
		defer from.Close()
		fairshare.Endures(hc.Context())
		_, w := humachi.Unwrap(hc)
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		defer context.AfterFunc(hc.Context(), func() { _ = from.Close() })()
		a.grants.Offer(hc.Context(), w.Header(), principalOf(hc.Context()))
		pour(hc.Context(), w, from)
	}}, nil
}

// OpenLogs has the instance's node dial out its logs, if p may read them. The caller closes
// the stream, from any goroutine.
func (a *API) OpenLogs(ctx context.Context, p rights.Principal, r wire.StreamRequest) (io.ReadCloser, error) {
	if err := rights.Allowed(p, rights.AppsLogs, r.Instance.Tenant()); err != nil {
		return nil, err
	}
	var i api.Instance
	var ok bool
	if err := a.opt.Owner.Read(ctx, func() { i, ok = a.opt.Core.Instance(r.Instance) }); err != nil {
		return nil, err
	}
	switch {
	case !ok:
		return nil, fmt.Errorf("logs of %q: %w", r.Instance, api.ErrNotFound)
	case i.Node == "":
		return nil, fmt.Errorf("logs of %s: it has not started: it is %s and on no node: %w", i.ID, i.Standing(), api.ErrConflict)
	}
	r.Epoch, r.Token = i.Epoch, ""
	from, err := a.opt.Nodes.Stream(ctx, i.Node, r)
	if err != nil {
		if errors.Is(err, api.ErrNotFound) { // the runtime has no logs of it
			return nil, fmt.Errorf("logs of %s: it has not started, or nothing of it is left: it is %s: %w", i.ID, i.Standing(), api.ErrConflict)
		}
		return nil, fmt.Errorf("logs of %s: %w", i.ID, err)
	}
	return from, nil
}

// LogsFromRoot is OpenLogs for a request of the root, whose token is valid once and for r
// alone. The stream ends when the token is revoked.
func (a *API) LogsFromRoot(ctx context.Context, r wire.StreamRequest) (io.ReadCloser, error) {
	c, err := a.opt.Spend(r.Token, r.CallObject())
	if err != nil {
		return nil, err
	}
	ctx, release, err := a.grants.Hold(ctx, c.Life, c.Good)
	if err != nil {
		return nil, err
	}
	from, err := a.OpenLogs(ctx, c.Principal, r)
	if err != nil {
		release()
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = from.Close() })
	return &granted{from, ctx, func() { stop(); release() }}, nil
}

// granted is a stream whose reads fail once its token is revoked.
type granted struct {
	io.ReadCloser
	ctx  context.Context
	over func()
}

// Read implements io.Reader.
func (g *granted) Read(b []byte) (int, error) {
	n, err := g.ReadCloser.Read(b)
	if cause := context.Cause(g.ctx); err != nil && errors.Is(cause, grant.ErrEnded) {
		err = cause // not io.EOF: the log has not ended
	}
	return n, err
}

// Close implements io.Closer.
func (g *granted) Close() error {
	g.over()
	return g.ReadCloser.Close()
}

// pour copies the stream to the client as it arrives, until either side ends. If the stream
// breaks or its token is revoked, pour aborts the answer, so that the client does not take
// it for complete.
func pour(ctx context.Context, w http.ResponseWriter, from io.Reader) {
	rc := http.NewResponseController(w)
	w.WriteHeader(http.StatusOK)
	_ = rc.Flush()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return
			}
			_ = rc.Flush()
		}
		switch {
		case errors.Is(context.Cause(ctx), grant.ErrEnded):
			panic(http.ErrAbortHandler)
		case err == io.EOF:
			return
		case err != nil:
			panic(http.ErrAbortHandler)
		}
	}
}
