package placement

import (
	"fmt"
	"maps"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/membership"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/claims"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// What is in this file is for tests and for debugging.

// Verify recomputes from the instances what the Machine keeps step by step. It returns an
// error that names the first difference.
func (m *Machine) Verify() error {
	if len(m.nodes) != len(m.table.All()) {
		return fmt.Errorf("%d nodes, %d candidates", len(m.nodes), len(m.table.All()))
	}
	for id := range m.beyond {
		if in := m.instances[id]; in == nil || in.Node != "" {
			return fmt.Errorf("%s is beyond the share, and is not here or placed", id)
		}
	}
	pending := 0
	var placed [8]int
	for _, id := range step.Keys(m.instances) {
		in := m.instances[id]
		if in.Node != "" {
			placed[in.Want.Spec.Urgency()]++
		}
		if n := m.nodes[in.Reserved]; in.Reserved != "" && (n == nil || n.reserved[id] != in || in.Node == in.Reserved || in.Node != "" && in.exclusive()) {
			return fmt.Errorf("%s on %q has room reserved on %q, which does not know", id, in.Node, in.Reserved)
		}
		if m.asks.Open(id) && m.asks.Waits(id) {
			return fmt.Errorf("%s has an open question and waits for one", id)
		}
		pending += one(m.asks.Pending(id))
	}
	if open, waiting := m.asks.Size(); open+waiting != pending {
		return fmt.Errorf("%d questions are open and %d instances wait, but %d instances have one", open, waiting, pending)
	}
	for sid, s := range m.services {
		expected := map[string]int{}
		for _, in := range s.instances {
			if in.Reserved != "" {
				expected[string(in.Reserved)]++
			}
		}
		if !maps.Equal(s.expected, expected) {
			return fmt.Errorf("%s has room at %v, counted %v", sid, expected, s.expected)
		}
	}
	if placed != m.placed {
		return fmt.Errorf("placed %v, counted %v", placed, m.placed)
	}
	var capacity, sum api.Resources
	for _, id := range step.Keys(m.nodes) {
		n := m.nodes[id]
		var wanted, known api.Digest
		var used api.Resources
		var yields [urgencies]api.Resources
		assigned, leased := 0, 0
		published := map[sched.Port]int{}
		for i, ports := range n.ports {
			if n.assigned[i] == nil && !n.leaving[i] && n.reserved[i] == nil {
				return fmt.Errorf("node %s keeps ports %v for %s, which it neither has nor had", id, ports, i)
			}
			for _, p := range ports {
				published[p]++
			}
		}
		if !maps.Equal(n.published, published) {
			return fmt.Errorf("node %s publishes %v, counted %v", id, published, n.published)
		}
		for _, in := range m.instances {
			if in.Node == id {
				assigned++
				wanted = wanted.Toggle(in.assignment().Digest())
				if in.Want.Spec.StopsWhenCutOff() {
					leased++
				}
			}
			for _, v := range in.Vacancies {
				if v.Stays != nil && v.Node == id {
					wanted = wanted.Toggle(v.Stays.Digest())
				}
				if v.Stays != nil && (in.Leaving || in.exclusive() || v.Node == in.Node) {
					return fmt.Errorf("%s stays on %s", in.id(), v.Node)
				}
			}
		}
		for _, o := range n.observed {
			known = known.Toggle(o.Digest())
		}
		addressed := 0
		for i, r := range n.booked {
			used = used.Plus(r.Room)
			if r.Address {
				addressed++
			}
			if in := n.assigned[i]; in != nil {
				yields[in.Want.Spec.Urgency()] = yields[in.Want.Spec.Urgency()].Plus(r.Room)
			}
			if r.Room.Min(api.Resources{}) != (api.Resources{}) || n.assigned[i] == nil && !n.leaving[i] && n.reserved[i] == nil {
				return fmt.Errorf("node %s books %v for %s, which it neither has nor had", id, r, i)
			}
		}
		most := 0
		if n.subnet.IsValid() && n.Info.Network == api.NetworkOverlay {
			most = 1<<(32-n.subnet.Bits()) - 3
		}
		if n.addressed != addressed || m.table.Get(string(id)).Rooms[0].Full != (most > 0 && addressed >= most) {
			return fmt.Errorf("node %s: %d of %d addresses are taken, counted %d", id, addressed, most, n.addressed)
		}
		if n.yields != yields {
			return fmt.Errorf("node %s: would make way %v, counted %v", id, yields, n.yields)
		}
		if n.wanted != wanted || n.known != known || n.used != used || len(n.assigned) != assigned || n.leased != leased {
			return fmt.Errorf("node %s: wanted %x/%x known %x/%x used %v/%v assigned %d/%d leased %d/%d", id,
				n.wanted, wanted, n.known, known, n.used, used, len(n.assigned), assigned, n.leased, leased)
		}
		if v, _ := m.Node(id); v.Allocated.Plus(v.Reserved) != used {
			return fmt.Errorf("of node %s %s is allocated and %s reserved, used %s", id, v.Allocated, v.Reserved, used)
		}
		given := func(i api.InstanceID) []string { return n.observed[i].Devices }
		cand := m.table.Get(string(id))
		if cand.ID != string(id) || cand.Free != n.Info.Capacity.Minus(used) || cand.Out != n.out() ||
			cand.Load != len(n.assigned) || cand.Rooms[0].Free != cand.Free || !maps.Equal(cand.Ports, n.published) ||
			!maps.Equal(cand.Rooms[0].Devices, claims.DevicesOf(n.Info.Devices).Free(n.booked, given)) || cand.Coord != n.coord {
			return fmt.Errorf("node %s is candidate %+v, used %v", id, cand, used)
		}
		if n.Silent {
			continue
		}
		capacity, sum = capacity.Plus(n.Info.Capacity), sum.Plus(used)
	}
	if m.capacity != capacity || m.used != sum {
		return fmt.Errorf("the cluster has %v and of that %v is taken, counted %v and %v", capacity, sum, m.capacity, m.used)
	}
	for _, s := range m.services {
		peers := map[string]int{}
		for _, in := range s.instances {
			if in.Node != "" {
				peers[string(in.Node)]++
			}
		}
		for k, n := range s.peers {
			if peers[k] != n {
				return fmt.Errorf("%d on %s, want %d", n, k, peers[k])
			}
		}
		for by, known := range s.crowds {
			have := map[string]int{}
			for _, in := range s.instances {
				if in.Node != "" {
					have[m.nodes[in.Node].Info.Labels[by]]++
				}
			}
			if known.version == m.version && !maps.Equal(known.have, have) {
				return fmt.Errorf("per %s there are %v, want %v", by, known.have, have)
			}
		}
	}
	return m.verifyPositions()
}

// verifyPositions recomputes where services are, and which instances that link to them have
// none near.
func (m *Machine) verifyPositions() error {
	for _, id := range step.Keys(m.services) {
		s := m.services[id]
		var at []api.Position
		for _, node := range step.Keys(s.peers) {
			at = append(at, m.nodes[api.NodeID(node)].position())
		}
		if got := s.places.Points(); !slices.Equal(got, at) {
			return fmt.Errorf("%s is at %v, noted %v", id, at, got)
		}
		for _, way := range m.inboundOf(id) {
			want := map[api.InstanceID]api.Position{}
			for _, in := range m.services[way.from].instances {
				if in.Node == "" || !slices.ContainsFunc(in.demand.links, func(l sched.Link) bool { return keyOf(way.from, l) == keyOf(way.from, way.link) }) {
					continue
				}
				here := m.nodes[in.Node].position()
				near := func(p api.Position) bool { return keeps(way.link, here, p) }
				if !slices.ContainsFunc(at, near) && !m.nearTarget(way.link, in, id) {
					want[in.Want.Instance] = here
				}
			}
			if !maps.Equal(want, way.open) || way.places.Len() != len(want) {
				return fmt.Errorf("of %s near to %s want %v, noted %v", way.from, id, want, way.open)
			}
		}
	}
	for area, p := range m.areas.places {
		var at []api.Position
		for _, id := range step.Keys(m.nodes) {
			if n := m.nodes[id]; slices.Contains(n.traits.areas, area) {
				at = append(at, n.position())
			}
		}
		if !slices.Equal(p.Points(), at) {
			return fmt.Errorf("in %s are %v, noted %v", area, at, p.Points())
		}
	}
	return nil
}

// Watches reports whether the instance's placement may come to violate its SLA.
func (m *Machine) Watches(id api.InstanceID) bool { return m.instances[id].demand.tied }

// Facts returns what SetNode stored.
func (m *Machine) Facts(id api.NodeID) membership.Node { return m.nodes[id].Node }

// Gen returns the generation of a node's desired set.
func (m *Machine) Gen(id api.NodeID) api.Generation { return m.nodes[id].gen }

// Waiting returns the instances without a node, or that are to leave theirs, in the order
// in which they are placed.
func (m *Machine) Waiting() []api.InstanceID { return m.inTurn() }

// Questions returns how many questions the external scheduler has not answered, and how
// many wait to be asked.
func (m *Machine) Questions() (open, waiting int) { return m.asks.Size() }

// WouldPreempt reports whether others can be preempted for an instance.
func (m *Machine) WouldPreempt(id api.InstanceID) bool {
	in := m.instances[id]
	req := m.request(in)
	n, _ := m.findVictims(in, &req)
	return n != nil
}

// Size returns the number of records about instances and services, of the present and of
// the past.
func (m *Machine) Size() (size int) {
	for _, n := range m.nodes {
		size += len(n.assigned) + len(n.leaving) + len(n.booked) + len(n.room) + len(n.observed) + len(n.unknown)
	}
	open, waiting := m.Questions()
	return size + len(m.instances) + len(m.services) + len(m.apps) + len(m.linkers) + len(m.waiting.List()) + open + waiting
}

// Addresses returns how many addresses of the node's subnet are booked.
func (m *Machine) Addresses(id api.NodeID) int { return m.nodes[id].addressed }
