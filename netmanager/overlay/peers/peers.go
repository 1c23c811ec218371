// Package peers keeps the other nodes: their records, the subnets that each holds, and what the tunnel
// observes of the path to each. A peer exists as long as something refers to it: a route, a source, a
// list of peers to measure, or its own record. The package does no I/O: the core passes records and
// observations, and applies the Changes.
//
//	m := peers.New()
//	changes := m.Refer(record)
//	key, ok := m.At(address)
package peers

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/kernelpath"
	"github.com/treeline-edge/treeline/netmanager/overlay/sorted"
)

// The kinds of documents, by the peer's key.
const (
	KindPeer  = "peer" // the peer's own record
	KindInUse = "talk" // a session with the peer was in use
)

const (
	// MaxSubnets bounds how many subnets of one record are used. A node has one.
	MaxSubnets = 8
	// measureInterval is the interval at which a peer is measured while its traffic takes a kernel path.
	// The tunnel measures its own path as often, but does not see that traffic.
	measureInterval = 10 * time.Second
	// lossy is the fraction of lost packets from which on a path is avoided.
	lossy = 0.05
)

// Changes lists what the core must update.
type Changes struct {
	Peers     []api.PeerKey // their entries in the plane or the tunnel may have changed
	Backends  []api.PeerKey // whether and how their backends can be reached may have changed
	Addresses []netip.Addr  // first addresses of subnets whose holder may have changed
}

// Peer is the state of one peer. The record must not be modified.
type Peer struct {
	Record   api.Peer
	Path     kernelpath.Path
	Reported time.Time    // when Path was reported; zero: never in this process
	Measured time.Time    // when a round trip was last measured; zero: never in this process
	Carried  *api.Carried // traffic on kernel paths; nil: not known
}

// Lossy reports whether the path loses so many packets that it should be avoided.
func (p Peer) Lossy() bool { return p.Path.Loss >= lossy }

type peer struct {
	Peer
	refs        int
	own         *api.Peer      // the peer's own record; nil: none
	unsent      bool           // the tunnel does not have the current record
	sentSubnets []netip.Prefix // the subnets in the tunnel's record
	probed      time.Time      // when a measurement was requested because of its kernel path
	inUse       bool           // a session is in use, or was when the last process ended
}

// Machine keeps all peers.
type Machine struct {
	self         api.PeerKey
	lease        *wire.NetLease
	peers        map[api.PeerKey]*peer
	subnets      map[netip.Prefix]api.PeerKey // the holder of each subnet
	lengths      map[int]int                  // how many subnets have each prefix length
	unreferenced map[api.PeerKey]struct{}     // peers that may have no references
	held         api.Digest
	journal      step.Journal
}

// New returns a machine without peers.
func New() *Machine {
	return &Machine{
		peers: map[api.PeerKey]*peer{}, subnets: map[netip.Prefix]api.PeerKey{}, lengths: map[int]int{},
		unreferenced: map[api.PeerKey]struct{}{},
	}
}

// Restore loads a document of an earlier process, after SetLease. Records are deleted if there is no
// lease, and KindInUse documents if the peer is unknown.
func (m *Machine) Restore(d store.Doc) error {
	m.journal.Restored(d)
	if d.Kind == KindInUse {
		if k, ok := m.Named(d.Key); ok {
			m.peers[k].inUse = true
		} else {
			m.journal.Delete(d.Kind, d.Key)
		}
		return nil
	}
	var p api.Peer
	if err := json.Unmarshal(d.Data, &p); err != nil {
		return err
	}
	if m.lease == nil {
		m.journal.Delete(d.Kind, d.Key)
		return nil
	}
	m.set(p)
	return nil
}

// Start begins a process lifetime: the tunnel gets all peers again. It returns the peers with which a
// session was in use when the last process ended. The caller starts new sessions, because the peers may
// still send in the old ones, whose keys are lost.
func (m *Machine) Start() (inUse []api.PeerKey) {
	for _, k := range m.Keys() {
		q := m.peers[k]
		q.unsent = true
		if q.inUse {
			inUse = append(inUse, k)
		}
	}
	return inUse
}

// Save returns the documents that changed.
func (m *Machine) Save() []store.Doc { return m.journal.Take() }

// Held returns the digest of the peers' own records.
func (m *Machine) Held() api.Digest { return m.held }

// SetSelf sets the node's own key. Reclaim applies it.
func (m *Machine) SetSelf(k api.PeerKey) { m.self = k }

// SetLease sets the node's lease. Reclaim applies it.
func (m *Machine) SetLease(l wire.NetLease) { m.lease = &l }

// Keys lists all peers in order.
func (m *Machine) Keys() []api.PeerKey { return sorted.Peers(m.peers) }

// Has reports whether a peer is known.
func (m *Machine) Has(k api.PeerKey) bool { return m.peers[k] != nil }

// Get returns a peer.
func (m *Machine) Get(k api.PeerKey) (Peer, bool) {
	if q := m.peers[k]; q != nil {
		return q.Peer, true
	}
	return Peer{}, false
}

// Named returns the peer whose key has this text form.
func (m *Machine) Named(text string) (api.PeerKey, bool) {
	for k := range m.peers {
		if k.String() == text {
			return k, true
		}
	}
	return api.PeerKey{}, false
}

// Own lists, in no order, the peers' own records.
func (m *Machine) Own(yield func(api.PeerKey, api.Peer) bool) {
	for k, q := range m.peers {
		if q.own != nil && !yield(k, *q.own) {
			return
		}
	}
}

// References returns the number of references to a peer.
func (m *Machine) References(k api.PeerKey) int {
	if q := m.peers[k]; q != nil {
		return q.refs
	}
	return 0
}

// InUse reports whether a session with a peer is in use, or was when the last process ended.
func (m *Machine) InUse(k api.PeerKey) bool { return m.peers[k].inUse }

// Refer adds a reference to a peer and keeps its newest record.
func (m *Machine) Refer(p api.Peer) (c Changes) {
	q := m.peers[p.Key]
	switch {
	case q == nil:
		q = &peer{Peer: Peer{Record: p}, unsent: true}
		m.peers[p.Key] = q
		c = m.claim(q)
		c.Peers, c.Backends = append(c.Peers, p.Key), append(c.Backends, p.Key)
	case p.Rev > q.Record.Rev:
		c = m.renew(q, p)
	}
	q.refs++
	return c
}

// Release removes a reference. Sweep removes the peer if it was the last one.
func (m *Machine) Release(k api.PeerKey) {
	if q := m.peers[k]; q != nil {
		q.refs--
		m.unreferenced[k] = struct{}{}
	}
}

// Shared returns p with the fields that equal the current record sharing its memory, because the record
// of a node that hosts many services comes with each route.
func (m *Machine) Shared(p api.Peer) api.Peer {
	r := m.peers[p.Key].Record
	if slices.EqualFunc(p.Chain, r.Chain, bytes.Equal) {
		p.Chain = r.Chain
	}
	if bytes.Equal(p.Proof, r.Proof) {
		p.Proof = r.Proof
	}
	if slices.Equal(p.Endpoints, r.Endpoints) {
		p.Endpoints = r.Endpoints
	}
	if slices.Equal(p.Subnets, r.Subnets) {
		p.Subnets = r.Subnets
	}
	p.Cluster, p.Node, p.Relay.Addr = sameText(p.Cluster, r.Cluster), sameText(p.Node, r.Node), sameText(p.Relay.Addr, r.Relay.Addr)
	return p
}

// sameText returns a with the memory of b if both are equal.
func sameText[S ~string](a, b S) S {
	if a == b {
		return b
	}
	return a
}

func (m *Machine) renew(q *peer, p api.Peer) (c Changes) {
	old := q.Record.Subnets
	m.unclaim(q)
	q.Record, q.unsent = p, true
	c = m.claim(q)
	c.Addresses = append(c.Addresses, addresses(old)...)
	c.Peers = append(c.Peers, p.Key)
	c.Backends = append(c.Backends, p.Key)
	return c
}

// Sweep removes the peers without references. The core calls it at the end of a step, so that a reference
// can move from one record to another.
func (m *Machine) Sweep() (removed []api.PeerKey, c Changes) {
	for _, k := range sorted.Peers(m.unreferenced) {
		q := m.peers[k]
		if q == nil || q.refs > 0 {
			continue
		}
		m.unclaim(q)
		delete(m.peers, k)
		m.journal.Delete(KindInUse, k.String())
		removed = append(removed, k)
		c.Peers = append(c.Peers, k)
		c.Addresses = append(c.Addresses, addresses(q.Record.Subnets)...)
		c.Backends = append(c.Backends, k)
	}
	clear(m.unreferenced)
	return removed, c
}

// claim assigns subnets in a peer's record to the peer, if they can be a node's subnet and are not this
// node's. The record may come from another cluster and is not trusted beyond that. If two peers of one
// cluster claim a subnet, the newer record wins. A peer of another cluster cannot take a subnet from a
// peer of this node's cluster. Otherwise the last claim wins.
func (m *Machine) claim(q *peer) (c Changes) {
	for _, p := range q.Record.Subnets[:min(MaxSubnets, len(q.Record.Subnets))] {
		if m.lease == nil || q.Record.Key == m.self || m.lease.Ranges.CheckSubnet(p) != nil || p.Overlaps(m.lease.Subnet) {
			continue
		}
		o, had := m.subnets[p]
		if had && o == q.Record.Key {
			continue
		}
		if had {
			holder := m.peers[o].Record
			if holder.Cluster == q.Record.Cluster && holder.Rev > q.Record.Rev {
				continue // an older record from the same cluster
			}
			if holder.Cluster == m.lease.Cluster && q.Record.Cluster != m.lease.Cluster {
				continue
			}
		}
		m.subnets[p] = q.Record.Key
		if had {
			c.Peers = append(c.Peers, o)
			c.Backends = append(c.Backends, o)
		} else {
			m.lengths[p.Bits()]++
		}
		c.Addresses = append(c.Addresses, p.Addr())
	}
	return c
}

func (m *Machine) unclaim(q *peer) {
	for _, p := range q.Record.Subnets {
		if m.subnets[p] == q.Record.Key && p.IsValid() {
			delete(m.subnets, p)
			if m.lengths[p.Bits()]--; m.lengths[p.Bits()] == 0 {
				delete(m.lengths, p.Bits())
			}
		}
	}
}

// Reclaim determines again which subnets a peer holds.
func (m *Machine) Reclaim(k api.PeerKey) (c Changes) {
	q := m.peers[k]
	m.unclaim(q)
	c = m.claim(q)
	c.Addresses = append(c.Addresses, addresses(q.Record.Subnets)...)
	c.Peers = append(c.Peers, k)
	c.Backends = append(c.Backends, k)
	return c
}

// Subnets lists the subnets that a peer holds.
func (m *Machine) Subnets(k api.PeerKey) (out []netip.Prefix) {
	for _, s := range m.peers[k].Record.Subnets {
		if len(out) < MaxSubnets && m.subnets[s] == k && s.IsValid() && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// Tunnel returns a peer's record if the tunnel does not have it, or if force is set. The record has only
// the subnets that the peer holds, because the tunnel drops packets from other sources as forged.
func (m *Machine) Tunnel(k api.PeerKey, force bool) (p api.Peer, ok bool) {
	q := m.peers[k]
	subnets := m.Subnets(k)
	if !force && !q.unsent && slices.Equal(subnets, q.sentSubnets) {
		return p, false
	}
	p = q.Record
	p.Subnets = subnets
	q.unsent, q.sentSubnets = false, subnets
	return p, true
}

// At returns the peer that holds the subnet of an address.
func (m *Machine) At(a netip.Addr) (key api.PeerKey, ok bool) {
	longest := -1
	for n := range m.lengths {
		if p, err := a.Prefix(n); err == nil && n > longest {
			if k, ok := m.subnets[p]; ok {
				key, longest = k, n
			}
		}
	}
	return key, longest >= 0
}

// Newer reports whether a record replaces the peer's own record: it is newer, or whole is set (a full
// update, which replaces everything) and the revision differs.
func (m *Machine) Newer(p api.Peer, whole bool) bool {
	q := m.peers[p.Key]
	return q == nil || q.own == nil || p.Rev > q.own.Rev || whole && p.Rev != q.own.Rev
}

// Set sets a peer's own record. added is false if it replaces one.
func (m *Machine) Set(p api.Peer) (c Changes, added bool) {
	c, added = m.set(p)
	m.journal.Put(KindPeer, p.Key.String(), p)
	return c, added
}

func (m *Machine) set(p api.Peer) (c Changes, added bool) {
	c = m.Refer(p)
	q := m.peers[p.Key]
	if q.own != nil {
		m.held = m.held.Toggle(q.own.Digest())
		q.refs--
	} else {
		added = true
	}
	q.own = &p
	m.held = m.held.Toggle(p.Digest())
	c.Addresses = append(c.Addresses, addresses(p.Subnets)...)
	return c, added
}

// Unset removes a peer's own record. Other references may keep the peer.
func (m *Machine) Unset(k api.PeerKey) (c Changes) {
	q := m.peers[k]
	if q == nil || q.own == nil {
		return c
	}
	m.held = m.held.Toggle(q.own.Digest())
	subnets := q.own.Subnets
	q.own = nil
	m.journal.Delete(KindPeer, k.String())
	m.Release(k)
	c.Addresses = addresses(subnets)
	return c
}

// Report stores what the tunnel observes of a known peer, and returns the peer as it was before.
func (m *Machine) Report(now time.Time, p kernelpath.Path) (before Peer, c Changes) {
	q := m.peers[p.Key]
	before = q.Peer
	q.Path, q.Reported = p, now
	m.saveInUse(q)
	if p.MTU != before.Path.MTU {
		c.Peers = append(c.Peers, p.Key)
	}
	if p.Silent != before.Path.Silent || q.Lossy() != before.Lossy() {
		c.Backends = append(c.Backends, p.Key)
	}
	return before, c
}

// saveInUse saves whether a session is in use. PathNone, as at the start of a process, changes nothing.
func (m *Machine) saveInUse(q *peer) {
	if q.Path.Kind == api.PathNone || q.inUse != q.Path.Idle {
		return
	}
	q.inUse = !q.Path.Idle
	if key := q.Record.Key.String(); q.inUse {
		m.journal.Put(KindInUse, key, struct{}{})
	} else {
		m.journal.Delete(KindInUse, key)
	}
}

// Measured records that a round trip to a known peer was measured.
func (m *Machine) Measured(now time.Time, k api.PeerKey) { m.peers[k].Measured = now }

// MeasureTraffic reports whether to measure a peer now because traffic takes its kernel path.
func (m *Machine) MeasureTraffic(now time.Time, k api.PeerKey) bool {
	q := m.peers[k]
	if now.Sub(q.probed) < measureInterval || now.Sub(q.Measured) < measureInterval/2 {
		return false
	}
	q.probed = now
	return true
}

// Counted stores the bytes that the plane sent to and received from peers by kernel paths.
func (m *Machine) Counted(bytes map[api.PeerKey][2]uint64) {
	for k, n := range bytes {
		if q := m.peers[k]; q != nil {
			q.Carried = &api.Carried{Sent: n[0], Received: n[1]}
		}
	}
}

func addresses(of []netip.Prefix) (out []netip.Addr) {
	for _, p := range of {
		out = append(out, p.Addr())
	}
	return out
}
