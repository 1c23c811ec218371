package clusters

import (
	"maps"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// reservations has the resources of assigned instances that the cluster's aggregate does not
// include yet.
type reservations struct {
	pending   map[api.InstanceID]reservation
	sum       api.Resources
	byRuntime map[string]taken
}

type reservation struct {
	gen     api.Generation // aggregates at this generation and later include it
	needs   api.Resources
	devices []api.Device
	runtime string
}

// taken is a sum of reservations, with devices by kind.
type taken struct {
	api.Resources
	devices map[string]int
}

func newReservations() reservations {
	return reservations{pending: map[api.InstanceID]reservation{}, byRuntime: map[string]taken{}}
}

func runtimeOf(v *api.Microservice) string { return sched.RuntimeName(v.Virtualization) }

// Reserve reserves the resources of an instance until the cluster's aggregate includes them.
func (m *Machine) Reserve(id api.ClusterID, in api.InstanceID, v *api.Microservice) {
	cl := m.clusters[id]
	r := reservation{gen: cl.desired.gen, needs: v.Needs(), devices: v.NeedsDevices(), runtime: runtimeOf(v)}
	cl.reservations.pending[in] = r
	cl.reservations.count(r, 1)
}

func (s *reservations) release(in api.InstanceID) bool {
	r, ok := s.pending[in]
	if ok {
		delete(s.pending, in)
		s.count(r, -1)
	}
	return ok
}

func (s *reservations) count(r reservation, by int) {
	t := s.byRuntime[r.runtime]
	if by > 0 {
		s.sum, t.Resources = s.sum.Plus(r.needs), t.Plus(r.needs)
	} else {
		s.sum, t.Resources = s.sum.Minus(r.needs), t.Minus(r.needs)
	}
	if len(r.devices) > 0 {
		t.devices = maps.Clone(t.devices) // a dry run may share it
		if t.devices == nil {
			t.devices = map[string]int{}
		}
		for _, d := range r.devices {
			if t.devices[d.Name] += by * d.Count; t.devices[d.Name] == 0 {
				delete(t.devices, d.Name)
			}
		}
	}
	if t.Resources == (api.Resources{}) && len(t.devices) == 0 {
		delete(s.byRuntime, r.runtime)
		return
	}
	s.byRuntime[r.runtime] = t
}

// left returns, for each kind of device in a slot, how many one instance can get.
func (t taken) left(of []api.SlotDevice) map[string]int {
	if len(of) == 0 {
		return nil
	}
	left := make(map[string]int, len(of))
	for _, d := range of {
		left[d.Name] = max(0, min(d.Largest, d.Free-t.devices[d.Name]))
	}
	return left
}

// Facts are the values for placement in addition to the candidate; see placement.Facts.
type Facts struct {
	Live          bool
	Free, Largest api.Resources
	Preemptible   []api.Preemptible
	Kinds         uint64
	Places        uint64
}

func (m *Machine) Facts(id api.ClusterID) Facts {
	cl := m.clusters[id]
	return Facts{cl.live(), cl.aggregate.Free, cl.aggregate.Largest, cl.aggregate.Preemptible, cl.kinds, cl.places}
}

// Candidate returns the cluster as a candidate: its aggregate less the reservations.
func (m *Machine) Candidate(id api.ClusterID) sched.Candidate {
	cl := m.clusters[id]
	a := &cl.aggregate
	cand := sched.Candidate{
		ID: string(id), Level: sched.Clusters, Out: cl.out(), Capacity: a.Capacity,
		Grant: &sched.Grant{Owner: cl.record.Info.Tenant, Grant: cl.grant()},
		Free:  a.Free.Minus(cl.reservations.sum), Slots: cl.slots(), Load: len(cl.desired.assigned) + cl.desired.others,
		Hull: a.Hull, Unplaced: a.Unplaced, Spread: a.StdDev, Nodes: a.Nodes,
	}
	if cl.heard {
		cand.Age = max(0, m.now.Sub(cl.lastHeard)).Truncate(ageStep)
	}
	if l := a.Latency; l != nil {
		cand.Coord, cand.Radius = &l.Center, l.Radius
	}
	return cand
}

// Out returns why the cluster is excluded from placement, "" if it is not.
func (m *Machine) Out(id api.ClusterID) string { return m.clusters[id].out() }

func (cl *cluster) out() string {
	switch {
	case cl.silent:
		return "silent"
	case !cl.heard:
		return "not heard yet"
	case cl.held:
		return "lost repeatedly"
	case cl.aggregate.Nodes == 0:
		return "no node takes work"
	}
	return ""
}

var (
	unreported = []string{sched.Unreported}
	anyDevices = map[string]int{sched.Unreported: 1 << 20}
)

// slots returns the cluster's kinds of nodes. If the cluster does not report them, which its
// operator may choose, it counts as having every kind. It counts as having an overlay network only
// if it reports nodes with one, or nothing about that.
func (cl *cluster) slots() []sched.Slot {
	a, reserved := &cl.aggregate, &cl.reservations
	if len(a.Slots) == 0 && a.Nodes > 0 {
		free := a.Free.Minus(reserved.sum)
		devices := anyDevices
		if caps := cl.grant().Caps.Devices; len(caps) > 0 {
			devices = caps
		}
		return []sched.Slot{{
			Runtimes: unreported, Arch: sched.Unreported, Areas: unreported, Addons: unreported, Features: a.Features,
			Privileged: !cl.grant().Caps.NoPrivileged, Network: a.Overlay == nil || *a.Overlay > 0,
			Free: free, Largest: a.Largest.Min(free), Devices: devices, BandwidthUnknown: a.BandwidthUnknown,
		}}
	}
	slots := make([]sched.Slot, 0, len(a.Slots))
	for i := range a.Slots {
		s := &a.Slots[i]
		taken := reserved.byRuntime[s.Runtime]
		free := s.Free.Minus(taken.Resources)
		slots = append(slots, sched.Slot{
			Runtimes: []string{s.Runtime}, Arch: s.Arch, Privileged: s.Privileged, Network: s.Network,
			Areas: s.Areas, Addons: s.Addons, Features: s.Features, Free: free, Largest: s.Largest.Min(free), Devices: taken.left(s.Devices),
			BandwidthUnknown: s.BandwidthUnknown,
		})
	}
	return slots
}
