package paths

import (
	"net/netip"
	"slices"
	"time"
)

// class orders ways: traffic prefers a lower one.
type class uint8

const (
	sameLink class = iota // an address on a network that we are on
	straight
	throughRelay
)

const (
	// maxReflexive is how many addresses are kept of those that only a peer's
	// packets named, and maxWays of all.
	maxReflexive = 4
	maxWays      = 2*MaxCandidates + maxReflexive
)

// way is a path and what is known of it.
type way struct {
	path   Path
	class  class
	origin Origin

	proven bool      // a probe was answered by it, and it has not fallen silent since
	heard  time.Time // when data or a reply last came by it
	sent   time.Time // when a probe was last sent by it
	asked  time.Time // when a short probe was last sent, which is sure to fit
	next   time.Time // when the next probe of a punching round is due; zero: none
	tries  int       // probes of the round

	pending []pending // probes that were not answered, oldest first
	missed  int       // in a row
	seen    netip.AddrPort

	rtt, least time.Duration // smoothed (RFC 6298's eighth), and the least; 0: never measured
	recent     [4]trip
	trips      int     // of which recent has the last
	loss       float64 // smoothed share of probes that were missed
	better     int     // measurements in a row that favour it over the current way
	mtu        mtu
	measure    time.Time // when it is to be measured next
}

func newWay(p Path, c class, o Origin) *way {
	return &way{path: p, class: c, origin: o}
}

// refused reports whether an address must not be probed: whatever is no single
// machine elsewhere. An address of ours would be a loop.
func (m *Machine) refused(a netip.AddrPort) bool {
	ip := a.Addr()
	switch {
	case !ip.IsValid() || ip.Is4In6() || ip.Zone() != "" || a.Port() == 0,
		ip.IsUnspecified(), ip.IsLoopback(), ip.IsMulticast(), ip.IsLinkLocalUnicast():
		return true
	case ip.Is4() && (ip.As4()[0] >= 240 || ip.As4()[0] == 0): // reserved, broadcast; "this network"
		return true
	}
	for _, own := range m.self.Own {
		if own.Addr() == ip {
			return true
		}
	}
	for _, l := range m.self.Links {
		if l.Contains(ip) && ip == broadcast(l) {
			return true
		}
	}
	return slices.Contains(m.self.Mapped, a) || m.cfg.Refuse != nil && m.cfg.Refuse(ip)
}

// broadcast is the last address of an IPv4 network; of others, and of those that
// have none (RFC 3021), the zero Addr.
func broadcast(p netip.Prefix) netip.Addr {
	if !p.Addr().Is4() || p.Bits() > 30 {
		return netip.Addr{}
	}
	b := p.Masked().Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	return netip.AddrFrom4(b)
}

func (m *Machine) classOf(a netip.AddrPort) class {
	if slices.ContainsFunc(m.self.Links, func(l netip.Prefix) bool { return l.Contains(a.Addr()) }) {
		return sameLink
	}
	return straight
}

// add notes an address of the peer; nil: it is refused, or there are too many.
// The peer's own word on where it comes from replaces others'.
func (m *Machine) add(a netip.AddrPort, o Origin) *way {
	if x := m.direct[a]; x != nil {
		if o <= Static {
			x.origin = o
		}
		return x
	}
	if m.refused(a) || len(m.direct) >= maxWays && o != Reflexive {
		return nil
	}
	if o == Reflexive && !m.roomForReflexive() {
		return nil
	}
	x := newWay(Path{a}, m.classOf(a), o)
	m.direct[a] = x
	return x
}

// roomForReflexive forgets the reflexive address that was silent longest, unless
// all are in use.
func (m *Machine) roomForReflexive() bool {
	var n int
	var oldest *way
	for _, x := range m.ways() {
		if x.origin != Reflexive {
			continue
		}
		n++
		if x != m.current && (oldest == nil || x.heard.Before(oldest.heard)) {
			oldest = x
		}
	}
	if n < maxReflexive {
		return true
	}
	if oldest != nil {
		m.forget(oldest)
	}
	return oldest != nil
}

func (m *Machine) forget(x *way) {
	if x == m.relay {
		m.relay = nil
	} else {
		delete(m.direct, x.path.Addr)
	}
	if m.current == x {
		m.current = nil
		m.choose()
	}
}

// way is the way that a path names, or nil.
func (m *Machine) way(p Path) *way {
	if p.Relay() {
		return m.relay
	}
	return m.direct[p.Addr]
}

// offer is what we tell the peer of ourselves, until it says that it knows.
type offer struct {
	boot  uint32
	rev   uint32
	known bool // the peer acknowledged rev
	moved bool
	tries int
	next  time.Time
}

// Candidates that are not acknowledged are repeated after offerFirst, twice that,
// and so on up to offerLast; after offerTries only when punching begins anew.
const (
	offerFirst = 300 * time.Millisecond
	offerLast  = 5 * time.Second
	offerTries = 8
)

// again has the peer told anew.
func (o *offer) again() { *o = offer{boot: o.boot, rev: o.rev + 1, moved: o.moved} }

func (o *offer) acked(rev uint32) {
	if rev == o.rev {
		o.known, o.moved = true, false
	}
}

func (o *offer) due() bool { return o.rev > 0 && !o.known && o.tries < offerTries }

func (m *Machine) offer() {
	o := &m.ours
	if m.asleep || !o.due() || o.next.After(m.now) || m.current == nil {
		return
	}
	wait := min(offerFirst<<o.tries, offerLast)
	o.tries++
	o.next = m.now.Add(m.jitter(wait))
	msg := Candidates{Boot: o.boot, Rev: o.rev, NAT: m.self.NAT, Life: m.self.Life, Punch: true, Moved: o.moved, List: m.mine()}.Append(nil)
	m.send(Send{Path: m.current.path, Body: msg})
	// The current way may have died of the change that is told here.
	if m.relay != nil && m.current != m.relay && o.tries > 1 {
		m.send(Send{Path: m.relay.path, Body: msg})
	}
}

func (m *Machine) offerWake(w *soonest) {
	if !m.asleep && m.ours.due() && m.current != nil {
		w.add(m.ours.next)
	}
}

// mine are our addresses, those first that reach furthest.
func (m *Machine) mine() []Candidate {
	var list []Candidate
	say := func(o Origin, addrs []netip.AddrPort) {
		for _, a := range addrs {
			c := Candidate{o, a}
			hidden := o == Own && m.cfg.Hide && !public(a.Addr())
			if len(list) < MaxCandidates && !hidden && a.IsValid() && !slices.Contains(list, c) {
				list = append(list, c)
			}
		}
	}
	say(Static, m.self.Static)
	say(Mapped, m.self.Mapped)
	say(Own, m.self.Own)
	return list
}

// shared is the address space of carriers' NATs (RFC 6598).
var shared = netip.MustParsePrefix("100.64.0.0/10")

func public(a netip.Addr) bool {
	return a.IsGlobalUnicast() && !a.IsPrivate() && !shared.Contains(a)
}

// told takes in where the peer says it is.
func (m *Machine) told(from Path, c Candidates) {
	m.send(Send{Path: from, Body: Ack{c.Rev}.Append(nil)})
	anew := c.Boot != m.theirs.Boot
	if !anew && c.Rev < m.theirs.Rev {
		return
	}
	fresh := anew || c.Rev > m.theirs.Rev
	if anew && m.theirs.Boot != 0 {
		m.moved()
	}
	// The round that begins below is its own, and tells it nothing of us; what we are
	// told was known may have been so to a life of which we never heard.
	if anew && (m.theirs.Boot != 0 || !m.ours.due()) {
		m.ours.again()
	}
	m.theirs = c
	named := map[netip.AddrPort]bool{}
	for _, x := range c.List {
		named[x.Addr] = true
	}
	for _, x := range m.ways() {
		if x != m.current && x != m.relay && x.origin <= Static && !named[x.path.Addr] {
			m.forget(x)
		}
	}
	for _, x := range c.List {
		m.add(x.Addr, x.Origin)
	}
	if fresh && c.Moved {
		m.moved()
	}
	if c.Punch && (fresh || m.rested()) {
		m.use()
		m.begin()
	}
}

// ownOf reports whether the peer says that the address is one of its interfaces'.
func (m *Machine) ownOf(a netip.AddrPort) bool {
	return slices.Contains(m.theirs.List, Candidate{Own, a})
}

// moved: one side has changed networks. What was proven may be gone: traffic goes
// by the relay until it is proven again.
func (m *Machine) moved() {
	for _, x := range m.ways() {
		if x == m.relay {
			continue
		}
		x.proven, x.missed, x.seen = false, 0, netip.AddrPort{}
		x.pending = nil
	}
	m.again()
	if m.relay != nil {
		m.current = m.relay
	}
	m.choose()
}
