package httpapi

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/access"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// recordTime is how long the record of an end may take, after the request is over.
const recordTime = 10 * time.Second

func (a *API) registerAccess() {
	instances := rest.Tag("instances")
	errors := []int{404, 409, 503, 504}
	handle(a, instances.Get("/v1/instances/{id}/exec", "Exec in instance", errors...).
		About(access.AboutExec),
		rights.AppsExec, func(ctx context.Context, p rights.Principal, in *access.ExecIn) (*streamOut, error) {
			return a.access(ctx, p, in.Upgrade, in.ID, wire.StreamRequest{Kind: "exec", Exec: in.Exec()}, access.Describe(in.Exec()))
		})
	handle(a, instances.Get("/v1/instances/{id}/attach", "Attach to instance", errors...).
		About(access.AboutAttach),
		rights.AppsExec, func(ctx context.Context, p rights.Principal, in *access.AttachIn) (*streamOut, error) {
			return a.access(ctx, p, in.Upgrade, in.ID, in.Request(), in.Describe())
		})
	handle(a, instances.Get("/v1/instances/{id}/portforward", "Forward ports of instance", errors...).
		About(access.AboutForward),
		rights.AppsExec, func(ctx context.Context, p rights.Principal, in *access.InstanceIn) (*streamOut, error) {
			return a.access(ctx, p, in.Upgrade, in.ID, wire.StreamRequest{Kind: "portforward"}, "port-forward")
		})
}

// access serves a stream to a workload, and records its begin and its result in the event log. Without
// the record of the begin there is no access.
func (a *API) access(ctx context.Context, p rights.Principal, u access.Upgrade, segment string, r wire.StreamRequest, what string) (*streamOut, error) {
	i, err := a.instance(ctx, p, rights.AppsExec, segment)
	if err == nil {
		err = u.Check()
	}
	if err != nil {
		return nil, err
	}
	if i.Cluster == "" || i.State != api.Running {
		return nil, fmt.Errorf("%s in %s: it does not run: it is %s: %w", r.Kind, i.ID, i.Standing(), api.ErrConflict)
	}
	if r.Kind == "exec" {
		if err := r.Exec.Validate(); err != nil {
			return nil, fmt.Errorf("exec in %s: %w", i.ID, err)
		}
	}
	r.Instance, r.Epoch = i.ID, i.Epoch
	return a.serve(ctx, p, i.Cluster, r, what, func(text string) root.Input { return root.Accessed{Instance: i.ID, Text: text, By: p.User} })
}

// serve serves a stream of a cluster, and records its begin and its result.
func (a *API) serve(ctx context.Context, p rights.Principal, at api.ClusterID, r wire.StreamRequest, what string, note func(text string) root.Input) (*streamOut, error) {
	what += " by " + p.User
	if err := a.owner.Do(ctx, note(what), nil); err != nil {
		return nil, fmt.Errorf("record %s of %s: %w", r.Kind, r.Instance, err)
	}
	record := func(result string) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
		defer cancel()
		if err := a.owner.Do(ctx, note(what+" "+result), nil); err != nil {
			a.opt.Log.Warn("end of access not recorded", "instance", r.Instance, "what", what, "result", result, "err", err)
		}
	}
	r, err := a.delegate(ctx, at, r)
	var stream io.ReadWriteCloser
	if err == nil {
		stream, err = a.opt.Clusters.Connect(ctx, at, r)
	}
	if err != nil {
		record("failed: " + err.Error())
		return nil, fmt.Errorf("%s of %s: %w", r.Kind, r.Instance, err)
	}
	return &streamOut{func(hc huma.Context) {
		fairshare.ReleasePlace(hc.Context())
		req, w := humachi.Unwrap(hc)
		a.grants.Offer(hc.Context(), w.Header(), authenticated(hc.Context()))
		record(access.Serve(hc.Context(), w, req, stream).String())
	}}, nil
}
