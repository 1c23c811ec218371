package root

import (
	"fmt"
	"slices"

	"github.com/treeline-edge/treeline/api"
)

// kindVolume is the kind of the documents of volumes. The key is the id.
const kindVolume = "volume"

// DeleteVolume removes the record of a volume that its cluster has deleted. Errors: ErrNotFound,
// ErrConflict (it is in use).
type DeleteVolume struct {
	ID api.VolumeID
	By string
}

func (in DeleteVolume) apply(c *Core) error {
	if _, err := c.DeletableVolume(in.ID); err != nil {
		return err
	}
	c.dropVolume(in.ID, "deleted by "+in.By, in.By)
	return nil
}

func (c *instances) dropVolume(id api.VolumeID, why, by string) {
	c.volumes.Remove(id)
	c.journal.Delete(kindVolume, string(id))
	c.event(api.Event{Tenant: id.Tenant(), Kind: "volume", Object: id.Name(), Detail: why, By: by})
	c.findVolumesOf(id)
}

// findVolumesOf passes on that a volume has come or gone to the instances that have it in their SLA.
func (c *instances) findVolumesOf(id api.VolumeID) {
	if !id.Shared() {
		c.findVolumes(id.Instance())
		return
	}
	for in := range c.apps.EachOf(id.Service()) {
		c.findVolumes(in.ID)
	}
}

// findVolumes passes on which cluster has the volumes of an instance.
func (c *instances) findVolumes(id api.InstanceID) {
	if c.apps.Has(id) {
		at, sizeMB := c.volumes.Of(id, c.apps.Get(id).Spec)
		c.apps.SetVolumes(id, at, sizeMB)
	}
}

// noteVolumes records the volumes that a cluster reports for an instance that is placed there.
func (c *instances) noteVolumes(id api.InstanceID, at api.ClusterID) {
	in := c.apps.Get(id)
	added := c.volumes.Note(id, in.Spec, at, c.wall, c.nextRev)
	for _, r := range added {
		c.journal.Put(kindVolume, string(r.ID), r)
		what := "created with %d MiB"
		if r.Created.Before(c.wall) {
			what = "grown to %d MiB"
		}
		c.event(api.Event{Tenant: id.Tenant(), Kind: "volume", Object: r.ID.Name(), Cluster: at, Detail: fmt.Sprintf(what, r.SizeMB)})
	}
	for _, r := range added {
		c.findVolumesOf(r.ID)
	}
}

// DeletableVolume returns a volume that can be deleted. Errors: ErrNotFound, ErrConflict (it is in
// use).
func (s *state) DeletableVolume(id api.VolumeID) (api.VolumeStatus, error) {
	v, ok := s.Volume(id)
	switch {
	case !ok:
		return v, fmt.Errorf("volume %s: %w", id, api.ErrNotFound)
	case v.InUse:
		return v, fmt.Errorf("delete volume %s: %s has it; delete the application, or leave the volume out of its SLA first: %w", id, id.Owner(), api.ErrConflict)
	}
	return v, nil
}

// Volume returns a volume, and whether it exists.
func (s *state) Volume(id api.VolumeID) (api.VolumeStatus, bool) {
	r, ok := s.volumes.Get(id)
	if !ok {
		return api.VolumeStatus{}, false
	}
	return api.VolumeStatus{
		ID: id, Driver: r.Driver, Access: r.Access, Tenant: id.Tenant(), Cluster: r.Cluster, SizeMB: r.SizeMB, Created: r.Created, InUse: s.usesVolume(id), Revision: r.Revision,
	}, true
}

func (s *state) usesVolume(id api.VolumeID) bool {
	has := func(spec *api.Microservice) bool {
		return spec != nil && slices.ContainsFunc(spec.KeptVolumes(), func(v api.Volume) bool { return v.Name == id.Label() && v.Shared() == id.Shared() })
	}
	_, newest := s.apps.Service(id.Service())
	if !id.Shared() {
		in, ok := s.apps.Instance(id.Instance())
		return ok && (has(in.Spec) || has(newest))
	}
	for in := range s.apps.EachOf(id.Service()) {
		if has(in.Spec) || has(newest) {
			return true
		}
	}
	return false
}

// Volumes returns the volumes of a tenant and the tenants below it, sorted by id.
func (s *state) Volumes(tenant api.Tenant) []api.VolumeStatus {
	return list(s.volumes.IDs(), tenant, s.Volume)
}

// checkVolumes returns an error if an application cannot have the local volumes in its SLA:
// ErrInvalid (another size than an existing volume), ErrTooMany.
func (c *Core) checkVolumes(tenant api.Tenant, spec api.Application) error {
	id, more, local := tenant.App(spec.Name, spec.Namespace), 0, false
	a := c.apps.App(id)
	for i := range spec.Services {
		v := &spec.Services[i]
		s, replicas := id.Service(v.Name, v.Namespace), 1
		if a != nil {
			if had, ok := a.Replicas[s]; ok {
				replicas = had
			}
		}
		if v.Replicas != nil {
			replicas = *v.Replicas
		}
		if err := c.volumes.Check(s, v); err != nil {
			return err
		}
		local = local || v.KeepsData()
		more += c.volumes.Missing(s, v, replicas)
	}
	if !local {
		return nil
	}
	return c.volumes.Admit(tenant, more+c.missingVolumes(tenant, func(s api.ServiceID) bool { return s.App() == id }))
}

// checkScale returns ErrTooMany if a service cannot have that many replicas because of their local
// volumes.
func (c *Core) checkScale(id api.ServiceID, replicas int) error {
	_, spec := c.apps.Service(id)
	if spec == nil || !spec.KeepsData() {
		return nil
	}
	more := c.volumes.Missing(id, spec, replicas)
	return c.volumes.Admit(id.Tenant(), more+c.missingVolumes(id.Tenant(), func(s api.ServiceID) bool { return s == id }))
}

// missingVolumes returns how many volumes the services of a tenant want that do not exist yet, without
// the services for which but returns true.
func (c *Core) missingVolumes(tenant api.Tenant, but func(api.ServiceID) bool) (sum int) {
	for _, id := range c.apps.Apps() {
		if id.Tenant().Top() != tenant.Top() {
			continue
		}
		a := c.apps.App(id)
		for _, s := range c.apps.Indexed(id) {
			if _, spec := c.apps.Service(s); spec.KeepsData() && !but(s) {
				sum += c.volumes.Missing(s, spec, a.Replicas[s])
			}
		}
	}
	return sum
}
