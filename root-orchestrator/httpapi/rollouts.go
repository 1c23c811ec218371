package httpapi

import (
	"context"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

func (a *API) registerRollOuts() {
	rollouts := rest.Tag("rollouts")
	answer(a, rollouts.Get("/v1/services/{id}/rollout", "Get rollout", 404).
		About("The newest roll-out of the service: its state, its counts and what it waits for."), rights.AppsRead, a.getRollOut)
	for _, r := range []struct {
		action      root.RollOutAction
		name, about string
	}{
		{root.PauseRollOut, "Pause rollout", "Replaces no further instance until it is resumed or a newer version is applied."},
		{root.ResumeRollOut, "Resume rollout", "Continues a roll-out that was paused or has failed, with a new deadline."},
		{root.PromoteRollOut, "Promote rollout", "Continues beyond the canaries, once they are healthy."},
	} {
		answer(a, rollouts.Post("/v1/services/{id}/rollout/"+string(r.action), r.name, 404, 409).About(r.about), rights.AppsWrite,
			func(ctx context.Context, p rights.Principal, in *ServiceInput) (api.RollOut, error) {
				return a.actOnRollOut(ctx, p, root.RollOut{Service: in.service(), Action: r.action, By: p.User})
			})
	}
	answer(a, rollouts.Post("/v1/services/{id}/rollout/undo", "Undo rollout", 404, 409).
		About("Applies an earlier version of the service: one of its history, or without a version the last healthy one."), rights.AppsWrite, a.undoRollOut)
}

// ServiceInput is the input of an operation on a service.
type ServiceInput struct {
	ID string `path:"id" doc:"The service's id, with ~ for /."`
}

func (in ServiceInput) service() api.ServiceID { return api.ServiceID(api.FromPath(in.ID)) }

func (a *API) getRollOut(ctx context.Context, p rights.Principal, in *ServiceInput) (api.RollOut, error) {
	return read(ctx, a, p, rights.AppsRead, "service", in.service(), a.core.RollOut)
}

func (a *API) rollOutHistory(ctx context.Context, p rights.Principal, in *ServiceInput) (api.RollOutHistory, error) {
	return read(ctx, a, p, rights.AppsRead, "service", in.service(), a.objects.RollOutHistory)
}

func (a *API) undoRollOut(ctx context.Context, p rights.Principal, in *struct {
	ServiceInput
	Body api.Undo
},
) (api.RollOut, error) {
	return a.actOnRollOut(ctx, p, root.RollOut{Service: in.service(), Action: root.UndoRollOut, To: in.Body.To, By: p.User})
}

func (a *API) actOnRollOut(ctx context.Context, p rights.Principal, in root.RollOut) (out api.RollOut, err error) {
	if err := rights.Allowed(p, rights.AppsWrite, in.Service.Tenant()); err != nil {
		return out, err
	}
	err = a.owner.Do(ctx, in, func() { out, _ = a.core.RollOut(in.Service) })
	return out, err
}
