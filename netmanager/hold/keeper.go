package hold

import (
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/internal/fairshare"
)

// places are shared by endpoints as fairshare.Policy.Fixed shares: each has a further
// packet wait only while more are free than it has, in packets and in bytes.
var places = fairshare.Declare(fairshare.Bound{
	Resource: "packets that wait for a route at a node", Total: 1024, Share: []int{256}, Per: "instance",
	Beyond: "the packet is dropped; 16 of an instance wait for one address, all together have at most 1 MiB, and none waits longer than 1 s. " +
		"An instance gets a further place only while more are free than it holds",
	Attack: "TestPacketsOfOneInstanceLeaveRoomForOthers",
})

// The bounds of what is held.
const (
	perRemote = 16 // packets of one endpoint to one remote address
	bytesMax  = 1 << 20
	longest   = time.Second
	// askEvery is how often a miss is told while its packets wait: the core asks the
	// cluster once, and may have been busy.
	askEvery = 250 * time.Millisecond
	// askRate and askBurst bound the misses of one endpoint that are told, a second and
	// at once. The core grants an instance fewer questions; what one that sends to all
	// the world has beyond is dropped here, before the core is busy with it instead of
	// with its neighbours'. A peer's whole subnet, unknown, asks about its every
	// address four times a second, which is half of it.
	askRate, askBurst = 500, 1000
	// askersMax is when the allowances of endpoints are forgotten; a node has fewer.
	askersMax = 1024
)

// keeper holds packets, by the remote address that they wait for. It is pure, and
// bounded whatever comes.
type keeper struct {
	held   map[netip.Addr][]waiter
	locals map[netip.Addr]load // what waits, by the endpoint that it is of
	pairs  map[pair]int        // packets
	asked  map[pair]time.Time  // misses that were told, of packets that wait
	askers map[netip.Addr]*asker
	queue  []due // oldest first
	count  int
	bytes  int
}

// load is how much waits.
type load struct{ packets, bytes int }

// asker is an endpoint whose misses are told.
type asker struct {
	allowance
	beside   netip.Addr // the last miss that was told of a packet that did not wait
	besideAt time.Time
}

type pair struct{ local, remote netip.Addr }

// waiter is a frame that waits, with the device's header before its packet.
type waiter struct {
	frame []byte
	local netip.Addr
	until time.Time
}

type due struct {
	remote netip.Addr
	until  time.Time
}

func newKeeper() keeper {
	return keeper{
		held: map[netip.Addr][]waiter{}, locals: map[netip.Addr]load{}, pairs: map[pair]int{}, asked: map[pair]time.Time{},
		askers: map[netip.Addr]*asker{},
	}
}

// add holds a copy of the frame, if there is room; ask says whether the miss is to
// be told. What comes when there is no room is dropped, as a full queue does.
func (k *keeper) add(now time.Time, local, remote netip.Addr, frame []byte) (kept, ask bool) {
	k.expire(now)
	p := pair{local, remote}
	at, told := k.asked[p]
	own := k.locals[local]
	full := k.pairs[p] >= perRemote || own.packets >= min(places.Share[0], places.Total-k.count) || own.bytes+len(frame) > bytesMax-k.bytes
	if full && !told {
		return false, len(k.held[remote]) > 0 && k.askBeside(now, p) // else nobody's can wait
	}
	if ask = (!told || now.Sub(at) >= askEvery) && k.asker(now, local).take(now, askRate, askBurst); ask {
		k.asked[p] = now
	}
	if full || !ask && !told { // nobody would hear of it
		return false, ask
	}
	until := now.Add(longest)
	k.held[remote] = append(k.held[remote], waiter{append([]byte(nil), frame...), local, until})
	k.queue = append(k.queue, due{remote, until})
	k.locals[local] = load{own.packets + 1, own.bytes + len(frame)}
	k.pairs[p]++
	k.count++
	k.bytes += len(frame)
	return true, ask
}

// askBeside reports whether a miss is told for which others' packets wait already, and
// none of its own can. It has no note among the asked, which are never more than the
// packets that wait, so that nobody can use them up.
func (k *keeper) askBeside(now time.Time, p pair) bool {
	a := k.asker(now, p.local)
	if p.remote == a.beside && now.Sub(a.besideAt) < askEvery || !a.take(now, askRate, askBurst) {
		return false
	}
	a.beside, a.besideAt = p.remote, now
	return true
}

func (k *keeper) asker(now time.Time, local netip.Addr) *asker {
	a := k.askers[local]
	if a == nil {
		if len(k.askers) >= askersMax {
			clear(k.askers)
		}
		a = &asker{allowance: allowance{left: askBurst, at: now}}
		k.askers[local] = a
	}
	return a
}

// take gives what waits for the remote address, of the local one, or of all where
// that is zero.
func (k *keeper) take(local, remote netip.Addr) (out []waiter) {
	var rest []waiter
	for _, w := range k.held[remote] {
		if local.IsValid() && w.local != local {
			rest = append(rest, w)
			continue
		}
		out = append(out, w)
		k.forget(w, remote)
	}
	k.keep(remote, rest)
	return out
}

// expire drops what has waited too long.
func (k *keeper) expire(now time.Time) {
	for len(k.queue) > 0 && !k.queue[0].until.After(now) {
		remote := k.queue[0].remote
		k.queue = k.queue[1:]
		held := k.held[remote]
		for len(held) > 0 && !held[0].until.After(now) {
			k.forget(held[0], remote)
			held = held[1:]
		}
		k.keep(remote, held)
	}
	if len(k.queue) == 0 {
		k.queue = nil
	}
}

func (k *keeper) keep(remote netip.Addr, rest []waiter) {
	if len(rest) == 0 {
		delete(k.held, remote)
		return
	}
	k.held[remote] = rest
}

func (k *keeper) forget(w waiter, remote netip.Addr) {
	k.count--
	k.bytes -= len(w.frame)
	p := pair{w.local, remote}
	own := k.locals[w.local]
	if own = (load{own.packets - 1, own.bytes - len(w.frame)}); own.packets == 0 {
		delete(k.locals, w.local)
	} else {
		k.locals[w.local] = own
	}
	if k.pairs[p]--; k.pairs[p] == 0 {
		delete(k.pairs, p)
	}
	delete(k.asked, p)
}

// next is when expire has something to do; the zero time where nothing waits.
func (k *keeper) next() time.Time {
	if len(k.queue) == 0 {
		return time.Time{}
	}
	return k.queue[0].until
}
