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
	resend    = time.Second     // least time between two requests for the same, and between two resyncs
	lostAfter = 5 * time.Second // time after which an unacknowledged message counts as lost
)

// Send ends a step: it resolves the subscriptions to services whose hosts have changed, and returns
// the messages that are due.
func (b *Machine) Send(now Now, v View) Effects {
	c := b.call(now, v)
	for _, id := range step.Keys(b.rehosted) {
		c.resolveAll(b.subs.For(id))
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

// heldBy returns the digest of everything that a cluster should have from the root.
func (b *Machine) heldBy(cl *cluster) api.Digest {
	return b.subs.Held(cl.id) ^ cl.asked.Digest() ^ wire.RootNet{Ranges: b.ranges, Shares: cl.shares}.ShareDigest()
}

// sendTo sends a cluster the changes for it, or the next part of a resync.
func (c *call) sendTo(cl *cluster) {
	// If the changes need several messages, each waits for the acknowledgement of the one before.
	if (cl.resync.On() || cl.more) && cl.ackedRev < cl.sentRev && c.now.Sub(cl.sentAt) < lostAfter {
		return
	}
	v := view{c, cl}
	m := wire.RootNet{Ranges: c.ranges, Shares: cl.shares, RequestWhole: cl.requestWhole}
	m.Records, _ = c.subs.Flush(cl.id, wire.MaxPart, v)
	part := c.addPart(cl, &m)
	subscribe, unsubscribe := cl.asked.Changes()
	m.Subscribe, m.Unsubscribe = append(m.Subscribe, subscribe...), append(m.Unsubscribe, unsubscribe...)
	if cl.unasked && len(m.Subscribe) > 0 {
		// Its records for a subscription of an earlier process of the root were dropped.
		m.RequestWhole, cl.unasked, cl.requestedAt = true, false, c.now
	}
	if !part && m.Records.Empty() && len(m.Subscribe)+len(m.Unsubscribe)+len(cl.demands) == 0 && !cl.requestWhole && slices.Equal(cl.sentShares, cl.shares) {
		return
	}
	cl.more = c.subs.Pending(cl.id) || cl.asked.Pending()
	m.RequestHeld = cl.more || part && cl.resync.Incomplete()
	m.Demand = slices.SortedFunc(maps.Keys(cl.demands), netip.Addr.Compare)
	clear(cl.demands)
	cl.sentShares, cl.requestWhole = cl.shares, false
	m.Rev = c.nextRev()
	cl.sentRev, cl.sentAt = m.Rev, c.now
	c.out.Send = append(c.out.Send, wire.Envelope{To: cl.id.Addr(), Msg: wire.RootToCluster(m)})
}

// addPart adds the next part of a resync to a message, if one is due, and reports whether it did. A
// part that removes records from the cluster is sent only when all subscriptions are answered:
// after a restart of the root, clusters keep their records until then.
func (c *call) addPart(cl *cluster, m *wire.RootNet) bool {
	r := &cl.resync
	if !c.subs.Advance(cl.id, r, c.now, cl.ackedRev < cl.sentRev, !cl.listing) {
		return false
	}
	if r.Part == (wire.Span{}) {
		cl.asked.BeginResync()
	}
	after := r.Part.After
	more, of, vol := c.subs.Part(cl.id, after, wire.MaxPart, view{c, cl})
	if of.Last() {
		m.Subscribe, of = cl.asked.Part(after, &vol)
	}
	if m.Whole = !cl.subsDiffer && c.subs.Open(cl.id) == 0; m.Whole {
		m.Of = of
	} else {
		r.Due = true
	}
	if c.subs.Sent(cl.id, r, of) { // the resync fits in one message
		m.Records = m.Removals()
	}
	m.Append(more)
	return true
}

// view has the records of other clusters as the cluster to may see them.
type view struct {
	*call
	to *cluster
}

func (v view) revOf(k interest.Key) uint64 { return v.subs.Rev(k, v.nextRev) }

// Route merges the records about a service of all clusters that host it.
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
		r.Asleep = r.Asleep || part.Asleep && !cl.silent && s.Spec.Scale != nil
		known := map[api.PeerKey]api.Peer{}
		for _, p := range part.Peers {
			if v.permit(cl, &p) {
				known[p.Key] = p
				r.Peers = append(r.Peers, p)
			}
		}
		for _, be := range part.Backends {
			if p, ok := known[be.Peer]; !ok || be.Instance.Service() != id || !behind(&p, be.Address) {
				continue // the cluster may not publish this backend
			}
			if cl.silent {
				be.State = api.BackendDraining
			}
			r.Backends = append(r.Backends, be)
		}
	}
	return r, true
}

// Source returns the source at an address of another cluster.
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

// permit removes the fields of p that other clusters must not see, and reports whether cl may
// publish p: each subnet must be one node's lease within a share of cl. Checking only base
// addresses would accept 10.16.16.0/0, and with it packets from any tenant's addresses.
func (b *Machine) permit(cl *cluster, p *api.Peer) bool {
	p.Node, p.Cluster = "", cl.id
	return len(p.Subnets) > 0 && !slices.ContainsFunc(p.Subnets, func(s netip.Prefix) bool {
		return b.ranges.CheckSubnet(s) != nil || !cl.has(s.Addr())
	})
}

func behind(p *api.Peer, a netip.Addr) bool {
	return slices.ContainsFunc(p.Subnets, func(s netip.Prefix) bool { return s.Contains(a) })
}

// has reports whether an address is in one of the cluster's shares. A share contains all of a
// subnet whose base address it contains, because subnets are not larger than shares.
func (cl *cluster) has(a netip.Addr) bool {
	return slices.ContainsFunc(cl.shares, func(p netip.Prefix) bool { return p.Contains(a) })
}
