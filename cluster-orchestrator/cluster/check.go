package cluster

import (
	"fmt"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// An instance whose place may come to violate its SLA is looked at every
// checkEvery, a tenth of them at a time. What is violated for longer than its
// rigidness moves, make before break, to where the bound is kept with some room to
// spare, so often an hour and no oftener; where there is no such place the root may
// look for one.

const (
	checkEvery = 10 * time.Second
	checkSlots = 10
	spare      = 0.1 // of a bound, that a better place must leave
)

// tie notes whether an instance is to be looked at.
func (c *Core) tie(in *instance, tied bool) {
	slot := &c.tied[slotOf(in.id())]
	switch {
	case !tied:
		delete(*slot, in.id())
		return
	case *slot == nil:
		*slot = map[api.InstanceID]bool{}
	}
	(*slot)[in.id()] = true
	c.timers.SetEarlier(timerKey{what: timerCheck}, c.now.Add(checkEvery/checkSlots))
}

func slotOf(id api.InstanceID) uint64 {
	return sched.SeedOf("check", id) % checkSlots
}

// check looks at the next tenth.
func (c *Core) check() {
	c.slot = (c.slot + 1) % checkSlots
	for _, id := range step.Keys(c.tied[c.slot]) {
		in := c.instances[id]
		switch stirred := c.stirredFor(in); {
		case in.Node != "":
			c.measure(in.demand.users)
			c.judge(in)
			in.looks.note(!in.since.IsZero())
		case in.stirred != stirred: // what it is measured against has moved
			in.stirred = stirred
			c.searched(in)
		}
	}
	for i := range c.tied {
		if len(c.tied[i]) > 0 {
			c.timers.Set(timerKey{what: timerCheck}, c.now.Add(checkEvery/checkSlots))
			return
		}
	}
}

// stir notes that what others of an application are measured against is elsewhere.
func (c *Core) stir(app api.AppID) {
	if len(c.linkers[app]) > 0 {
		c.stirring++
		c.stirs[app] = c.stirring
	}
}

// stirredFor grows with each change of where that is what an instance is measured
// against. What users are measured to tells of itself.
func (c *Core) stirredFor(in *instance) uint64 {
	n := c.stirs[in.id().Service().App()]
	if slices.ContainsFunc(in.demand.links, func(l sched.Link) bool { return l.Area != "" }) {
		n = max(n, c.areas.stirred)
	}
	return n
}

// judged reports whether it matters what an instance's place breaks.
func (c *Core) judged(in *instance) bool {
	n := c.nodes[in.Node]
	return n != nil && !n.silent && !in.Leaving && !in.Withdrawn && !in.ended() && in.asked == ""
}

// judge sees whether an instance's place keeps its SLA, and what follows.
func (c *Core) judge(in *instance) {
	if !c.judged(in) {
		return
	}
	n, due := c.nodes[in.Node], timerKey{what: timerViolated, instance: in.id()}
	b := c.violation(in, n)
	switch {
	case b.text == "":
		c.timers.Clear(due)
		in.since = time.Time{}
		if !in.Moving {
			c.unreserve(in)
		}
		if in.Violated != "" || in.Strained {
			in.Violated = ""
			c.relax(in)
			c.changed(in)
		}
		return
	case in.since.IsZero():
		in.since, in.saidAt, in.estimated = c.now, c.now, b.estimated
		if in.Violated != b.text {
			in.Violated = b.text
			c.changed(in)
		}
	case in.Violated != b.text && (c.now.Sub(in.saidAt) >= time.Minute || in.estimated && !b.estimated): // numbers change all the time
		in.Violated, in.saidAt, in.estimated = b.text, c.now, b.estimated
		c.changed(in)
	}
	borne := b.borne
	if b.shared {
		borne -= in.looks.earlier()
	}
	if over := in.since.Add(borne); c.now.Before(over) {
		c.timers.SetEarlier(due, over)
		return
	}
	c.relieveSoon(in)
}

// The pace at which instances are relieved whose SLAs are violated: a label that is
// renamed may break those of thousands at once.
const (
	relieveEvery = 100 * time.Millisecond
	relieveCount = 20
)

func (c *Core) relieveSoon(in *instance) {
	c.broken.Add(in.id())
	if key := (timerKey{what: timerRelieve}); !c.timers.Has(key) {
		c.timers.Set(key, c.now)
	}
}

// relieveNext relieves the next of those that still need it.
func (c *Core) relieveNext() {
	next := c.broken.List()
	if len(next) == 0 {
		return
	}
	for _, id := range next[:min(len(next), relieveCount)] {
		c.broken.Remove(id)
		in := c.instances[id]
		if in == nil || in.since.IsZero() || !c.judged(in) {
			continue
		}
		if c.violation(in, c.nodes[in.Node]).text == "" {
			c.judge(in) // those before it left
		} else {
			c.relieve(in)
		}
	}
	c.timers.Set(timerKey{what: timerRelieve}, c.now.Add(relieveEvery))
}

// relax ends that the root may look for a better place.
func (c *Core) relax(in *instance) {
	if in.Strained {
		in.Strained, in.Offered, in.why = false, in.Moving && !in.exclusive(), nil
	}
}

// breach is what of its SLA an instance's place breaks.
type breach struct {
	text      string        // empty: nothing
	estimated bool          // by coordinates; what is measured may say otherwise
	borne     time.Duration // for so long
	shared    bool          // in total over lookBack, not without interruption
}

// violation says what of its SLA an instance's place breaks, if anything.
func (c *Core) violation(in *instance, n *node) (worst breach) {
	req := in.demand.request
	// It has what it needs, but a link's speed may have fallen under what is booked.
	req.Needs, req.Devices, req.Ports, req.Address = api.Resources{InMbit: req.Needs.InMbit, OutMbit: req.Needs.OutMbit}, nil, nil, false
	if n.traits.bandwidthUnknown {
		req.Needs = api.Resources{} // unknown bandwidth is no violation
	}
	req.Domains = c.shared(in, n)
	cand := c.candidate(n, "")
	own := &cand.Rooms[0]
	own.Free = n.traits.capacity.Plus(n.booked[in.id()].Room)
	for _, booked := range n.yields {
		own.Free = own.Free.Minus(booked)
	}
	cand.Free, own.Largest = own.Free, own.Free
	broken := func() *api.Rejection {
		res := sched.Place(&req, []sched.Candidate{cand}, c.cfg.Plugin, 0)
		if len(res.Rejected) == 0 {
			return nil
		}
		return &res.Rejected[0]
	}
	if r := broken(); r != nil {
		borne, shared := sched.RigidnessOf(&in.Want.Spec, r.Constraint)
		return breach{text: said(r), borne: borne, shared: shared}
	}
	for _, l := range in.demand.links {
		b, binds := c.bound(in.id().Service(), l, in.Want.Targets, in.Node)
		if !binds || b.Unknown != "" {
			continue
		}
		req.Bounds = []sched.Bound{b}
		if r := broken(); r != nil && (worst.text == "" || l.Rigidness < worst.borne) {
			worst = breach{text: said(r), borne: l.Rigidness, shared: l.Shared}
			if l.RTT > 0 && r.Short != "" {
				by, estimated := c.judgedBy(end{service: in.id().Service(), node: in.Node}, l, &b, in.Want.Targets)
				worst.text, worst.estimated = step.Clip(worst.text+"; "+by), estimated
			}
		}
	}
	return worst
}

func said(r *api.Rejection) string {
	return step.Clip(fmt.Sprintf("%s: %s, need %s", r.Constraint, r.Have, r.Need))
}

// relieve moves an instance to where its SLA is kept.
func (c *Core) relieve(in *instance) {
	in.Moves = slices.DeleteFunc(in.Moves, func(t time.Time) bool { return c.wall.Sub(t) >= time.Hour })
	if len(in.Moves) >= c.cfg.MovesPerHour {
		return
	}
	if in.Strained && c.stillWorse(in) {
		return
	}
	req := c.better(in)
	if best, ok := c.best(&req, in.seed()); ok {
		in.Moves = append(in.Moves, c.wall)
		c.save(in)
		c.decide(in, &req, api.NodeID(best.ID), api.ReasonViolated)
		return
	}
	if kept := in.Reserved; c.preempts(in, &req) {
		if kept == "" { // the move begins with those that make way
			in.Moves = append(in.Moves, c.wall)
			c.save(in)
		}
		return
	}
	if in.Strained {
		return
	}
	in.Strained = true
	if !in.exclusive() { // it would be a promise that nothing of it runs here
		why := c.explanation(in, &req, true)
		in.why, in.Offered = &why, true
	}
	c.changed(in)
}

// stillWorse reports whether there was no better place for those that ask for the
// same, and nothing has changed since.
func (c *Core) stillWorse(in *instance) bool {
	k, same := c.kindOf(in, true)
	if !same || c.reasons.version != c.version || len(in.demand.spreads)+len(in.demand.aparts) > 0 {
		return false
	}
	_, known := c.reasons.of[k]
	return known
}

// better is what an instance whose place breaks its SLA asks of another.
func (c *Core) better(in *instance) sched.Request {
	req := c.request(in, string(in.Node))
	for i := range req.Bounds {
		b := &req.Bounds[i]
		b.RTT, b.Km = time.Duration(float64(b.RTT)*(1-spare)), b.Km*(1-spare)
	}
	return req
}

// stood looks at all on a node that says something new of itself, and tells the
// root where those are now that it watches.
func (c *Core) stood(n *node) {
	for _, in := range n.sorted() {
		if in.demand.tied && n.assigned[in.id()] == in {
			c.judge(in)
		}
		c.watched(in)
	}
}

// stoodBy has the root told where those are now that it watches, on a node whose
// coordinate moved: what that does to SLAs, the next look at them sees.
func (c *Core) stoodBy(n *node) {
	for _, in := range n.assigned {
		c.watched(in)
	}
}

// watchStep is how far an instance must move in the latency space, in parts of its
// distance from the origin, for the root to be told.
const watchStep = 0.2

// watched has the root told where an instance is, if it asked and that is news.
func (c *Core) watched(in *instance) {
	n := c.nodes[in.Node]
	if !in.Want.Watched || n == nil {
		return
	}
	here := n.position()
	known := in.told != nil && sameGeo(in.told.Geo, here.Geo) && (in.told.Coord == nil) == (here.Coord == nil)
	if known && (here.Coord == nil || !vivaldi.Moved(*here.Coord, *in.told.Coord, watchStep)) {
		return
	}
	in.told = &here
	c.root.dirty[in.id()] = 0
	c.root.fresh = true
}

func sameGeo(a, b *api.Geo) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}
