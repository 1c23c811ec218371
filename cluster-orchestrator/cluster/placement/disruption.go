package placement

import (
	"fmt"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/internal/step"
)

// A voluntary disruption is a move, by an operator, a person or the cluster, that stops an instance before its
// replacement runs. If the service has a disruption budget, the cluster requests each disruption of an available
// instance under a number, which it reports to the root, and waits until the root permits this number. The root
// counts the number against the budget until it is no longer reported: when the instance is available again, or
// is not to move any more. A number is never used twice, so a permission that is late permits nothing.

// disruption is a voluntary disruption of an instance.
type disruption struct {
	Number api.Generation `json:"number"`
	Reason api.Reason     `json:"reason"`          // drained, moved or violated
	To     api.NodeID     `json:"to,omitempty"`    // of a requested move; empty: any other node
	Begun  bool           `json:"begun,omitempty"` // the root permitted it
	Epoch  api.Epoch      `json:"epoch,omitempty"` // of the placement that it ends
}

func (d *disruption) waits() bool { return d != nil && !d.Begun }

// mayDisrupt reports whether an instance may be stopped now to move for the reason. Otherwise the disruption
// waits, continueDisruption continues it, and the caller saves the instance.
func (m *Machine) mayDisrupt(in *instance, reason api.Reason, to api.NodeID) bool {
	d := in.Disruption
	if d != nil && d.Begun {
		in.Moving = in.Moving || reason == api.ReasonDrained
		return true
	}
	if in.Desired.MaxUnavailable == nil || !in.available() {
		in.Disruption = nil
		return true
	}
	if d == nil {
		d = &disruption{Number: m.nextGen(), Epoch: in.Epoch}
		in.Disruption = d
	}
	if d.Reason == api.ReasonNone || reason != api.ReasonViolated { // what people want goes before
		d.Reason, d.To = reason, to
	}
	d.Begun = in.Desired.Disrupts == d.Number
	in.Moving = in.Moving || reason == api.ReasonDrained // until it is taken off its node
	return d.Begun
}

// neverInterrupted reports whether the disruption budget never permits a move of the instance.
func (in *instance) neverInterrupted() bool {
	return in.Desired.MaxUnavailable != nil && *in.Desired.MaxUnavailable == 0 && in.exclusive()
}

// available reports whether a move that stops the instance interrupts it.
func (in *instance) available() bool {
	return in.State == api.Running && in.Reason != api.ReasonNotReady && in.Reason != api.ReasonUnhealthy
}

// disruptionText describes a disruption that waits; "" if none does.
func (in *instance) disruptionText() string {
	switch {
	case !in.Disruption.waits() || in.Desired.MaxUnavailable == nil:
		return ""
	case *in.Desired.MaxUnavailable == 0:
		return "waits to move: the disruption budget of its service (max_unavailable 0) never permits it; an operator can stop it with treeline drain --force"
	}
	return fmt.Sprintf("waits to move until the disruption budget of its service (max_unavailable %d) permits one more unavailable instance", *in.Desired.MaxUnavailable)
}

// continueDisruption continues a disruption that waits, if the root has permitted it or removed the budget, or the
// instance is not available any more, so that a move does not interrupt it.
func (m *Machine) continueDisruption(in *instance) {
	d, on := in.Disruption, m.nodes[in.Node]
	if !d.waits() || on == nil || on.Silent || in.Desired.MaxUnavailable != nil && in.Desired.Disrupts != d.Number && in.available() {
		return
	}
	if n := m.nodes[in.Reserved]; n != nil && in.Move == nil {
		m.useReservations(n)
		return
	}
	switch d.Reason {
	case api.ReasonMoved:
		if err := m.Move(in.id(), d.To); err != nil {
			in.Moved = api.NotMoved + err.Error()
		}
	case api.ReasonViolated:
		if in.Violated != "" || m.violation(in, on).Text != "" {
			m.Relieve(in.id())
		}
	default:
		if in.Moving {
			m.evict(in)
		}
	}
	if in.Disruption.waits() { // it has no target any more, or no reason to move
		in.Disruption = nil
	}
	m.changed(in)
}

// noteDisruption ends a disruption that is not wanted any more. It is called when the instance is saved.
func (in *instance) noteDisruption() {
	d := in.Disruption
	if d == nil {
		return
	}
	stays := in.Epoch == d.Epoch && in.Node != "" && in.Move == nil
	switch {
	case in.ended(), in.Leaving, in.Withdrawn, d.waits() && (in.Node == "" || in.Epoch != d.Epoch):
		in.Disruption = nil
	case d.Reason == api.ReasonDrained && !in.Moving && (d.waits() || stays):
		in.Disruption = nil
	}
}

// endDisruption ends a disruption that has begun and is over: the instance is available again under a new epoch,
// or stays where it is.
func (m *Machine) endDisruption(in *instance) {
	d := in.Disruption
	switch {
	case d == nil || !d.Begun || in.Move != nil || in.hasKept():
	case in.Epoch == d.Epoch:
		if in.Node != "" && !in.Moving && in.Reserved == "" && !m.asks.Pending(in.id()) {
			in.Disruption = nil
		}
	case in.serving():
		in.Disruption = nil
	case in.available():
		m.fx.Timers.SetEarlier(effects.Key{Kind: effects.Listen, Instance: in.id()}, m.fx.Now.Add(listenTime))
	}
}

// Disrupting returns the instances of services with a disruption budget whose voluntary disruption is under way, in
// the order of their ids.
func (m *Machine) Disrupting() (out []api.InstanceID) {
	for _, id := range step.Keys(m.instances) {
		if in := m.instances[id]; in.Desired.MaxUnavailable != nil && in.Disruption != nil && in.Disruption.Begun {
			out = append(out, id)
		}
	}
	return out
}

// awaitDisruption lets an instance on a drained node wait for the disruption budget of its service.
func (m *Machine) awaitDisruption(in *instance) {
	in.HandedBack, in.why = false, nil
	m.waiting.Add(in.id())
	m.changed(in)
}
