package sim

import (
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// newUpdate returns a random policy of roll-outs with a deadline within which a world settles.
func (w *World) newUpdate(exclusive bool) *api.Update {
	healthy := w.chance.IntN(4)
	u := &api.Update{Deadline: 20 + w.chance.IntN(30), MinHealthyTime: &healthy, Parallelism: w.chance.IntN(3)}
	if surge := w.chance.IntN(4); surge < 3 && !exclusive {
		u.Surge = &surge
	}
	if w.chance.IntN(6) == 0 {
		u.Canaries = 1
	}
	if w.chance.IntN(6) == 0 {
		no := false
		u.AutoRollback = &no
	}
	return u
}

// checkReplaced checks that a roll-out that replaces an instance which takes requests leaves as many
// others as its policy promises. c is a change that the root shows to watchers, in their order.
func (m *RootMachine) checkReplaced(c api.Change) {
	switch o := c.Object.(type) {
	case api.Instance:
		m.shown[o.ID] = o
	case api.Event:
		was, ok := m.shown[o.Instance]
		if o.Reason != api.ReasonUpdated || !ok || !was.Ready || was.Stale || m.changes(was) {
			return
		}
		if was.Reason == api.ReasonRuntimeDown || was.Reason == api.ReasonClusterLost {
			return // it is not known whether it takes requests
		}
		id := o.Instance.Service()
		s, ok := m.core.Service(id)
		r, _ := m.core.RollOut(id)
		floor := r.Replicas - r.Waiting - m.dormant(id)
		if r.Extra == 0 {
			floor -= s.Spec.UpdatePolicy(s.Replicas).Parallelism
		}
		if ok && !s.Spec.OneShot && r.Ready < floor {
			m.w.violate("roll-out", string(o.Instance), "is replaced while %d other instances are ready, want %d: %s", r.Ready, floor, r.Standing())
		}
	case nil:
		if c.Kind == "instance" {
			delete(m.shown, api.InstanceID(c.ID))
		}
	}
}

// dormant returns how many instances of a service are dormant: they need not take requests.
// It counts those of the present step, as the root does; shown has them after the roll-out's events.
func (m *RootMachine) dormant(id api.ServiceID) (n int) {
	for _, in := range m.core.Instances(id.Tenant()) {
		if in.Service == id && in.State == api.Dormant {
			n++
		}
	}
	return n
}

// changes reports whether the root's present step may have changed the readiness of an instance
// before it was replaced.
func (m *RootMachine) changes(in api.Instance) bool {
	if c, ok := m.core.Cluster(in.Cluster); !ok || c.Status != api.ClusterReady {
		return true
	}
	r, ok := m.proc.input.(root.Report)
	return ok && slices.ContainsFunc(r.Report.Observed, func(o api.Observed) bool { return o.Instance == in.ID })
}

// steer sometimes pauses, resumes, promotes or undoes one of the person's roll-outs.
func (p *person) steer() {
	if len(p.services) == 0 {
		return
	}
	i := p.w.chance.IntN(len(p.services))
	actions := []root.RollOutAction{root.PauseRollOut, root.ResumeRollOut, root.PromoteRollOut, root.UndoRollOut}
	action := actions[p.w.chance.IntN(len(actions))]
	if action == root.UndoRollOut && p.busy {
		return
	}
	p.w.root.proc.give(root.RollOut{Service: p.service(i), Action: action, By: "sim"})
}

// goOn resumes and promotes the person's roll-outs, so that they end.
func (p *person) goOn() {
	for i := range p.services {
		switch s, _ := p.w.root.core.Service(p.service(i)); s.RollOut {
		case api.RollOutPaused:
			p.w.root.proc.give(root.RollOut{Service: s.ID, Action: root.ResumeRollOut, By: "sim"})
		case api.RollOutCanary:
			p.w.root.proc.give(root.RollOut{Service: s.ID, Action: root.PromoteRollOut, By: "sim"})
		}
	}
}

// After all faults have ended, people go on goOnTimes, in this interval.
const (
	goOnEvery = 5 * time.Second
	goOnTimes = 40
)

// awaitsPeople reports whether a roll-out waits for a person who will go on with it.
func (c *chaos) awaitsPeople(s api.Service) bool {
	return c.w.now <= c.goOnUntil && (s.RollOut == api.RollOutPaused || s.RollOut == api.RollOutCanary)
}

// returned reports whether the service has another version than the one applied last, because that
// failed or was undone.
func (w *World) returned(id api.ServiceID, code string) bool {
	h, _ := w.root.core.RollOutHistory(id)
	for _, v := range h.Versions[:max(0, len(h.Versions)-1)] {
		if v.Code == code {
			return true
		}
	}
	return false
}
