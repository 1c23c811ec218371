package sim

import (
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay"
)

// The bounds within which services that nobody uses sleep, and demanded ones wake. A service gives up one instance
// after another, and then has to be idle; a start may take several attempts, and an instance without room in
// its cluster is offered to others.
const (
	sleepBound = 2 * time.Minute
	wakeBound  = 2 * time.Minute
	callEvery  = 2 * time.Second // as clients repeat their packets
	jobBound   = 4 * time.Minute // for jobs that get room when services sleep, and fail for good after their attempts
)

// hasJobs reports whether a job is to run.
func (w *World) hasJobs() bool {
	return slices.ContainsFunc(w.root.core.Instances(""), func(in api.Instance) bool {
		s, ok := w.root.core.Service(in.Service)
		return ok && s.Spec.OneShot && !api.Ended(in.State, in.Reason)
	})
}

// sleepAndWake checks that services that nobody uses sleep, that each of them wakes when packets wait for it, or says
// why not, and that all sleep again.
func (w *World) sleepAndWake() {
	w.note("world", "nobody uses a service")
	w.resting = true
	bound := sleepBound
	if w.hasJobs() {
		bound += jobBound
	}
	if !w.settle("sleep", bound) {
		return
	}
	var calls []*wanted
	for _, s := range w.root.core.Services("") {
		if s.Spec.Scale.ToZero() && !w.isSick(string(s.ID)) && w.Network {
			calls = append(calls, &wanted{service: s})
		}
	}
	w.note("world", "packets wait for %d services", len(calls))
	for end := w.now + wakeBound; w.now < end && w.violation == nil; w.Run(callEvery) {
		open := false
		for _, c := range calls {
			open = !w.call(c) || open
		}
		w.look()
		if !open {
			break
		}
	}
	for _, c := range calls {
		switch {
		case c.answered:
			w.woken++
		case c.from != nil && !w.saysWhy(c.service) && w.violation == nil:
			w.violate("wake", string(c.service.ID), "packets of %s wait since %s, and nothing says why", c.from.name, wakeBound)
		}
	}
	w.settle("sleep", wakeBound+sleepBound) // those that found no room look on while packets wait
}

// wanted is a sleeping service that a client calls. The client is a workload of the same application, or there is none.
type wanted struct {
	service  api.Service
	from     *NetMachine
	answered bool
}

// call repeats a client's packet, unless an instance takes its flows. It reports whether no more packets
// are sent.
func (w *World) call(c *wanted) bool {
	if c.answered {
		return true
	}
	from, local, ok := w.clientOf(c.service)
	if !ok {
		c.from = nil
		return true
	}
	c.from = from
	if c.answered = w.answers(c); !c.answered {
		from.proc.give(overlay.Miss{Local: local, Remote: c.service.Addresses.RoundRobin})
	}
	return c.answered
}

// answers reports whether the client's node has a route to an instance that runs.
func (w *World) answers(c *wanted) bool {
	if c.from == nil {
		return false
	}
	for _, r := range c.from.core.View().Routes() {
		for _, b := range r.Backends {
			if r.Service == c.service.ID && b.State == api.BackendUp && len(w.running[b.Instance]) > 0 {
				return true
			}
		}
	}
	return false
}

// clientOf returns an endpoint of the same application that is on the network.
func (w *World) clientOf(s api.Service) (n *NetMachine, local netip.Addr, ok bool) {
	for _, c := range w.living() {
		for _, m := range c.living() {
			if m.net == nil || !m.net.proc.running() {
				continue
			}
			for _, a := range m.net.core.View().List() {
				id := a.Instance.Service()
				if o, known := w.root.core.Service(id); known && o.App == s.App && id != s.ID && len(w.running[a.Instance]) > 0 {
					return m.net, a.Address, true
				}
			}
		}
	}
	return nil, netip.Addr{}, false
}

// saysWhy reports whether root or cluster say why a service that is demanded does not wake: none of its instances finds
// room, it waits for its turn, or its clients may not call it.
func (w *World) saysWhy(s api.Service) bool {
	for _, in := range w.root.core.Instances(s.ID.Tenant()) {
		if in.Service != s.ID {
			continue
		}
		if in.State == api.Requested || in.State == api.ClusterScheduled {
			return in.Reason != api.ReasonNone
		}
		if c := w.cluster(in.Cluster); c != nil {
			if ex, ok := c.core.Why(in.ID); ok && ex.Scale != nil && ex.Scale.Waits != "" {
				return true
			}
		}
	}
	return false
}

// restless lists the instances that nobody uses, and which do not sleep. Those that look for room go on until
// they have been idle for long enough too.
func (w *World) restless(say sayFunc) {
	for _, c := range w.living() {
		for _, in := range c.core.Instances() {
			s, ok := w.root.core.Service(in.Service)
			if ok && s.Spec.Scale != nil && s.Spec.Scale.Sleeps(in.Number) && in.State != api.Dormant && in.State != api.Requested && in.Spec == s.SpecRev {
				say(string(in.ID), "is %s (%s: %s) in %s, although nobody uses it", in.State, in.Reason, in.Detail, c.name)
			}
		}
	}
}
