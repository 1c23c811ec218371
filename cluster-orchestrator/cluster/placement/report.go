package placement

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/membership"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/account"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// stopsLeased reports whether an instance that stops when cut off is leaving the node. The
// node needs its lease during stop_grace.
func (m *Machine) stopsLeased(n *node) bool {
	for id := range n.leaving {
		if in := m.instances[id]; in != nil && in.Desired.Spec.StopsWhenCutOff() {
			return true
		}
	}
	return false
}

// Alive handles a heartbeat. Call SetNode first. digest is the digest of the node's Info as
// reported. The cost does not depend on the cluster's size.
func (m *Machine) Alive(id api.NodeID, a wire.Alive, r membership.Return, digest api.Digest) {
	n := m.nodes[id]
	n.ack = max(n.ack, a.Gen)
	if r.Changed {
		m.nodeReturned(n, r)
	}
	if n.Purging && len(n.assigned) > 0 { // it was silent when it was purged
		m.Vacate(id)
	}
	if a.Gen > n.set.Gen() {
		// The cluster never reached this generation: its store was restored from an older
		// copy. Continue above it.
		n.set.Raise(a.Gen)
		m.touch(n)
	}
	if !m.touched[id] && n.set.Overdue(m.fx.Now, a.Gen, a.Desired) {
		m.send(n, n.set.Whole(m.fx.Now, n.entry))
	}
	want := !n.synced
	if a.Observed == n.known.Toggle(digest) {
		n.differ, n.complete = 0, true
		if a.Gen == n.set.Gen() {
			m.releaseStopped(n)
		}
	} else if n.differ++; n.differ >= 2 {
		n.differ, want = 0, true
	}
	if n.leased > 0 || want || m.stopsLeased(n) {
		m.fx.ToNode(id, wire.Lease{Boot: n.Boot, Seq: a.Seq, Gen: n.set.Gen(), RequestWhole: want})
	}
}

// RestartNode handles a new boot of a node: its reports are counted from the start. Call
// SetNode first.
func (m *Machine) RestartNode(id api.NodeID) {
	n := m.nodes[id]
	n.reportSeq, n.ack, n.synced, n.complete = 0, 0, false, false
	m.refresh(n)
}

// Acknowledge handles the sequence number and the acknowledged generation of a report. It
// returns false for a report that is not newer than the last one. Call DescribeNode and
// Observe afterwards.
func (m *Machine) Acknowledge(r wire.NodeReport) bool {
	n := m.nodes[r.Node]
	if r.Seq <= n.reportSeq {
		return false
	}
	n.complete = r.Whole || n.complete && r.Seq == n.reportSeq+1
	n.reportSeq = r.Seq
	n.ack = max(n.ack, r.Gen)
	return true
}

// Observe handles a node's observations. Call Acknowledge first. It reports whether all
// instances on the node are known.
func (m *Machine) Observe(r wire.NodeReport) (synced bool) {
	n := m.nodes[r.Node]
	if r.Whole {
		n.synced, n.differ = r.Gen >= n.must, 0
		present := make(map[api.InstanceID]bool, len(r.Observed))
		for _, o := range r.Observed {
			present[o.Instance] = true
		}
		for _, id := range step.Keys(n.observed) {
			if !present[id] {
				n.dropObservation(id)
			}
		}
	}
	for _, o := range r.Observed {
		m.nodeObserved(n, o)
	}
	if r.Gen == n.set.Gen() && n.complete {
		m.releaseStopped(n)
	}
	m.refresh(n)
	return n.synced
}

// MaxStrangers bounds the instances that a node may report in addition to the assigned ones.
const MaxStrangers = 1000

func (m *Machine) nodeObserved(n *node, o api.Observed) {
	if n.assigned[o.Instance] == nil && !n.leaving[o.Instance] && len(n.observed) > len(n.assigned)+MaxStrangers {
		return
	}
	if o.Stopped {
		n.dropObservation(o.Instance)
	} else {
		old, ok := n.observed[o.Instance]
		if ok {
			n.known = n.known.Toggle(old.Digest())
		}
		n.account.SetDevices(o.Instance, o.Devices)
		n.observed[o.Instance] = o
		n.placeChanged(o.Instance)
		n.known = n.known.Toggle(o.Digest())
		m.bookReported(n, o.Instance)
	}
	// A late report of a silent node counts once the node is back.
	if in := n.assigned[o.Instance]; in != nil && !o.Stopped && !n.Silent {
		switch {
		case in.Epoch == o.Epoch:
			m.observed(n, in, o)
		case o.Epoch < in.Epoch:
			m.keepsEarlier(in, o)
		}
	}
	if in := m.instances[o.Instance]; in != nil && in.Leaving && !in.allStopped && m.nothingRuns(in) {
		in.allStopped = true
		m.publish(in)
	}
}

// keepsEarlier handles a node's observation that it still runs the placement before the present one,
// because it fetches the image of the present one first. The reason says why it failed to.
func (m *Machine) keepsEarlier(in *instance, o api.Observed) {
	if r := &in.OldReport; o.Reason == api.ReasonUpdated && r.Epoch == o.Epoch && !r.Ends {
		r.Ends = true
		m.save(in)
	}
	if in.State != api.NodeScheduled || o.State != api.Running || o.Reason == api.ReasonUpdated {
		return
	}
	if in.Reason == o.Reason && in.Detail == o.Detail {
		return
	}
	if o.Reason == api.ReasonNone && in.Reason != api.ReasonNone && !in.fetchFailed {
		return // the reason is why it was placed there
	}
	in.fetchFailed = o.Reason != api.ReasonNone
	in.Reason, in.Detail = o.Reason, step.Clip(o.Detail)
	m.changed(in)
}

// nothingRuns reports whether each node that the withdrawn instance leaves has reported
// that its processes have ended. Reports without the instance, or about an earlier
// placement, do not count.
func (m *Machine) nothingRuns(in *instance) bool {
	for _, v := range in.OldPlacements {
		n := m.nodes[v.Node]
		if n == nil {
			return false
		}
		o, ok := n.observed[in.id()]
		stopped := o.State == api.Failed && o.Reason == api.ReasonDeleted && o.ExitCode != nil
		if !ok || o.Epoch != in.Epoch || !stopped && !api.Ended(o.State, o.Reason) {
			return false
		}
	}
	return in.Node == "" && len(in.OldPlacements) > 0
}

// releaseEnded saves that an ended instance takes nothing but its address on a node that it
// leaves.
func (m *Machine) releaseEnded(n *node, id api.InstanceID) {
	in := m.instances[id]
	if in == nil {
		return
	}
	for i := range in.OldPlacements {
		at := n.observed[id].Address
		if v := &in.OldPlacements[i]; v.Node == n.Info.ID && !v.Claim.Equal(v.Claim.Ended(at)) {
			v.Claim = v.Claim.Ended(at)
			m.save(in)
			m.pinSave(in)
		}
	}
}

// bookReported books capacity for a reported instance that is not assigned to the node, or is
// no longer.
func (m *Machine) bookReported(n *node, id api.InstanceID) {
	claim, ok := n.claims[id]
	if in := m.instances[id]; !ok && in != nil && in.Epoch.Root() == n.observed[id].Epoch.Root() {
		claim, ok = in.demand.takes.Claim, true
	}
	if o := n.observed[id]; api.Ended(o.State, o.Reason) {
		if n.bookUnassigned(id, claim.Ended(o.Address)); n.leaving[id] && !m.laterPlacementLeaves(n, id, o.Epoch) {
			n.book(id, claim.Ended(o.Address))
			delete(n.unknownClaims, id)
			m.releaseEnded(n, id)
		}
		return
	}
	if n.bookUnassigned(id, claim); !ok && n.leaving[id] {
		n.unknownClaims[id] = true
	}
}

// laterPlacementLeaves reports whether a later placement of the instance than the reported one is
// leaving the node. The node may still start it.
func (m *Machine) laterPlacementLeaves(n *node, id api.InstanceID, told api.Epoch) bool {
	in := m.instances[id]
	return in != nil && slices.ContainsFunc(in.OldPlacements, func(v oldPlacement) bool { return v.Node == n.Info.ID && told < v.Epoch })
}

func (n *node) dropObservation(id api.InstanceID) {
	old, ok := n.observed[id]
	if !ok {
		return
	}
	n.known = n.known.Toggle(old.Digest())
	delete(n.observed, id)
	n.account.SetDevices(id, nil)
	n.placeChanged(id)
	if n.assigned[id] == nil {
		delete(n.claims, id)
	}
}

// releaseStopped releases the claims of leaving instances once the node has acknowledged the
// generation without them and does not report them. It ignores a node whose runtime does not
// answer, because its report may be incomplete.
func (m *Machine) releaseStopped(n *node) {
	if n.Info.RuntimeError != "" {
		return
	}
	defer m.forgetVolumes(n)
	freed := false
	for _, id := range step.Keys(n.leaving) {
		if _, still := n.observed[id]; still {
			continue
		}
		in := m.instances[id]
		if in != nil && slices.ContainsFunc(in.OldPlacements, func(v oldPlacement) bool {
			return v.Node == n.Info.ID && (v.Gen > n.ack || v.Kept != nil)
		}) {
			continue
		}
		n.releaseClaim(id)
		freed = true
		if in != nil {
			if in.VolumeNode == n.Info.ID && in.Node != n.Info.ID {
				in.VolumeNode = "" // from now on, the node's report counts
				m.save(in)
			}
			m.endOldPlacement(in, n.Info.ID)
		}
	}
	if freed {
		m.refresh(n)
	}
}

// observed handles a node's observation of an instance's present placement.
func (m *Machine) observed(n *node, in *instance, o api.Observed) {
	switch o.State {
	case api.NodeScheduled, api.Created, api.Running, api.Completed, api.Failed:
	default:
		return // a node may not report it
	}
	if in.State != o.State && !lifecycle.Leads(in.State, o.State) {
		return // an illegal transition requested by a node is ignored
	}
	ended := api.Ended(o.State, o.Reason)
	if in.dormant() {
		if ended { // it may have given up its address
			n.account.Book(in.id(), in.demand.takes.Claim.Ended(o.Address))
			m.refresh(n)
		}
		return
	}
	if in.ended() && (!ended || in.State != o.State) {
		return // a late message does not revive an ended instance
	}
	// A node that reports this placement has nothing of earlier ones.
	delete(n.unknownClaims, in.id())
	n.claims[in.id()] = in.demand.takes.Claim
	grew := !in.OldClaim.IsZero()
	in.OldReport = report{}
	if in.OldClaim = (account.Claim{}); ended {
		n.book(in.id(), in.demand.takes.Claim.Ended(o.Address))
	} else {
		n.book(in.id(), in.demand.takes.Claim)
	}
	n.account.Republish(in.id(), in.demand.takes.Ports)
	before, wasReady := in.view(), in.Ready
	in.State, in.Reason, in.Detail, in.ExitCode = o.State, o.Reason, step.Clip(o.Detail), o.ExitCode
	in.Restarts, in.Failures = o.Counts(in.Restarts, in.Failures)
	if ended && in.Runs != nil {
		m.endRun(in, before.State, &o)
	}
	if ended {
		in.Moving, in.NoBetterNode, in.Violated = false, false, "" // it needs no better place
	}
	in.Address, in.Ready = o.Address, o.Ready
	if !in.Moving && !in.NoBetterNode {
		in.HandedBack = false
		m.waiting.Remove(in.id())
	}
	if ended {
		m.unreserve(in)
	}
	if o.State == api.Running || ended {
		m.endKeptIfReplaced(in)
	}
	m.observeMove(in)
	m.endDisruption(in)
	if now := in.view(); grew || wasReady != in.Ready || now.Digest() != before.Digest() || now.Detail != before.Detail {
		m.changed(in)
		if grew || ended {
			m.pinSave(in)
		}
	}
	m.refresh(n)
	m.continueDisruption(in)
	if o.State != api.Failed || in.Node != n.Info.ID {
		return
	}
	switch o.Reason {
	case api.ReasonTooManyFails, api.ReasonNoDevice, api.ReasonNetworkFull:
		m.escalate(in, o.Reason)
	}
}
