package netbook

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

const (
	resend    = time.Second     // between two requests for the same, and two resyncs
	lostAfter = 5 * time.Second // how long a message may be on its way
)

// Send ends a step: it answers what depends on services with other hosts than before,
// and returns the messages to clusters that are due.
func (b *Machine) Send(now Now, v View) Effects {
	c := b.call(now, v)
	for _, id := range step.Keys(b.rehosted) {
		c.resolveAll(b.subs.CalledBy(id))
		c.askHosts(id)
	}
	clear(b.rehosted)
	for _, id := range b.subs.Dirty() {
		b.send[id] = true
	}
	for _, id := range step.Keys(b.send) {
		if cl := b.clusters[id]; cl != nil && cl.networked {
			c.sendTo(cl)
		}
	}
	clear(b.send)
	return c.out
}

// heldBy is the digest of all that a cluster should hold from the root.
func (b *Machine) heldBy(cl *cluster) api.Digest {
	return b.subs.Held(cl.id) ^ cl.askedDigest ^ wire.RootNet{Ranges: b.ranges, Shares: cl.shares}.ShareDigest()
}

// sendTo sends a cluster what has changed for it, or a part of a resync.
func (c *call) sendTo(cl *cluster) {
	// The next of several messages waits until the cluster has the one before.
	if (cl.resync.on || cl.more) && cl.ackedRev < cl.sentRev && c.now.Sub(cl.sentAt) < lostAfter {
		return
	}
	v := view{c, cl}
	m := wire.RootNet{Ranges: c.ranges, Shares: cl.shares, RequestWhole: cl.requestWhole}
	m.Records, _ = c.subs.Flush(cl.id, wire.MaxPart, v)
	part := c.addResync(cl, &m)
	var vol wire.Volume
	for _, w := range sorted(cl.unsent) {
		if vol.Bytes >= wire.MaxPart {
			break
		}
		if vol.Subscription(w); cl.asked[w] {
			m.Subscribe = append(m.Subscribe, w)
		} else {
			m.Unsubscribe = append(m.Unsubscribe, w)
		}
		delete(cl.unsent, w)
	}
	if cl.unasked && len(m.Subscribe) > 0 {
		// An earlier process of the root may have asked for it, and its answer was dropped.
		m.RequestWhole, cl.unasked, cl.requestedAt = true, false, c.now
	}
	if !part && m.Records.Empty() && len(m.Subscribe)+len(m.Unsubscribe) == 0 && !cl.requestWhole && slices.Equal(cl.sentShares, cl.shares) {
		return
	}
	cl.more = c.subs.Pending(cl.id) || len(cl.unsent) > 0
	m.RequestHeld = cl.more || part && !cl.resync.part.Last()
	cl.sentShares, cl.requestWhole = cl.shares, false
	m.Rev = c.nextRev()
	cl.sentRev, cl.sentAt = m.Rev, c.now
	c.out.Send = append(c.out.Send, wire.Envelope{To: cl.id.Addr(), Msg: wire.RootToCluster(m)})
}

// resyncPause returns the least time between two resyncs. It doubles with each that did
// not help.
func (cl *cluster) resyncPause() time.Duration {
	if cl.attempts == 0 {
		return 0
	}
	return resend << min(cl.attempts-1, 6)
}

// addResync adds the next part of a resync to a message, if one is due, and reports
// whether it did. A part that takes away what the cluster should not have is sent only
// when everything is known: after a restart of the root, clusters keep what they have
// until then.
func (c *call) addResync(cl *cluster, m *wire.RootNet) bool {
	a := &cl.resync
	switch {
	case a.on && cl.ackedRev < cl.sentRev: // the part is lost and is sent again
	case a.on && !a.part.Last():
		a.part = wire.Span{After: a.part.To}
	case a.on: // the next report says whether it helped
		*a = resync{}
		c.subs.EndResync(cl.id)
	}
	if !a.on {
		if !cl.diverged || cl.listing || c.now.Before(cl.resyncedAt.Add(cl.resyncPause())) {
			return false
		}
		*a = resync{on: true, asked: interest.NewCursor(wire.SubscriptionName, interest.CompareSubscriptions)}
		cl.diverged, cl.resyncedAt = false, c.now
		cl.attempts++
		clear(cl.unsent)
		c.subs.BeginResync(cl.id)
	}
	more, of, vol := c.subs.Part(cl.id, a.part.After, wire.MaxPart, view{c, cl})
	if of.Last() {
		of = a.asked.Part(of.After, maps.Keys(cl.asked), func(w wire.Subscription) bool {
			if cl.asked[w] {
				m.Subscribe = append(m.Subscribe, w)
				vol.Subscription(w)
			}
			return vol.Bytes < wire.MaxPart
		})
	}
	a.part = of
	if m.Whole = !cl.subsDiffer && c.subs.Open(cl.id) == 0; m.Whole {
		m.Of = of
	} else {
		cl.diverged = true
	}
	if a.on = of != (wire.Span{}); !a.on { // one message has all
		m.Records, a.asked = m.Removals(), nil
		c.subs.EndResync(cl.id)
	}
	m.Append(more)
	return true
}

// view is what other clusters than cl have published, as cl may see it.
type view struct {
	*call
	to *cluster
}

func (v view) revOf(k interest.Key) uint64 { return v.subs.Rev(k, v.nextRev) }

// Route merges what the clusters that host a service have published about it.
func (v view) Route(id api.ServiceID) (api.Route, bool) {
	s, ok := v.Service(id)
	if !ok {
		return api.Route{}, false
	}
	r := api.Route{Service: id, Rev: v.revOf(interest.RouteOf(id)), Addresses: s.Addresses, Access: s.Spec.Access(), Ports: s.Spec.Ports()}
	state := v.services[id]
	if state == nil {
		return r, true
	}
	for _, cid := range step.Keys(state.asked) {
		cl := v.clusters[cid]
		if cl == nil || cl == v.to || !v.Hosting(cid, id) {
			continue
		}
		part, ok := cl.published.Routes[id]
		if !ok {
			continue
		}
		known := map[api.PeerKey]api.Peer{}
		for _, p := range part.Peers {
			if v.permit(cl, &p) {
				known[p.Key] = p
				r.Peers = append(r.Peers, p)
			}
		}
		for _, be := range part.Backends {
			if p, ok := known[be.Peer]; !ok || be.Instance.Service() != id || !behind(&p, be.Address) {
				continue // the cluster may not publish it
			}
			if cl.silent {
				be.State = api.BackendDraining
			}
			r.Backends = append(r.Backends, be)
		}
	}
	return r, true
}

// Source returns who is at an address of another cluster.
func (v view) Source(a netip.Addr) (wire.Source, bool) {
	cl := v.holder(a)
	if cl == nil {
		return wire.Source{}, false
	}
	s, ok := cl.published.Sources[a]
	if !ok || !v.Hosting(cl.id, s.Service) || !v.permit(cl, &s.Peer) || !behind(&s.Peer, a) {
		return wire.Source{}, false
	}
	s.Rev, s.Access = v.revOf(interest.SourceOf(a)), v.access(s.Service)
	return s, true
}

// Peer returns a node of another cluster.
func (v view) Peer(k api.PeerKey) (api.Peer, bool) {
	cl := v.clusters[v.peers[k]]
	if cl == nil {
		return api.Peer{}, false
	}
	p, ok := cl.published.Peers[k]
	return p, ok && v.permit(cl, &p)
}

// permit removes the fields of p that other clusters must not see and reports whether
// cl may publish p: each of its subnets must be one node's lease within a share
// that cl holds. A prefix whose base address alone is in the share, such as
// 10.16.16.0/0, would let the peer send packets from any tenant's addresses.
func (b *Machine) permit(cl *cluster, p *api.Peer) bool {
	p.Node, p.Cluster = "", cl.id
	return len(p.Subnets) > 0 && !slices.ContainsFunc(p.Subnets, func(s netip.Prefix) bool {
		return b.ranges.CheckSubnet(s) != nil || !cl.has(s.Addr())
	})
}

// behind reports whether an address belongs to one of the peer's subnets.
func behind(p *api.Peer, a netip.Addr) bool {
	return slices.ContainsFunc(p.Subnets, func(s netip.Prefix) bool { return s.Contains(a) })
}

// has reports whether an address is in one of the cluster's shares. Shares are not
// shorter than subnets, so a share holds all of a subnet whose base it holds.
func (cl *cluster) has(a netip.Addr) bool {
	return slices.ContainsFunc(cl.shares, func(p netip.Prefix) bool { return p.Contains(a) })
}
