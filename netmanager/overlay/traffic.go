package overlay

import (
	"net/netip"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/subscriptions"
)

func (in Miss) apply(c *Core) {
	if c.lease == nil {
		return
	}
	local, remote := c.lease.Ranges.To4(in.Local), c.lease.Ranges.To4(in.Remote)
	refuse := func(denied bool) { c.emitLate(ToQueue, Refuse{Local: local, Remote: remote, Denied: denied}) }
	a, ok := c.endpoints.At(local)
	to, here := c.endpoints.At(remote)
	switch {
	case !ok || !remote.IsValid() || c.lease.Subnet.Contains(remote) && !here:
		refuse(false)
		return
	case here: // between two instances of this node
		denied := !c.services.MayCall(a.Service(), to.Service()) && !c.services.MayCall(to.Service(), a.Service())
		if denied || !c.subs.Spend(c.now, local) {
			refuse(denied)
			return
		}
		c.table.ResendEndpoint(remote)
		c.emitLate(ToQueue, Release{remote})
		return
	}
	k := wire.Subscription{Address: remote, For: a.Service()}
	known := c.subs.Has(k)
	if known && c.View().outcome(k) == subscriptions.Unanswered {
		c.subs.Use(c.now, k)
		c.subs.Wait(k, local)
		return
	}
	if !c.subs.Spend(c.now, local) || !known && !c.subscribe(k, local) {
		refuse(false)
		return
	}
	c.subs.Use(c.now, k)
	switch o := c.View().outcome(k); {
	case o == subscriptions.Answered:
		c.subs.Refund(k)
		if id, asleep := c.View().asleep(remote); asleep {
			c.demand(k, id, refuse)
			return
		}
		c.resend(remote)
		c.emitLate(ToQueue, Release{remote})
	case o == subscriptions.Unanswered:
		c.subs.Wait(k, local)
		c.serveLocally(k)
	case c.subs.Valid(c.now, k):
		refuse(o == subscriptions.Denied)
	default:
		c.subs.Wait(k, local)
		c.subs.Recheck(c.now, k, local)
	}
}

// demand holds the packets for a sleeping service, and demands an instance of it.
func (c *Core) demand(k wire.Subscription, id api.ServiceID, refuse func(denied bool)) {
	if !c.services.MayCall(k.For, id) {
		refuse(true)
		return
	}
	left := c.demands.Add(c.now, k)
	if left <= 0 {
		refuse(false)
		return
	}
	c.emitLate(ToQueue, Hold{k.Address, left})
}

func (c *Core) resend(a netip.Addr) {
	id, _ := c.services.Semantic(a)
	c.table.ResendService(a, id)
	c.table.ResendSource(a)
	if k, ok := c.peers.At(a); ok {
		c.table.ResendPeer(k)
	}
}

// serveLocally lets a service's instances on this node serve a subscription until the cluster answers it.
func (c *Core) serveLocally(k wire.Subscription) {
	id, ok := c.services.Semantic(k.Address)
	if !ok || c.services.Route(id) != nil || c.endpoints.Count(id) == 0 {
		return
	}
	allowed := c.services.MayCall(k.For, id)
	c.reply(c.subs.EndWait(k, !allowed))
	if allowed {
		c.table.Touched.Services.Add(id)
		c.emitLate(ToQueue, Release{k.Address})
	}
}

// apply subscribes to the claimed subnet. The claim is not authenticated.
func (in PeerUnknown) apply(c *Core) {
	if in.Key == c.self.Key {
		return
	}
	if c.peers.Has(in.Key) {
		p, _ := c.peers.Tunnel(in.Key, true)
		c.emit(ToTunnel, TunnelPeer{p})
		return
	}
	if c.lease == nil || !c.lease.Ranges.Instances.Contains(in.Claim) || c.lease.Subnet.Contains(in.Claim) || !c.subs.Spend(c.now, netip.Addr{}) {
		return
	}
	k := wire.Subscription{Address: c.View().subnetOf(in.Claim).Addr()}
	switch {
	case c.subs.Has(k):
		c.subs.RequestPeer(c.now, k, c.View().outcome(k)) // the known holder of the subnet may be out of date
	case !c.subscribe(k, netip.Addr{}):
		return
	}
	c.subs.Use(c.now, k)
}

func (in Query) apply(c *Core) {
	if c.lease == nil {
		return
	}
	a, ok := c.endpoints.At(c.lease.Ranges.To4(in.Local))
	if !ok {
		return
	}
	s, ok := c.View().about(a.Service(), in.Name)
	if _, known := c.View().named(s.key.Address); !ok || known {
		return
	}
	name := strings.ToLower(in.Name) // a query in another case waits for the same answer
	k := c.subs.Spelling(s.key)
	if !c.subs.Has(k) && (!c.subs.Spend(c.now, a.Address) || !c.subscribe(k, a.Address)) ||
		!c.subs.Query(c.now, k, name, a.Address, c.View().outcome(k)) {
		c.emitLate(ToResolver, Answered{name})
	}
}

func (in Used) apply(c *Core) {
	use := func(id api.ServiceID) {
		if c.services.Route(id) != nil {
			c.subs.Use(c.now, c.View().subscriptionsTo(id)...)
		}
	}
	semantic, instances := c.subs.Usage(in.Usage)
	for _, a := range semantic {
		id, _ := c.services.Semantic(a)
		use(id)
	}
	for _, a := range instances {
		c.subs.Use(c.now, c.subs.At(a)...)
		id, _ := c.services.Owner(a)
		use(id)
		if k, ok := c.peers.At(a); ok {
			p, _ := c.peers.Get(k)
			for _, s := range p.Record.Subnets {
				c.subs.Use(c.now, c.subs.At(s.Addr())...)
			}
		}
	}
}

// subscribe adds a subscription, for which payer's budget was charged. It returns false if there is no
// room.
func (c *Core) subscribe(k wire.Subscription, payer netip.Addr) bool {
	for {
		victim, ok := c.subs.MakeRoom(k.For)
		if !ok {
			return false
		}
		if victim == nil {
			break
		}
		c.unsubscribe(*victim)
	}
	c.reply(c.subs.Add(c.now, k, payer, c.View().outcome(k)))
	if id, ok := c.services.Semantic(k.Address); ok { // the plane has only addresses with a subscription
		c.table.Touched.Services.Add(id)
	}
	return true
}

// unsubscribe drops a subscription and the records to which no other subscription leads.
func (c *Core) unsubscribe(k wire.Subscription) {
	c.reply(c.subs.Drop(k))
	if k.Service != "" {
		c.settle(c.subs.Spellings(k))
		for _, id := range c.services.Spelt(k.Service) {
			c.release(id)
		}
		return
	}
	if id, ok := c.services.Semantic(k.Address); ok {
		c.table.Touched.Services.Add(id)
		c.release(id)
	}
	if c.subs.Subscribed(k.Address) {
		return
	}
	c.applyServices(c.services.UnsetSource(k.Address))
	if p, ok := c.peers.At(k.Address); ok && k.For == "" {
		c.applyPeers(c.peers.Unset(p))
	}
}

// release drops a route to which no subscription leads.
func (c *Core) release(id api.ServiceID) {
	if c.services.Route(id) != nil && len(c.View().subscriptionsTo(id)) == 0 {
		c.applyServices(c.services.UnsetRoute(id, false))
	}
}

// request requests a service's route again, because it seems to be out of date.
func (c *Core) request(id api.ServiceID) {
	if c.services.Route(id) == nil {
		return
	}
	for _, k := range c.View().subscriptionsTo(id) {
		if c.subs.Request(c.now, k) {
			return
		}
	}
}

// settle applies the outcomes of subscriptions, which may have changed.
func (c *Core) settle(keys []wire.Subscription) {
	for _, k := range keys {
		for _, r := range c.subs.Settle(c.now, k, c.View().outcome(k)) {
			// A packet that is released without a route is dropped, and its sender repeats it a second later.
			if id, asleep := c.View().asleep(r.Remote); asleep && r.Name == "" && !r.Refuse {
				c.demand(k, id, func(denied bool) { c.emitLate(ToQueue, Refuse{Local: r.Local, Remote: r.Remote, Denied: denied}) })
				continue
			}
			c.reply([]subscriptions.Reply{r})
		}
	}
}

func (c *Core) reply(all []subscriptions.Reply) {
	for _, r := range all {
		switch {
		case r.Name != "":
			c.emitLate(ToResolver, Answered{r.Name})
		case r.Refuse:
			c.emitLate(ToQueue, Refuse{Local: r.Local, Remote: r.Remote, Denied: r.Denied})
		default:
			c.emitLate(ToQueue, Release{r.Remote})
		}
	}
}

func (c *Core) subscriptionDue(d subscriptions.Due) {
	none := wire.Subscription{}
	switch {
	case d.Poll:
		c.emit(ToPlane, Ask{})
	case d.Ask != none:
		c.subs.RequestAgain(c.now, d.Ask, c.View().outcome(d.Ask))
	case d.Idle != none:
		if c.subs.Idle(c.now, d.Idle, c.View().outcome(d.Idle)) {
			c.unsubscribe(d.Idle)
		}
	case d.Left != "" && c.endpoints.Count(d.Left) == 0:
		for _, k := range c.subs.Of(d.Left) {
			c.unsubscribe(k)
		}
	}
}
