// Package volumes keeps the volumes that outlive their instances, local ones and those of CSI drivers: which cluster has them, and how large they
// are. A volume is recorded when a cluster that the root chose for the instance reports it, and stays
// until it is deleted or its cluster is removed. It is a sub-machine of the root's core.
//
// The id of a volume contains the tenant, so that a volume never belongs to an instance of another
// tenant. A cluster cannot add volumes of instances that it does not have.
package volumes

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// Record is the document of a volume.
type Record struct {
	ID       api.VolumeID  `json:"id"`
	Access   string        `json:"access,omitempty"` // see api.Volume.Access
	Cluster  api.ClusterID `json:"cluster"`
	Driver   string        `json:"driver,omitempty"` // its CSI driver; empty: it is local
	SizeMB   int64         `json:"size_mb"`
	Created  time.Time     `json:"created"`
	Revision api.Revision  `json:"revision"`
}

// The limits of volumes: of all tenants, and of one topmost tenant with those below it.
const (
	Max       = 1 << 17
	MaxTenant = 1 << 12
)

// Machine has all volumes. It is not safe for concurrent use.
type Machine struct {
	volumes   map[api.VolumeID]*Record
	byService map[api.ServiceID]map[api.VolumeID]bool
	byTenant  map[api.Tenant]int // by topmost tenant

	snapshots   map[api.SnapshotID]Snapshot
	snapshotsOf map[api.Tenant]int // by topmost tenant
}

// New returns a Machine without volumes.
func New() *Machine {
	return &Machine{
		volumes: map[api.VolumeID]*Record{}, byService: map[api.ServiceID]map[api.VolumeID]bool{}, byTenant: map[api.Tenant]int{},
		snapshots: map[api.SnapshotID]Snapshot{}, snapshotsOf: map[api.Tenant]int{},
	}
}

// Restore adds the volume of a document.
func (m *Machine) Restore(r Record) { m.put(&r) }

func (m *Machine) put(r *Record) {
	id := r.ID.Service()
	if m.volumes[r.ID] == nil {
		m.byTenant[r.ID.Tenant().Top()]++
	}
	m.volumes[r.ID] = r
	if m.byService[id] == nil {
		m.byService[id] = map[api.VolumeID]bool{}
	}
	m.byService[id][r.ID] = true
}

// Get returns a volume, and whether it exists.
func (m *Machine) Get(id api.VolumeID) (Record, bool) {
	if r := m.volumes[id]; r != nil {
		return *r, true
	}
	return Record{}, false
}

// IDs returns the ids of all volumes, sorted.
func (m *Machine) IDs() []api.VolumeID { return step.Keys(m.volumes) }

// Of returns the cluster that has volumes in an instance's SLA, or else the snapshots that they are created
// from, "" if there is none, and the sum of the sizes of the local ones, which take its nodes' disks.
func (m *Machine) Of(id api.InstanceID, spec *api.Microservice) (at api.ClusterID, sizeMB int64) {
	var newest api.Revision
	for _, v := range spec.KeptVolumes() {
		r := m.volumes[v.IDFor(id)]
		if r == nil {
			continue
		}
		if r.Driver == "" {
			sizeMB += r.SizeMB
		}
		if at == "" || r.Revision > newest {
			at, newest = r.Cluster, r.Revision
		}
	}
	for _, v := range spec.CSIVolumes() {
		if s, ok := m.snapshots[v.SnapshotOf(id.Tenant())]; ok && at == "" {
			at = s.Cluster
		}
	}
	return at, sizeMB
}

// Note records that a cluster has the volumes in an instance's SLA. It returns those that are new there, or
// have grown. A shared volume stays where it is: its service is in one cluster. rev returns a revision.
func (m *Machine) Note(id api.InstanceID, spec *api.Microservice, at api.ClusterID, now time.Time, rev func() api.Revision) (added []Record) {
	for _, v := range spec.KeptVolumes() {
		old := m.volumes[v.IDFor(id)]
		if old != nil && old.Cluster != at && v.Shared() {
			continue
		}
		if old != nil && old.Cluster == at && old.Driver == v.Driver && (v.Driver == "" || old.SizeMB >= v.SizeMB) {
			continue
		}
		r := Record{ID: v.IDFor(id), Access: v.Access, Cluster: at, Driver: v.Driver, SizeMB: v.SizeMB, Created: now, Revision: rev()}
		if old != nil && old.Cluster == at {
			r.Created = old.Created
		}
		m.put(&r)
		added = append(added, r)
	}
	return added
}

// Remove removes a volume, if it exists.
func (m *Machine) Remove(id api.VolumeID) {
	if m.volumes[id] == nil {
		return
	}
	delete(m.volumes, id)
	owner, top := id.Service(), id.Tenant().Top()
	if delete(m.byService[owner], id); len(m.byService[owner]) == 0 {
		delete(m.byService, owner)
	}
	if m.byTenant[top]--; m.byTenant[top] == 0 {
		delete(m.byTenant, top)
	}
}

// At returns the ids of the volumes in a cluster, sorted.
func (m *Machine) At(at api.ClusterID) (out []api.VolumeID) {
	for _, id := range m.IDs() {
		if m.volumes[id].Cluster == at {
			out = append(out, id)
		}
	}
	return out
}

// Check returns ErrInvalid if a service's SLA gives an existing volume another size, except a larger one
// of a CSI driver, or another driver, or if a volume cannot be created from its snapshot.
func (m *Machine) Check(id api.ServiceID, spec *api.Microservice) error {
	if err := m.checkSnapshots(id, spec); err != nil {
		return err
	}
	if err := m.checkOneCluster(id, spec); err != nil {
		return err
	}
	for _, v := range spec.KeptVolumes() {
		for _, has := range step.Keys(m.byService[id]) {
			i, r := has.Owner(), m.volumes[has]
			switch {
			case has.Label() != v.Name:
			case r.Access != v.Access:
				return fmt.Errorf("volume %s of %s has access_mode %s: it cannot become %s; name another volume, or delete this one first: %w", v.Name, i, accessOf(r.Access), accessOf(v.Access), api.ErrInvalid)
			case r.Driver != v.Driver:
				return fmt.Errorf("volume %s of %s is %s: it cannot become %s; name another volume, or delete this one first: %w", v.Name, i, kindOf(r.Driver), kindOf(v.Driver), api.ErrInvalid)
			case r.Driver != "" && v.SizeMB < r.SizeMB:
				return fmt.Errorf("volume %s of %s has %d MiB: size cannot shrink to %d MiB; name another volume, or delete this one first: %w", v.Name, i, r.SizeMB, v.SizeMB, api.ErrInvalid)
			case r.Driver == "" && r.SizeMB != v.SizeMB:
				return fmt.Errorf("volume %s of %s has %d MiB: size cannot change to %d MiB; name another volume, or delete this one first: %w", v.Name, i, r.SizeMB, v.SizeMB, api.ErrInvalid)
			}
		}
	}
	return nil
}

// checkOneCluster returns ErrInvalid if a service whose instances share a volume has volumes in several clusters.
func (m *Machine) checkOneCluster(id api.ServiceID, spec *api.Microservice) error {
	if !spec.SharesVolumes() {
		return nil
	}
	var at api.ClusterID
	for _, has := range step.Keys(m.byService[id]) {
		r := m.volumes[has]
		if !slices.ContainsFunc(spec.KeptVolumes(), func(v api.Volume) bool { return v.Name == has.Label() }) {
			continue
		}
		if at != "" && r.Cluster != at {
			return fmt.Errorf("the instances of %s share a volume, so that they are in one cluster, and its volumes are in %s and %s; delete those of one cluster first: %w", id, at, r.Cluster, api.ErrInvalid)
		}
		at = r.Cluster
	}
	return nil
}

func accessOf(mode string) string { return cmp.Or(mode, api.AccessOneWriter) }

func kindOf(driver string) string {
	if driver == "" {
		return "local"
	}
	return "one of CSI driver " + driver
}

// Missing returns how many of a service's volumes do not exist yet, if it has that many
// instances.
func (m *Machine) Missing(id api.ServiceID, spec *api.Microservice, replicas int) int {
	missing := 0
	for _, v := range spec.KeptVolumes() {
		if v.Shared() {
			missing++
		} else {
			missing += replicas
		}
		for has := range m.byService[id] {
			if has.Label() == v.Name && has.Shared() == v.Shared() && (has.Shared() || has.Instance().Number() < replicas) {
				missing--
			}
		}
	}
	return max(0, missing)
}

// Admit returns ErrTooMany if a tenant may not have more volumes. more is the number of volumes that
// its services want and that do not exist yet.
func (m *Machine) Admit(tenant api.Tenant, more int) error {
	top := tenant.Top()
	if have := m.byTenant[top]; more > 0 && have+more > MaxTenant {
		return fmt.Errorf("tenant %s has %d volumes and would have %d more, want at most %d; delete some with treeline delete volume: %w", top, have, more, MaxTenant, api.ErrTooMany)
	}
	if have := len(m.volumes); more > 0 && have+more > Max {
		return fmt.Errorf("there are %d volumes, the most that the root keeps: %w", have, api.ErrUnavailable)
	}
	return nil
}
