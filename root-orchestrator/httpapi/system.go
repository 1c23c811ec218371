package httpapi

import (
	"context"
	"fmt"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/internal/snapshot"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

func (a *API) registerSystem() {
	op := rest.Tag("system").Post("/v1/system/snapshot", "Take a snapshot of the root", 409, 503, 507).Named("takeSnapshot").
		About("All documents of the store and the keys, as of one moment, encrypted with age. For admins of the system. With a personal token, only recipients of the root's configuration are accepted.").
		Answers("The snapshot.", snapshot.MediaType, &huma.Schema{Type: huma.TypeString, Format: "binary"})
	handle(a, op, rights.SystemWrite, a.takeSnapshot)
	answer(a, rest.Tag("system").Get("/v1/system/snapshot/schedule", "Get the scheduled snapshots").Named("getSnapshotSchedule").
		About("The schedule in the root's configuration, and what was taken by it. Without cron, there is none."), rights.SystemRead,
		func(context.Context, rights.Principal, *rest.None) (api.SnapshotSchedule, error) {
			return a.opt.Scheduled.Status(), nil
		})
	act(a, rest.Tag("system").Post("/v1/system/snapshot/schedule", "Take a scheduled snapshot now", 409, 503, 507).Named("takeScheduledSnapshot").
		About("It goes to the place and the recipients of the root's configuration. The answer comes when it is written and was read again."), rights.SystemWrite,
		func(ctx context.Context, _ rights.Principal, _ *rest.None) error { return a.opt.Scheduled.Take(ctx) })
	answer(a, rest.Tag("system").Get("/v1/system/restore", "Get the state after a restore").Named("getRestore").
		About("After a restore from a snapshot, clusters keep what they run and get no assignments until an admin accepts it. Unknown has the instances that stop then: apply their SLAs before to keep their services."),
		rights.SystemRead, a.restoreState)
	act(a, rest.Tag("system").Post("/v1/system/restore", "Accept a restore", 409).Named("acceptRestore").
		About("Clusters get assignments again, and stop the instances that the root has no record of."), rights.SystemWrite, a.acceptRestore)
	answer(a, rest.Tag("system").Get("/v1/system/keys", "List the keys that sign tokens").Named("listSigningKeys").
		About("The newest first. A new key only verifies at first, so that clusters know it when it signs."), rights.SystemRead,
		func(context.Context, rights.Principal, *rest.None) (api.Page[api.SigningKey], error) {
			return api.Page[api.SigningKey]{Items: a.opt.Signing.Status()}, nil
		})
	answer(a, rest.Tag("system").Get("/v1/replicas", "List replicas").
		About("The processes of the root that share its store, as the active one sees them. Without replica in its configuration, there are none. A standby forwards the request."), rights.SystemRead,
		func(context.Context, rights.Principal, *rest.None) (api.Page[api.Replica], error) {
			return api.Page[api.Replica]{Items: a.opt.Members()}, nil
		})
	answer(a, rest.Tag("system").Get("/v1/system/authority", "Get the root's certificate authority").Named("getRootAuthority").
		About("And the rotation of its key. The clusters are asked which of its keys they and their nodes use."), rights.SystemRead,
		func(ctx context.Context, _ rights.Principal, _ *rest.None) (api.RootAuthority, error) {
			return a.opt.Authority.Status(ctx)
		})
	act(a, rest.Tag("system").Post("/v1/system/authority", "Rotate the key of the root's certificate authority", 409).Named("rotateRootAuthority").
		About("A new key signs at once. Certificates of the earlier one stay valid until it is retired. A personal token cannot rotate it."), rights.SystemWrite, a.rotateAuthority)
	act(a, rest.Tag("system").Post("/v1/system/keys", "Rotate the key that signs tokens", 409).Named("rotateSigningKey").
		About("Tokens that the earlier keys have signed stay valid, except with revoke_tokens. A personal token cannot revoke."), rights.SystemWrite, a.rotateKey)
}

func (a *API) rotateKey(ctx context.Context, p rights.Principal, in *rest.Body[api.RotateKey]) error {
	if in.Body.RevokeTokens && p.PAT != "" {
		return fmt.Errorf("revoke all tokens: a personal token cannot; sign in: %w", api.ErrForbidden)
	}
	if err := a.opt.Signing.Rotate(ctx, in.Body.RevokeTokens); err != nil {
		return err
	}
	a.opt.Log.Warn("key that signs tokens rotated", "by", p.User, "revoked", in.Body.RevokeTokens)
	return nil
}

func (a *API) rotateAuthority(ctx context.Context, p rights.Principal, in *rest.Body[api.RotateRootAuthority]) error {
	if p.PAT != "" {
		return fmt.Errorf("rotate the key of the root's certificate authority: a personal token cannot; sign in: %w", api.ErrForbidden)
	}
	if !in.Body.Retire && len(in.Body.LeaveBehind) > 0 {
		return fmt.Errorf("leave_behind is for retire: %w", api.ErrInvalid)
	}
	if in.Body.Retire {
		return a.opt.Authority.Retire(ctx, p.User, in.Body.LeaveBehind)
	}
	return a.opt.Authority.Begin(ctx, p.User)
}

func (a *API) restoreState(ctx context.Context, _ rights.Principal, _ *rest.None) (out api.RestoreState, err error) {
	err = a.owner.Read(ctx, func() { out = a.core.Restored() })
	return out, err
}

func (a *API) acceptRestore(ctx context.Context, p rights.Principal, _ *rest.None) error {
	if err := a.owner.Do(ctx, root.AcceptRestored{By: p.User}, nil); err != nil {
		return err
	}
	a.opt.Log.Warn("restore from a snapshot accepted", "by", p.User)
	return nil
}

func (a *API) takeSnapshot(ctx context.Context, p rights.Principal, in *rest.Body[api.SnapshotRequest]) (*streamOut, error) {
	to, err := snapshot.Choose(in.Body.Recipients, a.opt.Recipients, p.PAT == "")
	if err != nil {
		return nil, err
	}
	f, err := a.opt.Snapshots.Take(ctx, to)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = f.Close() }) // the request ends, also without its answer
	text := fmt.Sprintf("snapshot with keys by %s for %s", p.User, strings.Join(to, ", "))
	if err := a.owner.Do(ctx, root.Operated{Kind: "system", Object: "root", Text: text, By: p.User}, nil); err != nil {
		return nil, err // there is no access without its record
	}
	a.opt.Log.Warn("snapshot with keys taken", "by", p.User, "recipients", to, "documents", f.Header().Documents)
	return a.stream(snapshot.MediaType, f, f), nil
}
