package httpapi

import (
	"context"
	"fmt"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/cluster-orchestrator/operators"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/records"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/internal/snapshot"
)

func (a *API) registerSystem() {
	op := rest.Tag("system").Post("/v1/system/snapshot", "Take a snapshot of the cluster orchestrator", 409, 503, 507).Named("takeSnapshot").
		About("All documents of the store and the keys, as of one moment, encrypted with age. For the cluster's operator, also with a named token of the role Admin, with which only recipients of the cluster's configuration are accepted. Users of the root have no access.").
		Answers("The snapshot.", snapshot.MediaType, &huma.Schema{Type: huma.TypeString, Format: "binary"})
	handle(a, op, rights.SystemWrite, a.takeSnapshot)
	answer(a, rest.Tag("system").Get("/v1/system/snapshot/schedule", "Get the scheduled snapshots").Named("getSnapshotSchedule").
		About("The schedule in the cluster's configuration, and what was taken by it. Without cron, there is none. For the cluster's operator."), rights.SystemRead,
		func(ctx context.Context, p rights.Principal, _ *rest.None) (api.SnapshotSchedule, error) {
			return a.opt.Scheduled.Status(), operatorOnly(ctx, p, "read the scheduled snapshots")
		})
	act(a, rest.Tag("system").Post("/v1/system/snapshot/schedule", "Take a scheduled snapshot now", 409, 503, 507).Named("takeScheduledSnapshot").
		About("It goes to the place and the recipients of the cluster's configuration. The answer comes when it is written and was read again. For the cluster's operator."), rights.SystemWrite,
		func(ctx context.Context, p rights.Principal, _ *rest.None) error {
			if err := operatorOnly(ctx, p, "take a scheduled snapshot"); err != nil {
				return err
			}
			return a.opt.Scheduled.Take(ctx)
		})
	answer(a, rest.Tag("system").Get("/v1/replicas", "List replicas").
		About("The processes of the cluster that share its store, as the active one sees them. Without replica in its configuration, there are none. A standby forwards the request. For the cluster's operator."), rights.SystemRead,
		func(ctx context.Context, p rights.Principal, _ *rest.None) (page api.Page[api.Replica], err error) {
			if err := operatorOnly(ctx, p, "list the replicas"); err != nil {
				return page, err
			}
			page.Items = []api.Replica{}
			if a.opt.Members != nil {
				page.Items = a.opt.Members()
			}
			return page, nil
		})
	answer(a, rest.Tag("system").Get("/v1/system/authority", "Get the cluster's certificate authority").Named("getAuthority").
		About("The generation of its key, the last rotation, and the nodes that it waits for. For the cluster's operator."), rights.SystemRead,
		func(ctx context.Context, p rights.Principal, _ *rest.None) (out api.Authority, err error) {
			if err := operatorOnly(ctx, p, "read the certificate authority"); err != nil {
				return out, err
			}
			return a.opt.Authority.Status()
		})
	act(a, rest.Tag("system").Post("/v1/system/authority", "Rotate the key of the cluster's certificate authority", 409, 503).Named("rotateAuthority").
		About("The root certifies a new key, which signs from then on, and nodes are asked to renew their certificates. With retire, certificates of earlier keys are refused everywhere; it is refused while nodes without a new certificate are not in leave_behind. For the cluster's operator."), rights.SystemWrite, a.rotateAuthority)
	answer(a, rest.Tag("system").Get("/v1/system/restore", "Get the state after a restore").Named("getRestore").
		About("After a restore from a snapshot, nodes keep what they run until the root has sent what it wants, all nodes have reported, and all that they run has a record, or until the operator accepts it. Unknown has the instances that stop then. For the cluster's operator."),
		rights.SystemRead, a.restoreState)
	act(a, rest.Tag("system").Post("/v1/system/restore", "Accept a restore", 409, 503).Named("acceptRestore").
		About("Nodes get assignments again, and stop the instances that neither the root nor the cluster has a record of. For the cluster's operator."), rights.SystemWrite, a.acceptRestore)
}

func (a *API) rotateAuthority(ctx context.Context, p rights.Principal, in *rest.Body[api.RotateAuthority]) error {
	if err := operatorOnly(ctx, p, "rotate the key of the certificate authority"); err != nil {
		return err
	}
	if !in.Body.Retire && len(in.Body.LeaveBehind) > 0 {
		return fmt.Errorf("leave_behind is for retire: %w", api.ErrInvalid)
	}
	if in.Body.Retire {
		return a.opt.Authority.Retire(ctx, p.User, in.Body.LeaveBehind)
	}
	return a.opt.Authority.Begin(ctx, p.User)
}

func (a *API) restoreState(ctx context.Context, p rights.Principal, _ *rest.None) (out api.RestoreState, err error) {
	if err := operatorOnly(ctx, p, "read the state after a restore"); err != nil {
		return out, err
	}
	err = a.opt.Owner.Read(ctx, func() { out = a.opt.Core.Restored() })
	return out, err
}

func (a *API) acceptRestore(ctx context.Context, p rights.Principal, _ *rest.None) error {
	if err := operatorOnly(ctx, p, "accept the restore"); err != nil {
		return err
	}
	if err := a.opt.Owner.Do(ctx, cluster.AcceptRestored{By: p.User}, nil); err != nil {
		return err
	}
	a.opt.Log.Warn("restore from a snapshot accepted", "by", p.User)
	return nil
}

// operatorOnly refuses users of the root.
func operatorOnly(ctx context.Context, p rights.Principal, what string) error {
	if !callerOf(ctx).Own && !operators.Named(p.User) {
		return fmt.Errorf("%s of the cluster: %s is a user of the root; use the operator's token at the cluster's own port: %w", what, p.User, api.ErrForbidden)
	}
	return nil
}

func (a *API) takeSnapshot(ctx context.Context, p rights.Principal, in *rest.Body[api.SnapshotRequest]) (*streamOut, error) {
	if err := operatorOnly(ctx, p, "take a snapshot"); err != nil {
		return nil, err
	}
	to, err := snapshot.Choose(in.Body.Recipients, a.opt.Recipients, callerOf(ctx).Own)
	if err != nil {
		return nil, err
	}
	f, err := a.opt.Snapshots.Take(ctx, to)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = f.Close() }) // the request ends, also without its answer
	text := fmt.Sprintf("snapshot with keys by %s for %s", p.User, strings.Join(to, ", "))
	if err := a.opt.Audit.RecordOperation(ctx, records.Record{Kind: "system", Object: "cluster"}, p.User, text, true); err != nil {
		return nil, fmt.Errorf("record the snapshot: %w", err) // there is no access without its record
	}
	a.opt.Log.Warn("snapshot with keys taken", "by", p.User, "recipients", to, "documents", f.Header().Documents)
	return a.streamed(f, snapshot.MediaType), nil
}
