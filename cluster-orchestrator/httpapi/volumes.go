package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/access"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/internal/wire"
)

// CSI calls the drivers of CSI volumes.
type CSI interface {
	// Delete deletes a volume. ErrNotFound: there is none. ErrConflict: it is in use.
	Delete(context.Context, api.VolumeID) error
	// Snapshot takes a snapshot, or asks about one that is not ready. ErrNotFound: its volume does not exist.
	Snapshot(context.Context, api.SnapshotID) (api.SnapshotState, error)
	// DeleteSnapshot deletes a snapshot. ErrNotFound: there is none. ErrConflict: a volume is being created from it.
	DeleteSnapshot(context.Context, api.SnapshotID) error
}

type snapshotIn struct {
	ID string `path:"id" maxLength:"1100" doc:"The snapshot's id, with ~ for / and #."`
}

type snapshotOut struct{ Body api.SnapshotState }

type volumeIn struct {
	ID string `path:"id" maxLength:"1024" doc:"The volume's id, with ~ for / and #."`
}

func (a *API) registerVolumes() {
	remove := rest.Tag("volumes").Delete("/v1/volumes/{id}", "Delete a volume with its data, on its node or by its CSI driver", 404, 409, 503, 504)
	act(a, remove.Named("deleteVolume"), "", a.deleteVolume)
	handle(a, rest.Tag("volumes").Put("/v1/snapshots/{id}", "Take a snapshot of a CSI volume, or ask whether it is ready", 404, 409, 503, 504).Named("putSnapshot"), "", a.putSnapshot)
	act(a, rest.Tag("volumes").Delete("/v1/snapshots/{id}", "Delete a snapshot of a CSI volume", 404, 409, 503, 504).Named("deleteSnapshot"), "", a.deleteSnapshot)
	a.registerCopies("snapshot", "Read the files of a local volume, over a WebSocket")
	a.registerCopies("restore", "Replace the files of a local volume, over a WebSocket")
}

func (a *API) registerCopies(kind, summary string) {
	handle(a, rest.Tag("volumes").Get("/v1/volumes/{id}/"+kind, summary, 404, 409, 503, 504).Named(kind+"Volume").About(access.AboutCopy[kind]), "",
		func(ctx context.Context, p rights.Principal, in *access.VolumeIn) (*streamOut, error) {
			return a.accessVolume(ctx, p, kind, in)
		})
}

// accessVolume serves a snapshot or a restore for a user of this API, as access does.
func (a *API) accessVolume(ctx context.Context, p rights.Principal, kind string, in *access.VolumeIn) (*streamOut, error) {
	r, err := in.Request(kind)
	if err != nil {
		return nil, err
	}
	if err := rights.Allowed(p, rights.AppsExec, r.Instance.Tenant()); err != nil {
		return nil, err
	}
	if err := in.Check(); err != nil {
		return nil, err
	}
	id := api.VolumeID(r.Path)
	if _, err := a.volumeFor(ctx, r); err != nil {
		return nil, err
	}
	return a.serve(ctx, p, r, kind, func(ctx context.Context, text string, first bool) error {
		return a.opt.Audit.RecordVolume(ctx, id, p.User, text, first)
	})
}

// volumeFor returns the node that has a local volume.
func (a *API) volumeFor(ctx context.Context, r wire.StreamRequest) (at api.NodeID, err error) {
	id, err := api.ParseVolumeID(r.Path)
	if err != nil {
		return "", err
	}
	if id.Shared() {
		return "", access.OfDriver(r.Kind, id)
	}
	if id.Instance() != r.Instance {
		return "", fmt.Errorf("%s of volume %s for %s: %w", r.Kind, id, r.Instance, api.ErrInvalid)
	}
	var used, csi bool
	if err := a.opt.Owner.Read(ctx, func() {
		at = a.opt.Core.VolumeAt(id)
		_, used = a.opt.Core.Volume(id)
		_, csi = a.opt.Core.CSIVolume(id)
	}); err != nil {
		return "", err
	}
	switch {
	case csi:
		return "", access.OfDriver(r.Kind, id)
	case at == "" && r.Kind == "restore":
		return "", access.NotCreated(id)
	case at == "":
		return "", fmt.Errorf("volume %s: %w", id, api.ErrNotFound)
	case used && r.Kind == "restore":
		return "", access.InUse(id)
	}
	return at, nil
}

// openVolume requests a snapshot or a restore from the volume's node.
func (a *API) openVolume(ctx context.Context, r wire.StreamRequest) (io.ReadWriteCloser, error) {
	at, err := a.volumeFor(ctx, r)
	if err != nil {
		return nil, err
	}
	end := func() {}
	if r.Kind == "restore" {
		id := api.VolumeID(r.Path)
		if err := a.opt.Owner.Do(ctx, cluster.BeginRestore{ID: id, At: at}, nil); err != nil {
			return nil, err
		}
		end = sync.OnceFunc(func() {
			// It fails only when the core has ended, and the booking with it.
			_ = a.opt.Owner.Do(context.WithoutCancel(ctx), cluster.EndRestore{ID: id, At: at}, nil)
		})
	}
	r.Token = ""
	stream, err := a.opt.Nodes.Connect(ctx, at, r)
	if err != nil {
		end()
		return nil, fmt.Errorf("%s volume %s: %w", r.Kind, r.Path, err)
	}
	return closing{stream, end}, nil
}

// closing calls end when the stream is closed.
type closing struct {
	io.ReadWriteCloser
	end func()
}

// Close implements io.Closer.
func (c closing) Close() error {
	defer c.end()
	return c.ReadWriteCloser.Close()
}

// deleteVolume deletes a volume on each node that has it. The owner of its application may do so, and
// the operator, whose disk it takes.
func (a *API) deleteVolume(ctx context.Context, p rights.Principal, in *volumeIn) error {
	id, err := api.ParseVolumeID(string(api.VolumeFromPath(in.ID)))
	if err != nil {
		return err
	}
	if err := a.allowed(p, rights.NodesWrite); err != nil {
		if err := rights.Allowed(p, rights.AppsWrite, id.Tenant()); err != nil {
			return err
		}
	}
	var at []api.NodeID
	var used, csi bool
	if err := a.opt.Owner.Read(ctx, func() {
		at, used = a.opt.Core.Volume(id)
		_, csi = a.opt.Core.CSIVolume(id)
	}); err != nil {
		return err
	}
	switch {
	case used:
		return fmt.Errorf("delete volume %s: %s has it: %w", id, id.Owner(), api.ErrConflict)
	case csi && a.opt.CSI == nil:
		return fmt.Errorf("delete volume %s: this cluster has no CSI drivers in its configuration (key csi): %w", id, api.ErrUnavailable)
	case csi:
		if err := a.opt.CSI.Delete(ctx, id); err != nil {
			return err
		}
		a.opt.Log.Info("volume deleted", "volume", id, "by", p.User)
		if len(at) == 0 {
			return nil
		}
	case len(at) == 0:
		return fmt.Errorf("volume %s: %w", id, api.ErrNotFound)
	}
	var errs error
	for _, n := range at {
		if err := a.deleteOn(ctx, n, id); err != nil {
			name := "its node"
			if a.allowed(p, rights.NodesRead) == nil {
				name = "node " + string(n)
			}
			errs = errors.Join(errs, fmt.Errorf("delete volume %s on %s: %w", id, name, err))
			continue
		}
		a.opt.Log.Info("volume deleted", "volume", id, "node", n, "by", p.User)
	}
	return errs
}

func (a *API) deleteOn(ctx context.Context, n api.NodeID, id api.VolumeID) error {
	from, err := a.opt.Nodes.Stream(ctx, n, wire.StreamRequest{Kind: "volume", Method: http.MethodDelete, Path: string(id), For: onBehalf(ctx)})
	if err != nil {
		return err
	}
	return from.Close()
}

// snapshotOf returns the snapshot that a request names, if the caller may change it.
func (a *API) snapshotOf(p rights.Principal, in *snapshotIn) (api.SnapshotID, error) {
	id, err := api.ParseSnapshotID(string(api.SnapshotFromPath(in.ID)))
	if err != nil {
		return "", err
	}
	if err := rights.Allowed(p, rights.AppsWrite, id.Tenant()); err != nil {
		return "", err
	}
	if a.opt.CSI == nil {
		return "", fmt.Errorf("snapshot %s: this cluster has no CSI drivers in its configuration (key csi): %w", id, api.ErrUnavailable)
	}
	return id, nil
}

func (a *API) putSnapshot(ctx context.Context, p rights.Principal, in *snapshotIn) (*snapshotOut, error) {
	id, err := a.snapshotOf(p, in)
	if err != nil {
		return nil, err
	}
	s, err := a.opt.CSI.Snapshot(ctx, id)
	return &snapshotOut{s}, err
}

func (a *API) deleteSnapshot(ctx context.Context, p rights.Principal, in *snapshotIn) error {
	id, err := a.snapshotOf(p, in)
	if err != nil {
		return err
	}
	return a.opt.CSI.DeleteSnapshot(ctx, id)
}
