package cluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

func (in *instance) seed() uint64 { return sched.SeedOf(in.id(), in.Epoch) }

// tryPlace places an instance that has no living node. What fits nowhere waits,
// and is handed back to the root.
func (c *Core) tryPlace(in *instance) {
	if in.Leaving || in.Withdrawn || in.Bound || in.ended() {
		c.waiting.Remove(in.id())
		return
	}
	if in.exclusive() && c.mustWait(in) {
		c.waiting.Add(in.id())
		c.explain(in, api.ReasonNone, "waits until its earlier placement has ended", nil)
		return
	}
	if in.GivenUp {
		c.handBack(in, api.ReasonTooManyFails, in.Detail, nil)
		return
	}
	if in.asked != "" || c.awaitsRoom(in) {
		c.waiting.Add(in.id())
		return
	}
	if in.Node != "" {
		return // the room that was kept for it was free by now
	}
	if r := c.tooLarge(in); r != nil {
		why := c.refusal(r)
		c.handBack(in, api.ReasonNoCapacity, summary(*why), why)
		return
	}
	over := c.overShare(in)
	if (over == nil || c.mayPreempt(in)) && c.searches(in) {
		c.waiting.Add(in.id())
		return
	}
	if over != nil {
		c.beyond[in.id()] = true
		c.waiting.Add(in.id())
		if !c.noWay.like(c, in) {
			req := c.request(in)
			if c.preempts(in, &req) {
				return
			}
			c.noWay.note(c, in)
		}
		c.handBack(in, api.ReasonNoCapacity, summary(*over), over)
		return
	}
	why, known := c.hopeless(in)
	if !known {
		req, best, ok := c.find(in)
		if !ok && len(in.avoid) > 0 {
			// Better a node that it failed on than none.
			in.avoid = nil
			req, best, ok = c.find(in)
		}
		if ok {
			c.decide(in, &req, api.NodeID(best.ID), in.cause)
			return
		}
		if c.makesDo(in, &req) || c.searchesNear(in, &req) {
			return
		}
		why = c.explanation(in, &req, false)
	}
	c.waiting.Add(in.id())
	if !c.settled || c.mustWait(in) {
		c.explain(in, api.ReasonNoCapacity, "waits for room that is about to be known", &why)
		return
	}
	reason := api.ReasonNoCapacity
	if in.cause != api.ReasonNone {
		reason = in.cause
	}
	c.handBack(in, reason, summary(why), &why)
}

// makesDo has an instance that fits nowhere go on where an earlier placement of it
// does, or wait, and others make way for it: it reports whether either helps.
func (c *Core) makesDo(in *instance, req *sched.Request) bool {
	if c.returns(in) {
		return true
	}
	c.waiting.Add(in.id())
	return c.preempts(in, req)
}

// searches has what the instance's SLA is measured against measured, and reports
// whether placing it waits for that.
func (c *Core) searches(in *instance) bool {
	if len(in.demand.users) == 0 || !c.measure(in.demand.users) {
		return false
	}
	if c.search(in); c.searchedEnough(in) {
		return false
	}
	c.explain(in, api.ReasonNone, "waits until the way to "+in.demand.users[0]+" is measured", nil)
	return true
}

// searchesNear reports whether an instance waits for room near to those that link to
// it, or that it links to. When it has done so for as long as the links say, the best
// place that was found is better than none: the links are violated then, and who has
// them moves.
func (c *Core) searchesNear(in *instance, req *sched.Request) bool {
	d := in.placing().searchTime(req)
	if c.late(in) || d == 0 {
		return false
	}
	c.searchFor(in, d)
	c.explain(in, api.ReasonNoCapacity, sched.Searching(c.clock.Real(in.until)), nil)
	return true
}

// search begins the time that placing an instance may take.
func (c *Core) search(in *instance) { c.searchFor(in, in.demand.request.Convergence) }

func (c *Core) searchFor(in *instance, d time.Duration) {
	if in.until.IsZero() {
		in.until = c.now.Add(cmp.Or(d, convergence))
		c.timers.Set(timerKey{what: timerSearch, instance: in.id()}, in.until)
	}
}

// searchedEnough reports whether that is over.
func (c *Core) searchedEnough(in *instance) bool {
	return !in.until.IsZero() && !c.now.Before(in.until)
}

// late reports whether an instance without a node is placed where its bounds are broken
// least: this cluster, or the root, has searched for as long as they say.
func (c *Core) late(in *instance) bool {
	return in.Node == "" && (in.Want.Searched || c.searchedEnough(in))
}

// convergence is how long placing may search where an SLA does not say.
const convergence = time.Duration(api.DefaultConvergence * float64(time.Second))

// searched goes on with an instance for which something was measured, or whose
// time to search is over.
func (c *Core) searched(in *instance) {
	if !c.waiting.Has(in.id()) {
		return
	}
	if in.Node == "" {
		c.tryPlace(in)
		return
	}
	c.retry(in, c.table.All())
}

// mustWait reports whether an earlier placement of the instance may still run on
// a node that is heard, and is about to end. One that goes on is not.
func (c *Core) mustWait(in *instance) bool {
	return slices.ContainsFunc(in.Vacancies, func(v vacancy) bool { return v.Stays == nil })
}

func (c *Core) explain(in *instance, r api.Reason, detail string, why *api.Explanation) {
	in.why = why
	if r == api.ReasonNone {
		r = in.Reason
	}
	if in.Reason == r && in.Detail == detail {
		return
	}
	in.Reason, in.Detail = r, detail
	c.changed(in)
}

func summary(why api.Explanation) string {
	if why.Considered == 0 {
		return "the cluster has no nodes"
	}
	s := fmt.Sprintf("0 of %d nodes fit", why.Considered)
	for _, cause := range why.Causes {
		s += fmt.Sprintf(" · %d %s", cause.Count, cause.Constraint)
		if cause.Detail != "" {
			s += " (" + cause.Detail + ")"
		}
	}
	return s
}

// handBack tells the root that it may place the instance elsewhere. For an
// exclusive one this is a promise as well: nothing of it runs here, and it is not
// placed here again until the root offers it anew. Any other keeps its chance: if
// its node returns, or room does, before the root found another cluster, it goes
// on here.
func (c *Core) handBack(in *instance, r api.Reason, detail string, why *api.Explanation) {
	if in.exclusive() {
		if in.Node != "" {
			c.unassign(in, true)
		}
		if c.mustWait(in) {
			return
		}
		in.Bound = true
		c.waiting.Remove(in.id())
	}
	if in.Offered && in.Reason == r && in.Detail == detail {
		return
	}
	in.why, in.Offered = why, true
	in.Reason, in.Detail = r, detail
	c.changed(in)
}

// moveTo gives the instance to a node, under a new epoch.
func (c *Core) moveTo(in *instance, id api.NodeID, reason api.Reason, detail string) {
	c.unask(in)
	c.unreserve(in)
	in.cause, in.until = api.ReasonNone, time.Time{}
	c.timers.Clear(timerKey{what: timerSearch, instance: in.id()})
	if in.Node != "" {
		c.unassign(in, true)
	}
	if in.State != api.ClusterScheduled {
		in.State = lifecycle.Must(in.State, lifecycle.Replace)
	}
	in.Epoch++
	in.Node, in.Offered, in.Moving, in.GivenUp, in.Strained, in.why = id, false, false, false, false, nil
	in.Violated, in.since = "", time.Time{}
	in.ExitCode, in.Address, in.Ready = nil, netip.Addr{}, false
	n := c.nodes[id]
	n.leave(in.id())
	in.Vacancies = slices.DeleteFunc(in.Vacancies, func(v vacancy) bool { return v.Node == id })
	n.take(in)
	in.Before = n.booked[in.id()]
	c.countPeer(in, +1)
	c.touch(n)
	in.given = n.gen
	c.awaitAcceptance(in, reason)
	n.put[in.id()] = true
	delete(n.drop, in.id())
	c.waiting.Remove(in.id())
	delete(c.beyond, in.id())
	c.become(in, lifecycle.NodeChosen, reason, detail)
	c.refresh(n)
}

// unassign takes the instance off its node. Where it may still run there, its
// room stays held until the node says otherwise.
func (c *Core) unassign(in *instance, held bool) {
	n := c.nodes[in.Node]
	c.countPeer(in, -1)
	held = held && !n.silent
	had := n.booked[in.id()]
	n.lose(in, held)
	in.Node = ""
	c.touch(n)
	n.drop[in.id()] = true
	delete(n.put, in.id())
	if n.silent {
		c.mustHold(n)
	}
	if held {
		in.Vacancies = append(in.Vacancies, vacancy{Node: n.info.ID, Epoch: in.Epoch, Gen: n.gen, claim: had})
	}
	c.refresh(n)
	c.save(in)
}

// escalate moves an instance that keeps failing on its node, whose devices the node
// lost, or that finds no address there, to another, as long as there is one that it
// was not tried on; then the root may look elsewhere.
func (c *Core) escalate(in *instance, reason api.Reason) {
	if in.Leaving || in.Withdrawn {
		return
	}
	if !slices.Contains(in.avoid, string(in.Node)) {
		in.avoid = append(in.avoid, string(in.Node))
	}
	req, best, ok := c.find(in)
	switch {
	case !ok && !in.exclusive() && !in.Offered:
		// It stays, and its node goes on trying, unless the root finds a better place.
		in.Offered = true
		why := c.explanation(in, &req, false)
		in.why = &why
		c.changed(in)
	case !ok && in.exclusive():
		// It must have ended here before it may begin in another cluster.
		in.GivenUp = true
		c.stopFirst(in, reason)
	case !ok:
	case in.exclusive():
		c.stopFirst(in, reason)
	default:
		c.decide(in, &req, api.NodeID(best.ID), reason)
	}
}

// stopFirst takes an exclusive instance off a living node; it is placed again
// when the node has confirmed that nothing of it is left.
func (c *Core) stopFirst(in *instance, r api.Reason) {
	c.unassign(in, true)
	in.Moving = false
	if in.State != api.ClusterScheduled {
		in.State = lifecycle.Must(in.State, lifecycle.Replace)
	}
	in.Reason, in.Detail, in.cause = r, "waits until its earlier placement has ended", r
	c.changed(in)
	c.waiting.Add(in.id())
	if !c.mustWait(in) {
		c.tryPlace(in)
	}
}

// evict moves an instance off a node that is to be empty, as soon as another has
// room; until then it goes on where it is.
func (c *Core) evict(in *instance) {
	if in.ended() || in.Leaving || in.Withdrawn {
		return
	}
	req, best, ok := c.find(in, string(in.Node))
	switch {
	case ok && in.exclusive():
		c.stopFirst(in, api.ReasonDrained)
	case ok:
		c.decide(in, &req, api.NodeID(best.ID), api.ReasonDrained)
	default:
		in.Moving = true
		c.waiting.Add(in.id())
		if !c.preempts(in, &req) && !in.exclusive() {
			why := c.explanation(in, &req, false)
			in.why, in.Offered = &why, true
		}
		c.changed(in)
	}
}

func (c *Core) evictAll(n *node) {
	for _, in := range n.sorted() {
		c.evict(in)
	}
}
