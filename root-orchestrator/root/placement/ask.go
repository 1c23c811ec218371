package placement

import (
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/extsched"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// ask returns the question to the external scheduler that ranks the clusters that fit, or waits
// until a question can be open.
func (m *Machine) ask(in Instance) Decision {
	if m.exchange.Full() {
		m.exchange.Wait(in.ID, in.Spec.Urgency(), api.ReasonNone)
		return Decision{}
	}
	req, _, ok := m.find(in)
	if !ok {
		return m.preempt(in, &req)
	}
	a := sched.Ask{Level: sched.Clusters, Request: req, Seed: in.seed()}
	fit := m.table.Place(&req, m.plugin(in), in.seed()).Ranked
	for _, choice := range fit[:min(len(fit), extsched.MaxCandidates)] {
		a.Candidates = append(a.Candidates, *m.table.Get(choice.ID))
	}
	return Decision{Ask: &a}
}

// Asked records that the question of a Decision is sent under the Key that it has now, and
// completes the question.
func (m *Machine) Asked(id api.InstanceID, a *sched.Ask) {
	m.StopWaiting(id)
	*a = m.exchange.Ask(extsched.Question{Instance: id, Ask: *a})
	m.timers.Set(Due{Kind: DueAsk, Instance: id}, m.now.Add(a.Deadline))
}

// forgetQuestion cancels the question about an instance, whether it is open or queued.
func (m *Machine) forgetQuestion(id api.InstanceID) {
	m.exchange.Cancel(id)
	m.timers.Clear(Due{Kind: DueAsk, Instance: id})
}

// NextUnasked removes the first instance from the queue for questions, for the core to decide
// about. ok is false if the queue is empty or no further question can be open.
func (m *Machine) NextUnasked() (id api.InstanceID, ok bool) {
	id, _, ok = m.exchange.Next()
	return id, ok
}

func (m *Machine) Question(key string) (api.InstanceID, bool) { return m.exchange.About(key) }

// Answered decides by the external scheduler's answer: the first cluster in it that still fits gets
// the instance. If the answer cannot be used, the built-in plugin decides, and fault says why.
func (m *Machine) Answered(in Instance, a sched.Answer) (d Decision, fault string) {
	r, _ := m.exchange.Answer(a)
	m.forgetQuestion(in.ID)
	if r.Fault != "" {
		return m.choose(in), r.Fault
	}
	req, _, _ := m.find(in)
	for _, choice := range r.Ranked {
		cand := m.table.Get(choice.ID)
		if cand == nil {
			continue
		}
		if _, fits := sched.PlaceBest(&req, []sched.Candidate{*cand}, m.cfg.Plugin, 0); fits {
			return m.placeOn(in, choice, false), ""
		}
	}
	return m.choose(in), "" // no cluster in the answer fits any more
}

// Unanswered decides with the built-in plugin because the deadline of the question is over. Without
// an open question it returns the zero Decision and no fault.
func (m *Machine) Unanswered(in Instance) (d Decision, fault string) {
	r, open := m.exchange.Expire(in.ID)
	if !open {
		return Decision{}, ""
	}
	m.forgetQuestion(in.ID)
	return m.choose(in), r.Fault
}
