package overlay

import (
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/kernelpath"
	"github.com/treeline-edge/treeline/netmanager/overlay/subscriptions"
)

func (in Self) apply(c *Core) {
	first, old := !c.described, c.self
	c.self, c.described = in, true
	c.measure.SetSelf(in.Key)
	c.peers.SetSelf(in.Key)
	if first || !step.SameJSON(old.NetSelf, in.NetSelf) {
		c.subs.Describe()
	}
	c.reconsiderPeers(first || old.Key != in.Key)
}

// reconsiderPeers applies a change of the node's description or lease. reclaim determines again which
// peer holds each subnet.
func (c *Core) reconsiderPeers(reclaim bool) {
	self := kernelpath.Self{Known: c.described, OnLink: c.self.OnLink, Leased: c.lease != nil}
	for _, e := range c.self.Endpoints {
		self.Addresses = append(self.Addresses, e.Addr().Unmap())
	}
	if c.lease != nil {
		self.Unencrypted = c.lease.Unencrypted
	}
	c.kernel.SetSelf(self)
	for _, k := range c.peers.Keys() {
		if reclaim {
			c.applyPeers(c.peers.Reclaim(k))
		}
		c.applyKernel(c.kernel.Refresh(c.now, k))
	}
}

func (in Link) apply(c *Core) {
	if !c.subs.SetLink(c.now, in.Up) {
		return
	}
	for _, id := range c.subs.Subscribers() {
		for _, k := range c.subs.Of(id) {
			if c.View().outcome(k) == subscriptions.Unanswered {
				c.subs.Retry(c.now, k)
			}
		}
	}
}

func (in Down) apply(c *Core) {
	d := in.NetDown
	if d.Boot > c.boot && d.Boot < wire.MaxBoot {
		// The cluster knows a higher number of this netmanager, which lost its store and whose clock went back.
		c.boot = d.Boot + 1
		c.saveMeta()
		c.subs.Requested(true, true)
		return
	}
	if d.Boot != 0 && d.Boot != c.boot || !c.subs.Take(d.Rev) {
		return // for an earlier process, or out of order
	}
	current := d.Boot == c.boot
	if current {
		c.subs.Acknowledge(d.Seq)
	}
	if d.Lease != nil {
		c.setLease(*d.Lease)
	}
	if c.lease != nil {
		c.records(d)
		if d.Measure != nil {
			accepted, before := c.measure.SetPeers(c.now, d.Measure)
			for _, p := range accepted {
				c.applyPeers(c.peers.Refer(p))
			}
			for _, k := range before {
				c.peers.Release(k)
			}
			c.roundTrips.SetReported(d.Between)
		}
	}
	if current {
		c.settle(c.subs.Confirm(c.now, d.Seq))
	}
	c.subs.Requested(d.RequestHeld, d.RequestWhole)
	if current {
		c.subs.Compare(c.now, c.View().held(), d.Held, d.Seq)
	}
}

// setLease applies the node's lease. Attachments keep their addresses until they are detached, even if
// the subnet changes.
func (c *Core) setLease(l wire.NetLease) {
	if c.lease != nil && c.lease.Digest() == l.Digest() {
		c.lease.Rev = l.Rev
		return
	}
	r := l.Ranges
	if !r.Instances.IsValid() || !r.Services.IsValid() || !r.Instances.Addr().Is4() || !r.Services.Addr().Is4() ||
		!l.Subnet.IsValid() || !l.Subnet.Addr().Is4() || l.Subnet.Bits() < r.Instances.Bits() || !r.Instances.Contains(l.Subnet.Addr()) ||
		r.Subnet < r.Instances.Bits() || r.Subnet > 32 {
		return // invalid; the cluster sees from the reported digest that it is not used
	}
	if c.endpoints.SetSubnet(l.Subnet) != nil {
		return // too small
	}
	c.useLease(l)
	c.table.Touched.All = true
	c.emit(ToTunnel, TunnelSelf{l})
	c.journal.Put(kindLease, keyLease, l)
	c.reconsiderPeers(true)
	for _, id := range c.services.IDs() {
		c.applyServices(c.services.Readdress(id))
	}
}

func (c *Core) useLease(l wire.NetLease) {
	c.lease = &l
	c.peers.SetLease(l)
	c.services.SetRanges(l.Ranges)
	c.subs.SetRenewal(l.Interest)
}

// records applies the records of a message. Removals come first, to make room. Records that a full update
// lacks are removed last, so that peers that they share with new records stay.
func (c *Core) records(d wire.NetDown) {
	var absent []interest.Key
	if d.Whole {
		absent = c.whole.Absent(d.Of, c.View().heldRecords, interest.KeysOf(d.Records))
	}
	for _, id := range d.RemovedRoutes {
		c.applyServices(c.services.UnsetRoute(id, true))
	}
	for _, a := range d.RemovedSources {
		c.applyServices(c.services.UnsetSource(a))
	}
	for _, k := range d.RemovedPeers {
		c.applyPeers(c.peers.Unset(k))
	}
	for _, p := range d.Peers {
		if c.peers.Newer(p, d.Whole) {
			changes, added := c.peers.Set(p)
			c.added(added, interest.PeerOf(p.Key))
			c.applyPeers(changes)
		}
	}
	for _, r := range d.Routes {
		if c.services.NewerRoute(r, d.Whole) {
			c.referAll(&r)
			changes := c.services.SetRoute(r, false)
			c.added(changes.Added, interest.RouteOf(r.Service))
			c.applyServices(changes)
		}
	}
	for _, s := range d.Sources {
		if c.services.NewerSource(s, d.Whole) {
			c.applyPeers(c.peers.Refer(s.Peer))
			changes := c.services.SetSource(s, false)
			c.added(changes.Added, interest.SourceOf(s.Address))
			c.applyServices(changes)
		}
	}
	for _, k := range absent {
		switch k.Kind {
		case interest.Route:
			c.applyServices(c.services.UnsetRoute(k.Service, false)) // the cluster may have lost the record: flows continue
		case interest.Source:
			c.applyServices(c.services.UnsetSource(k.Address))
		case interest.Peer:
			c.applyPeers(c.peers.Unset(k.Peer))
		case interest.Refused:
			c.subs.SetRefusal(c.now, k.Subscription, nil)
		}
	}
	if d.Whole && d.Of.Last() { // only now, because a later part may have the record that a removed refusal was about
		for _, id := range c.subs.Subscribers() {
			c.settle(c.subs.Of(id))
		}
	}
	for _, k := range d.RemovedRefusals {
		c.setRefusal(k, nil)
	}
	for _, r := range d.Refused {
		c.setRefusal(r.Subscription, &r)
	}
}

// referAll adds references to the peers of a route, and makes the route share their records to save
// memory.
func (c *Core) referAll(r *api.Route) {
	for i, p := range r.Peers {
		c.applyPeers(c.peers.Refer(p))
		r.Peers[i] = c.peers.Shared(p)
	}
}

// added adds a new record to the set that is compared with the remaining parts of a full update.
func (c *Core) added(isNew bool, k interest.Key) {
	if isNew {
		c.whole.Add(k)
	}
}

func (c *Core) setRefusal(k wire.Subscription, r *wire.Refusal) {
	ok, first := c.subs.SetRefusal(c.now, k, r)
	c.added(first, interest.RefusalOf(k, false))
	if ok {
		c.settle([]wire.Subscription{k})
		c.settle(c.subs.Spellings(k))
	}
}

func (c *Core) report() {
	msg, ok := c.subs.Message(c.now, c.described && c.boot != 0, c.roundTrips.Due(c.now) || c.demands.Due())
	if !ok {
		return
	}
	up := wire.NetUp{
		Boot: c.boot, Seq: msg.Seq, Held: c.View().held(), Rev: msg.Rev, Whole: msg.Whole, Subscribe: msg.Add, Unsubscribe: msg.Drop,
		Measure: c.measure.Digest().Toggle(c.roundTrips.Digest()), Between: c.roundTrips.Report(c.now, msg.Resync),
	}
	up.Demand = c.demands.Take()
	if c.lease != nil {
		up.Lease, up.Subnet = c.lease.Digest(), c.lease.Subnet
	}
	if msg.Self {
		self, coord := c.self.NetSelf, c.measure.Reported()
		self.Coord = &coord
		up.Self = &self
	}
	// The message may be volatile: the only document that it depends on is the boot number. Start saves it, and the cluster
	// corrects one that is too low.
	c.emit(wire.ToCluster, up)
}
