package placement

import (
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/autoscale"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/internal/step"
)

// A dormant instance is assigned to the cluster and takes no capacity: it has no node, or only its
// logs are left on its node. It has no backend, and is not retried when capacity becomes free. Its
// state is api.Dormant and its reason says what it waits for. Whoever makes it dormant wakes it: a
// schedule, or the scaling of its service.

// Dormant reports whether the instance is dormant.
func (m *Machine) Dormant(id api.InstanceID) bool {
	in := m.instances[id]
	return in != nil && in.dormant()
}

func (in *instance) dormant() bool { return in.State == api.Dormant }

// Wake places a dormant instance like a new one. If it fits nowhere, it waits for capacity and is
// handed back to the root. It ignores other instances, and reports whether the instance was dormant.
func (m *Machine) Wake(id api.InstanceID, detail string) bool {
	in := m.instances[id]
	if in == nil || !in.dormant() {
		return false
	}
	last := in.Node // of a run that has ended
	m.applyEvent(in, lifecycle.Wake, api.ReasonNone, detail)
	in.woken = detail
	if last != "" {
		m.unassign(in, true)
		if m.staysOn(in, m.nodes[last]) {
			m.assign(in, last, api.ReasonNone, "")
			return true
		}
	}
	m.tryPlace(in)
	return true
}

// Sleep makes an instance dormant: it is stopped on its node, and its restarts and failures are
// counted anew when it wakes. It ignores an instance that is dormant, has ended, is leaving, or was
// handed back to the root as an exclusive one.
func (m *Machine) Sleep(id api.InstanceID, reason api.Reason, detail string) {
	if in := m.instances[id]; in != nil {
		m.sleep(in, reason, detail)
	}
}

func (m *Machine) sleep(in *instance, reason api.Reason, detail string) {
	if in.Leaving || in.Withdrawn || in.AwaitsOffer || in.ended() {
		return
	}
	id := in.id()
	m.cancelQuestion(in)
	m.unreserve(in)
	m.endKeptPlacements(in)
	m.waiting.Remove(id)
	delete(m.aboveShare, id)
	for _, k := range []effects.Kind{effects.Search, effects.Listen, effects.Accept} {
		m.fx.Timers.Clear(effects.Key{Kind: k, Instance: id})
	}
	if in.Node != "" {
		m.unassign(in, true)
	}
	in.HandedBack, in.Moving, in.GivenUp, in.NoBetterNode, in.Violated = false, false, false, false, ""
	in.woken = ""
	in.lostReason, in.searchUntil, in.avoid, in.why = api.ReasonNone, time.Time{}, nil, nil
	in.Restarts, in.Failures, in.ExitCode, in.Address, in.Ready = 0, 0, nil, netip.Addr{}, false
	m.applyEvent(in, lifecycle.Sleep, reason, detail)
	m.pinSave(in)
}

// beginDormant makes an instance without a node dormant if its SLA says so, and reports whether it
// is.
func (m *Machine) beginDormant(in *instance) bool {
	reason := in.Desired.Spec.Dormant(in.id().Number())
	if reason == api.ReasonNone {
		return false
	}
	detail := ""
	if reason == api.ReasonScheduled {
		m.beginSchedule(in)
		detail = m.nextRun(in)
	}
	m.applyEvent(in, lifecycle.Sleep, reason, detail)
	return true
}

// ScaleState returns what scaling needs to know about an instance. ok is false if the cluster does not
// have it or it is leaving.
func (m *Machine) ScaleState(id api.InstanceID) (s autoscale.State, ok bool) {
	in := m.instances[id]
	if in == nil || in.Leaving || in.Withdrawn {
		return s, false
	}
	w := &in.Desired.Spec
	return autoscale.State{
		Scale: w.Scale, Limits: w.Needs(), Awake: !in.dormant() && !in.ended(), Placed: in.Node != "", Running: in.serving(),
	}, true
}

// RunsOn reports whether a placement is the instance's present one and on a node.
func (m *Machine) RunsOn(id api.InstanceID, epoch api.Epoch, node api.NodeID) bool {
	in := m.instances[id]
	return in != nil && in.Node == node && in.Epoch == epoch && in.State == api.Running
}

// SetScaleFault stores why something that the instance's service scales by is not known, for the root. It
// is not saved.
func (m *Machine) SetScaleFault(id api.InstanceID, text string) {
	if in := m.instances[id]; in != nil && in.scaleFault != step.Clip(text) {
		in.scaleFault = step.Clip(text)
		m.publish(in)
	}
}
