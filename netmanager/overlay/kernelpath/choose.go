package kernelpath

import (
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/peermsg"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

var none plane.Paths

// choose decides on which kernel paths the peer's packets are accepted, and which path packets to it
// take.
func (m *Machine) choose(q *peer) {
	next := q.agreement
	if m.passed(&q.termsEnd) {
		next.Terms = peermsg.Terms{}
	}
	if m.passed(&q.withdrawnUntil) {
		q.withdrawn = none
		m.eff.Changed = append(m.eff.Changed, q.key)
	}
	if m.passed(&q.avoidUntil) {
		q.reason = ""
	}
	via, accepts := m.acceptable(q)
	if via != next.Via && via.IsValid() { // the peer moved: no packets come from its old address
		q.withdrawn, q.withdrawnUntil = none, time.Time{}
		q.avoidUntil, q.reason, q.failures = time.Time{}, "", 0
	}
	if gone := without(next.Accepts, accepts); gone != none && (via == next.Via || !via.IsValid()) {
		q.withdrawn, q.withdrawnUntil = q.withdrawn.Or(gone), m.now.Add(withdrawalPeriod)
	}
	next.Accepts = accepts
	if via.IsValid() {
		next.Via = via
	} else if q.withdrawn == none {
		next.Via = netip.Addr{}
	}
	next.Path = m.pathTo(q, next)
	m.set(q, next)
	if m.self.Known && m.boot != 0 {
		if t := m.terms(next); !t.Same(q.sent) {
			t.Serial = max(q.sent.Serial, m.boot<<32) + 1
			q.sent, q.unconfirmed, q.tries = t, true, 0
			m.send(q)
		}
	}
	key := timer{q.key, timerLapse}
	m.timers.Clear(key)
	for _, at := range []time.Time{q.termsEnd, q.withdrawnUntil, q.avoidUntil, q.settled} {
		if at.After(m.now) {
			m.timers.SetEarlier(key, at)
		}
	}
}

// passed reports whether a time has passed, and clears it then.
func (m *Machine) passed(at *time.Time) bool {
	if at.IsZero() || at.After(m.now) {
		return false
	}
	*at = time.Time{}
	return true
}

func without(a, b plane.Paths) plane.Paths {
	return plane.Paths{Route: a.Route && !b.Route, VXLAN: a.VXLAN && !b.VXLAN}
}

// acceptable returns the paths on which the peer's packets are accepted, and its address. Both ends must be in
// one unencrypted network without a NAT between them. An agreement from before a restart stays until
// there is evidence against it.
func (m *Machine) acceptable(q *peer) (netip.Addr, plane.Paths) {
	via, noNAT := q.path.Addr.Addr().Unmap(), q.path.Kind == api.PathDirect && q.path.NoNAT
	switch {
	case !m.self.Known: // the tunnel may report before the node is described
		if q.Accepts == none {
			return netip.Addr{}, none
		}
		return q.Via, q.Accepts
	case !m.self.Leased:
		return netip.Addr{}, none
	case q.reported.IsZero() || q.path.Kind == api.PathNone || q.path.Silent, !noNAT && (q.path.Idle || q.settled.After(m.now)):
		// The tunnel does not know the peer's address.
		if q.Accepts == none {
			return netip.Addr{}, none
		}
		via = q.Via
	case !noNAT:
		return netip.Addr{}, none
	}
	if !via.Is4() {
		return netip.Addr{}, none
	}
	network, ok := m.network(via)
	switch {
	case !ok:
		return netip.Addr{}, none
	case len(m.ownIn(network)) == 0:
		return netip.Addr{}, none
	}
	paths := plane.Paths{
		Route: slices.ContainsFunc(m.self.OnLink, func(p netip.Prefix) bool { return p.Contains(via) }),
		VXLAN: m.vxlan != 0,
	}
	if paths == none {
		return netip.Addr{}, none
	}
	return via, paths
}

// network returns the unencrypted network that contains an address, preferably one that this node is in.
func (m *Machine) network(a netip.Addr) (in netip.Prefix, ok bool) {
	for _, p := range m.self.Unencrypted {
		if p.Contains(a) && (!ok || len(m.ownIn(p)) > 0) {
			in, ok = p, true
		}
	}
	return in, ok
}

// ownIn lists this node's addresses within a network.
func (m *Machine) ownIn(p netip.Prefix) (own []netip.Addr) {
	for _, a := range m.self.Addresses {
		if p.Contains(a) && a.Is4() && !slices.Contains(own, a) && len(own) < peermsg.MaxTermsAddresses {
			own = append(own, a)
		}
	}
	return own
}

// pathTo returns the path of packets to the peer; "" for the tunnel. Both ends must accept it.
func (m *Machine) pathTo(q *peer, a agreement) api.PathKind {
	t := a.Terms
	switch {
	case a.Accepts == none || !q.avoidUntil.IsZero():
		return ""
	case !m.self.Known:
		return a.Path
	case !slices.Contains(m.self.Addresses, t.From):
		return "" // the peer expects another address of this node
	case !slices.Contains(t.At, a.Via):
		return ""
	case a.Accepts.Route && t.Paths.Route:
		return api.PathRoute
	case a.Accepts.VXLAN && t.Paths.VXLAN && t.Port == m.vxlan:
		return api.PathVXLAN
	}
	return ""
}

// terms returns this node's terms for the peer.
func (m *Machine) terms(a agreement) peermsg.Terms {
	if a.Accepts == none {
		return peermsg.Terms{}
	}
	t := peermsg.Terms{Paths: a.Accepts, From: a.Via}
	if p, ok := m.network(a.Via); ok {
		t.At = m.ownIn(p)
	}
	if a.Accepts.VXLAN {
		t.Port = m.vxlan
	}
	return t
}
