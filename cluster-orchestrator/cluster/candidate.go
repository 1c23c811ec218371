package cluster

import (
	"maps"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// traits is what a node's candidate has of its info (what counts), made anew only when that
// changes. The table refers to it.
type traits struct {
	capacity         api.Resources
	bandwidthUnknown bool // the capacity's bandwidth is 0 then
	devices          devices
	areas            []string
	geo              *api.Geo
}

func (c *Core) traitsOf(info *api.NodeInfo) traits {
	t := traits{capacity: bounded(info.Capacity), devices: devicesOf(info.Devices), areas: info.Areas, geo: c.cfg.Location}
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
func (c *Core) refresh(n *node) {
	old, out, free := c.table.Get(string(n.info.ID)), n.out(), n.traits.capacity.Minus(n.used)
	if old == nil {
		old = &sched.Candidate{Out: "unknown", Rooms: make([]sched.Room, 1)}
	}
	was, full := old.Rooms[0].Full, n.full(0)
	same := n.described && old.Out == out && old.Free == free && old.Capacity == n.traits.capacity && was == full && old.Rooms[0].BandwidthUnknown == one(n.traits.bandwidthUnknown)
	if same && !n.freed && !n.counts && !n.shifted && old.Load == len(n.assigned) && len(old.Ports) == len(n.published) {
		return
	}
	next := c.candidate(n, out)
	if out == "" && (!n.described || n.freed || n.shifted || old.Out != "" || free != free.Min(old.Free) || was && !full || moreDevices(old, &next)) {
		c.grown[n.info.ID] = true
	}
	if !n.described || n.shifted {
		c.displaced(n)
	}
	plain := n.described && old.Out == out
	n.freed, n.counts, n.shifted, n.described = false, false, false, true
	c.weigh(n, &next)
	c.version++
	c.table.Put(next)
	c.listed(&next)
	if !same {
		c.aggregateChanged(!plain)
	}
	if n.closed() && len(n.reserved) > 0 {
		c.lapsed = append(c.lapsed, n.info.ID)
	}
}

// displaced notes that a node is not where it was.
func (c *Core) displaced(n *node) {
	name, seen := string(n.info.ID), map[api.ServiceID]bool{}
	for _, in := range n.assigned {
		c.shifted(in)
		id := in.id().Service()
		if s := c.services[id]; !seen[id] && s.peers[name] > 0 {
			seen[id] = true
			c.stir(id.App())
			c.goes(s, name)
			c.comes(s, name)
		}
	}
	for _, a := range n.areas {
		c.areas.places[a].Put(name, n.position())
	}
	if len(n.areas) > 0 {
		c.stirring++
		c.areas.stirred = c.stirring
	}
}

// candidate is the node as placement sees it.
func (c *Core) candidate(n *node, out string) sched.Candidate {
	free := n.traits.capacity.Minus(n.used)
	return sched.Candidate{
		ID: string(n.info.ID), Level: sched.Nodes, Out: out, Capacity: n.traits.capacity, Free: free,
		Rooms: []sched.Room{{
			Runtimes: n.info.Runtimes, Arch: n.info.Arch, Privileged: n.info.Privileged, Network: n.info.Network == api.NetworkOverlay, Full: n.full(0),
			Areas: n.traits.areas, Addons: n.info.Addons, Free: free, Largest: free, Devices: n.devices(),
			BandwidthUnknown: one(n.traits.bandwidthUnknown),
		}},
		Ports: n.published, Own: n.info.Ports, Load: len(n.assigned), Labels: n.info.Labels, Geo: n.traits.geo, Coord: n.coord,
	}
}

// devices is by kind what one instance can still get.
func (n *node) devices() map[string]int {
	if n.counts || n.free == nil {
		n.free = n.traits.devices.free(n.booked, n.given)
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
func (c *Core) without(n *node, id api.InstanceID) sched.Candidate {
	cand := c.candidate(n, n.out())
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
		r.Devices = n.traits.devices.free(others, n.given)
	}
	cand.Ports = n.publishedByOthers(id)
	return cand
}

// weigh keeps the sums over all nodes that are not silent.
func (c *Core) weigh(n *node, cand *sched.Candidate) {
	_, before := c.offered()
	c.capacity, c.used = c.capacity.Minus(n.weight.capacity), c.used.Minus(n.weight.used)
	n.weight = weight{}
	if cand != nil && !n.silent {
		n.weight = weight{cand.Capacity, cand.Capacity.Minus(cand.Free)}
	}
	c.capacity, c.used = c.capacity.Plus(n.weight.capacity), c.used.Plus(n.weight.used)
	if _, left := c.offered(); left != left.Min(before) && len(c.beyond) > 0 {
		c.widened = true
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
func (c *Core) moved(n *node, at *api.Coordinate) bool {
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
