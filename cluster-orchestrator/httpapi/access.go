package httpapi

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/access"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/internal/streams"
	"github.com/treeline-edge/treeline/internal/wire"
)

func (a *API) registerAccess() {
	instances := rest.Tag("instances")
	answer(a, rest.Tag("events").Get("/v1/events", "List who reached instances through the cluster's own port, and who changed something").Named("listEvents"), "", a.events)
	errors := []int{404, 409, 503, 504}
	handle(a, instances.Get("/v1/instances/{id}/exec", "Run a process in an instance, over a WebSocket", errors...).Named("execInstance").About(access.AboutExec), "",
		func(ctx context.Context, p rights.Principal, in *access.ExecIn) (*streamOut, error) {
			return a.access(ctx, p, in.Upgrade, wire.StreamRequest{Kind: "exec", Instance: api.InstanceFromPath(in.ID), Exec: in.Exec()}, access.Describe(in.Exec()))
		})
	handle(a, instances.Get("/v1/instances/{id}/attach", "Follow the output of an instance, over a WebSocket", errors...).Named("attachInstance").About(access.AboutAttach), "",
		func(ctx context.Context, p rights.Principal, in *access.AttachIn) (*streamOut, error) {
			r := in.Request()
			r.Instance = api.InstanceFromPath(in.ID)
			return a.access(ctx, p, in.Upgrade, r, in.Describe())
		})
	handle(a, instances.Get("/v1/instances/{id}/portforward", "Connect to ports of an instance, over a WebSocket", errors...).Named("portForwardInstance").About(access.AboutForward), "",
		func(ctx context.Context, p rights.Principal, in *access.InstanceIn) (*streamOut, error) {
			return a.access(ctx, p, in.Upgrade, wire.StreamRequest{Kind: "portforward", Instance: api.InstanceFromPath(in.ID)}, "port-forward")
		})
}

// recordTime is how long the record of an end may take, after the request is over.
const recordTime = 10 * time.Second

// accessible returns an instance that runs.
func (a *API) accessible(ctx context.Context, r wire.StreamRequest) (i api.Instance, err error) {
	var ok bool
	if err := a.opt.Owner.Read(ctx, func() { i, ok = a.opt.Core.Instance(r.Instance) }); err != nil {
		return i, err
	}
	switch {
	case !ok:
		return i, fmt.Errorf("%s in %q: %w", r.Kind, r.Instance, api.ErrNotFound)
	case i.Node == "" || i.State != api.Running:
		return i, fmt.Errorf("%s in %s: it does not run: it is %s: %w", r.Kind, i.ID, i.Standing(), api.ErrConflict)
	}
	return i, nil
}

// events returns the records of access and changes through this API: all to the operator, and to others those of
// applications that they may see.
func (a *API) events(_ context.Context, p rights.Principal, _ *rest.None) (api.Page[api.Event], error) {
	if p.User == "" {
		return api.Page[api.Event]{}, fmt.Errorf("list events: sign in first: %w", api.ErrUnauthenticated)
	}
	at := a.watches.Newest() // before the list, which may have later ones
	return page(at, slices.DeleteFunc(a.opt.Audit.List(), func(e api.Event) bool { return !a.seesEvent(p, e) }), nil)
}

func (a *API) seesEvent(p rights.Principal, e api.Event) bool {
	return a.seesTenant(p, e.Tenant) == nil
}

// access serves a stream to a workload for a user of this API, and records its begin and its result.
// Without the record of the begin there is no access. The root records the streams that it requests.
func (a *API) access(ctx context.Context, p rights.Principal, u access.Upgrade, r wire.StreamRequest, what string) (*streamOut, error) {
	if err := rights.Allowed(p, rights.AppsExec, r.Instance.Tenant()); err != nil {
		return nil, err
	}
	if err := u.Check(); err != nil {
		return nil, err
	}
	i, err := a.accessible(ctx, r)
	if err != nil {
		return nil, err
	}
	return a.serve(ctx, p, r, what, func(ctx context.Context, text string, first bool) error {
		return a.opt.Audit.Record(ctx, i, p.User, text, first)
	})
}

// serve serves a stream, and records its begin and its result.
func (a *API) serve(ctx context.Context, p rights.Principal, r wire.StreamRequest, what string, note func(_ context.Context, text string, first bool) error) (*streamOut, error) {
	what += " by " + p.User
	if err := note(ctx, what, true); err != nil {
		return nil, fmt.Errorf("record %s of %s: %w", r.Kind, r.Instance, err)
	}
	record := func(result string) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
		defer cancel()
		if err := note(ctx, what+" "+result, false); err != nil {
			a.opt.Log.Warn("end of access not recorded", "instance", r.Instance, "what", what, "result", result, "err", err)
		}
	}
	r.For = streams.For(p.Tenant, p.User)
	stream, err := a.openAccess(ctx, p, r)
	if err != nil {
		record("failed: " + err.Error())
		a.opt.Log.Info("access refused", "what", what, "instance", r.Instance, "by", p.User, "err", err)
		return nil, err
	}
	return &streamOut{func(hc huma.Context) {
		fairshare.ReleasePlace(hc.Context())
		req, w := humachi.Unwrap(hc)
		a.grants.Offer(hc.Context(), w.Header(), principalOf(hc.Context()))
		result := access.Serve(hc.Context(), w, req, stream)
		record(result.String())
	}}, nil
}

// openAccess requests a stream to a workload or volume from its node, if p may use it.
func (a *API) openAccess(ctx context.Context, p rights.Principal, r wire.StreamRequest) (io.ReadWriteCloser, error) {
	if err := rights.Allowed(p, rights.AppsExec, r.Instance.Tenant()); err != nil {
		return nil, err
	}
	switch r.Kind {
	case "snapshot", "restore":
		return a.openVolume(ctx, r)
	case "exec", "attach", "portforward":
	default: // those of moves are between the cluster and its nodes only
		return nil, fmt.Errorf("access of kind %.32q: want exec, attach, portforward, snapshot or restore: %w", r.Kind, api.ErrInvalid)
	}
	if r.Kind == "exec" {
		if r.Exec == nil {
			r.Exec = &api.Exec{}
		}
		if err := r.Exec.Validate(); err != nil {
			return nil, fmt.Errorf("exec in %s: %w", r.Instance, err)
		}
	}
	i, err := a.accessible(ctx, r)
	if err != nil {
		return nil, err
	}
	r.Epoch, r.Token = i.Epoch, ""
	stream, err := a.opt.Nodes.Connect(ctx, i.Node, r)
	if err != nil {
		return nil, fmt.Errorf("%s in %s: %w", r.Kind, i.ID, err)
	}
	return stream, nil
}

// AccessFromRoot opens a stream to a workload for a request of the root, whose token is valid once and
// for r only. The stream ends when the token is revoked.
func (a *API) AccessFromRoot(ctx context.Context, r wire.StreamRequest) (streams.Serve, error) {
	held, p, release, err := a.holdOnce(ctx, r)
	if err != nil {
		return nil, err
	}
	stream, err := a.openAccess(held, p, r)
	if err != nil {
		release()
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = stream.Close(); release() }) // also if the root does not take the stream
	return func(_ context.Context, conn *streams.Conn) error {
		return streams.Splice(held, stream, conn, nil, func(err error) {
			if err != nil {
				conn.Abort(err)
			} else {
				_ = conn.CloseWrite()
			}
		})
	}, nil
}
