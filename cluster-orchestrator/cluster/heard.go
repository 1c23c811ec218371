package cluster

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/internal/step"
)

// stopsLeased reports whether something that stops when cut off is on its way
// off the node: it keeps its lease for as long as its stop_grace takes.
func (n *node) stopsLeased(c *Core) bool {
	for id := range n.leaving {
		if in := c.instances[id]; in != nil && in.Want.Spec.StopsWhenCutOff() {
			return true
		}
	}
	return false
}

// nodeAlive takes a sign of life. It costs the same whatever the cluster's size.
func (c *Core) nodeAlive(id api.NodeID, a api.Alive) {
	n := c.nodes[id]
	if n == nil || a.Boot < n.boot {
		return
	}
	c.boots(n, a.Boot)
	if a.Seq <= n.aliveSeq {
		return
	}
	n.aliveSeq, n.lastAlive = a.Seq, c.now
	n.cpu, n.mem = a.CPUUsed, a.MemUsed
	c.netLoad(n)
	n.ack = max(n.ack, a.Gen)
	c.back(n)
	if n.purging && len(n.assigned) > 0 { // it was silent until now and still has instances
		c.vacate(n)
	}
	if a.Gen > n.gen {
		// It holds a generation that this cluster never reached: the store was restored
		// from an older copy. Go on above it.
		n.gen = a.Gen
		c.touch(n)
	}
	if (a.Gen != n.gen || a.Desired != n.wanted) && !c.touched[id] && c.now.Sub(n.sentAt) >= resend {
		c.sendWhole(n)
	}
	want := !n.synced
	if a.Observed == n.known.Toggle(n.said) {
		n.differ, n.complete = 0, true
		if a.Gen == n.gen {
			c.settleLeaving(n)
		}
	} else if n.differ++; n.differ >= 2 {
		n.differ, want = 0, true
	}
	if n.leased > 0 || want || n.stopsLeased(c) {
		c.emit(id.Addr(), api.Lease{Boot: n.boot, Seq: a.Seq, Gen: n.gen, WantWhole: want})
	}
}

// boots begins a new life of the node's engine in our books.
func (c *Core) boots(n *node, boot uint64) {
	if boot > n.boot {
		n.boot = boot
		c.newLife(n)
	}
}

func (c *Core) newLife(n *node) {
	n.reportSeq, n.aliveSeq, n.ack, n.synced, n.complete = 0, 0, 0, false, false
	c.refresh(n)
}

// nodeReport takes what a node observed. A report that is older than one that
// was taken changes nothing; what it alone said comes again with a whole one.
func (c *Core) nodeReport(r api.NodeReport) {
	n := c.nodes[r.Node]
	if n == nil || r.Boot < n.boot {
		return
	}
	c.boots(n, r.Boot)
	if r.Seq <= n.reportSeq {
		return
	}
	n.complete = r.Whole || n.complete && r.Seq == n.reportSeq+1
	n.reportSeq = r.Seq
	n.ack = max(n.ack, r.Gen)
	if r.Info != nil {
		c.nodeInfo(n, *r.Info)
	}
	if r.Whole {
		n.answers = r.Answers
		n.synced, n.differ = r.Gen >= n.must, 0
		present := make(map[api.InstanceID]bool, len(r.Observed))
		for _, o := range r.Observed {
			present[o.Instance] = true
		}
		for _, id := range step.Keys(n.observed) {
			if !present[id] {
				n.forget(id)
			}
		}
	}
	for _, o := range r.Observed {
		c.nodeObserved(n, o)
	}
	if r.Gen == n.gen && n.complete {
		c.settleLeaving(n)
	}
	c.refresh(n)
	if n.synced && n.awaited {
		c.noLongerAwaited(n)
	}
}

func (c *Core) noLongerAwaited(n *node) {
	n.awaited = false
	c.nodeNetChanged(n)
	if c.unheard--; c.unheard <= 0 {
		c.settle()
	}
}

// strangers bounds what a node may report beyond what it was given.
const strangers = 1000

func (c *Core) nodeObserved(n *node, o api.Observed) {
	if n.assigned[o.Instance] == nil && !n.leaving[o.Instance] && len(n.observed) > len(n.assigned)+strangers {
		return
	}
	if o.Stopped {
		n.forget(o.Instance)
	} else {
		old, ok := n.observed[o.Instance]
		if ok {
			n.known = n.known.Toggle(old.Digest())
		}
		n.counts = n.counts || !slices.Equal(old.Devices, o.Devices)
		n.observed[o.Instance] = o
		n.placeChanged(o.Instance)
		n.known = n.known.Toggle(o.Digest())
		c.holdStranger(n, o.Instance)
	}
	// What a silent node said arrives late; it counts when the node is back.
	if in := n.assigned[o.Instance]; in != nil && in.Epoch == o.Epoch && !o.Stopped && !n.silent {
		c.observed(n, in, o)
	}
	if in := c.instances[o.Instance]; in != nil && in.Leaving && !in.stilled && c.nothingRuns(in) {
		in.stilled = true
		c.show(in)
	}
}

// nothingRuns reports whether each node that the withdrawn instance leaves has reported
// that its processes have ended. Reports without the instance, or about an earlier
// placement, do not count.
func (c *Core) nothingRuns(in *instance) bool {
	for _, v := range in.Vacancies {
		n := c.nodes[v.Node]
		if n == nil {
			return false
		}
		o, ok := n.observed[in.id()]
		stopped := o.State == api.Failed && o.Reason == api.ReasonDeleted && o.ExitCode != nil
		if !ok || o.Epoch != in.Epoch || !stopped && !api.Ended(o.State, o.Reason) {
			return false
		}
	}
	return in.Node == "" && len(in.Vacancies) > 0
}

// emptied notes, for a restart too, that what leaves the node takes no room there
// any more.
func (c *Core) emptied(n *node, id api.InstanceID) {
	in := c.instances[id]
	if in == nil {
		return
	}
	for i := range in.Vacancies {
		at := n.observed[id].Address
		if v := &in.Vacancies[i]; v.Node == n.info.ID && !v.claim.equal(v.claim.ended(at)) {
			v.claim = v.claim.ended(at)
			c.save(in)
			c.freed(in)
		}
	}
}

// holdStranger books room for what the node has and was not given, or was given
// before it fell silent.
func (c *Core) holdStranger(n *node, id api.InstanceID) {
	room, ok := n.room[id]
	if in := c.instances[id]; !ok && in != nil && in.Epoch.Root() == n.observed[id].Epoch.Root() {
		room, ok = in.demand.claim, true
	}
	if o := n.observed[id]; api.Ended(o.State, o.Reason) {
		if n.hold(id, room.ended(o.Address)); n.leaving[id] && !c.leavesLater(n, id, o.Epoch) {
			n.book(id, room.ended(o.Address))
			delete(n.unknown, id)
			c.emptied(n, id)
		}
		return
	}
	if n.hold(id, room); !ok && n.leaving[id] {
		n.unknown[id] = true
	}
}

// leavesLater reports whether a later placement of the instance leaves the node than the
// one that the node tells of: it may begin that one still.
func (c *Core) leavesLater(n *node, id api.InstanceID, told api.Epoch) bool {
	in := c.instances[id]
	return in != nil && slices.ContainsFunc(in.Vacancies, func(v vacancy) bool { return v.Node == n.info.ID && told < v.Epoch })
}

func (n *node) forget(id api.InstanceID) {
	old, ok := n.observed[id]
	if !ok {
		return
	}
	n.known = n.known.Toggle(old.Digest())
	delete(n.observed, id)
	n.counts = n.counts || len(old.Devices) > 0
	n.placeChanged(id)
	if n.assigned[id] == nil {
		delete(n.room, id)
	}
}

// settleLeaving frees the room of what has left the node: the node holds the
// generation that took it away, and has nothing of it any more. A node whose
// runtime does not answer cannot know that.
func (c *Core) settleLeaving(n *node) {
	if len(n.leaving) == 0 || n.info.RuntimeError != "" {
		return
	}
	freed := false
	for _, id := range step.Keys(n.leaving) {
		if _, still := n.observed[id]; still {
			continue
		}
		in := c.instances[id]
		if in != nil && slices.ContainsFunc(in.Vacancies, func(v vacancy) bool {
			return v.Node == n.info.ID && (v.Gen > n.ack || v.Stays != nil)
		}) {
			continue
		}
		n.release(id)
		freed = true
		if in != nil {
			c.dropVacancy(in, n.info.ID)
		}
	}
	if freed {
		c.refresh(n)
	}
}

// observed takes what the instance's own node says of its present placement.
func (c *Core) observed(n *node, in *instance, o api.Observed) {
	switch o.State {
	case api.NodeScheduled, api.Created, api.Running, api.Completed, api.Failed:
	default:
		return // not a node's to say
	}
	if in.State != o.State && !lifecycle.Leads(in.State, o.State) {
		return // from outside: not ours to panic about
	}
	ended := api.Ended(o.State, o.Reason)
	if in.ended() && (!ended || in.State != o.State) {
		return // it is over; a late message does not revive it
	}
	// That the node reports this placement means that no earlier one is left.
	delete(n.unknown, in.id())
	n.room[in.id()] = in.demand.claim
	grew := !in.Before.IsZero()
	if in.Before = (claim{}); ended {
		n.book(in.id(), in.demand.claim.ended(o.Address))
	} else {
		n.book(in.id(), in.demand.claim)
	}
	n.republish(in.id(), in.demand.ports)
	before, wasReady := in.view(), in.Ready
	in.State, in.Reason, in.Detail, in.ExitCode = o.State, o.Reason, step.Clip(o.Detail), o.ExitCode
	in.Restarts, in.Failures = o.Counts(in.Restarts, in.Failures)
	if ended {
		in.Moving, in.Strained, in.Violated = false, false, "" // it needs no better place
	}
	in.Address, in.Ready = o.Address, o.Ready
	if !in.Moving && !in.Strained {
		in.Offered = false
		c.waiting.Remove(in.id())
	}
	if ended {
		c.unreserve(in)
	}
	if o.State == api.Running || ended {
		c.made(in)
	}
	// Whether it is ready is not the root's concern, but a restart must know.
	if now := in.view(); grew || wasReady != in.Ready || now.Digest() != before.Digest() || now.Detail != before.Detail {
		c.changed(in)
		if grew || ended {
			c.freed(in)
		}
	}
	c.refresh(n)
	if o.State != api.Failed {
		return
	}
	switch o.Reason {
	case api.ReasonTooManyFails, api.ReasonNoDevice, api.ReasonNetworkFull:
		c.escalate(in, o.Reason)
	}
}
