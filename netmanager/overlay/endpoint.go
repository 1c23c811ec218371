package overlay

import (
	"net/netip"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/endpoints"
	"github.com/treeline-edge/treeline/netmanager/overlay/peermsg"
	"github.com/treeline-edge/treeline/netmanager/overlay/services"
	"github.com/treeline-edge/treeline/netmanager/overlay/sorted"
)

func (in Attach) apply(c *Core) {
	a, changed, err := c.endpoints.Attach(c.now, in.Attach)
	c.err = err
	if err != nil || !changed {
		return
	}
	c.setLocal(a.Service(), a.Address)
	if c.endpoints.Count(a.Service()) == 1 {
		c.settle(c.subs.Of(a.Service()))
	}
	c.setState(a)
}

// setLocal applies a change to a service's instances on this node.
func (c *Core) setLocal(id api.ServiceID, at netip.Addr) {
	c.table.Touched.Endpoints.Add(at)
	l := services.Local{Count: c.endpoints.Count(id)}
	if a, ok := c.endpoints.Newest(id); ok {
		l.Access, l.Addresses, l.Ports = a.Attach.Access, a.Attach.Addresses, a.Attach.Ports
	}
	c.applyServices(c.services.SetLocal(id, l))
}

func (in Detach) apply(c *Core) {
	a, ok := c.endpoints.Detach(c.now, in.Key)
	if !ok {
		return
	}
	c.setLocal(a.Service(), a.Address)
	c.subs.RemoveEndpoint(a.Address)
	c.notices.Set(c.now, a.Address, in.Key, peermsg.Gone)
	c.table.Touched.End.Add(a.Address)
	if c.endpoints.Count(a.Service()) == 0 {
		c.serviceLeft(a.Service())
	}
}

// drain stops new flows to a workload.
func (c *Core) drain(k wire.Key) {
	if a, ok := c.endpoints.Drain(k); ok {
		c.retryUnanswered(a.Address)
		c.setState(a)
	}
}

// setState applies a change of an attachment's state. It notifies peers if the attachment takes no new
// flows any more or an earlier notice had it. When it becomes ready for the first time, the cluster informs them.
func (c *Core) setState(a endpoints.Attachment) {
	c.table.Touched.Services.Add(a.Service())
	if a.Draining || a.Unready || c.notices.Has(a.Address) {
		c.notices.Set(c.now, a.Address, a.Attach.Key, stateOf(a))
	}
}

func stateOf(a endpoints.Attachment) peermsg.State {
	if a.Accepting() {
		return peermsg.Accepting
	}
	return peermsg.Draining
}

// renewNotices repeats the notices of an earlier process, because peers may have missed the last one. It
// includes attachments that accept flows, which peers may still have marked as draining. The most
// important entries come last, because the first ones are dropped if there are too many.
func (c *Core) renewNotices(freed map[netip.Addr]wire.Key) {
	c.notices.Start(c.boot)
	for _, a := range sorted.Addrs(freed) {
		if freed[a].Instance != "" {
			c.notices.Set(c.now, a, freed[a], peermsg.Gone)
		}
	}
	for _, state := range []peermsg.State{peermsg.Accepting, peermsg.Draining} {
		for _, addr := range c.endpoints.Addresses() {
			if a, _ := c.endpoints.At(addr); stateOf(a) == state {
				c.notices.Set(c.now, addr, a.Attach.Key, state)
			}
		}
	}
}

// serviceLeft handles a service whose last instance left the node. Its subscriptions are kept for a
// while, because the instance may restart while the cluster is disconnected, or pass to another service
// that may use them.
func (c *Core) serviceLeft(id api.ServiceID) {
	for _, k := range c.subs.Of(id) {
		st, ok := c.subs.Get(k)
		if !ok {
			continue // dropped by an earlier iteration
		}
		if c.subs.DropAfterLeaving(c.now, id, k, c.View().outcome(k)) {
			c.unsubscribe(k)
		} else if otherUser := c.View().otherUser(k); otherUser != "" {
			n := k
			n.For = otherUser
			if !c.subs.Has(n) && c.subscribe(n, netip.Addr{}) {
				c.subs.Inherit(n, st.Used)
			}
			if c.subs.Has(k) {
				c.unsubscribe(k)
			}
		}
	}
	c.subs.KeepFor(c.now, id)
}
