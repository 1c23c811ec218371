package paths

import (
	"net/netip"
	"slices"
	"time"
)

// class orders paths: traffic prefers the lower one.
type class uint8

const (
	sameLink class = iota // an address on a network of this node
	straight
	throughRelay
)

const (
	// maxReflexive bounds the addresses that are only known as sources of the peer's
	// packets, and maxAddresses all addresses.
	maxReflexive = 4
	maxAddresses = 2*MaxCandidates + maxReflexive
)

type pathState struct {
	path   Path
	class  class
	origin Origin

	proven   bool      // a probe was answered, and the path has not gone silent since
	received time.Time // when data or a reply was last received
	sent     time.Time // when a probe was last sent
	probed   time.Time // when a probe without padding was last sent
	next     time.Time // when the next probe of a punching round is due; zero: none
	tries    int       // probes of the round

	pending []pending // probes that were not answered, oldest first
	missed  int       // consecutive
	seen    netip.AddrPort

	rtt, least time.Duration // smoothed (as in RFC 6298, by an eighth), and the least; 0: never measured
	recent     [4]trip
	trips      int     // measured; recent has the last ones
	loss       float64 // smoothed fraction of missed probes
	better     int     // consecutive measurements that were better than those of the current path
	mtu        mtu
	measure    time.Time // when it is measured next
}

// refused reports whether an address must not be probed, because it is not the address
// of a single other machine.
func (m *Machine) refused(a netip.AddrPort) bool {
	ip := a.Addr()
	switch {
	case !ip.IsValid() || ip.Is4In6() || ip.Zone() != "" || a.Port() == 0,
		ip.IsUnspecified(), ip.IsLoopback(), ip.IsMulticast(), ip.IsLinkLocalUnicast():
		return true
	case ip.Is4() && (ip.As4()[0] >= 240 || ip.As4()[0] == 0): // reserved, broadcast; "this network"
		return true
	}
	return slices.ContainsFunc(m.self.Own, func(own netip.AddrPort) bool { return own.Addr() == ip }) ||
		slices.ContainsFunc(m.self.Links, func(l netip.Prefix) bool { return ip == broadcast(l) }) ||
		slices.Contains(m.self.Mapped, a) || m.cfg.Refuse != nil && m.cfg.Refuse(ip)
}

// broadcast returns the broadcast address of an IPv4 network, or the zero Addr if it
// has none (RFC 3021).
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

// add adds an address of the peer. It returns nil if the address is refused or there are too many. An
// origin that the peer itself named replaces others.
func (m *Machine) add(a netip.AddrPort, o Origin) *pathState {
	if x := m.direct[a]; x != nil {
		if o <= Static {
			x.origin = o
		}
		return x
	}
	if m.refused(a) || len(m.direct) >= maxAddresses && o != Reflexive || o == Reflexive && !m.roomForReflexive() {
		return nil
	}
	x := &pathState{path: Path{a}, class: m.classOf(a), origin: o}
	m.direct[a] = x
	return x
}

// roomForReflexive removes the reflexive address with the oldest data if there are too many. It returns
// false if none can be removed.
func (m *Machine) roomForReflexive() bool {
	var n int
	var oldest *pathState
	for _, x := range m.all() {
		if x.origin != Reflexive {
			continue
		}
		n++
		if x != m.current && (oldest == nil || x.received.Before(oldest.received)) {
			oldest = x
		}
	}
	if n < maxReflexive {
		return true
	}
	if oldest != nil {
		m.remove(oldest)
	}
	return oldest != nil
}

func (m *Machine) remove(x *pathState) {
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

// state returns the state of a path, or nil.
func (m *Machine) state(p Path) *pathState {
	if p.Relay() {
		return m.relay
	}
	return m.direct[p.Addr]
}

// offer is the state of this node's Candidates message, until the peer acknowledges it.
type offer struct {
	boot  uint32
	rev   uint32
	known bool // the peer acknowledged rev
	moved bool
	tries int
	next  time.Time
}

// Candidates that are not acknowledged are repeated after offerFirst. The wait doubles up to offerLast.
// After offerTries they are sent only when punching begins again.
const (
	offerFirst = 300 * time.Millisecond
	offerLast  = 5 * time.Second
	offerTries = 8
)

func (o *offer) renew() { *o = offer{boot: o.boot, rev: o.rev + 1, moved: o.moved} }

func (o *offer) due() bool { return o.rev > 0 && !o.known && o.tries < offerTries }

func (m *Machine) offer() {
	o := &m.ours
	if m.asleep || !o.due() || o.next.After(m.now) || m.current == nil {
		return
	}
	wait := min(offerFirst<<o.tries, offerLast)
	o.tries++
	o.next = m.now.Add(m.jitter(wait))
	msg := Candidates{Boot: o.boot, Rev: o.rev, NAT: m.self.NAT, Lifetime: m.self.Lifetime, Punch: true, Moved: o.moved, List: m.ownCandidates()}.Append(nil)
	m.send(Send{Path: m.current.path, Body: msg})
	// The announced change may have broken the current path.
	if m.relay != nil && m.current != m.relay && o.tries > 1 {
		m.send(Send{Path: m.relay.path, Body: msg})
	}
}

func (m *Machine) offerWake(w *soonest) {
	if !m.asleep && m.ours.due() && m.current != nil {
		w.add(m.ours.next)
	}
}

// ownCandidates lists this node's addresses, those with the widest reach first.
func (m *Machine) ownCandidates() []Candidate {
	var list []Candidate
	add := func(o Origin, addrs []netip.AddrPort) {
		for _, a := range addrs {
			c := Candidate{o, a}
			hidden := o == Own && m.cfg.Hide && !public(a.Addr())
			if len(list) < MaxCandidates && !hidden && a.IsValid() && !slices.Contains(list, c) {
				list = append(list, c)
			}
		}
	}
	add(Static, m.self.Static)
	add(Mapped, m.self.Mapped)
	add(Own, m.self.Own)
	return list
}

// shared is the address space of carrier-grade NATs (RFC 6598).
var shared = netip.MustParsePrefix("100.64.0.0/10")

func public(a netip.Addr) bool {
	return a.IsGlobalUnicast() && !a.IsPrivate() && !shared.Contains(a)
}

func (m *Machine) receiveCandidates(from Path, c Candidates) {
	m.send(Send{Path: from, Body: Ack{c.Rev}.Append(nil)})
	restarted := c.Boot != m.theirs.Boot
	if !restarted && c.Rev < m.theirs.Rev {
		return
	}
	fresh := restarted || c.Rev > m.theirs.Rev
	if restarted && m.theirs.Boot != 0 {
		m.unprove()
	}
	// The round that begins below does not send this node's addresses. An earlier acknowledgement may be
	// from a previous process of the peer.
	if restarted && (m.theirs.Boot != 0 || !m.ours.due()) {
		m.ours.renew()
	}
	m.theirs = c
	named := map[netip.AddrPort]bool{}
	for _, x := range c.List {
		named[x.Addr] = true
	}
	for _, x := range m.all() {
		if x != m.current && x != m.relay && x.origin <= Static && !named[x.path.Addr] {
			m.remove(x)
		}
	}
	for _, x := range c.List {
		m.add(x.Addr, x.Origin)
	}
	if fresh && c.Moved {
		m.unprove()
	}
	if c.Punch && (fresh || m.acceptsRound()) {
		m.wakeUp()
		m.beginRound()
	}
}

// unprove handles a change of network on one side. All paths become unproven, and traffic takes the relay
// until one is proven again.
func (m *Machine) unprove() {
	for _, x := range m.direct {
		x.proven, x.missed, x.seen, x.pending = false, 0, netip.AddrPort{}, nil
	}
	m.restartPunching()
	if m.relay != nil {
		m.current = m.relay
	}
	m.choose()
}
