package overlay

import (
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/agree"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// Between two nodes in one network that the operators of both called clear, packets
// need no tunnel. Each end tells the other, inside their session, by which of the
// kernel's ways it takes its packets in, and sends by none that the other has not
// named. What an end has named it takes in, all of it at once, so that each changes
// its way when it likes and no packet comes that nobody expects.

const (
	// linger is how long ways are taken in after they were withdrawn: the peer has to
	// hear it, which may take repetitions, and what it sent before has to arrive.
	linger = 3 * time.Second
	// lapse is how long terms of an earlier session hold in a new one, in which they are
	// said anew: whoever does not has forgotten them. It says them once its kernel is
	// as it should be, which takes a busy machine seconds; whether they still hold is
	// known sooner by what arrives.
	lapse = 10 * time.Second
	// settling is how long it says nothing of where the peer is that its way is relayed, or
	// not known to be plain: so sessions begin, and anew when either end does.
	settling = 5 * time.Second
	// termsFirst is when terms that the peer has not confirmed are repeated, twice that
	// when again, and so on; termsTries is how often they are said, and termsLater when
	// once more where there are signs of life.
	termsFirst = 100 * time.Millisecond
	termsTries = 7
	termsLater = 30 * time.Second
)

// kernel is what is agreed with a peer on the ways that need no tunnel. It is kept,
// so that a netmanager's restart interrupts no flow on them.
type kernel struct {
	Path  api.PathKind `json:"path,omitempty"` // that ours take: route, vxlan or ""
	Via   netip.Addr   `json:"via,omitzero"`
	Takes plane.Ways   `json:"takes,omitzero"` // that its packets are taken in by
	Terms agree.Terms  `json:"terms,omitzero"` // its own; without serials
}

// deal is how the agreement is come by. Zero times are of what is not the case.
type deal struct {
	said    agree.Terms // ours
	heard   uint64      // Serial of the peer's last in this session
	owed    bool        // the peer has not confirmed ours
	tries   int
	at      time.Time  // when they were said last
	unsure  time.Time  // its terms lapse then
	leaving plane.Ways // withdrawn, taken in until left
	left    time.Time
	settled time.Time
	shun    time.Time // ours take the tunnel until then, for why
	why     string
	fails   int // how often in a row nothing came through
}

var none plane.Ways

// choosePath decides anew by which of the kernel's ways the peer's packets are taken
// in, and by which ours go.
func (c *Core) choosePath(q *peer) {
	d, k := &q.deal, q.kernel
	if lapsed(&d.unsure, c.now) {
		k.Terms = agree.Terms{}
	}
	if lapsed(&d.left, c.now) {
		d.leaving = none
		c.dirty.peers[q.record.Key] = struct{}{}
	}
	if lapsed(&d.shun, c.now) {
		d.why = ""
	}
	via, takes := c.takes(q)
	if via != k.Via && via.IsValid() {
		d.leaving, d.left = none, time.Time{} // it is elsewhere, and sends nothing from there
		d.shun, d.why, d.fails = time.Time{}, "", 0
	}
	if gone := without(k.Takes, takes); gone != none && (via == k.Via || !via.IsValid()) {
		d.leaving, d.left = d.leaving.Or(gone), c.now.Add(linger)
	}
	k.Takes = takes
	if via.IsValid() {
		k.Via = via
	} else if d.leaving == none {
		k.Via = netip.Addr{}
	}
	k.Path = c.ours(q, k)
	c.setKernel(q, k)
	if c.described && c.boot != 0 {
		if t := c.terms(k); !t.Same(d.said) {
			t.Serial = max(d.said.Serial, c.boot<<32) + 1
			d.said, d.owed, d.tries = t, true, 0
			c.sayTerms(q)
		}
	}
	key := timerKey{what: timerPath, peer: q.record.Key}
	c.timers.Clear(key)
	for _, at := range []time.Time{d.unsure, d.left, d.shun, d.settled} {
		if at.After(c.now) {
			c.timers.SetEarlier(key, at)
		}
	}
}

// lapsed reports whether the time has come, and unsets it then.
func lapsed(at *time.Time, now time.Time) bool {
	if at.IsZero() || at.After(now) {
		return false
	}
	*at = time.Time{}
	return true
}

func without(a, b plane.Ways) plane.Ways {
	return plane.Ways{Route: a.Route && !b.Route, VXLAN: a.VXLAN && !b.VXLAN}
}

// takes are the ways that the peer's packets may come by, and where it is: both ends
// are in one network that this node's operator called clear, and no NAT is between.
// What was so before a restart stays until something speaks against it.
func (c *Core) takes(q *peer) (netip.Addr, plane.Ways) {
	via, plain := q.path.Addr.Addr().Unmap(), q.path.Kind == api.PathDirect && q.path.Plain
	switch {
	case c.lease == nil:
		return netip.Addr{}, none
	case q.heard.IsZero() || q.path.Kind == api.PathNone || q.path.Silent, !plain && (q.path.Idle || q.deal.settled.After(c.now)):
		// The tunnel has not looked since the start, or sees no need to, or nothing: that
		// says nothing of where the peer is.
		if q.kernel.Takes == none {
			return netip.Addr{}, none
		}
		via = q.kernel.Via
	case !plain:
		return netip.Addr{}, none
	}
	if !via.Is4() {
		return netip.Addr{}, none
	}
	clear, ok := c.clear(via)
	switch {
	case !ok:
		return netip.Addr{}, none
	case !c.described:
		return via, q.kernel.Takes
	case len(c.ownIn(clear)) == 0:
		return netip.Addr{}, none
	}
	ways := plane.Ways{
		Route: slices.ContainsFunc(c.self.OnLink, func(p netip.Prefix) bool { return p.Contains(via) }),
		VXLAN: c.cfg.VXLAN != 0,
	}
	if ways == none {
		return netip.Addr{}, none
	}
	return via, ways
}

// clear is the network that a is in, of those that the operator called clear. Of
// several it is one that this node is in, too.
func (c *Core) clear(a netip.Addr) (in netip.Prefix, ok bool) {
	for _, p := range c.lease.Clear {
		if p.Contains(a) && (!ok || len(c.ownIn(p)) > 0) {
			in, ok = p, true
		}
	}
	return in, ok
}

// ownIn are this node's addresses within a network.
func (c *Core) ownIn(p netip.Prefix) (own []netip.Addr) {
	for _, e := range c.self.Endpoints {
		if a := e.Addr().Unmap(); p.Contains(a) && a.Is4() && !slices.Contains(own, a) && len(own) < agree.MaxAt {
			own = append(own, a)
		}
	}
	return own
}

// ours is the way that our packets go by, "" for the tunnel: one that the peer takes,
// and that we would take.
func (c *Core) ours(q *peer, k kernel) api.PathKind {
	t := k.Terms
	switch {
	case k.Takes == none || !q.deal.shun.IsZero():
		return ""
	case !c.described:
		return k.Path
	case !slices.ContainsFunc(c.self.Endpoints, func(e netip.AddrPort) bool { return e.Addr().Unmap() == t.From }):
		return "" // it expects us elsewhere
	case !slices.Contains(t.At, k.Via):
		return ""
	case k.Takes.Route && t.Ways.Route:
		return api.PathRoute
	case k.Takes.VXLAN && t.Ways.VXLAN && t.Port == c.cfg.VXLAN:
		return api.PathVXLAN
	}
	return ""
}

// terms are what the peer is told.
func (c *Core) terms(k kernel) agree.Terms {
	if k.Takes == none {
		return agree.Terms{}
	}
	t := agree.Terms{Ways: k.Takes, From: k.Via}
	if p, ok := c.clear(k.Via); ok {
		t.At = c.ownIn(p)
	}
	if k.Takes.VXLAN {
		t.Port = c.cfg.VXLAN
	}
	return t
}

// sayTerms tells the peer, once the plane has followed, and again as long as it does
// not confirm, within reason.
func (c *Core) sayTerms(q *peer) {
	d := &q.deal
	if d.said.Serial == 0 {
		d.said.Serial = c.boot << 32 // grows with each life
	}
	key := timerKey{what: timerTerms, peer: q.record.Key}
	c.timers.Clear(key)
	if d.owed && d.tries < termsTries-1 {
		c.timers.Set(key, c.now.Add(termsFirst<<d.tries))
		d.tries++
	}
	d.at = c.now
	t := d.said
	t.Ack = d.heard
	c.emitLate(ToTunnel, TunnelTerms{q.record.Key, t})
}

// sayTermsLater says once more what a peer has not confirmed that is there now.
func (c *Core) sayTermsLater(q *peer) {
	if d := &q.deal; d.owed && c.now.Sub(d.at) >= termsLater {
		c.sayTerms(q)
	}
}

// agreed takes a peer's terms.
func (c *Core) agreed(in Agreed) {
	q := c.peers[in.Key]
	if q == nil || in.Key == c.self.Key || in.Serial < q.deal.heard {
		return
	}
	d := &q.deal
	news := in.Serial > d.heard
	if d.owed && in.Ack == d.said.Serial {
		d.owed = false
		c.timers.Clear(timerKey{what: timerTerms, peer: in.Key})
	}
	if news {
		k := q.kernel
		k.Terms, d.heard, d.unsure = in.Terms, in.Serial, time.Time{}
		k.Terms.Serial, k.Terms.Ack = 0, 0
		c.setKernel(q, k)
		c.choosePath(q)
	}
	if news || in.Ack != d.said.Serial {
		c.sayTerms(q)
	}
}

// resume has terms exchanged anew: in a new session, the peer may be another's heir.
func (c *Core) resume(key api.PeerKey) {
	q := c.peers[key]
	if q == nil || key == c.self.Key {
		return
	}
	d := &q.deal
	if q.kernel.Terms.Ways != none {
		d.unsure = c.now.Add(lapse)
	}
	if d.heard == 0 && d.said.Serial == 0 {
		return // neither has ever said anything
	}
	d.heard, d.owed, d.tries = 0, true, 0
	c.choosePath(q)
	c.sayTerms(q)
}

// resumeKernel begins a life in which the peer's packets are taken in as in the last
// one: what was said there is to be said anew.
func (c *Core) resumeKernel(q *peer) {
	if q.kernel.Takes == none && q.kernel.Terms.Ways == none {
		return
	}
	q.deal.said = agree.Terms{Serial: c.boot << 32, Ways: q.kernel.Takes, From: q.kernel.Via}
	q.deal.settled = c.now.Add(settling)
	if q.kernel.Path != "" {
		c.awaitCount()
	}
}

// unkernel ends the agreement with a peer that is forgotten.
func (c *Core) unkernel(q *peer) {
	if q.deal.said.Ways != none {
		c.emit(ToTunnel, TunnelSay{Key: q.record.Key, Message: agree.Terms{Serial: q.deal.said.Serial + 1, Ack: q.deal.heard}})
	}
	c.timers.Clear(timerKey{what: timerTerms, peer: q.record.Key})
	c.setKernel(q, kernel{})
}

func (c *Core) setKernel(q *peer, k kernel) {
	if reflect.DeepEqual(q.kernel, k) {
		return
	}
	if k.Path != q.kernel.Path || k.Via != q.kernel.Via {
		q.proof = proof{}
		if k.Path != "" {
			c.awaitCount()
		}
	}
	q.kernel = k
	c.dirty.peers[q.record.Key] = struct{}{}
	if reflect.DeepEqual(k, kernel{}) {
		c.journal.Delete(kindPath, q.record.Key.String())
	} else {
		c.journal.Put(kindPath, q.record.Key.String(), k)
	}
}
