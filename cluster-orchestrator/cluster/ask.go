package cluster

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

const (
	maxAsked    = 128                    // candidates that a scheduler outside is asked about: the built-in's best
	maxPoints   = 64                     // points of a bound that it is told of
	maxOpen     = 64                     // questions without an answer; more wait for their turn
	answerSlack = 250 * time.Millisecond // for an answer to travel
)

// ask is a question to the scheduler outside that has no answer yet.
type ask struct {
	in     *instance
	reason api.Reason // why it is placed
	names  map[string]bool
}

// asks are the questions to the scheduler outside.
type asks struct {
	last uint64
	open map[string]*ask
	next turns
}

// inLine is the key of a question that waits for its turn to be asked.
const inLine = "in line"

// turns are whom the scheduler outside is to be asked about, and why they are
// placed: the most urgent first, and among equals as they came.
type turns struct {
	of  [urgencies][]api.InstanceID // and some that left it
	why map[api.InstanceID]api.Reason
}

func (l *turns) add(in *instance, why api.Reason) {
	if l.why == nil {
		l.why = map[api.InstanceID]api.Reason{}
	}
	l.why[in.id()] = why
	u := min(max(in.demand.request.Urgency, 0), urgencies-1)
	l.of[u] = append(l.of[u], in.id())
}

func (l *turns) remove(id api.InstanceID) {
	if delete(l.why, id); len(l.why) == 0 {
		*l = turns{}
	}
}

func (l *turns) pop() (id api.InstanceID, why api.Reason, ok bool) {
	for u := len(l.of) - 1; u >= 0; u-- {
		for len(l.of[u]) > 0 {
			id, l.of[u] = l.of[u][0], l.of[u][1:]
			if why, ok = l.why[id]; ok {
				l.remove(id)
				return id, why, true
			}
		}
	}
	return id, why, false
}

// decide gives an instance to the node that the built-in plugin chose, or asks
// the scheduler outside first and goes on meanwhile.
func (c *Core) decide(in *instance, req *sched.Request, node api.NodeID, reason api.Reason) {
	switch {
	case c.cfg.Asks == "":
		c.goTo(in, node, reason, "")
		return
	case in.asked != "":
		return
	case len(c.asks.open) >= maxOpen:
		in.asked = inLine
		c.asks.next.add(in, reason)
	default:
		c.question(in, req, reason)
	}
	if in.Node == "" {
		c.waiting.Add(in.id())
		c.explain(in, api.ReasonNone, "waits for the scheduler "+c.cfg.Asks, nil)
	}
}

// question asks the scheduler outside about an instance.
func (c *Core) question(in *instance, req *sched.Request, reason api.Reason) {
	a := &ask{in: in, reason: reason, names: map[string]bool{}}
	q := sched.Ask{Level: sched.Nodes, Request: *req, Seed: in.seed(), Deadline: cmp.Or(req.Convergence, convergence)}
	q.Request.Domains = slices.Clone(req.Domains)
	slices.SortFunc(q.Request.Domains, func(a, b sched.Domain) int {
		return cmp.Or(strings.Compare(a.By, b.By), strings.Compare(a.Name, b.Name), strings.Compare(a.Apart, b.Apart))
	})
	q.Request.Peers = maps.Clone(req.Peers) // the question leaves the core
	q.Request.Bounds = slices.Clone(req.Bounds)
	for i := range q.Request.Bounds {
		b := &q.Request.Bounds[i]
		b.Points, b.Places = sampled(b.All(), maxPoints), nil
	}
	for _, choice := range c.table.Top(req, c.cfg.Plugin, in.seed(), maxAsked) {
		if c.together(req, choice.ID) {
			a.names[choice.ID] = true
			q.Candidates = append(q.Candidates, *c.table.Get(choice.ID))
		}
	}
	slices.SortFunc(q.Candidates, func(a, b sched.Candidate) int { return strings.Compare(a.ID, b.ID) })
	c.asks.last++
	q.Key = string(in.id()) + "@" + strconv.FormatUint(c.boot, 10) + "." + strconv.FormatUint(c.asks.last, 10)
	in.asked = q.Key
	c.asks.open[q.Key] = a
	c.timers.Set(timerKey{what: timerAsk, name: q.Key}, c.now.Add(q.Deadline+answerSlack))
	c.emit(api.ToScheduler, q)
}

// askMore asks about those whose turn it is.
func (c *Core) askMore() {
	for len(c.asks.open) < maxOpen {
		id, reason, ok := c.asks.next.pop()
		if !ok {
			return
		}
		in := c.instances[id]
		in.asked = ""
		if req, best, ok := c.findFrom(in, reason); ok {
			c.decide(in, &req, api.NodeID(best.ID), reason)
		} else {
			c.nowhere(in)
		}
	}
}

// findFrom is find for an instance that may be on a node already.
func (c *Core) findFrom(in *instance, reason api.Reason) (req sched.Request, best sched.Choice, ok bool) {
	switch {
	case in.Node == "":
		return c.find(in)
	case reason == api.ReasonViolated:
		req = c.better(in)
		best, ok = c.best(&req, in.seed())
		return req, best, ok
	}
	return c.find(in, string(in.Node))
}

// nowhere goes on with an instance for which there was room when its question
// came up, and is none any more.
func (c *Core) nowhere(in *instance) {
	n := c.nodes[in.Node]
	switch {
	case n == nil:
		c.tryPlace(in)
	case n.silent:
		c.displace(in)
	case n.draining:
		c.evict(in)
	} // what breaks its SLA is looked at again
}

// unask drops the question about an instance: its answer is of no use any more.
func (c *Core) unask(in *instance) {
	switch in.asked {
	case "":
		return
	case inLine:
		c.asks.next.remove(in.id())
		in.asked = ""
		return
	}
	delete(c.asks.open, in.asked)
	c.timers.Clear(timerKey{what: timerAsk, name: in.asked})
	in.asked = ""
}

// ranked takes the scheduler's answer. It is checked as if it were nobody's: each
// that it names was asked about, and still fits when its turn comes. It was asked
// about some that fit, so one that names none of them is at fault as well.
func (c *Core) ranked(ans sched.Answer) {
	a := c.asks.open[ans.Key]
	if a == nil {
		return // late, or twice
	}
	fault := step.Clip(ans.Error)
	for _, choice := range ans.Ranked {
		if !a.names[choice.ID] {
			fault = "it names " + strconv.Quote(step.Clip(choice.ID)) + ", about which it was not asked"
		}
	}
	if fault == "" && len(ans.Ranked) == 0 {
		fault = "it names no candidate"
	}
	if fault != "" {
		ans.Ranked = nil
	}
	c.answered(a, ans.Ranked, fault)
}

// answered places an instance as the scheduler says, or as the built-in plugin
// does where the scheduler failed.
func (c *Core) answered(a *ask, ranked []sched.Choice, fault string) {
	in := a.in
	c.unask(in)
	req, best, ok := c.findFrom(in, a.reason)
	detail := ""
	if fault != "" {
		fault = "scheduler " + c.cfg.Asks + ": " + fault
		detail = fault + "; " + c.cfg.Plugin.Name() + " decided"
		c.notice(api.ReasonNoScheduler, fault)
	}
	for _, choice := range ranked {
		if c.fitsNow(&req, choice.ID, in.seed()) {
			c.goTo(in, api.NodeID(choice.ID), a.reason, "")
			return
		}
	}
	if ok {
		c.goTo(in, api.NodeID(best.ID), a.reason, detail)
	} else {
		c.nowhere(in) // meanwhile all of them are taken
	}
}

func (c *Core) fitsNow(req *sched.Request, id string, seed uint64) bool {
	cand := c.table.Get(id)
	if cand == nil {
		return false
	}
	_, ok := sched.PlaceBest(req, []sched.Candidate{*cand}, c.cfg.Plugin, seed)
	return ok && c.together(req, id)
}

// askDue goes on without an answer.
func (c *Core) askDue(key string) {
	if a := c.asks.open[key]; a != nil {
		c.answered(a, nil, "no answer within "+cmp.Or(a.in.demand.request.Convergence, convergence).String())
	}
}

// goTo gives an instance to a node, make before break where it runs already.
func (c *Core) goTo(in *instance, to api.NodeID, reason api.Reason, detail string) {
	n := c.nodes[in.Node]
	switch {
	case n == nil:
		c.moveTo(in, to, reason, detail)
	case in.exclusive() && !n.silent:
		c.stopFirst(in, reason)
	default:
		c.moveOff(in, to, reason, detail)
	}
}

// sampled are at most so many of the points.
func sampled(points []api.Position, most int) []api.Position {
	if len(points) <= most {
		return points
	}
	out := make([]api.Position, most)
	for i := range out {
		out[i] = points[i*len(points)/most]
	}
	return out
}
