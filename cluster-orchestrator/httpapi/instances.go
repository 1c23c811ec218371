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
	"github.com/treeline-edge/treeline/internal/access"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/grant"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/internal/streams"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

type instanceIn struct {
	ID string `path:"id" maxLength:"512" doc:"The instance's id, with ~ for / and #."`
}

type logsIn struct {
	ID string `path:"id" maxLength:"512" doc:"The instance's id, with ~ for / and #."`
	access.LogsIn
}

type moveIn struct {
	ID   string `path:"id" maxLength:"512" doc:"The instance's id, with ~ for / and #."`
	Body api.MoveRequest
}

type scaleIn struct {
	ID   string `path:"id" maxLength:"512" doc:"The service's id, with ~ for /."`
	Body api.Replicas
}

func (a *API) registerInstances() {
	tag := rest.Tag("instances")
	answer(a, tag.Get("/v1/instances", "List instances").Named("listInstances"), "", a.instances)
	answer(a, tag.Get("/v1/instances/{id}", "Show an instance", 404).Named("getInstance"), "", a.instance)
	answer(a, tag.Get("/v1/instances/{id}/why", "Explain, node by node, where an instance could be placed now", 404).Named("whyInstance"), "", a.why)
	why := tag.Post("/v1/why", "Explain, node by node, where an instance that is not here could be placed now")
	answer(a, why.Named("why"), rights.NodesRead, a.whyOf)
	plan := tag.Post("/v1/plan", "Plan on which nodes instances that are not here would be placed, one after the other", 413, 429)
	plan.MaxBodyBytes, plan.Middlewares = maxPlanBody, huma.Middlewares{a.planTurn}
	answer(a, plan.Named("plan"), "", a.plan)
	handle(a, tag.Get("/v1/instances/{id}/logs", "Stream the output of an instance", 404, 409, 503, 504).Named("instanceLogs").
		Answers("The bytes as they come.", "text/plain", &huma.Schema{Type: "string"}), "", a.logs)
	answer(a, tag.Post("/v1/instances/{id}/move", "Move an instance to another node", 404, 409).Named("moveInstance").About(access.AboutMove), "", a.move)
	latency := tag.Get("/v1/apps/{id}/latency", "Show the round trips of the latency links of an application's instances here")
	answer(a, latency.Named("appLatency"), "", a.latencies)
	scale := tag.Post("/v1/services/{id}/scale", "Scale a service in this cluster, while the root is unreachable", 404, 409)
	act(a, scale.Named("scaleService"), "", a.scale)
}

// sees returns an error unless p may see the instance. The cluster's operator may, and those
// who may see the application.
func (a *API) sees(p rights.Principal, id api.InstanceID) error { return a.seesTenant(p, id.Tenant()) }

// seesTenant is sees for all instances of a tenant.
func (a *API) seesTenant(p rights.Principal, t api.Tenant) error {
	if err := a.allowed(p, rights.NodesRead); err == nil || errors.Is(err, api.ErrUnauthenticated) {
		return err
	}
	return rights.Allowed(p, rights.AppsRead, t)
}

func (a *API) instances(ctx context.Context, p rights.Principal, _ *rest.None) (api.Page[api.Instance], error) {
	if p.User == "" {
		return api.Page[api.Instance]{}, fmt.Errorf("list instances: sign in first: %w", api.ErrUnauthenticated)
	}
	at, all, err := readAll(ctx, a, a.opt.Core.Instances)
	var seen []api.Instance
	for _, i := range all {
		if a.sees(p, i.ID) == nil {
			seen = append(seen, a.shown(p, i))
		}
	}
	return page(at, seen, err)
}

// shown removes from the instance what p may not see: only the operator sees nodes.
func (a *API) shown(p rights.Principal, i api.Instance) api.Instance {
	if a.allowed(p, rights.NodesRead) != nil {
		i.Node, i.Devices = "", nil
	}
	return i
}

// find returns the instance if p may see it.
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

func (a *API) instance(ctx context.Context, p rights.Principal, in *instanceIn) (api.Instance, error) {
	i, err := a.find(ctx, p, in.ID)
	return a.shown(p, i), err
}

func (a *API) why(ctx context.Context, p rights.Principal, in *instanceIn) (why api.Explanation, err error) {
	i, err := a.find(ctx, p, in.ID)
	if err != nil {
		return why, err
	}
	ok := false
	err = a.opt.Owner.Read(ctx, func() { why, ok = a.opt.Core.Why(i.ID) })
	if err == nil && !ok {
		err = fmt.Errorf("instance %q: %w", i.ID, api.ErrNotFound)
	}
	if a.allowed(p, rights.NodesRead) != nil {
		why = sched.Redact(why)
	}
	return why, err
}

// move moves an instance. The operator may do so, and those who may change the application; who names a node must be
// allowed to see nodes.
func (a *API) move(ctx context.Context, p rights.Principal, in *moveIn) (i api.Instance, err error) {
	id := api.InstanceFromPath(in.ID)
	if err := a.allowed(p, rights.NodesWrite); err != nil {
		if err := rights.Allowed(p, rights.AppsWrite, id.Tenant()); err != nil {
			return i, err
		}
	}
	if in.Body.To != "" {
		if err := a.allowed(p, rights.NodesRead); err != nil {
			return i, access.NoNodes(id)
		}
	}
	if i, err = a.find(ctx, p, in.ID); err != nil {
		return i, err
	}
	if err := a.opt.Audit.Record(ctx, i, p.User, access.DescribeMove(in.Body)+" by "+p.User, false); err != nil {
		return i, fmt.Errorf("record the move of %s: %w", id, err)
	}
	if err := a.opt.Owner.Do(ctx, cluster.MoveInstance{Instance: id, To: in.Body.To}, func() { i, _ = a.opt.Core.Instance(id) }); err != nil {
		return i, err
	}
	a.opt.Log.Info("move requested", "instance", id, "to", in.Body.To, "by", p.User)
	return a.shown(p, i), nil
}

func (a *API) latencies(ctx context.Context, p rights.Principal, in *struct {
	ID string `path:"id" maxLength:"512" doc:"The application's id, with ~ for /."`
},
) (out api.ClusterLatencies, err error) {
	id := api.AppID(api.FromPath(in.ID))
	if err := a.seesTenant(p, id.Tenant()); err != nil {
		return out, err
	}
	out.Links, err = read(ctx, a, func() []api.LinkStatus { return a.opt.Core.Latencies(id) })
	return out, err
}

func (a *API) whyOf(ctx context.Context, _ rights.Principal, in *rest.Body[api.WhyRequest]) (api.Explanation, error) {
	return read(ctx, a, func() api.Explanation { return a.opt.Core.WhyOf(in.Body) })
}

// plan returns where instances would be placed. The caller must be allowed to see their
// applications; only the operator sees nodes.
func (a *API) plan(ctx context.Context, p rights.Principal, in *rest.Body[api.ClusterPlanRequest]) (out api.ClusterPlan, err error) {
	if n := len(in.Body.Instances); n > maxPlan {
		return out, fmt.Errorf("plan %d instances: at most %d at once: %w", n, maxPlan, api.ErrTooLarge)
	}
	for _, i := range in.Body.Instances {
		if err := a.sees(p, i.Instance); err != nil {
			return out, err
		}
	}
	out, err = read(ctx, a, func() api.ClusterPlan { return a.opt.Core.Plan(in.Body) })
	if a.allowed(p, rights.NodesRead) != nil {
		for i := range out.Instances {
			v := &out.Instances[i]
			all := len(v.Preempted)
			v.Preempted = slices.DeleteFunc(v.Preempted, func(id api.InstanceID) bool { return a.sees(p, id) != nil })
			v.Others = all - len(v.Preempted)
			if v.Node = ""; v.Why != nil {
				redacted := sched.Redact(*v.Why)
				v.Why = &redacted
			}
		}
	}
	return out, err
}

func (a *API) scale(ctx context.Context, p rights.Principal, in *scaleIn) error {
	id := api.ServiceID(api.FromPath(in.ID))
	if err := a.allowed(p, rights.ClustersWrite); err != nil {
		if err := rights.Allowed(p, rights.AppsWrite, id.Tenant()); err != nil {
			return err
		}
	}
	if err := a.opt.Owner.Do(ctx, cluster.LocalScale{Service: id, Replicas: in.Body.Replicas}, nil); err != nil {
		return fmt.Errorf("scale %q in the cluster: %w", id, err)
	}
	a.opt.Log.Info("service scaled locally", "service", id, "replicas", in.Body.Replicas, "by", p.User)
	return nil
}

type streamOut struct {
	Body func(huma.Context)
}

func (a *API) logs(ctx context.Context, p rights.Principal, in *logsIn) (*streamOut, error) {
	r := in.Request(api.InstanceFromPath(in.ID))
	r.For = streams.For(p.Tenant, p.User)
	from, err := a.OpenLogs(ctx, p, r)
	if err != nil {
		return nil, err
	}
	return a.streamed(from, "text/plain; charset=utf-8"), nil
}

// streamed responds with a stream until either side ends, and then closes it.
func (a *API) streamed(from io.ReadCloser, contentType string) *streamOut {
	return &streamOut{func(hc huma.Context) {
		defer from.Close()
		fairshare.ReleasePlace(hc.Context())
		_, w := humachi.Unwrap(hc)
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		defer context.AfterFunc(hc.Context(), func() { _ = from.Close() })()
		a.grants.Offer(hc.Context(), w.Header(), principalOf(hc.Context()))
		pour(hc.Context(), w, from)
	}}
}

// OpenLogs requests the logs of an instance from its node, if p may read them. The caller must
// close the stream, from any goroutine.
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
		if errors.Is(err, api.ErrNotFound) && r.Lines != nil && r.Lines.Previous {
			return nil, fmt.Errorf("logs of %s: %w", i.ID, err)
		}
		if errors.Is(err, api.ErrNotFound) { // the runtime has no logs of it
			return nil, fmt.Errorf("logs of %s: it has not started, or nothing of it is left: it is %s: %w", i.ID, i.Standing(), api.ErrConflict)
		}
		return nil, fmt.Errorf("logs of %s: %w", i.ID, err)
	}
	return from, nil
}

// holdOnce checks the token of a stream that the root requests, which is valid once and for r only. The
// context ends when the token is revoked. The caller releases it.
func (a *API) holdOnce(ctx context.Context, r wire.StreamRequest) (context.Context, rights.Principal, func(), error) {
	c, err := a.opt.AuthenticateOnce(r.Token, r.CallObject())
	if err != nil {
		return nil, rights.Principal{}, nil, err
	}
	ctx, release, err := a.grants.Hold(ctx, c.Life, c.Good)
	return ctx, c.Principal, release, err
}

// LogsFromRoot is OpenLogs for a request of the root, whose token is valid once and for r
// only. The stream ends when the token is revoked.
func (a *API) LogsFromRoot(ctx context.Context, r wire.StreamRequest) (io.ReadCloser, error) {
	ctx, p, release, err := a.holdOnce(ctx, r)
	if err != nil {
		return nil, err
	}
	from, err := a.OpenLogs(ctx, p, r)
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
		err = cause // not io.EOF, because the log has not ended
	}
	return n, err
}

// Close implements io.Closer.
func (g *granted) Close() error {
	g.over()
	return g.ReadCloser.Close()
}

// pour copies the stream to the client as it arrives, until either side ends. If the stream
// breaks or its token is revoked, pour aborts the response, so that the client does not
// regard it as complete.
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
