package placement

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

func (in *instance) seed() uint64 { return sched.SeedOf(in.id(), in.Epoch) }

// tryPlace places an instance that has no live node. An instance that fits nowhere waits and
// is handed back to the root.
func (m *Machine) tryPlace(in *instance) {
	if in.Leaving || in.Withdrawn || in.AwaitsOffer || in.ended() {
		m.waiting.Remove(in.id())
		return
	}
	if in.awaitsEnd() {
		m.waiting.Add(in.id())
		m.explain(in, api.ReasonNone, "waits until its earlier placement has ended", nil)
		return
	}
	if m.continueMove(in) {
		return
	}
	if in.GivenUp {
		m.handBack(in, api.ReasonTooManyFails, in.Detail, nil)
		return
	}
	if m.asks.Pending(in.id()) || m.awaitsReservation(in) {
		m.waiting.Add(in.id())
		return
	}
	if in.Node != "" {
		return // awaitsReservation placed it on its reservation
	}
	if r := m.tooLarge(in); r != nil {
		why := m.explainRejection(r, r.Have)
		m.handBack(in, api.ReasonNoCapacity, summary(*why), why)
		return
	}
	over := m.explainOverShare(in)
	if (over == nil || m.mayPreempt(in)) && m.awaitsMeasurement(in) {
		m.waiting.Add(in.id())
		return
	}
	if over != nil {
		m.aboveShare[in.id()] = true
		m.waiting.Add(in.id())
		if !m.noPreempt.matches(m, in) {
			req := m.request(in)
			if m.tryPreempt(in, &req) {
				return
			}
			m.noPreempt.record(m, in)
		}
		m.handBack(in, api.ReasonNoCapacity, summary(*over), over)
		return
	}
	why, known := m.knownNoFit(in)
	if !known {
		req, best, ok := m.find(in)
		if !ok && len(in.avoid) > 0 {
			in.avoid = nil // a node that it failed on is better than none
			req, best, ok = m.find(in)
		}
		if ok {
			m.decide(in, &req, api.NodeID(best.ID), in.lostReason)
			return
		}
		if in.lostReason == api.ReasonDrained && m.beginMoveStopped(in) || m.returnToVolumes(in) {
			return
		}
		if m.useExisting(in, &req) || m.awaitsNearby(in, &req) {
			return
		}
		why = m.explanation(in, &req, false)
	}
	m.waiting.Add(in.id())
	if !m.settled || in.awaitsOldPlacement() {
		m.explain(in, api.ReasonNoCapacity, "waits until nodes have reported what they run", &why)
		return
	}
	reason := api.ReasonNoCapacity
	if in.lostReason != api.ReasonNone {
		reason = in.lostReason
	}
	m.handBack(in, reason, summary(why), &why)
}

// useExisting handles an instance that fits nowhere: it returns the instance to an earlier
// placement that continues, or preempts others for it. It returns false if neither is
// possible.
func (m *Machine) useExisting(in *instance, req *sched.Request) bool {
	if m.returnToKept(in) {
		return true
	}
	m.waiting.Add(in.id())
	return m.tryPreempt(in, req)
}

// awaitsMeasurement starts measurements of the users that the instance's SLA names, and reports
// whether the instance must wait for them.
func (m *Machine) awaitsMeasurement(in *instance) bool {
	if len(in.demand.users) == 0 || !m.latency.Measure(in.demand.users) {
		return false
	}
	if m.startSearch(in, in.demand.request.Convergence); m.searchOver(in) {
		return false
	}
	m.explain(in, api.ReasonNone, "waits until the round trip to "+in.demand.users[0]+" is measured", nil)
	return true
}

// awaitsNearby reports whether an instance waits for capacity near the instances that it is
// linked with. It waits for the convergence time of the links. Then it is placed where the
// links are violated least, and their violations may move the linked instances.
func (m *Machine) awaitsNearby(in *instance, req *sched.Request) bool {
	d := in.requestInput().searchTime(req)
	if m.late(in) || d == 0 {
		return false
	}
	m.startSearch(in, d)
	m.explain(in, api.ReasonNoCapacity, sched.SearchText(m.fx.Real(in.searchUntil)), nil)
	return true
}

// startSearch starts the search time of an instance unless it has started.
func (m *Machine) startSearch(in *instance, d time.Duration) {
	if in.searchUntil.IsZero() {
		in.searchUntil = m.fx.Now.Add(cmp.Or(d, convergence))
		m.fx.Timers.Set(effects.Key{Kind: effects.Search, Instance: in.id()}, in.searchUntil)
	}
}

// searchOver reports whether the search time has started and is over.
func (m *Machine) searchOver(in *instance) bool {
	return !in.searchUntil.IsZero() && !m.fx.Now.Before(in.searchUntil)
}

// late reports whether an instance without a node may be placed where its bounds are
// violated, because this cluster or the root has searched for the convergence time.
func (m *Machine) late(in *instance) bool {
	return in.Node == "" && (in.Desired.Searched || m.searchOver(in))
}

// convergence is the search time of an SLA that names none.
const convergence = time.Duration(api.DefaultConvergence * float64(time.Second))

// retryAnywhere retries a waiting instance on all nodes.
func (m *Machine) retryAnywhere(in *instance) {
	if !m.waiting.Has(in.id()) {
		return
	}
	if in.Node == "" {
		m.tryPlace(in)
		return
	}
	m.retry(in, m.table.All())
}

// awaitsOldPlacement reports whether an earlier placement of the instance is being stopped on a node.
func (in *instance) awaitsOldPlacement() bool {
	return slices.ContainsFunc(in.OldPlacements, func(v oldPlacement) bool { return v.Kept == nil })
}

func (m *Machine) explain(in *instance, r api.Reason, detail string, why *api.Explanation) {
	in.why = why
	if r == api.ReasonNone {
		r = in.Reason
	}
	if in.Reason == r && in.Detail == detail {
		return
	}
	in.Reason, in.Detail = r, detail
	m.changed(in)
}

func summary(why api.Explanation) string {
	if why.Considered == 0 {
		return "the cluster has no nodes"
	}
	return fmt.Sprintf("0 of %d nodes fit", why.Considered) + sched.Causes(why)
}

// handBack reports to the root that it may place the instance elsewhere. An exclusive
// instance is handed back once nothing of it runs here, and is not placed here again until
// the root offers it again. Any other instance is still placed here if capacity becomes free
// or its node returns before the root finds another cluster.
func (m *Machine) handBack(in *instance, r api.Reason, detail string, why *api.Explanation) {
	if in.Runs != nil {
		m.waitForRoom(in, r, detail, why)
		return
	}
	if in.exclusive() {
		if in.Node != "" {
			m.unassign(in, true)
		}
		if in.awaitsOldPlacement() {
			return
		}
		in.AwaitsOffer = true
		m.waiting.Remove(in.id())
	}
	if in.HandedBack && in.Reason == r && in.Detail == detail {
		return
	}
	in.why, in.HandedBack = why, true
	in.Reason, in.Detail = r, detail
	m.changed(in)
}

// assign assigns the instance to a node, under a new epoch.
func (m *Machine) assign(in *instance, id api.NodeID, reason api.Reason, detail string) {
	m.cancelQuestion(in)
	m.unreserve(in)
	in.lostReason, in.searchUntil = api.ReasonNone, time.Time{}
	m.fx.Timers.Clear(effects.Key{Kind: effects.Search, Instance: in.id()})
	if in.Node != "" {
		m.unassign(in, true)
	}
	if in.State != api.ClusterScheduled {
		in.State = lifecycle.Must(in.State, lifecycle.Replace)
	}
	in.Epoch++
	in.Node, in.HandedBack, in.Moving, in.GivenUp, in.NoBetterNode, in.why = id, false, false, false, false, nil
	in.Violated, in.fetchFailed = "", false
	in.ExitCode, in.Address, in.Ready = nil, netip.Addr{}, false
	if in.Runs != nil {
		in.Runs.Started(m.fx.Wall) // saved with the node, before the node learns of it
	}
	if in.dropCopies(id); in.Move != nil && in.Move.To != id {
		in.Move = nil
	}
	in.Moved, in.notMoved, in.ByRequest = in.notMoved, "", reason == api.ReasonMoved
	n := m.nodes[id]
	n.set.EndKept(in.id())
	in.OldReport = in.oldReport(id)
	in.OldPlacements = slices.DeleteFunc(in.OldPlacements, func(v oldPlacement) bool { return v.Node == id })
	if n.assign(in); in.keepsData() {
		in.VolumeNode = id
		m.placeVolumes(n, in)
		m.cfg.SaveNode(id)
	}
	in.OldClaim = n.account.Booked(in.id())
	m.countPlaced(in)
	m.touch(n)
	in.assignedGen = n.set.Gen()
	m.awaitAcceptance(in, reason)
	m.waiting.Remove(in.id())
	delete(m.aboveShare, in.id())
	m.applyEvent(in, lifecycle.NodeChosen, reason, cmp.Or(detail, in.woken))
	in.woken = ""
	m.refresh(n)
}

// unassign takes the instance off its node. With held, it may still run there, and its claim
// stays booked until the node reports that it is gone. A silent node holds nothing.
func (m *Machine) unassign(in *instance, held bool) {
	n := m.nodes[in.Node]
	m.uncountPlaced(in)
	held = held && !n.Silent
	had := n.account.Booked(in.id())
	n.unassign(in, held)
	in.Node = ""
	m.touch(n)
	if n.Silent {
		m.requireAck(n)
	}
	if held {
		v := oldPlacement{Node: n.Info.ID, Epoch: in.Epoch, Gen: n.set.Gen(), Claim: had, Report: in.OldReport}
		if in.State == api.Running {
			v.Report = report{Epoch: in.Epoch, Address: in.Address, Ready: in.Ready}
		}
		in.OldPlacements = append(in.OldPlacements, v)
	}
	in.OldReport = report{}
	m.refresh(n)
	m.save(in)
}

// escalate moves an instance whose node cannot run it to a node that it was not tried on:
// the workload keeps failing, a device is gone, or no address is free. If there is no such
// node, the root may place it elsewhere.
func (m *Machine) escalate(in *instance, reason api.Reason) {
	if in.Leaving || in.Withdrawn {
		return
	}
	if !slices.Contains(in.avoid, string(in.Node)) {
		in.avoid = append(in.avoid, string(in.Node))
	}
	req, best, ok := m.find(in)
	switch {
	case !ok && m.startsOver(in, req):
		m.breakBeforeMake(in, reason)
	case !ok && !in.exclusive() && !in.HandedBack:
		// Its node keeps trying until the root finds another place.
		in.HandedBack = true
		why := m.explanation(in, &req, false)
		in.why = &why
		m.changed(in)
	case !ok && in.Runs != nil:
		// Its node keeps trying until its attempts or its deadline are over.
	case !ok && in.exclusive():
		// It must end here before it may start in another cluster.
		in.GivenUp = true
		m.breakBeforeMake(in, reason)
	case !ok:
	case in.exclusive():
		m.breakBeforeMake(in, reason)
	default:
		m.decide(in, &req, api.NodeID(best.ID), reason)
	}
}

// breakBeforeMake takes an instance off a live node. The instance is placed again once the node
// has confirmed that nothing of it is left.
func (m *Machine) breakBeforeMake(in *instance, r api.Reason) {
	m.unassign(in, true)
	in.Moving = false
	if in.State != api.ClusterScheduled {
		in.State = lifecycle.Must(in.State, lifecycle.Replace)
	}
	in.Reason, in.Detail, in.lostReason = r, "waits until its earlier placement has ended", r
	m.changed(in)
	m.waiting.Add(in.id())
	if !in.awaitsOldPlacement() {
		m.tryPlace(in)
	}
}

// evict moves an instance off a drained node. It stays there until it fits on another node.
func (m *Machine) evict(in *instance) {
	if in.ended() || in.Leaving || in.Withdrawn {
		return
	}
	if in.Move != nil || m.beginMove(in, api.ReasonDrained) {
		return // one that is starting moves again when it is ready
	}
	req, best, ok := m.find(in, string(in.Node))
	if ok && in.exclusive() && !m.mayDisrupt(in, api.ReasonDrained, "") {
		m.awaitDisruption(in)
		return
	}
	if n := m.nodes[in.Node]; !ok && in.movesVolumes() && n.volumes[in.id()].any(in.demand.volumes) {
		req = m.moveRequest(in, n)
	}
	switch {
	case ok && in.exclusive():
		m.breakBeforeMake(in, api.ReasonDrained)
	case ok:
		m.decide(in, &req, api.NodeID(best.ID), api.ReasonDrained)
	default:
		in.Moving = true
		m.waiting.Add(in.id())
		if (in.neverInterrupted() || !m.tryPreempt(in, &req)) && !in.exclusive() {
			why := m.explanation(in, &req, false)
			in.why, in.HandedBack = &why, true
		}
		m.changed(in)
	}
}

func (m *Machine) evictAll(n *node) {
	for _, in := range n.sorted() {
		m.evict(in)
	}
}
