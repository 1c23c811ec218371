package overlay

import (
	"bytes"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// peer is another node, of which at least one record tells.
type peer struct {
	record api.Peer
	refs   int       // records that have it
	alone  *api.Peer // held by itself
	untold bool      // the tunnel has to be told

	granted []netip.Prefix // the subnets that were sent to the tunnel

	path     Path
	heard    time.Time    // when path came; zero: never in this life
	measured time.Time    // when a round trip was; zero: never in this life
	probed   time.Time    // when one was asked for because of what passes by a kernel path
	carried  *api.Carried // by kernel paths; nil: not known
	talks    bool         // there is a session in use, or was when the last life ended

	kernel kernel
	deal   deal
	proof  proof

	heeded  uint64    // the last notice of ours that it has confirmed
	deaf    bool      // it has not confirmed one, however often it was told
	strayed time.Time // when it was last told what it did not hear
	serial  uint64    // of its last notice
	marks   map[netip.Addr]mark
}

// refer counts n more records that have the peer, and keeps the newest.
func (c *Core) refer(p api.Peer, n int) {
	q := c.peers[p.Key]
	if q == nil {
		q = &peer{record: p, untold: true}
		c.peers[p.Key] = q
		c.claim(q)
		c.touchPeer(q)
	} else if p.Rev > q.record.Rev {
		c.renew(q, p)
	}
	q.refs += n
	c.dirty.peers[p.Key] = struct{}{}
}

// shared is a record with the memory of the one that is held, as far as both say
// the same: a node that hosts many services comes with each of their routes.
func (c *Core) shared(p api.Peer) api.Peer {
	q := c.peers[p.Key].record
	if slices.EqualFunc(p.Chain, q.Chain, bytes.Equal) {
		p.Chain = q.Chain
	}
	if bytes.Equal(p.Proof, q.Proof) {
		p.Proof = q.Proof
	}
	if slices.Equal(p.Endpoints, q.Endpoints) {
		p.Endpoints = q.Endpoints
	}
	if slices.Equal(p.Subnets, q.Subnets) {
		p.Subnets = q.Subnets
	}
	p.Cluster, p.Node, p.Relay.Addr = sameText(p.Cluster, q.Cluster), sameText(p.Node, q.Node), sameText(p.Relay.Addr, q.Relay.Addr)
	return p
}

// sameText is b where a says the same, and else a.
func sameText[S ~string](a, b S) S {
	if a == b {
		return b
	}
	return a
}

func (c *Core) renew(q *peer, p api.Peer) {
	old := q.record.Subnets
	c.unclaim(q)
	q.record, q.untold = p, true
	c.claim(q)
	c.settleSubnets(old)
	c.dirty.peers[p.Key] = struct{}{}
	c.touchPeer(q)
	c.choosePath(q)
}

func (c *Core) unrefer(k api.PeerKey, n int) {
	q := c.peers[k]
	if q == nil {
		return
	}
	c.dirty.peers[k] = struct{}{}
	q.refs -= n
}

// sweep forgets the peers that no record has any more, at the end of a step: what
// goes from one record to another in one message is not lost.
func (c *Core) sweep() {
	for _, k := range sortedKeys(c.dirty.peers) {
		q := c.peers[k]
		if q == nil || q.refs > 0 {
			continue
		}
		c.unclaim(q)
		delete(c.peers, k)
		c.settleSubnets(q.record.Subnets)
		c.timers.Clear(timerKey{what: timerPath, peer: k})
		c.timers.Clear(timerKey{what: timerMark, peer: k})
		c.journal.Delete(kindMarks, k.String())
		c.journal.Delete(kindTalk, k.String())
		c.unkernel(q)
		c.touchPeer(q)
	}
}

// mostSubnets bounds the subnets that count of one peer's record; a node has one.
const mostSubnets = 8

// claim notes which of the subnets in a peer's record count as the peer's: those
// that can be a node's lease and are not ours. The peer's record comes from the
// cluster or from another cluster and is not trusted beyond that. Of two peers of
// one cluster that claim a subnet the newer record counts. A peer of another cluster
// cannot take a subnet from a peer of our own; otherwise the last claim counts.
func (c *Core) claim(q *peer) {
	for _, p := range q.record.Subnets[:min(mostSubnets, len(q.record.Subnets))] {
		if c.lease == nil || q.record.Key == c.self.Key || c.lease.Ranges.CheckSubnet(p) != nil || p.Overlaps(c.lease.Subnet) {
			continue
		}
		o, had := c.subnets[p]
		if had && o == q.record.Key {
			continue
		}
		if had {
			holder := c.peers[o].record
			if holder.Cluster == q.record.Cluster && holder.Rev > q.record.Rev {
				continue // an older record of the same author
			}
			if holder.Cluster == c.lease.Cluster && q.record.Cluster != c.lease.Cluster {
				continue
			}
		}
		c.subnets[p] = q.record.Key
		if had {
			c.dirty.peers[o] = struct{}{}
			c.touchPeer(c.peers[o])
		} else {
			c.lengths[p.Bits()]++
		}
		c.settleAt(p.Addr())
	}
}

// claimed returns those subnets of a peer's record that count as the peer's.
func (c *Core) claimed(q *peer) (out []netip.Prefix) {
	for _, s := range q.record.Subnets {
		if len(out) < mostSubnets && c.subnets[s] == q.record.Key && s.IsValid() && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// tellTunnel makes the peer known to the tunnel, with the subnets that claim
// accepted: a packet of any other source is forged.
func (c *Core) tellTunnel(q *peer) {
	p := q.record
	p.Subnets = c.claimed(q)
	q.untold, q.granted = false, p.Subnets
	c.emit(ToTunnel, TunnelPeer{p})
}

func (c *Core) unclaim(q *peer) {
	for _, p := range q.record.Subnets {
		if c.subnets[p] == q.record.Key && p.IsValid() {
			delete(c.subnets, p)
			if c.lengths[p.Bits()]--; c.lengths[p.Bits()] == 0 {
				delete(c.lengths, p.Bits())
			}
		}
	}
}

// reclaim has what is said of the peer judged anew.
func (c *Core) reclaim(q *peer) {
	c.unclaim(q)
	c.claim(q)
	c.settleSubnets(q.record.Subnets)
	c.dirty.peers[q.record.Key] = struct{}{}
	c.touchPeer(q)
}

// settleSubnets settles the wants for whoever has the subnets.
func (c *Core) settleSubnets(of []netip.Prefix) {
	for _, p := range of {
		c.settleAt(p.Addr())
	}
}

// peerAt is the peer that an instance's address is behind.
func (c *Core) peerAt(a netip.Addr) (api.PeerKey, bool) {
	longest := -1
	var key api.PeerKey
	for n := range c.lengths {
		if p, err := a.Prefix(n); err == nil && n > longest {
			if k, ok := c.subnets[p]; ok {
				key, longest = k, n
			}
		}
	}
	return key, longest >= 0
}

// takePeer holds a peer that came by itself.
func (c *Core) takePeer(p api.Peer, whole bool) {
	q := c.peers[p.Key]
	if q != nil && q.alone != nil && p.Rev <= q.alone.Rev && (!whole || p.Rev == q.alone.Rev) {
		return
	}
	c.keepPeer(p)
	c.journal.Put(kindPeer, p.Key.String(), p)
}

func (c *Core) keepPeer(p api.Peer) {
	c.refer(p, 1)
	q := c.peers[p.Key]
	if q.alone != nil {
		c.held = c.held.Toggle(q.alone.Digest())
		q.refs--
	} else {
		c.link.run.Add(interest.PeerOf(p.Key))
	}
	q.alone = &p
	c.held = c.held.Toggle(p.Digest())
	c.settleSubnets(p.Subnets)
}

// losePeer lets go of a peer that came by itself; other records may have it still.
func (c *Core) losePeer(k api.PeerKey) {
	q := c.peers[k]
	if q == nil || q.alone == nil {
		return
	}
	c.held = c.held.Toggle(q.alone.Digest())
	subnets := q.alone.Subnets
	q.alone = nil
	c.journal.Delete(kindPeer, k.String())
	c.unrefer(k, 1)
	c.settleSubnets(subnets)
}

// path takes in what the tunnel observes.
func (c *Core) path(in Path) {
	q := c.peers[in.Key]
	if q == nil {
		return
	}
	old := q.path
	if unproven(in) && !unproven(old) {
		q.deal.settled = c.now.Add(settling)
	}
	q.path, q.heard = in, c.now
	c.keepTalk(q)
	if in.Silent && !old.Silent {
		for _, id := range c.hostedBy(q) {
			c.doubt(c.services[id])
			c.retryAll(c.services[id], q)
		}
	}
	c.choosePath(q)
	c.sayTermsLater(q)
	if in.MTU != old.MTU {
		c.dirty.peers[in.Key] = struct{}{}
	}
	if in.Silent != old.Silent || lossy(in) != lossy(old) {
		c.touchPeer(q)
	}
	for _, id := range c.hostedBy(q) {
		c.weigh(c.services[id], in.Key, false)
	}
}

// keepTalk keeps with whom we talk. A path that is not known, as at the beginning of
// each life, says nothing of that.
func (c *Core) keepTalk(q *peer) {
	if q.path.Kind == api.PathNone || q.talks != q.path.Idle {
		return
	}
	q.talks = !q.path.Idle
	if key := q.record.Key.String(); q.talks {
		c.journal.Put(kindTalk, key, struct{}{})
	} else {
		c.journal.Delete(kindTalk, key)
	}
}

// resumeTalk has a session with whom the last life talked with, before they notice:
// what they send by the old one nobody can read, and they would wait for us to
// answer, ever longer.
func (c *Core) resumeTalk(q *peer) {
	if q.talks {
		c.emitLate(ToTunnel, TunnelMeasure{q.record.Key})
	}
}

// touchPeer has all that hangs on the peer looked at.
func (c *Core) touchPeer(q *peer) {
	if q == nil {
		return
	}
	for id := range c.behind[q.record.Key] {
		c.touch(id)
	}
}

// hostedBy are the services of which the peer has backends.
func (c *Core) hostedBy(q *peer) []api.ServiceID { return sortedKeys(c.behind[q.record.Key]) }

func (c *Core) planePeer(k api.PeerKey) (plane.Peer, bool) {
	q := c.peers[k]
	if q == nil || k == c.self.Key {
		return plane.Peer{}, false
	}
	p := plane.Peer{Key: k, Path: api.PathDirect, MTU: q.path.MTU}
	p.Subnets = c.claimed(q)
	if p.Takes = q.kernel.Takes.Or(q.deal.leaving); p.Takes != none {
		p.Via = q.kernel.Via
	}
	if q.kernel.Path != "" {
		p.Path, p.Via, p.MTU = q.kernel.Path, q.kernel.Via, 0
	}
	return p, true
}

// unproven reports whether packets go by the tunnel, and not by a way that shows that
// no NAT is between.
func unproven(p Path) bool {
	return p.Kind != api.PathNone && !p.Idle && (p.Kind != api.PathDirect || !p.Plain)
}

func lossy(p Path) bool { return p.Loss >= 0.05 }
