package placement

import (
	"strconv"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/extsched"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// answerSlack is the time that an answer of the external scheduler may arrive after its
// deadline.
const answerSlack = 250 * time.Millisecond

// decide places an instance on the node that the built-in plugin chose, or asks the
// external scheduler first.
func (m *Machine) decide(in *instance, req *sched.Request, node api.NodeID, reason api.Reason) {
	switch {
	case m.cfg.Asks == "":
		m.assignOrMove(in, node, reason, "")
		return
	case m.asks.Pending(in.id()):
		return
	case m.asks.Full():
		m.asks.Wait(in.id(), req.Urgency, reason)
	default:
		m.askScheduler(in, req, reason)
	}
	if in.Node == "" {
		m.waiting.Add(in.id())
		m.explain(in, api.ReasonNone, "waits for the scheduler "+m.cfg.Asks, nil)
	}
}

func (m *Machine) askScheduler(in *instance, req *sched.Request, reason api.Reason) {
	m.lastAsk++
	q := sched.Ask{
		Key:   string(in.id()) + "@" + strconv.FormatUint(m.fx.Boot, 10) + "." + strconv.FormatUint(m.lastAsk, 10),
		Level: sched.Nodes, Request: *req, Seed: in.seed(),
	}
	for _, choice := range m.table.Top(req, m.cfg.Plugin, in.seed(), extsched.MaxCandidates) {
		if m.devicesFit(req, choice.ID) {
			q.Candidates = append(q.Candidates, *m.table.Get(choice.ID))
		}
	}
	q = m.asks.Ask(extsched.Question{Instance: in.id(), Reason: reason, Ask: q})
	m.fx.Timers.Set(effects.Key{Kind: effects.Ask, Instance: in.id()}, m.fx.Now.Add(q.Deadline+answerSlack))
	m.fx.Emit(wire.ToScheduler, q)
}

// AskMore asks about instances that waited because extsched.MaxOpen questions were open.
func (m *Machine) AskMore() {
	for {
		id, reason, ok := m.asks.Next()
		if !ok {
			return
		}
		in := m.instances[id]
		if req, best, ok := m.findAgain(in, reason); ok {
			m.decide(in, &req, api.NodeID(best.ID), reason)
		} else {
			m.handleNoFit(in)
		}
	}
}

// findAgain is find for an instance that may have a node.
func (m *Machine) findAgain(in *instance, reason api.Reason) (req sched.Request, best sched.Choice, ok bool) {
	switch {
	case in.Node == "":
		return m.find(in)
	case reason == api.ReasonViolated:
		req = m.betterRequest(in)
		best, ok = m.best(&req, in.seed())
		return req, best, ok
	}
	return m.find(in, string(in.Node))
}

// handleNoFit handles an instance that no longer fits anywhere when its answer arrives.
func (m *Machine) handleNoFit(in *instance) {
	n := m.nodes[in.Node]
	switch {
	case n == nil:
		m.tryPlace(in)
	case n.Silent:
		m.placeLost(in)
	case n.Draining:
		m.evict(in)
	} // a violated SLA is checked again periodically
}

// cancelQuestion cancels the question about an instance, whether it was sent or not.
func (m *Machine) cancelQuestion(in *instance) {
	m.asks.Cancel(in.id())
	m.fx.Timers.Clear(effects.Key{Kind: effects.Ask, Instance: in.id()})
}

func (m *Machine) Answered(a sched.Answer) { m.handleAnswer(m.asks.Answer(a)) }

// AskDue handles a question that the external scheduler did not answer in time.
func (m *Machine) AskDue(id api.InstanceID) { m.handleAnswer(m.asks.Expire(id)) }

// handleAnswer places an instance on the first node of the external scheduler's ranking that
// fits, or on the built-in plugin's choice if there is no usable answer.
func (m *Machine) handleAnswer(r extsched.Result, ok bool) {
	if !ok {
		return
	}
	in := m.instances[r.Instance]
	m.cancelQuestion(in)
	req, best, ok := m.findAgain(in, r.Reason)
	detail := ""
	if r.Fault != "" {
		fault := "scheduler " + m.cfg.Asks + ": " + r.Fault
		detail = fault + "; " + m.cfg.Plugin.Name() + " decided"
		m.changes.Faults = append(m.changes.Faults, fault)
	}
	for _, choice := range r.Ranked {
		if m.fitsNow(&req, choice.ID, in.seed()) {
			m.assignOrMove(in, api.NodeID(choice.ID), r.Reason, "")
			return
		}
	}
	if ok {
		m.assignOrMove(in, api.NodeID(best.ID), r.Reason, detail)
	} else {
		m.handleNoFit(in) // the candidates have become full
	}
}

func (m *Machine) fitsNow(req *sched.Request, id string, seed uint64) bool {
	cand := m.table.Get(id)
	if cand == nil {
		return false
	}
	_, ok := sched.PlaceBest(req, []sched.Candidate{*cand}, m.cfg.Plugin, seed)
	return ok && m.devicesFit(req, id)
}

// assignOrMove assigns an instance to a node. One that already runs is moved, make before break
// unless it is exclusive.
func (m *Machine) assignOrMove(in *instance, to api.NodeID, reason api.Reason, detail string) {
	n := m.nodes[in.Node]
	switch {
	case n == nil:
		m.assign(in, to, reason, detail)
	case in.exclusive() && !n.Silent:
		m.breakBeforeMake(in, reason)
	default:
		m.makeBeforeBreak(in, to, reason, detail)
	}
}
