// Package clusters keeps the root's clusters: their info, grants, liveness, reports, reservations
// and desired sets. It is a sub-machine of the root's core. Of an instance it has only the id and
// the digest of its assignment.
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

// Record is the saved state of a cluster.
type Record struct {
	Info     api.ClusterInfo `json:"info"`
	Joined   time.Time       `json:"joined"`
	Revision api.Revision    `json:"revision"`
	Shares   []netip.Prefix  `json:"shares,omitempty"` // of the instance network; the core fills them in
	Grant    *api.Grant      `json:"grant,omitempty"`  // nil in records of earlier releases: see cluster.grant
}

// Machine has all clusters. Begin sets the time of a step for all other methods. A method that
// takes a ClusterID panics if there is no such cluster, unless its comment says otherwise. Machine
// is not safe for concurrent use.
type Machine struct {
	cfg       Config
	now, wall time.Time
	clusters  map[api.ClusterID]*cluster
	blocks    int                       // number of blocks given to clusters so far
	touched   step.Queue[api.ClusterID] // their desired set changed in this step
	changed   step.Queue[api.ClusterID] // to be saved
	timers    step.Timers[Due]
}

type cluster struct {
	record    Record
	aggregate api.Aggregate // within the caps of the grant

	heard     bool // since the root started
	silent    bool
	losses    int       // how often it has fallen silent without calmAfter in between
	returned  time.Time // when it reported again after the last one
	trusted   time.Time // when it takes new instances again
	held      bool      // trusted has not come
	lastHeard time.Time
	pause     time.Duration // the longest of its recent pauses between reports; decays
	boot, seq uint64        // of the newest report
	kinds     uint64        // number of changes of its kinds of nodes
	places    uint64        // number of changes of its nodes' positions
	observed  map[api.InstanceID]api.Digest
	known     api.Digest // the digest of observed

	desired      desired
	reservations reservations

	outOfBounds bounds.Log // refused values of its messages, for events
	refused     uint64     // number of refused values
	cappedAt    time.Time  // time of the last event about values above its caps
	capped      string     // the values in that event
}

func New(cfg Config) *Machine { return &Machine{cfg: cfg, clusters: map[api.ClusterID]*cluster{}} }

// Begin begins a step. now excludes pauses of the process, wall does not.
func (m *Machine) Begin(now, wall time.Time) { m.now, m.wall = now, wall }

func (m *Machine) add(r Record) *cluster {
	cl := &cluster{
		record: r, observed: map[api.InstanceID]api.Digest{},
		desired: newDesired(), reservations: newReservations(),
	}
	m.clusters[r.Info.ID] = cl
	return cl
}

// Restore adds a saved cluster, without its shares.
func (m *Machine) Restore(r Record) {
	r.Shares = nil
	m.add(r)
}

// RestoreBlocks sets the number that Blocks returned before a restart.
func (m *Machine) RestoreBlocks(n int) { m.blocks = n }

// Blocks returns how many blocks of instance numbers were given to clusters.
func (m *Machine) Blocks() int { return m.blocks }

// Start has to be called for each restored cluster. gen is above all generations that were sent to
// the cluster before the restart.
func (m *Machine) Start(id api.ClusterID, gen api.Generation) {
	cl := m.clusters[id]
	cl.lastHeard = m.now
	cl.desired.start(gen)
	m.timers.Set(Due{DueSilence, id}, m.now.Add(m.cfg.Dead))
}

func (m *Machine) IDs() []api.ClusterID { return step.Keys(m.clusters) }

func (m *Machine) Known(id api.ClusterID) bool { return m.clusters[id] != nil }

// Check returns ErrNotFound if the cluster does not exist.
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

// Join adds a cluster, or replaces its info, and reports whether it is new. open says whether a new
// cluster takes the services of all tenants; nil means only if it belongs to no tenant. Error:
// ErrConflict if the cluster belongs to another tenant.
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

// Remove removes a cluster. No instance may be assigned to it any more.
func (m *Machine) Remove(id api.ClusterID) {
	delete(m.clusters, id)
	m.timers.Clear(Due{DueSilence, id})
	m.timers.Clear(Due{DueAge, id})
	m.timers.Clear(Due{DueTrust, id})
}

// Change marks a cluster to be saved and published at the end of the step.
func (m *Machine) Change(id api.ClusterID) { m.changed.Add(id) }

// TakeChanged returns the clusters that changed since the last call, in the order of their first
// change.
func (m *Machine) TakeChanged() []api.ClusterID { return m.known(m.changed.Take()) }

func (m *Machine) known(ids []api.ClusterID) []api.ClusterID {
	return slices.DeleteFunc(ids, func(id api.ClusterID) bool { return !m.Known(id) })
}

func (m *Machine) Saved(id api.ClusterID, rev api.Revision) Record {
	r := &m.clusters[id].record
	r.Revision = rev
	return *r
}

func (m *Machine) Info(id api.ClusterID) api.ClusterInfo { return m.clusters[id].record.Info }

// View returns a cluster as the API shows it, without its shares. Heard is a time without pauses of
// the process.
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

// DryRun returns a copy in which clusters have only the instances that keep yields. The others
// count only in the clusters' load.
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

// Vacate frees, in a dry run, the resources of an instance that is about to end. The root cannot
// tell which node has them, so it adds them to each slot of the runtime.
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

// RefuseValues counts values of a cluster's messages that are out of bounds. At most once a minute
// it returns the text of an event about them. It accepts unknown clusters.
func (m *Machine) RefuseValues(id api.ClusterID, v bounds.Violations) string {
	cl := m.clusters[id]
	if cl == nil || v.Total == 0 {
		return ""
	}
	cl.refused += uint64(v.Total)
	return step.Clip(cl.outOfBounds.Add(m.now, v))
}

// RefusedValues returns, for each cluster, how many values of its messages were out of bounds since
// the root started.
func (m *Machine) RefusedValues() map[api.ClusterID]uint64 {
	out := make(map[api.ClusterID]uint64, len(m.clusters))
	for id, cl := range m.clusters {
		out[id] = cl.refused
	}
	return out
}
