package placement

import (
	"fmt"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Cordon applies a cordon of the node, or ends it. Call SetNode first. It saves the node.
func (m *Machine) Cordon(id api.NodeID, on bool) {
	n := m.nodes[id]
	n.allChanged()
	if !on {
		for _, in := range n.sorted() {
			if in.Moving {
				in.Moving, in.HandedBack = false, false
				m.unreserve(in)
				if !n.Silent {
					m.waiting.Remove(in.id())
				}
				m.changed(in)
			}
		}
	}
	m.cfg.SaveNode(id)
	m.refresh(n)
}

// MaxLocal bounds the number of instances of a service that an operator may request.
const MaxLocal = 10_000

// Scale sets the number of instances of a service in the cluster. It returns api.ErrInvalid
// for a number above MaxLocal, and api.ErrNotFound for a service without instances here.
func (m *Machine) Scale(id api.ServiceID, replicas int) error {
	if replicas < 0 || replicas > MaxLocal {
		return fmt.Errorf("%d replicas of %s: want 0 to %d: %w", replicas, id, MaxLocal, api.ErrInvalid)
	}
	ids := m.relations.Instances(id)
	if len(ids) == 0 {
		return fmt.Errorf("no instance of %s is in cluster %s, so there is no SLA to scale by: %w", id, m.cfg.Cluster, api.ErrNotFound)
	}
	if m.instances[ids[0]].Desired.Spec.Scale != nil {
		return fmt.Errorf("scale %s: its SLA has scale, which decides the number: %w", id, api.ErrConflict)
	}
	var live, withdrawn []*instance
	for _, i := range ids {
		in := m.instances[i]
		switch {
		case in.Leaving:
		case in.Withdrawn:
			withdrawn = append(withdrawn, in)
		default:
			live = append(live, in)
		}
	}
	if len(live)+len(withdrawn) == 0 {
		return fmt.Errorf("all instances of %s are leaving cluster %s: %w", id, m.cfg.Cluster, api.ErrNotFound)
	}
	for len(live) < replicas {
		template := append(live, withdrawn...)[0]
		live = append(live, m.addLocal(template))
	}
	slices.SortFunc(live, func(a, b *instance) int { return b.id().Number() - a.id().Number() })
	for _, in := range live[:len(live)-replicas] {
		m.withdraw(in)
	}
	return nil
}

// addLocal adds an instance. Its number is from the cluster's own range and never reused.
func (m *Machine) addLocal(like *instance) *instance {
	a := like.Desired
	a.Instance = like.id().Service().Instance(m.cfg.LocalNumbers + m.local)
	m.local++
	m.changes.Local = true
	in := &instance{Record: Record{Epoch: a.Epoch, State: api.ClusterScheduled, Local: true, Reason: api.ReasonScaledLocally}}
	m.setAssignment(in, a)
	if m.beginDormant(in) {
		return in
	}
	m.changed(in)
	m.tryPlace(in)
	return in
}

func (m *Machine) withdraw(in *instance) {
	in.Withdrawn, in.HandedBack, in.Moving, in.NoBetterNode, in.Violated = true, false, false, false, ""
	m.cancelQuestion(in)
	m.unreserve(in)
	in.Reason, in.Detail = api.ReasonScaledLocally, "the cluster's operator scaled the service down"
	m.waiting.Remove(in.id())
	if in.Local {
		m.RemoveDesired(in.id())
		return
	}
	m.endKeptPlacements(in)
	if in.Node != "" {
		m.unassign(in, true)
	}
	in.State = lifecycle.Must(in.State, lifecycle.Withdraw)
	m.changed(in)
}

// fits reports whether the instance fits on the node with the free resources of cand.
func (m *Machine) fits(in *instance, n *node, cand sched.Candidate) bool {
	req := m.request(in)
	_, ok := sched.PlaceBest(&req, []sched.Candidate{cand}, m.cfg.Plugin, in.seed())
	return ok && n.account.FitTogether(req.Devices, cand.Slots[0].Devices)
}
