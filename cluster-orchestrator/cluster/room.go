package cluster

import (
	"maps"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// book sets how much room an instance takes.
func (n *node) book(id api.InstanceID, room api.Resources) {
	n.used = n.used.Minus(n.booked[id]).Plus(room)
	if n.booked[id] = room; room == (api.Resources{}) {
		delete(n.booked, id)
	}
}

// take gives the node an instance. What it has of an earlier placement may be
// larger and is there until the node reports the new one: so long the larger of
// both is booked.
func (n *node) take(in *instance) {
	id := in.id()
	n.placeChanged(id)
	delete(n.leaving, id)
	n.assigned[id] = in
	n.room[id] = n.room[id].Max(in.needs())
	n.publish(id, sched.PortsOf(&in.Want.Spec))
	n.wanted = n.wanted.Toggle(in.assignment().Digest())
	if in.State != api.Completed {
		n.book(id, n.booked[id].Max(in.needs()))
	}
	if in.Want.Spec.StopsWhenCutOff() {
		n.leased++
	}
}

// lose takes the instance away; its room stays booked where it may still run.
func (n *node) lose(in *instance, held bool) {
	id := in.id()
	n.placeChanged(id)
	delete(n.assigned, id)
	n.wanted = n.wanted.Toggle(in.assignment().Digest())
	if in.Want.Spec.StopsWhenCutOff() {
		n.leased--
	}
	if held {
		n.leaving[id] = true
		return
	}
	n.release(id)
}

// hold books room for something that the node has and should not.
func (n *node) hold(id api.InstanceID, room api.Resources) {
	if n.assigned[id] == nil && !n.leaving[id] {
		n.placeChanged(id)
		n.leaving[id] = true
		n.book(id, room)
	}
}

func (n *node) release(id api.InstanceID) {
	n.placeChanged(id)
	delete(n.leaving, id)
	delete(n.unknown, id)
	if n.assigned[id] != nil {
		return
	}
	n.book(id, api.Resources{})
	n.unpublish(id)
	if _, still := n.observed[id]; !still {
		delete(n.room, id)
	}
}

// publish books the ports of its node that an instance takes. Those of an
// earlier placement stay booked with it until the node has let go of both.
func (n *node) publish(id api.InstanceID, ports []sched.Port) {
	for _, p := range ports {
		if slices.Contains(n.ports[id], p) {
			continue
		}
		if n.ports == nil {
			n.ports, n.published = map[api.InstanceID][]sched.Port{}, map[sched.Port]int{}
		}
		n.ports[id] = append(n.ports[id], p)
		n.published[p]++
	}
}

func (n *node) unpublish(id api.InstanceID) {
	for _, p := range n.ports[id] {
		if n.published[p]--; n.published[p] == 0 {
			delete(n.published, p)
		}
		n.freed = true
	}
	delete(n.ports, id)
}

// publishedByOthers are the node's ports without those of one instance.
func (n *node) publishedByOthers(id api.InstanceID) map[sched.Port]int {
	if len(n.ports[id]) == 0 {
		return n.published
	}
	others := maps.Clone(n.published)
	for _, p := range n.ports[id] {
		others[p]--
	}
	return others
}

// refresh brings the node's candidate up to date, and remembers whether there is
// more room than before for those that wait.
func (c *Core) refresh(n *node) {
	capacity := bounded(n.info.Capacity)
	old := &c.cands[n.at]
	free := capacity.Minus(n.used)
	out := n.out()
	rooms := old.Rooms
	other := len(rooms) != 1 || !slices.Equal(rooms[0].Runtimes, n.info.Runtimes) ||
		rooms[0].Arch != n.info.Arch || rooms[0].Privileged != n.info.Privileged || rooms[0].Network != (n.info.Network == api.NetworkOverlay)
	more := other || n.freed || old.Out != "" || free.MilliCPU > old.Free.MilliCPU || free.MemoryMB > old.Free.MemoryMB
	n.freed = false
	if more && out == "" {
		c.grown[n.info.ID] = true
	}
	if other || old.Out != out || old.Free != free || old.Capacity != capacity {
		c.aggregateChanged()
	}
	if other {
		rooms = []sched.Room{{Runtimes: n.info.Runtimes}}
	}
	rooms[0].Arch, rooms[0].Privileged = n.info.Arch, n.info.Privileged
	rooms[0].Network = n.info.Network == api.NetworkOverlay
	rooms[0].Free, rooms[0].Largest = free, free
	*old = sched.Candidate{
		ID: string(n.info.ID), Level: sched.Nodes, Out: out, Capacity: capacity, Free: free,
		Rooms: rooms, Ports: n.published, Load: len(n.assigned),
	}
}

// The most that a node may say it has, so that no lie overflows a sum.
const (
	mostMilliCPU = 1 << 30 // a million vCPUs
	mostMemoryMB = 1 << 30 // a pebibyte
)

func bounded(r api.Resources) api.Resources {
	return api.Resources{
		MilliCPU: min(max(r.MilliCPU, 0), mostMilliCPU),
		MemoryMB: min(max(r.MemoryMB, 0), mostMemoryMB),
	}
}
