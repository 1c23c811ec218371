package relaylink

import (
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/internal/relaywire"
	"github.com/treeline-edge/treeline/netmanager/overlay/paths"
)

// A binding is 108 bytes on the wire (IPv4) each way. Every 25 s that is 520 bytes
// a minute, an eighth of what an idle node may send, and a wake-up of some 50 µs
// every 25 s, a 500th of the 0.1 % of a core; at the longest interval a quarter of
// both.
const (
	// boundFirst is how often a slot is bound while it is not known how long the NAT
	// keeps the mapping: many drop it after 30 s.
	boundFirst = 25 * time.Second
	// boundLast is the longest interval, also where no NAT is: a relay that was
	// restarted knows nobody.
	boundLast = 110 * time.Second
	// altEvery is how often the relay's other port is asked what it sees.
	altEvery = 10 * time.Minute
)

// waits are how long the requests of a round are given. When all are unanswered UDP
// counts as blocked; an answer that comes later is as good.
var waits = [tooMany]time.Duration{500 * time.Millisecond, 500 * time.Millisecond, time.Second}

const (
	tooMany = 3
	tooLate = 10 * time.Second // for an answer to be believed
)

// While TLS carries, UDP is tried again after retryFirst, twice that, and so on.
const (
	retryFirst = 15 * time.Second
	retryLast  = 5 * time.Minute
)

// tests are how long a mapping is tried to live, each on a socket of its own, so
// that nothing is lost when it does not. The safe silence is nine tenths of the
// longest that it lived.
var tests = []time.Duration{40 * time.Second, 70 * time.Second, 123 * time.Second}

// binder decides when to bind, and what the answers mean. It is pure.
type binder struct {
	slot   uint32
	secret []byte
	own    []netip.AddrPort
	relays []netip.AddrPort // addresses of the relay, the one in use first

	seq   uint64
	asked map[uint64]request // that wait for their answer
	next  time.Time          // when to bind or try UDP; zero: not
	began time.Time          // when a request was last sent
	fails int                // unanswered in a row
	tls   bool               // UDP is blocked
	retry time.Duration      // until UDP is tried again
	up    bool               // bound over UDP

	mapped   netip.AddrPort
	alt      uint16
	nat      paths.NAT
	altAt    time.Time // when to ask the other port
	altFails int
	life     time.Duration
	test     int // index of the next in tests
	testing  bool
	epoch    int // of what is learnt of the NAT: results of earlier tests are void
	rtt      time.Duration
}

type request struct {
	at   time.Time
	bind bool
	alt  bool
	lost bool // its time is over
}

// action is what a step asks for.
type action struct {
	send    []outgoing
	resolve bool          // the relay's name
	test    time.Duration // begin a test of the mapping's life; 0: none
	wake    time.Time
}

type outgoing struct {
	to  netip.AddrPort
	req relaywire.Request
}

// lease gives the node another slot.
func (b *binder) lease(slot uint32, secret []byte) {
	b.slot, b.secret = slot, secret
	b.again()
}

// resolved says where the relay is. The first address is tried first.
func (b *binder) resolved(addrs []netip.AddrPort) {
	if len(addrs) == 0 || slices.Equal(b.relays, addrs) {
		return
	}
	if len(b.relays) > 0 && b.up && slices.Contains(addrs, b.relays[0]) {
		first := b.relays[0] // it answers
		addrs = append([]netip.AddrPort{first}, slices.DeleteFunc(slices.Clone(addrs), func(a netip.AddrPort) bool { return a == first })...)
		b.relays = addrs
		return
	}
	b.relays = slices.Clone(addrs)
	b.again()
}

// again binds at once, as after a change of networks: all that was learnt of the
// NAT is in doubt.
func (b *binder) again() {
	b.asked = nil
	b.fails, b.next, b.retry = 0, atOnce, retryFirst
	b.unlearn()
}

// unlearn: another NAT, or none, is before us.
func (b *binder) unlearn() {
	b.life, b.test, b.testing = 0, 0, false
	b.epoch++
	b.altAt, b.altFails = atOnce, 0
}

// atOnce is before any now.
var atOnce = time.Unix(0, 1)

// nudge binds soon: the relay may have been restarted, or the NAT.
func (b *binder) nudge() {
	if soon := b.began.Add(time.Second); soon.Before(b.next) {
		b.fails, b.next = 0, soon
	}
}

// tested takes in whether a mapping lived.
func (b *binder) tested(epoch int, lived bool) {
	if !b.testing || epoch != b.epoch {
		return
	}
	b.testing = false
	if !lived {
		b.test = len(tests)
		return
	}
	b.life = tests[b.test] * 9 / 10
	b.test++
}

// interval is how long the slot stays bound without a word.
func (b *binder) interval() time.Duration {
	switch {
	case b.nat == paths.Open:
		return boundLast
	case b.life > 0:
		return min(b.life, boundLast)
	}
	return boundFirst
}

// step does what is due.
func (b *binder) step(now time.Time) action {
	var a action
	if b.slot == 0 && b.secret == nil || len(b.relays) == 0 {
		return a
	}
	if !b.next.IsZero() && !b.next.After(now) {
		b.bind(now, &a)
	}
	doubt := b.up && b.alt != 0 && b.nat != paths.Open
	if doubt && !b.altAt.After(now) {
		b.askAlt(now, &a)
	}
	if b.up && b.nat != paths.Open && !b.testing && b.test < len(tests) {
		b.testing, a.test = true, tests[b.test]
	}
	a.wake = b.next
	if doubt && b.altAt.Before(a.wake) {
		a.wake = b.altAt
	}
	return a
}

func (b *binder) bind(now time.Time, a *action) {
	b.fails += b.lose(now, false)
	if b.fails < tooMany {
		b.began = now
		b.send(now, a, b.relays[0], request{at: now, bind: !b.tls})
		b.next = now.Add(waits[b.fails])
		return
	}
	// A round in vain. The name may lead elsewhere by now, and another of its
	// addresses may be reached.
	b.fails, a.resolve = 0, true
	b.relays = append(b.relays[1:len(b.relays):len(b.relays)], b.relays[0])
	b.next = now.Add(b.retry)
	if b.tls {
		b.retry = min(2*b.retry, retryLast)
	}
	b.tls, b.up = true, false
	b.nat, b.mapped = paths.Blocked, netip.AddrPort{}
}

// lose counts the requests whose time is over.
func (b *binder) lose(now time.Time, alt bool) (n int) {
	for seq, r := range b.asked {
		if r.alt == alt && !r.lost {
			n++
			r.lost = true
			b.asked[seq] = r
		}
		if now.Sub(r.at) > tooLate {
			delete(b.asked, seq)
		}
	}
	return n
}

func (b *binder) send(now time.Time, a *action, to netip.AddrPort, r request) {
	b.seq = max(b.seq+1, uint64(now.UnixNano()))
	if b.asked == nil {
		b.asked = map[uint64]request{}
	}
	b.asked[b.seq] = r
	a.send = append(a.send, outgoing{to, relaywire.Request{Slot: b.slot, Seq: b.seq, Bind: r.bind}})
}

// askAlt asks the relay's other port what it sees: a NAT that shows the two
// another address shows every peer another.
func (b *binder) askAlt(now time.Time, a *action) {
	b.altFails += b.lose(now, true)
	if b.altFails >= tooMany { // a firewall, perhaps; nothing is known then
		b.altAt, b.altFails = now.Add(altEvery), 0
		return
	}
	b.send(now, a, netip.AddrPortFrom(b.relays[0].Addr(), b.alt), request{at: now, alt: true})
	b.altAt = now.Add(waits[b.altFails])
}

// answer takes in what the relay said.
func (b *binder) answer(now time.Time, ans relaywire.Answer) {
	r, ok := b.asked[ans.Seq]
	if !ok || ans.Late || ans.Slot != b.slot {
		return
	}
	delete(b.asked, ans.Seq)
	switch {
	case ans.Result == relaywire.Stale:
		b.seq = max(b.seq, ans.Last)
		b.next = atOnce
		return
	case r.alt:
		b.altAt, b.altFails = now.Add(altEvery), 0
		if b.nat != paths.Open && b.up {
			b.nat = paths.Easy
			if ans.Addr != b.mapped {
				b.nat = paths.Hard
			}
		}
		return
	case ans.Result == relaywire.Seen && b.tls: // UDP passes again
		b.tls, b.fails = false, 0
		b.next = atOnce
		return
	case ans.Result != relaywire.Bound:
		return
	}
	b.rtt = now.Sub(r.at)
	b.up, b.tls, b.fails, b.retry = true, false, 0, retryFirst
	if ans.Addr != b.mapped {
		b.mapped = ans.Addr
		b.nat = paths.Unknown
		b.unlearn()
	}
	b.alt = ans.Alt
	if slices.Contains(b.own, ans.Addr) {
		b.nat = paths.Open
	} else if b.nat == paths.Open || b.nat == paths.Blocked {
		b.nat = paths.Unknown
	}
	b.next = now.Add(b.interval())
}
