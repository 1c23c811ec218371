package overlay

import (
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/kernelpath"
	"github.com/treeline-edge/treeline/netmanager/overlay/measure"
	"github.com/treeline-edge/treeline/netmanager/overlay/notice"
	"github.com/treeline-edge/treeline/netmanager/overlay/peermsg"
	"github.com/treeline-edge/treeline/netmanager/overlay/peers"
	"github.com/treeline-edge/treeline/netmanager/overlay/services"
	"github.com/treeline-edge/treeline/netmanager/overlay/sorted"
)

// staleMeasurement is the age at which a round trip that TCP observed replaces one that the tunnel
// probed. Probes are more precise, but stop when the tunnel is idle.
const staleMeasurement = 30 * time.Second

func (c *Core) applyServices(ch services.Changes) {
	t := &c.table.Touched
	t.Services.Add(ch.Services...)
	t.Access.Add(ch.Access...)
	t.Sources.Add(ch.Sources...)
	for _, a := range ch.Ended {
		c.end(a)
	}
	for _, k := range ch.Released {
		c.peers.Release(k)
	}
	for _, id := range ch.Backends {
		c.weigh(id, api.PeerKey{}, false)
	}
	for _, s := range ch.Subscribe {
		if s.Service != "" {
			c.settle(c.View().subscriptionsTo(s.Service))
		} else {
			c.settle(c.subs.At(s.Address))
		}
	}
}

// end ends the flows to a remote instance.
func (c *Core) end(a netip.Addr) {
	if c.services.IsInstance(a) && !c.endpoints.Has(a) {
		c.table.Touched.End.Add(a)
	}
}

func (c *Core) weigh(id api.ServiceID, of api.PeerKey, tick bool) {
	at := c.services.Advertised(id)
	if !at.Closest.IsValid() {
		c.balance.Weigh(c.now, id, at, nil, of, tick)
	} else if c.balance.Weigh(c.now, id, at, c.View().backends(id), of, tick) {
		c.table.Touched.Services.Add(id)
	}
}

func (c *Core) applyPeers(ch peers.Changes) {
	c.table.Touched.Peers.Add(ch.Peers...)
	for _, k := range ch.Backends {
		c.table.Touched.Services.Add(c.services.HostedBy(k)...)
	}
	for _, a := range ch.Addresses {
		c.settle(c.subs.At(a))
	}
}

func (in Path) apply(c *Core) {
	p := kernelpath.Path(in)
	if !c.peers.Has(p.Key) {
		return
	}
	before, changes := c.peers.Report(c.now, p)
	if p.Silent && !before.Path.Silent {
		for _, id := range c.services.HostedBy(p.Key) {
			c.request(id)
			for _, b := range c.services.Route(id).Backends {
				if b.Peer == p.Key && c.services.IsInstance(b.Address) && !c.endpoints.Has(b.Address) {
					c.table.Touched.Retry.Add(b.Address)
				}
			}
		}
	}
	c.applyKernel(c.kernel.Report(c.now, p))
	c.applyPeers(changes)
	for _, id := range c.services.HostedBy(p.Key) {
		c.weigh(id, p.Key, false)
	}
}

func (c *Core) applyKernel(eff kernelpath.Effects) {
	for _, o := range eff.Orders {
		if o.Message != nil {
			c.emit(ToTunnel, TunnelSend{Key: o.Key, Message: o.Message, Connect: o.Connect})
		} else if c.peers.MeasureTraffic(c.now, o.Key) {
			c.emit(ToTunnel, TunnelMeasure{o.Key})
		}
	}
	for _, t := range eff.Terms {
		c.emitLate(ToTunnel, TunnelTerms{t.Key, t.Terms})
	}
	if eff.Count {
		c.emitLate(ToPlane, Count{})
	}
	c.table.Touched.Peers.Add(eff.Changed...)
}

func (c *Core) applyMeasure(eff measure.Effects) {
	for _, k := range eff.Measure {
		c.emitLate(ToTunnel, TunnelMeasure{k}) // after TunnelPeer
	}
	if eff.Moved {
		c.emit(ToTunnel, TunnelCoord{c.measure.Coordinate()})
	}
	if eff.Report {
		c.subs.Describe()
		c.saveMeta()
	}
}

// apply prefers the coordinate in the input, which is newer than that in the record.
func (in Measured) apply(c *Core) {
	p, ok := c.peers.Get(in.Key)
	if !ok || in.RTT <= 0 {
		return
	}
	c.peers.Measured(c.now, in.Key)
	for _, s := range p.Record.Subnets { // keeps the subscriptions to peers that only the tunnel uses
		if k := (wire.Subscription{Address: s.Addr()}); c.subs.Has(k) {
			c.subs.Use(c.now, k)
		}
	}
	at := in.Coord
	if at == nil {
		at = p.Record.Coord
	}
	c.applyMeasure(c.measure.Measured(c.now, in.Key, in.RTT, at))
}

func (in Sampled) apply(c *Core) {
	var samples []measure.Sample
	least := map[api.PeerKey]time.Duration{}
	for _, f := range in.Flows {
		x, remote, ok := c.View().sample(f)
		if !ok {
			continue
		}
		samples = append(samples, x)
		// Use the least: an instance can delay its own connections.
		if k, ok := c.peers.At(remote); ok && !c.endpoints.Has(remote) && (least[k] == 0 || f.Least < least[k]) {
			least[k] = f.Least
		}
	}
	c.roundTrips.Sampled(c.now, samples)
	for _, k := range sorted.Peers(least) {
		if p, _ := c.peers.Get(k); c.now.Sub(p.Measured) >= staleMeasurement {
			Measured{Key: k, RTT: least[k]}.apply(c)
		}
	}
}

func (in Session) apply(c *Core) {
	k := in.Key
	if !c.peers.Has(k) {
		return
	}
	if n, ok := c.notices.Session(c.now, k); ok {
		c.emit(ToTunnel, TunnelNotice{k, n})
	}
	if k != c.self.Key {
		c.applyKernel(c.kernel.Session(c.now, k))
	}
}

// apply ignores addresses outside the peer's own subnets.
func (in Noticed) apply(c *Core) {
	if !c.peers.Has(in.Key) || c.lease == nil || in.Key == c.self.Key {
		return
	}
	var entries []notice.Received
	for _, e := range in.Entries[:min(len(in.Entries), peermsg.MaxEntries)] {
		if k, ok := c.peers.At(e.Address); !ok || k != in.Key {
			continue
		}
		r := notice.Received{Entry: e}
		if _, b, ok := c.services.BackendAt(e.Address); ok {
			r.Known = peermsg.PlacementOf(wire.Key{Instance: b.Instance, Epoch: b.Epoch})
		}
		entries = append(entries, r)
	}
	if changes, ok := c.received.Take(c.now, in.Key, in.Serial, entries); ok {
		c.applyMarks(changes)
		c.emitLate(ToTunnel, TunnelNoticeAck{in.Key, in.Serial})
	}
}

// applyMarks applies changes that the notices of peers caused.
func (c *Core) applyMarks(changes []notice.Change) {
	for _, ch := range changes {
		id, _, ok := c.services.BackendAt(ch.Address)
		if ok {
			c.table.Touched.Services.Add(id)
			c.weigh(id, api.PeerKey{}, false)
		}
		if ch.Draining {
			c.retryUnanswered(ch.Address)
		}
		if ch.Gone {
			c.end(ch.Address)
			c.request(id)
		}
	}
}

func (c *Core) sendNotice(n peermsg.Notice, to []api.PeerKey) {
	for _, k := range to {
		c.emit(ToTunnel, TunnelNotice{k, n})
	}
}

// apply informs the peer, whose records are out of date.
func (in Stray) apply(c *Core) {
	if !c.peers.Has(in.Key) || c.lease == nil || !c.lease.Subnet.Contains(in.Address) || c.endpoints.Has(in.Address) {
		return
	}
	if n, ok := c.notices.Stray(c.now, in.Key, in.Address); ok {
		c.emit(ToTunnel, TunnelNotice{in.Key, n})
	}
}
