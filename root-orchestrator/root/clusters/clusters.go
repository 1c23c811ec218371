// Package clusters keeps what the root knows of clusters: who they are, what they are
// granted, when they were heard from, what they reported and what they should have. It is
// a part of the root's core: pure, with one owner, and without references to the core or
// to the other parts. Of an instance it knows its id, and the digest of its assignment.
//
//	m := clusters.New(clusters.Config{Dead: 30 * time.Second})
//	m.Begin(now, wall)
//	_, err := m.Join(info, nil)
package clusters

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bounds"
	"github.com/treeline-edge/treeline/internal/step"
)

// Config configures a Machine.
type Config struct {
	Dead time.Duration // the least silence after which a cluster counts as lost
}

// Record is what is saved of a cluster.
type Record struct {
	Info     api.ClusterInfo `json:"info"`
	Joined   time.Time       `json:"joined"`
	Revision api.Revision    `json:"revision"`
	Shares   []netip.Prefix  `json:"shares,omitempty"` // of the instance network; the core fills them in
	Grant    *api.Grant      `json:"grant,omitempty"`  // nil in records of earlier releases: see Machine.Grant
}

// Machine holds the clusters. Begin sets the time of a step for all other methods. A
// method that takes a ClusterID panics if the cluster is not known, unless it says
// otherwise.
type Machine struct {
	cfg       Config
	now, wall time.Time
	clusters  map[api.ClusterID]*cluster
	blocks    int                       // given to clusters so far
	touched   step.Queue[api.ClusterID] // whose desired set this step has changed
	changed   step.Queue[api.ClusterID] // to be saved
	timers    step.Timers[Due]
}

type cluster struct {
	record    Record
	aggregate api.Aggregate // within the caps of the grant

	heard     bool // since the root started
	silent    bool
	lastHeard time.Time
	pause     time.Duration // the longest of its recent pauses between reports
	boot, seq uint64        // of its newest report
	kinds     uint64        // counts the changes of its kinds of nodes
	places    uint64        // counts the changes of its nodes' positions
	observed  map[api.InstanceID]api.Digest
	known     api.Digest // of observed

	desired      desired
	reservations reservations

	outOfBounds bounds.Log // values of its messages that were refused
	refused     uint64     // how many of them
	cappedAt    time.Time  // of the last event about values above its caps
	capped      string     // and which
}

// New returns a Machine without clusters.
func New(cfg Config) *Machine { return &Machine{cfg: cfg, clusters: map[api.ClusterID]*cluster{}} }

// Begin begins a step: now is the clock's time, wall the time for people.
func (m *Machine) Begin(now, wall time.Time) { m.now, m.wall = now, wall }

func (m *Machine) add(r Record) *cluster {
	cl := &cluster{
		record: r, observed: map[api.InstanceID]api.Digest{},
		desired: newDesired(), reservations: newReservations(),
	}
	m.clusters[r.Info.ID] = cl
	return cl
}

// Restore makes a saved cluster known.
func (m *Machine) Restore(r Record) {
	r.Shares = nil
	m.add(r)
}

// RestoreBlocks sets the number of blocks that were given to clusters.
func (m *Machine) RestoreBlocks(n int) { m.blocks = n }

// Blocks returns the number of blocks that were given to clusters.
func (m *Machine) Blocks() int { return m.blocks }

// Start begins the life of a restored Machine. gen is above all generations that an
// earlier life sent to the cluster.
func (m *Machine) Start(id api.ClusterID, gen api.Generation) {
	cl := m.clusters[id]
	cl.lastHeard = m.now
	cl.desired.start(gen)
	m.timers.Set(Due{DueSilence, id}, m.now.Add(m.cfg.Dead))
}

// IDs returns the clusters' ids in order.
func (m *Machine) IDs() []api.ClusterID { return step.Keys(m.clusters) }

// Known reports whether the cluster is known.
func (m *Machine) Known(id api.ClusterID) bool { return m.clusters[id] != nil }

// Check returns ErrNotFound if the cluster is not known.
func (m *Machine) Check(id api.ClusterID) error {
	if m.Known(id) {
		return nil
	}
	var known []string
	for _, k := range m.IDs() {
		known = append(known, string(k))
	}
	return fmt.Errorf("cluster %s is not known (there is %s): %w", id, strings.Join(known, ", "), api.ErrNotFound)
}

// Join makes a cluster known, or replaces its info, and reports whether it is new. open says
// whether a new cluster gets the services of all tenants; nil: if the installation owns it.
// A known cluster of another tenant is ErrConflict.
func (m *Machine) Join(info api.ClusterInfo, open *bool) (added bool, err error) {
	if cl := m.clusters[info.ID]; cl != nil {
		have := &cl.record.Info
		if have.Tenant != info.Tenant {
			return false, fmt.Errorf("cluster %s belongs to another tenant; choose another name: %w", info.ID, api.ErrConflict)
		}
		if info.Block = have.Block; *have != info {
			*have = info
			m.Change(info.ID)
		}
		return false, nil
	}
	// A block is never reused: instances that a removed cluster added may still exist.
	info.Block = m.blocks
	m.blocks++
	r := Record{Info: info, Joined: m.wall, Grant: &api.Grant{Open: info.Tenant == ""}}
	if open != nil {
		r.Grant.Open = *open
	}
	m.add(r).lastHeard = m.now
	m.timers.Set(Due{DueSilence, info.ID}, m.now.Add(m.cfg.Dead))
	m.Change(info.ID)
	return true, nil
}

// Remove removes a cluster, to which no instance must be assigned any more.
func (m *Machine) Remove(id api.ClusterID) {
	delete(m.clusters, id)
	m.timers.Clear(Due{DueSilence, id})
	m.timers.Clear(Due{DueAge, id})
}

// Change has a cluster saved and shown at the end of the step.
func (m *Machine) Change(id api.ClusterID) { m.changed.Add(id) }

// TakeChanged returns the clusters that have changed, in the order of the first change.
func (m *Machine) TakeChanged() []api.ClusterID { return m.known(m.changed.Take()) }

func (m *Machine) known(ids []api.ClusterID) []api.ClusterID {
	return slices.DeleteFunc(ids, func(id api.ClusterID) bool { return !m.Known(id) })
}

// Saved returns the record to be saved under a new revision.
func (m *Machine) Saved(id api.ClusterID, rev api.Revision) Record {
	r := &m.clusters[id].record
	r.Revision = rev
	return *r
}

// Info returns what the cluster says about itself.
func (m *Machine) Info(id api.ClusterID) api.ClusterInfo { return m.clusters[id].record.Info }

// View returns what is shown of a cluster, except what belongs to the network. Heard is a
// time of the step's clock.
func (m *Machine) View(id api.ClusterID) api.Cluster {
	cl := m.clusters[id]
	v := api.Cluster{
		ClusterInfo: cl.record.Info, Status: api.ClusterReady, Aggregate: cl.aggregate, Reserved: cl.reservations.sum,
		Instances: len(cl.desired.assigned), Joined: cl.record.Joined, Revision: cl.record.Revision, Grant: cl.grant(),
	}
	switch {
	case cl.silent:
		v.Status = api.ClusterSilent
	case !cl.heard:
		v.Status = api.ClusterJoining
	}
	if cl.heard {
		v.Heard = cl.lastHeard
	}
	return v
}

// DryRun returns a copy in which clusters have, of their instances, those that keep
// yields. The others count only in the clusters' load.
func (m *Machine) DryRun(keep func(yield func(api.ClusterID, api.InstanceID) bool)) *Machine {
	d := New(m.cfg)
	d.Begin(m.now, m.wall)
	for id, cl := range m.clusters {
		n := *cl
		n.observed = map[api.InstanceID]api.Digest{}
		n.desired = newDesired()
		n.desired.gen, n.desired.from, n.desired.digest = cl.desired.gen, cl.desired.from, cl.desired.digest
		n.desired.others = len(cl.desired.assigned)
		n.reservations.pending, n.reservations.byRuntime = map[api.InstanceID]reservation{}, maps.Clone(cl.reservations.byRuntime)
		d.clusters[id] = &n
	}
	for at, id := range keep {
		cl, n := m.clusters[at], d.clusters[at]
		if cl == nil {
			continue
		}
		if a, ok := cl.desired.assigned[id]; ok {
			n.desired.assigned[id] = a
			n.desired.others--
		}
		if r, ok := cl.reservations.pending[id]; ok {
			n.reservations.pending[id] = r
		}
	}
	return d
}

// Vacate counts the resources of an instance that is about to end as free in a dry run.
// The root does not know on which node they are: the cluster is asked.
func (m *Machine) Vacate(id api.ClusterID, v *api.Microservice) {
	a, needs := &m.clusters[id].aggregate, v.Needs()
	a.Free, a.Largest = a.Free.Plus(needs), a.Largest.Plus(needs)
	a.Slots = slices.Clone(a.Slots)
	for i := range a.Slots {
		if s := &a.Slots[i]; s.Runtime == runtimeOf(v) {
			s.Free, s.Largest = s.Free.Plus(needs), s.Largest.Plus(needs)
		}
	}
}

// RefuseValues counts values of a cluster's messages that are out of bounds. At most once
// a minute it returns a text for an event about them. It accepts unknown clusters.
func (m *Machine) RefuseValues(id api.ClusterID, v bounds.Violations) string {
	cl := m.clusters[id]
	if cl == nil || v.Total == 0 {
		return ""
	}
	cl.refused += uint64(v.Total)
	return step.Clip(cl.outOfBounds.Add(m.now, v))
}

// RefusedValues returns how many values of each cluster's messages were out of bounds
// since the root started.
func (m *Machine) RefusedValues() map[api.ClusterID]uint64 {
	out := make(map[api.ClusterID]uint64, len(m.clusters))
	for id, cl := range m.clusters {
		out[id] = cl.refused
	}
	return out
}
