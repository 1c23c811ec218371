package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
	"github.com/treeline-edge/treeline/root-orchestrator/root/volumes"
)

var _ = fairshare.Declare(fairshare.Bound{
	Resource: "snapshots of CSI volumes", Total: volumes.MaxSnapshots, Share: []int{api.MaxSnapshots}, Per: "topmost tenant",
	Beyond: "429, also by a cluster for those in it",
	Attack: "TestATenantHasABoundedNumberOfSnapshots",
})

func (a *API) registerSnapshots() {
	tag := rest.Tag("volumes")
	handle(a, tag.Create("/v1/volumes/{id}/snapshots", "Create snapshot", 404, 409, 503, 504).
		About("Has the driver of a CSI volume take a snapshot, which the driver keeps. The answer says whether it is ready; clients repeat the request until it is. An instance may have the volume: the snapshot has what was synced to the disk. 409: a snapshot of the name is ready."),
		rights.AppsWrite, a.createSnapshot)
	handle(a, tag.Get("/v1/snapshots", "List snapshots").About("The snapshots that the drivers of CSI volumes keep. They outlive their volumes."), rights.AppsRead, a.listSnapshots)
	handle(a, tag.Get("/v1/snapshots/{id}", "Get snapshot", 404), rights.AppsRead, a.getSnapshot)
	act(a, tag.Delete("/v1/snapshots/{id}", "Delete snapshot", 404, 409, 412, 428, 503, 504).About("A snapshot that an SLA names is not deleted."), rights.AppsWrite, a.deleteSnapshot)
}

type newSnapshotIn struct {
	ID   string `path:"id" maxLength:"1024" doc:"The volume's id, with ~ for / and #."`
	Body api.NewSnapshot
}

func (a *API) createSnapshot(ctx context.Context, p rights.Principal, in *newSnapshotIn) (*objectOut[api.VolumeSnapshot], error) {
	id, err := api.ParseSnapshotID(string(api.VolumeFromPath(in.ID).Snapshot(in.Body.Name)))
	if err != nil {
		return nil, err
	}
	if err := rights.Allowed(p, rights.AppsWrite, id.Tenant()); err != nil {
		return nil, err
	}
	if err := a.owner.Do(ctx, root.BeginSnapshot{ID: id}, nil); err != nil {
		return nil, err
	}
	s, err := read(ctx, a, p, rights.AppsWrite, "snapshot", id, a.core.Snapshot)
	if err != nil {
		return nil, err
	}
	path := "/v1/snapshots/" + api.PathOf(id)
	var got api.SnapshotState
	if err := a.ask(ctx, s.Cluster, http.MethodPut, path, nil, &got); err != nil {
		if errors.Is(err, api.ErrInvalid) || errors.Is(err, api.ErrNotFound) || errors.Is(err, api.ErrTooMany) {
			// It was refused. If the cluster confirms that it has nothing of it, the record is removed.
			if gone := a.ask(ctx, s.Cluster, http.MethodDelete, path, nil, nil); gone == nil || errors.Is(gone, api.ErrNotFound) {
				_ = a.owner.Do(ctx, root.DeleteSnapshot{ID: id, By: p.User}, nil) // it stays in the list otherwise
			}
		}
		return nil, fmt.Errorf("snapshot %s: %w", id, err)
	}
	if err := a.owner.Do(ctx, root.SnapshotTaken{ID: id, SnapshotState: got, By: p.User}, nil); err != nil {
		return nil, err
	}
	s, err = read(ctx, a, p, rights.AppsWrite, "snapshot", id, a.core.Snapshot)
	out := object(s, s.Revision, "")
	out.Status = http.StatusCreated
	return out, err
}

func (a *API) listSnapshots(ctx context.Context, p rights.Principal, in *ListInput) (*listOut[api.VolumeSnapshot], error) {
	return list(ctx, a, p, in, listing[api.VolumeSnapshot]{
		path: "/v1/snapshots", action: rights.AppsRead, all: a.core.Snapshots,
		tenant: func(o api.VolumeSnapshot) api.Tenant { return o.Tenant },
		id:     func(o api.VolumeSnapshot) string { return string(o.ID) },
	})
}

func (a *API) getSnapshot(ctx context.Context, p rights.Principal, in *objectIn) (*objectOut[api.VolumeSnapshot], error) {
	s, err := read(ctx, a, p, rights.AppsRead, "snapshot", api.SnapshotFromPath(in.ID), a.core.Snapshot)
	return object(s, s.Revision, in.IfNoneMatch), err
}

func (a *API) deleteSnapshot(ctx context.Context, p rights.Principal, in *ChangeInput) error {
	id := api.SnapshotFromPath(in.ID)
	s, err := read(ctx, a, p, rights.AppsWrite, "snapshot", id, a.core.Snapshot)
	if err != nil {
		return err
	}
	if err := mustMatch(in.IfMatch, "snapshot "+string(id), s.Revision); err != nil {
		return err
	}
	var refused error
	if err := a.owner.Read(ctx, func() { _, refused = a.core.DeletableSnapshot(id) }); err != nil || refused != nil {
		return cmp.Or(err, refused)
	}
	if err := a.ask(ctx, s.Cluster, http.MethodDelete, "/v1/snapshots/"+api.PathOf(id), nil, nil); err != nil && !errors.Is(err, api.ErrNotFound) {
		return err
	}
	return a.owner.Do(ctx, root.DeleteSnapshot{ID: id, By: p.User}, nil)
}
