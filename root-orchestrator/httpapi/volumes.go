package httpapi

import (
	"cmp"
	"context"
	"errors"
	"net/http"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/access"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/rest"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
	"github.com/treeline-edge/treeline/root-orchestrator/root/volumes"
)

var _ = fairshare.Declare(fairshare.Bound{
	Resource: "volumes of services that outlive their instances", Total: volumes.Max, Share: []int{volumes.MaxTenant}, Per: "tenant",
	Beyond: "429 for the SLA or the number of replicas",
	Attack: "TestATenantHasABoundedNumberOfVolumes",
})

func (a *API) registerVolumes() {
	tag := rest.Tag("volumes")
	handle(a, tag.Get("/v1/volumes", "List volumes").
		About("The volumes of services that outlive their instances: local ones and those of CSI drivers. A volume exists from the first start of its instance until it is deleted, also without its application."),
		rights.AppsRead, a.listVolumes)
	handle(a, tag.Get("/v1/volumes/{id}", "Get volume", 404), rights.AppsRead, a.getVolume)
	act(a, tag.Delete("/v1/volumes/{id}", "Delete volume", 404, 409, 412, 428, 503, 504).
		About("Deletes the volume with its data, on its node, which must be connected, or by its CSI driver. A volume that an instance has is not deleted."),
		rights.AppsWrite, a.deleteVolume)
	a.registerSnapshots()
	errors := []int{404, 409, 503, 504}
	a.registerCopy("snapshot", tag.Get("/v1/volumes/{id}/snapshot", "Snapshot volume", errors...).
		About(access.AboutCopy["snapshot"]))
	a.registerCopy("restore", tag.Get("/v1/volumes/{id}/restore", "Restore volume", errors...).
		About(access.AboutCopy["restore"]))
}

func (a *API) registerCopy(kind string, op rest.Operation) {
	handle(a, op, rights.AppsExec, func(ctx context.Context, p rights.Principal, in *access.VolumeIn) (*streamOut, error) {
		return a.copyVolume(ctx, p, kind, in)
	})
}

// copyVolume serves a snapshot or a restore, and records it as access.
func (a *API) copyVolume(ctx context.Context, p rights.Principal, kind string, in *access.VolumeIn) (*streamOut, error) {
	v, err := read(ctx, a, p, rights.AppsExec, "volume", api.VolumeFromPath(in.ID), a.core.Volume)
	if kind == "restore" && errors.Is(err, api.ErrNotFound) {
		return nil, access.NotCreated(api.VolumeFromPath(in.ID))
	}
	if err == nil {
		err = in.Check()
	}
	if err != nil {
		return nil, err
	}
	r, err := in.Request(kind)
	switch {
	case err != nil:
		return nil, err
	case v.Driver != "":
		return nil, access.OfDriver(kind, v.ID)
	case v.InUse && kind == "restore":
		return nil, access.InUse(v.ID)
	}
	return a.serve(ctx, p, v.Cluster, r, kind, func(text string) root.Input { return root.VolumeAccessed{ID: v.ID, Text: text, By: p.User} })
}

func (a *API) listVolumes(ctx context.Context, p rights.Principal, in *struct {
	ListInput
	Cluster api.ClusterID `query:"cluster" doc:"Only volumes in this cluster."`
},
) (*listOut[api.VolumeStatus], error) {
	return list(ctx, a, p, &in.ListInput, listing[api.VolumeStatus]{
		path: "/v1/volumes", action: rights.AppsRead, all: a.core.Volumes,
		tenant: func(o api.VolumeStatus) api.Tenant { return o.Tenant },
		id:     func(o api.VolumeStatus) string { return string(o.ID) },
		only:   func(o api.VolumeStatus) bool { return in.Cluster == "" || o.Cluster == in.Cluster },
	})
}

func (a *API) getVolume(ctx context.Context, p rights.Principal, in *objectIn) (*objectOut[api.VolumeStatus], error) {
	v, err := read(ctx, a, p, rights.AppsRead, "volume", api.VolumeFromPath(in.ID), a.core.Volume)
	return object(v, v.Revision, in.IfNoneMatch), err
}

func (a *API) deleteVolume(ctx context.Context, p rights.Principal, in *ChangeInput) error {
	id := api.VolumeFromPath(in.ID)
	v, err := read(ctx, a, p, rights.AppsWrite, "volume", id, a.core.Volume)
	if err != nil {
		return err
	}
	if err := mustMatch(in.IfMatch, "volume "+string(id), v.Revision); err != nil {
		return err
	}
	var refused error
	if err := a.owner.Read(ctx, func() { _, refused = a.core.DeletableVolume(id) }); err != nil || refused != nil {
		return cmp.Or(err, refused)
	}
	// A cluster that does not have the volume lost it with its node.
	if err := a.ask(ctx, v.Cluster, http.MethodDelete, "/v1/volumes/"+api.PathOf(id), nil, nil); err != nil && !errors.Is(err, api.ErrNotFound) {
		return err
	}
	return a.owner.Do(ctx, root.DeleteVolume{ID: id, By: p.User}, nil)
}
