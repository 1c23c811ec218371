package packetqueue

import (
	"net/netip"
	"time"

	"golang.org/x/time/rate"

	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/step"
)

// packetBound is shared like fairshare.Policy.Fixed: an endpoint gets another place only while more are
// free than it holds, in packets and in bytes.
var packetBound = fairshare.Declare(fairshare.Bound{
	Resource: "packets that wait for a route at a node", Total: 1024, Share: []int{256}, Per: "instance",
	Beyond: "the packet is dropped; 16 of an instance wait for one address, all together have at most 1 MiB, and none waits longer than 1 s, or 30 s for an instance that starts. " +
		"An instance gets a further place only while more are free than it holds",
	Attack: "TestPacketsOfOneInstanceLeaveRoomForOthers",
})

const (
	maxPerRemote = 16 // packets of one endpoint to one remote address
	maxBytes     = 1 << 20
	maxWait      = time.Second
	// missInterval is the interval at which a miss is reported again while its packets wait, because the
	// core asks the cluster only once and may have been busy.
	missInterval = 250 * time.Millisecond
	// missRate and missBurst bound the reported misses of one endpoint, per second and at once. Packets
	// beyond them are dropped, so that an instance that sends to many addresses does not occupy the core.
	// Sending to all 64 addresses of an unknown subnet needs half of the rate: four misses a second each.
	missRate, missBurst = 500, 1000
)

// store holds packets by the remote address that they wait for. It is bounded and has no clock.
type store struct {
	held      map[netip.Addr][]waiter
	locals    map[netip.Addr]load // waiting packets by endpoint
	pairs     map[pair]int        // number of waiting packets
	reported  map[pair]time.Time  // last report of the miss, for pairs with waiting packets
	endpoints map[netip.Addr]*endpoint
	patient   map[netip.Addr]time.Time // remote addresses whose packets wait until then
	first     time.Time                // not after any of them
	queue     []due                    // oldest first
	count     int                      // packets
	bytes     int
}

// load is the amount of waiting packets.
type load struct{ packets, bytes int }

type endpoint struct {
	*rate.Limiter
	lost   netip.Addr // remote address of the last reported miss whose packet was not kept
	lostAt time.Time
}

type pair struct{ local, remote netip.Addr }

type waiter struct {
	frame []byte
	local netip.Addr
	until time.Time
}

type due struct {
	remote netip.Addr
	until  time.Time
}

func newStore() store {
	return store{
		held: map[netip.Addr][]waiter{}, locals: map[netip.Addr]load{}, pairs: map[pair]int{}, reported: map[pair]time.Time{},
		endpoints: map[netip.Addr]*endpoint{}, patient: map[netip.Addr]time.Time{},
	}
}

// maxPatient bounds the remote addresses in patient.
const maxPatient = 256

// hold keeps the packets that wait for a remote address, and later ones, until a time.
func (s *store) hold(remote netip.Addr, until time.Time) {
	if _, ok := s.patient[remote]; ok || len(s.patient) < maxPatient {
		s.patient[remote] = until
		s.first = step.Earliest(s.first, until)
	}
}

// add stores a copy of the frame if there is room. report means that the miss must be reported to the
// core.
func (s *store) add(now time.Time, local, remote netip.Addr, frame []byte) (kept, report bool) {
	s.expire(now)
	p := pair{local, remote}
	at, known := s.reported[p]
	own := s.locals[local]
	full := s.pairs[p] >= maxPerRemote || own.packets >= min(packetBound.Share[0], packetBound.Total-s.count) || own.bytes+len(frame) > maxBytes-s.bytes
	if full && !known {
		return false, len(s.held[remote]) > 0 && s.reportLost(now, p) // packets of other endpoints wait for the same route
	}
	if report = (!known || now.Sub(at) >= missInterval) && s.endpoint(local).AllowN(now, 1); report {
		s.reported[p] = now
	}
	if full || !report && !known { // without a report no route would come
		return false, report
	}
	until := now.Add(maxWait)
	if held, ok := s.patient[remote]; ok {
		until = held
	}
	s.held[remote] = append(s.held[remote], waiter{append([]byte(nil), frame...), local, until})
	if _, ok := s.patient[remote]; !ok {
		s.queue = append(s.queue, due{remote, until})
	}
	s.locals[local] = load{own.packets + 1, own.bytes + len(frame)}
	s.pairs[p]++
	s.count++
	s.bytes += len(frame)
	return true, report
}

// reportLost reports whether to report the miss of a packet that cannot be stored. It adds no entry to
// reported, so reported never has more entries than packets wait.
func (s *store) reportLost(now time.Time, p pair) bool {
	e := s.endpoint(p.local)
	if p.remote == e.lost && now.Sub(e.lostAt) < missInterval || !e.AllowN(now, 1) {
		return false
	}
	e.lost, e.lostAt = p.remote, now
	return true
}

func (s *store) endpoint(local netip.Addr) *endpoint {
	e := s.endpoints[local]
	if e == nil {
		if len(s.endpoints) >= maxEndpoints {
			clear(s.endpoints)
		}
		e = &endpoint{Limiter: rate.NewLimiter(missRate, missBurst)}
		s.endpoints[local] = e
	}
	return e
}

// take removes and returns the packets between local and remote, or those of all endpoints if local is
// zero.
func (s *store) take(local, remote netip.Addr) (out []waiter) {
	var rest []waiter
	for _, w := range s.held[remote] {
		if local.IsValid() && w.local != local {
			rest = append(rest, w)
			continue
		}
		out = append(out, w)
		s.remove(w, remote)
	}
	s.keep(remote, rest)
	if !local.IsValid() {
		delete(s.patient, remote)
	}
	return out
}

func (s *store) expire(now time.Time) {
	s.expirePatient(now)
	for len(s.queue) > 0 && !s.queue[0].until.After(now) {
		remote := s.queue[0].remote
		s.queue = s.queue[1:]
		if _, ok := s.patient[remote]; ok {
			continue
		}
		held := s.held[remote]
		for len(held) > 0 && !held[0].until.After(now) {
			s.remove(held[0], remote)
			held = held[1:]
		}
		s.keep(remote, held)
	}
	if len(s.queue) == 0 {
		s.queue = nil
	}
}

func (s *store) expirePatient(now time.Time) {
	if len(s.patient) == 0 || s.first.After(now) {
		return
	}
	s.first = time.Time{}
	for remote, until := range s.patient {
		if until.After(now) {
			s.first = step.Earliest(s.first, until)
			continue
		}
		for _, w := range s.held[remote] {
			s.remove(w, remote)
		}
		s.keep(remote, nil)
		delete(s.patient, remote)
	}
}

func (s *store) keep(remote netip.Addr, rest []waiter) {
	if len(rest) == 0 {
		delete(s.held, remote)
		return
	}
	s.held[remote] = rest
}

func (s *store) remove(w waiter, remote netip.Addr) {
	s.count--
	s.bytes -= len(w.frame)
	p := pair{w.local, remote}
	own := s.locals[w.local]
	if own = (load{own.packets - 1, own.bytes - len(w.frame)}); own.packets == 0 {
		delete(s.locals, w.local)
	} else {
		s.locals[w.local] = own
	}
	if s.pairs[p]--; s.pairs[p] == 0 {
		delete(s.pairs, p)
		delete(s.reported, p)
	}
}

// next returns when the next packet expires; zero: none waits.
func (s *store) next() time.Time {
	var first, patient time.Time
	if len(s.queue) > 0 {
		first = s.queue[0].until
	}
	if len(s.patient) > 0 {
		patient = s.first
	}
	return step.Earliest(first, patient)
}
