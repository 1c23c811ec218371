package cluster

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

const (
	maxAsked    = 1000                   // candidates that a scheduler outside is asked about: the built-in's best
	answerSlack = 250 * time.Millisecond // for an answer to travel
)

// ask is a question to the scheduler outside that has no answer yet.
type ask struct {
	in     *instance
	reason api.Reason // why it is placed
	names  map[string]bool
}

// decide gives an instance to the node that the built-in plugin chose, or asks
// the scheduler outside first and goes on meanwhile.
func (c *Core) decide(in *instance, req *sched.Request, node api.NodeID, reason api.Reason) {
	if c.cfg.Asks == "" {
		c.goTo(in, node, reason, "")
		return
	}
	if in.asked != "" {
		return
	}
	res := c.rank(req, in.seed())
	a := &ask{in: in, reason: reason, names: map[string]bool{}}
	q := sched.Ask{Level: sched.Nodes, Request: *req, Seed: in.seed(), Deadline: cmp.Or(req.Convergence, convergence)}
	q.Request.Domains = slices.Clone(req.Domains)
	slices.SortFunc(q.Request.Domains, func(a, b sched.Domain) int {
		return cmp.Or(strings.Compare(a.By, b.By), strings.Compare(a.Name, b.Name), strings.Compare(a.Apart, b.Apart))
	})
	q.Request.Peers = clonePeers(req.Peers) // the question leaves the core
	for _, choice := range res.Ranked[:min(len(res.Ranked), maxAsked)] {
		a.names[choice.ID] = true
		q.Candidates = append(q.Candidates, *c.table.Get(choice.ID))
	}
	slices.SortFunc(q.Candidates, func(a, b sched.Candidate) int { return strings.Compare(a.ID, b.ID) })
	c.asks.last++
	q.Key = string(in.id()) + "@" + strconv.FormatUint(c.boot, 10) + "." + strconv.FormatUint(c.asks.last, 10)
	in.asked = q.Key
	c.asks.open[q.Key] = a
	c.timers.Set(timerKey{what: timerAsk, name: q.Key}, c.now.Add(q.Deadline+answerSlack))
	c.emit(api.ToScheduler, q)
	if in.Node == "" {
		c.waiting.Add(in.id())
		c.explain(in, api.ReasonNone, "waits for the scheduler "+c.cfg.Asks, nil)
	}
}

// asks are the questions to the scheduler outside.
type asks struct {
	last uint64
	open map[string]*ask
}

func clonePeers(peers map[string]int) map[string]int {
	out := make(map[string]int, len(peers))
	for _, k := range step.Keys(peers) {
		out[k] = peers[k]
	}
	return out
}

// unask drops the question about an instance: its answer is of no use any more.
func (c *Core) unask(in *instance) {
	if in.asked == "" {
		return
	}
	delete(c.asks.open, in.asked)
	c.timers.Clear(timerKey{what: timerAsk, name: in.asked})
	in.asked = ""
}

// ranked takes the scheduler's answer. It is checked as if it were nobody's: each
// that it names was asked about, and still fits when its turn comes.
func (c *Core) ranked(ans sched.Answer) {
	a := c.asks.open[ans.Key]
	if a == nil {
		return // late, or twice
	}
	fault := clip(ans.Error)
	for _, choice := range ans.Ranked {
		if !a.names[choice.ID] {
			fault = "it names " + strconv.Quote(clip(choice.ID)) + ", about which it was not asked"
		}
	}
	if fault == "" && len(ans.Ranked) == 0 {
		fault = "it names nobody"
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
	var own []string
	if in.Node != "" {
		own = []string{string(in.Node)}
	}
	req, best, ok := c.find(in, own...)
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
	switch {
	case ok:
		c.goTo(in, api.NodeID(best.ID), a.reason, detail)
	case in.Node == "":
		c.tryPlace(in) // meanwhile all of them are taken
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
