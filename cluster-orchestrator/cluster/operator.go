package cluster

import (
	"fmt"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

func (c *Core) cordon(id api.NodeID, on bool) error {
	n := c.nodes[id]
	if n == nil {
		return c.noNode(id)
	}
	n.cordoned = on
	if !on {
		c.endPurge(n)
	}
	c.nodeNetChanged(n)
	if !on {
		n.draining = false
		for _, in := range n.sorted() {
			if in.Moving {
				in.Moving, in.Offered = false, false
				c.unreserve(in)
				if !n.silent {
					c.waiting.Remove(in.id())
				}
				c.changed(in)
			}
		}
	}
	c.saveNode(n)
	c.refresh(n)
	return nil
}

// MaxLocal bounds how many instances of a service an operator may ask for.
const MaxLocal = 10_000

func (c *Core) localScale(id api.ServiceID, replicas int) error {
	if c.root.up {
		return fmt.Errorf("the root is reachable; scale %s there: treeline scale: %w", id, api.ErrConflict)
	}
	if replicas < 0 || replicas > MaxLocal {
		return fmt.Errorf("%d replicas of %s: want 0 to %d: %w", replicas, id, MaxLocal, api.ErrInvalid)
	}
	s := c.services[id]
	if s == nil {
		return fmt.Errorf("no instance of %s is in cluster %s, so there is no SLA to scale by: %w", id, c.cfg.ID, api.ErrNotFound)
	}
	var live, withdrawn []*instance
	for _, i := range step.Keys(s.instances) {
		in := s.instances[i]
		switch {
		case in.Leaving:
		case in.Withdrawn:
			withdrawn = append(withdrawn, in)
		default:
			live = append(live, in)
		}
	}
	if len(live)+len(withdrawn) == 0 {
		return fmt.Errorf("all instances of %s are leaving cluster %s: %w", id, c.cfg.ID, api.ErrNotFound)
	}
	for len(live) < replicas {
		template := append(live, withdrawn...)[0]
		live = append(live, c.addLocal(template))
	}
	for len(live) > replicas {
		i := highest(live)
		c.withdraw(live[i])
		live = append(live[:i], live[i+1:]...)
	}
	return nil
}

func highest(ins []*instance) int {
	at := 0
	for i, in := range ins {
		if in.id().Number() > ins[at].id().Number() {
			at = i
		}
	}
	return at
}

// addLocal adds an instance with a number of the cluster's own, which no other
// cluster gives and this one gives once.
func (c *Core) addLocal(like *instance) *instance {
	a := like.Want
	a.Instance = like.id().Service().Instance(c.cfg.LocalNumbers + c.local)
	c.local++
	c.saveMeta()
	in := &instance{Epoch: a.Epoch, State: api.ClusterScheduled, Local: true, Reason: api.ReasonScaledLocally}
	c.wants(in, a)
	c.changed(in)
	c.tryPlace(in)
	return in
}

func (c *Core) withdraw(in *instance) {
	in.Withdrawn, in.Offered, in.Moving, in.Strained, in.Violated = true, false, false, false, ""
	c.unask(in)
	c.unreserve(in)
	in.Reason, in.Detail = api.ReasonScaledLocally, "the cluster's operator scaled the service down"
	c.waiting.Remove(in.id())
	if in.Local {
		c.unwant(in.id())
		return
	}
	c.breakOff(in)
	if in.Node != "" {
		c.unassign(in, true)
	}
	in.State = lifecycle.Must(in.State, lifecycle.Withdraw)
	c.changed(in)
}

// fits reports whether the instance could be on the node if that were cand.
func (c *Core) fits(in *instance, n *node, cand sched.Candidate) bool {
	req := c.request(in)
	_, ok := sched.PlaceBest(&req, []sched.Candidate{cand}, c.cfg.Plugin, in.seed())
	return ok && n.traits.devices.together(req.Devices, cand.Rooms[0].Devices)
}
