package placement

import (
	"maps"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/claims"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// traits is what a node's candidate has of its info (what counts), made anew only when that
// changes. The table refers to it.
type traits struct {
	capacity         api.Resources
	bandwidthUnknown bool // the capacity's bandwidth is 0 then
	devices          claims.Devices
	areas            []string
	geo              *api.Geo
}

func (m *Machine) traitsOf(info *api.NodeInfo) traits {
	t := traits{capacity: bounded(info.Capacity), devices: claims.DevicesOf(info.Devices), areas: info.Areas, geo: m.cfg.Location}
	if t.bandwidthUnknown = info.BandwidthUnknown; t.bandwidthUnknown {
		t.capacity.InMbit, t.capacity.OutMbit = 0, 0
	}
	if info.Location != nil && info.Location.Valid() {
		t.geo = info.Location
	}
	return t
}

// refresh brings the node's candidate up to date, and remembers whether there is
// more room than before for those that wait.
func (m *Machine) refresh(n *node) {
	old, out, free := m.table.Get(string(n.Info.ID)), n.out(), n.traits.capacity.Minus(n.used)
	if old == nil {
		old = &sched.Candidate{Out: "unknown", Rooms: make([]sched.Room, 1)}
	}
	was, full := old.Rooms[0].Full, n.full(0)
	same := n.described && old.Out == out && old.Free == free && old.Capacity == n.traits.capacity && was == full && old.Rooms[0].BandwidthUnknown == one(n.traits.bandwidthUnknown)
	if same && !n.freed && !n.counts && !n.shifted && old.Load == len(n.assigned) && len(old.Ports) == len(n.published) {
		return
	}
	next := m.candidate(n, out)
	if out == "" && (!n.described || n.freed || n.shifted || old.Out != "" || free != free.Min(old.Free) || was && !full || moreDevices(old, &next)) {
		m.grown[n.Info.ID] = true
	}
	if !n.described || n.shifted {
		m.displaced(n)
	}
	plain := n.described && old.Out == out
	n.freed, n.counts, n.shifted, n.described = false, false, false, true
	m.weigh(n, &next)
	m.version++
	m.table.Put(next)
	m.listed(&next)
	if !same {
		m.roomChanged(!plain)
	}
	if n.Closed() && len(n.reserved) > 0 {
		m.lapsed = append(m.lapsed, n.Info.ID)
	}
}

// displaced notes that a node is not where it was.
func (m *Machine) displaced(n *node) {
	name, seen := string(n.Info.ID), map[api.ServiceID]bool{}
	for _, in := range n.assigned {
		m.shifted(in)
		id := in.id().Service()
		if s := m.services[id]; !seen[id] && s.peers[name] > 0 {
			seen[id] = true
			m.appChanged(id.App())
			m.goes(s, name)
			m.comes(s, name)
		}
	}
	for _, a := range n.areas {
		m.areas.places[a].Put(name, n.position())
	}
	if len(n.areas) > 0 {
		m.positions++
		m.areas.changed = m.positions
	}
}

// candidate is the node as placement sees it.
func (m *Machine) candidate(n *node, out string) sched.Candidate {
	free := n.traits.capacity.Minus(n.used)
	return sched.Candidate{
		ID: string(n.Info.ID), Level: sched.Nodes, Out: out, Capacity: n.traits.capacity, Free: free,
		Rooms: []sched.Room{{
			Runtimes: n.Info.Runtimes, Arch: n.Info.Arch, Privileged: n.Info.Privileged, Network: n.Info.Network == api.NetworkOverlay, Full: n.full(0),
			Areas: n.traits.areas, Addons: n.Info.Addons, Free: free, Largest: free, Devices: n.devices(),
			BandwidthUnknown: one(n.traits.bandwidthUnknown),
		}},
		Ports: n.published, Own: n.Info.Ports, Load: len(n.assigned), Labels: n.Info.Labels, Geo: n.traits.geo, Coord: n.coord,
	}
}

// devices is by kind what one instance can still get.
func (n *node) devices() map[string]int {
	if n.counts || n.free == nil {
		n.free = n.traits.devices.Free(n.booked, n.given)
	}
	return n.free
}

// given are the devices that an instance has, as the node says.
func (n *node) given(id api.InstanceID) []string { return n.observed[id].Devices }

func moreDevices(old, next *sched.Candidate) bool {
	had := old.Rooms[0].Devices
	for kind, n := range next.Rooms[0].Devices {
		if n > had[kind] {
			return true
		}
	}
	return false
}

// without is the node's candidate as if an instance were not on it.
func (m *Machine) without(n *node, id api.InstanceID) sched.Candidate {
	cand := m.candidate(n, n.out())
	k, has := n.booked[id]
	if !has && len(n.ports[id]) == 0 {
		return cand
	}
	r := &cand.Rooms[0]
	cand.Free = cand.Free.Plus(k.Room)
	r.Free, r.Largest, r.Full = cand.Free, cand.Free, n.full(one(k.Address))
	if len(k.Devices) > 0 {
		others := maps.Clone(n.booked)
		delete(others, id)
		r.Devices = n.traits.devices.Free(others, n.given)
	}
	cand.Ports = n.publishedByOthers(id)
	return cand
}

// weigh keeps the sums over all nodes that are not silent.
func (m *Machine) weigh(n *node, cand *sched.Candidate) {
	_, before := m.Offered()
	m.capacity, m.used = m.capacity.Minus(n.weight.capacity), m.used.Minus(n.weight.used)
	n.weight = weight{}
	if cand != nil && !n.Silent {
		n.weight = weight{cand.Capacity, cand.Capacity.Minus(cand.Free)}
	}
	m.capacity, m.used = m.capacity.Plus(n.weight.capacity), m.used.Plus(n.weight.used)
	if _, left := m.Offered(); left != left.Min(before) && len(m.beyond) > 0 {
		m.widened = true
	}
}

// weight is what a node adds to the sums.
type weight struct{ capacity, used api.Resources }

// The most that a node may say it has, so that no lie overflows a sum.
const mostOfAnything = 1 << 30 // a million vCPUs, a pebibyte, a petabit a second

func bounded(r api.Resources) api.Resources {
	part := func(n int64) int64 { return min(max(n, 0), mostOfAnything) }
	return api.Resources{
		MilliCPU: part(r.MilliCPU), MemoryMB: part(r.MemoryMB), StorageMB: part(r.StorageMB),
		InMbit: part(r.InMbit), OutMbit: part(r.OutMbit),
	}
}

const (
	coordStep  = 0.05 // of its distance from the origin; smaller moves of a coordinate are no news
	coordTrust = 1.0  // error above which a coordinate says nothing yet
)

// moved takes a node's place in the latency space, where that is news, and
// reports whether it was.
func (m *Machine) moved(n *node, at *api.Coordinate) bool {
	switch {
	case !vivaldi.Valid(at) || at.Error >= coordTrust:
		return false
	case n.coord != nil && !vivaldi.Moved(*at, *n.coord, coordStep):
		return false
	}
	own := *at
	own.Vec = slices.Clone(at.Vec)
	n.coord, n.shifted = &own, true
	return true
}
