package cluster

import (
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
	delete(n.leaving, id)
	n.assigned[id] = in
	n.room[id] = n.room[id].Max(in.needs())
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
		n.leaving[id] = true
		n.book(id, room)
	}
}

func (n *node) release(id api.InstanceID) {
	delete(n.leaving, id)
	delete(n.unknown, id)
	if n.assigned[id] != nil {
		return
	}
	n.book(id, api.Resources{})
	if _, still := n.observed[id]; !still {
		delete(n.room, id)
	}
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
		rooms[0].Arch != n.info.Arch || rooms[0].Privileged != n.info.Privileged
	more := other || old.Out != "" || free.MilliCPU > old.Free.MilliCPU || free.MemoryMB > old.Free.MemoryMB
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
	rooms[0].Free, rooms[0].Largest = free, free
	*old = sched.Candidate{
		ID: string(n.info.ID), Level: sched.Nodes, Out: out, Capacity: capacity, Free: free,
		Rooms: rooms, Load: len(n.assigned),
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
