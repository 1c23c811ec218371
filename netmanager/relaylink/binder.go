package relaylink

import (
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/internal/relaywire"
	"github.com/treeline-edge/treeline/netmanager/overlay/paths"
)

// A binding takes 108 bytes on the wire (IPv4) in each direction. At minInterval that is 520 bytes a
// minute, an eighth of an idle node's budget, and a wake-up of 50 µs; at maxInterval it is a quarter of
// both.
const (
	// minInterval is the interval of bindings until the lifetime of the NAT's mapping is known. Many NATs
	// drop a mapping after 30 s.
	minInterval = 25 * time.Second
	// maxInterval is the longest interval, also without a NAT, because a relay that restarts loses all
	// bindings.
	maxInterval = 110 * time.Second
	// altInterval is the interval of requests to the relay's other port.
	altInterval = 10 * time.Minute
)

// timeouts are those of the consecutive requests of a round. If all of them are unanswered, UDP counts as
// blocked. A late answer is still accepted.
var timeouts = [maxFailed]time.Duration{500 * time.Millisecond, 500 * time.Millisecond, time.Second}

const (
	maxFailed = 3
	maxAge    = 10 * time.Second // after which an answer to a request is ignored
)

// While TLS is in use, UDP is tried again after minRetry, doubling up to maxRetry.
const (
	minRetry = 15 * time.Second
	maxRetry = 5 * time.Minute
)

// tests are the periods of silence that the NAT's mapping is tested with, each on its own socket. The
// interval of bindings is nine tenths of the longest one that the mapping survived.
var tests = []time.Duration{40 * time.Second, 70 * time.Second, 123 * time.Second}

// binder decides when to bind, and evaluates the answers. It has no clock and does no I/O.
type binder struct {
	slot   uint32
	secret []byte
	own    []netip.AddrPort
	relays []netip.AddrPort // addresses of the relay, the one in use first

	seq     uint64
	pending map[uint64]request // requests without an answer
	next    time.Time          // when to bind or try UDP; zero: never
	began   time.Time          // when a request was last sent
	fails   int                // consecutive unanswered requests
	tls     bool               // UDP is blocked
	retry   time.Duration      // wait until UDP is tried again
	up      bool               // bound over UDP

	mapped   netip.AddrPort
	alt      uint16 // the relay's other port; 0: not known
	nat      paths.NAT
	altAt    time.Time // when to send a request to the other port
	altFails int
	lifetime time.Duration
	test     int // index of the next test in tests
	testing  bool
	epoch    int // of the NAT; results of tests of an earlier epoch are ignored
	rtt      time.Duration
}

type request struct {
	at   time.Time
	bind bool
	alt  bool
	lost bool // its timeout has passed
}

type action struct {
	send    []outgoing
	resolve bool          // look up the relay's name
	test    time.Duration // silence of a test to start; 0: none
	wake    time.Time
}

type outgoing struct {
	to  netip.AddrPort
	req relaywire.Request
}

func (b *binder) lease(slot uint32, secret []byte) {
	b.slot, b.secret = slot, secret
	b.rebind()
}

// resolved sets the relay's addresses, in the order in which they are tried.
func (b *binder) resolved(addrs []netip.AddrPort) {
	if len(addrs) == 0 || slices.Equal(b.relays, addrs) {
		return
	}
	if len(b.relays) > 0 && b.up && slices.Contains(addrs, b.relays[0]) {
		first := b.relays[0] // the one that answers stays first
		addrs = append([]netip.AddrPort{first}, slices.DeleteFunc(slices.Clone(addrs), func(a netip.AddrPort) bool { return a == first })...)
		b.relays = addrs
		return
	}
	b.relays = slices.Clone(addrs)
	b.rebind()
}

// rebind binds at once, for example after a change of networks, and discards the measurements of the NAT.
func (b *binder) rebind() {
	b.pending = nil
	b.fails, b.next, b.retry = 0, atOnce, minRetry
	b.resetNAT()
}

func (b *binder) resetNAT() {
	b.lifetime, b.test, b.testing = 0, 0, false
	b.epoch++
	b.altAt, b.altFails = atOnce, 0
}

// atOnce is earlier than any current time.
var atOnce = time.Unix(0, 1)

// rebindSoon binds within a second.
func (b *binder) rebindSoon() {
	if soon := b.began.Add(time.Second); soon.Before(b.next) {
		b.fails, b.next = 0, soon
	}
}

// tested ends a test. survived is its result; without one, because err is the error of the test's socket,
// the same test begins again.
func (b *binder) tested(epoch int, survived bool, err error) {
	if !b.testing || epoch != b.epoch {
		return
	}
	b.testing = false
	switch {
	case err != nil:
	case survived:
		b.lifetime = tests[b.test] * 9 / 10
		b.test++
	default:
		b.test = len(tests)
	}
}

func (b *binder) interval() time.Duration {
	switch {
	case b.nat == paths.Open:
		return maxInterval
	case b.lifetime > 0:
		return min(b.lifetime, maxInterval)
	}
	return minInterval
}

func (b *binder) step(now time.Time) action {
	var a action
	if b.slot == 0 && b.secret == nil || len(b.relays) == 0 {
		return a
	}
	if !b.next.IsZero() && !b.next.After(now) {
		b.bind(now, &a)
	}
	unsure := b.up && b.alt != 0 && b.nat != paths.Open
	if unsure && !b.altAt.After(now) {
		b.askAlt(now, &a)
	}
	if b.up && b.nat != paths.Open && !b.testing && b.test < len(tests) {
		b.testing, a.test = true, tests[b.test]
	}
	a.wake = b.next
	if unsure && b.altAt.Before(a.wake) {
		a.wake = b.altAt
	}
	return a
}

func (b *binder) bind(now time.Time, a *action) {
	b.fails += b.markLost(now, false)
	if b.fails < maxFailed {
		b.began = now
		b.send(now, a, b.relays[0], request{at: now, bind: !b.tls})
		b.next = now.Add(timeouts[b.fails])
		return
	}
	// The round failed. The name may have other addresses now, or another address may be reachable.
	b.fails, a.resolve = 0, true
	b.relays = append(b.relays[1:len(b.relays):len(b.relays)], b.relays[0])
	b.next = now.Add(b.retry)
	if b.tls {
		b.retry = min(2*b.retry, maxRetry)
	}
	b.tls, b.up = true, false
	b.nat, b.mapped = paths.Blocked, netip.AddrPort{}
}

// markLost marks the requests whose timeout has passed, and returns their number.
func (b *binder) markLost(now time.Time, alt bool) (n int) {
	for seq, r := range b.pending {
		if r.alt == alt && !r.lost {
			n++
			r.lost = true
			b.pending[seq] = r
		}
		if now.Sub(r.at) > maxAge {
			delete(b.pending, seq)
		}
	}
	return n
}

func (b *binder) send(now time.Time, a *action, to netip.AddrPort, r request) {
	b.seq = max(b.seq+1, uint64(now.UnixNano()))
	if b.pending == nil {
		b.pending = map[uint64]request{}
	}
	b.pending[b.seq] = r
	a.send = append(a.send, outgoing{to, relaywire.Request{Slot: b.slot, Seq: b.seq, Bind: r.bind}})
}

// askAlt asks the relay's other port which address it sees. A NAT that uses another mapping for that port
// uses another mapping for every peer.
func (b *binder) askAlt(now time.Time, a *action) {
	b.altFails += b.markLost(now, true)
	if b.altFails >= maxFailed { // possibly a firewall: the kind of NAT stays unknown
		b.altAt, b.altFails = now.Add(altInterval), 0
		return
	}
	b.send(now, a, netip.AddrPortFrom(b.relays[0].Addr(), b.alt), request{at: now, alt: true})
	b.altAt = now.Add(timeouts[b.altFails])
}

func (b *binder) answer(now time.Time, ans relaywire.Answer) {
	r, ok := b.pending[ans.Seq]
	if !ok || ans.Late || ans.Slot != b.slot {
		return
	}
	delete(b.pending, ans.Seq)
	switch {
	case ans.Result == relaywire.Stale:
		b.seq = max(b.seq, ans.Last)
		b.next = atOnce
		return
	case r.alt:
		b.altAt, b.altFails = now.Add(altInterval), 0
		if b.nat != paths.Open && b.up {
			b.nat = paths.Easy
			if ans.Addr != b.mapped {
				b.nat = paths.Hard
			}
		}
		return
	case ans.Result == relaywire.Seen && b.tls: // UDP works again
		b.tls, b.fails = false, 0
		b.next = atOnce
		return
	case ans.Result != relaywire.Bound:
		return
	}
	b.rtt = now.Sub(r.at)
	b.up, b.tls, b.fails, b.retry = true, false, 0, minRetry
	if ans.Addr != b.mapped {
		b.mapped = ans.Addr
		b.nat = paths.Unknown
		b.resetNAT()
	}
	b.alt = ans.Alt
	if slices.Contains(b.own, ans.Addr) {
		b.nat = paths.Open
	} else if b.nat == paths.Open || b.nat == paths.Blocked {
		b.nat = paths.Unknown
	}
	b.next = now.Add(b.interval())
}
