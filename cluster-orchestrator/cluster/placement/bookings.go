package placement

import (
	"maps"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/claims"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// book sets what an instance takes.
func (n *node) book(id api.InstanceID, k claims.Claim) {
	old := n.booked[id]
	n.used = n.used.Minus(old.Room).Plus(k.Room)
	n.counts = n.counts || len(old.Devices)+len(k.Devices) > 0
	n.addressed += one(k.Address) - one(old.Address)
	n.yield(id, -1)
	if n.booked[id] = k; k.IsZero() {
		delete(n.booked, id)
	}
	n.yield(id, +1)
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}

// full reports whether no address of the node's subnet would be left if so many that
// are booked were free. Where no subnet is known yet nobody can tell.
func (n *node) full(less int) bool {
	if n.Info.Network != api.NetworkOverlay {
		return false
	}
	holds := wire.SubnetCapacity(n.subnet)
	return holds > 0 && n.addressed-less >= holds
}

// urgencies are as many as there are in api.Priorities.
const urgencies = 4

// yield counts what is booked for an instance, if it is assigned, among what makes
// way for the more urgent; by is 1 or -1.
func (n *node) yield(id api.InstanceID, by int) {
	in := n.assigned[id]
	if in == nil {
		return
	}
	sum := &n.yields[min(max(in.demand.request.Urgency, 0), urgencies-1)]
	if room := n.booked[id].Room; by > 0 {
		*sum = sum.Plus(room)
	} else {
		*sum = sum.Minus(room)
	}
}

// take gives the node an instance. What it has of an earlier placement may be
// larger and is there until the node reports the new one: so long the larger of
// both is booked.
func (n *node) take(in *instance) {
	id := in.id()
	n.placeChanged(id)
	delete(n.leaving, id)
	n.yield(id, -1)
	n.assigned[id] = in
	n.yield(id, +1)
	n.room[id] = n.room[id].Max(in.demand.claim)
	n.publish(id, in.demand.ports)
	n.wanted = n.wanted.Toggle(in.assignment().Digest())
	if want := in.demand.claim; !in.ended() {
		n.book(id, n.booked[id].Max(want))
	} else {
		n.book(id, n.booked[id].Max(want.Ended(in.Address)))
	}
	if in.Want.Spec.StopsWhenCutOff() {
		n.leased++
	}
}

// lose takes the instance away; its room stays booked where it may still run.
func (n *node) lose(in *instance, held bool) {
	id := in.id()
	n.placeChanged(id)
	n.yield(id, -1)
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
func (n *node) hold(id api.InstanceID, k claims.Claim) {
	if n.assigned[id] == nil && !n.leaving[id] && n.reserved[id] == nil {
		n.placeChanged(id)
		n.leaving[id] = true
		n.book(id, k)
	}
}

func (n *node) release(id api.InstanceID) {
	n.placeChanged(id)
	delete(n.leaving, id)
	delete(n.unknown, id)
	if n.assigned[id] != nil {
		return
	}
	n.book(id, claims.Claim{})
	n.unpublish(id)
	if _, still := n.observed[id]; !still {
		delete(n.room, id)
	}
}

// publish books the ports of its node that an instance takes. Those of an
// earlier placement stay booked with them until the node reports the new one.
func (n *node) publish(id api.InstanceID, ports []sched.Port) {
	fresh := false
	for _, p := range ports {
		if slices.Contains(n.ports[id], p) {
			continue
		}
		if n.ports == nil {
			n.ports, n.published = map[api.InstanceID][]sched.Port{}, map[sched.Port]int{}
		}
		if !fresh {
			n.published, fresh = maps.Clone(n.published), true // the table has the old one
		}
		n.ports[id] = append(n.ports[id], p)
		n.published[p]++
	}
}

func (n *node) unpublish(id api.InstanceID) {
	if len(n.ports[id]) == 0 {
		return
	}
	n.published, n.freed = maps.Clone(n.published), true
	for _, p := range n.ports[id] {
		if n.published[p]--; n.published[p] == 0 {
			delete(n.published, p)
		}
	}
	delete(n.ports, id)
}

// republish books the ports of the present placement alone: none of an earlier one
// is left.
func (n *node) republish(id api.InstanceID, ports []sched.Port) {
	if slices.ContainsFunc(n.ports[id], func(p sched.Port) bool { return !slices.Contains(ports, p) }) {
		n.unpublish(id)
		n.publish(id, ports)
	}
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
