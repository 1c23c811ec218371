package tunnel

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/tunnel/session"
)

// The header that a relay reads: its length in bytes, and its type.
const (
	relayHeader = 16
	typeRelay   = 0x10
)

func (p Path) relayed() bool { return p.Kind == api.PathRelay || p.Kind == api.PathRelayTLS }

// header appends the header of datagrams on the path: for a relay over UDP type 0x10, three
// zero bytes, slot and ticket, big endian.
func (p Path) header(b []byte) []byte {
	if p.Kind != api.PathRelay {
		return b
	}
	b = append(b, typeRelay, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, p.Slot)
	return binary.BigEndian.AppendUint64(b, p.Ticket)
}

type peer struct {
	key api.PeerKey

	// Read on the data path, written under Engine.mu.
	subnets atomic.Pointer[[]prefix4]
	path    atomic.Pointer[Path]
	send    atomic.Pointer[session.Session] // to send on
	mtu     atomic.Int32

	// Written on the data path. Times are nanoseconds since epoch; 0 is never.
	sent       atomic.Int64 // when something was last sent
	received   atomic.Int64 // when something authentic was last received
	unanswered atomic.Int64 // when data was first sent since something was received
	unacked    atomic.Int64 // when data was first received since something was sent
	armed      atomic.Bool  // the keeper will examine the peer
	stale      atomic.Bool  // the keeper has been told that the session is old
	silent     atomic.Bool  // Silent was posted, and Recovered was not
	unproven   atomic.Pointer[unproven]
	from       Path      // path of the last message; owned by the receiver
	carried    Path      // path of the last data; owned by the receiver
	strayed    time.Time // when Stray was last posted; owned by the receiver
	traffic    counters

	// Guarded by Engine.mu.
	endpoints   []netip.AddrPort
	tries       []Path
	fixed       bool // path was set by SetPath
	current     *keys
	older       [3]*keys // for packets in flight; several, because both ends may start handshakes at the same time
	next        *keys    // offered to the peer, not confirmed by it yet
	try         *attempt
	stamp       uint64   // the greatest stamp of the peer's initiations
	answered    answer   // response to the last initiation
	queued      [][]byte // frames that wait for a session
	queuedBytes int
	dropped     bool
	hints       *rate.Limiter // of the peer's reports of an unknown session
	lost        *unproven     // to be sent again in the next session
	rtt         time.Duration
	since       time.Time // wall-clock time of the last handshake
}

type keys struct {
	*session.Session
	peer      *peer
	confirmed atomic.Bool // the peer has used the session or responded with it
}

// answer is the response to an initiation. It is repeated if the initiation comes again on another path.
type answer struct {
	ephemeral [32]byte
	msg       []byte
}

func newPeer(key api.PeerKey) *peer {
	p := &peer{key: key, hints: rate.NewLimiter(1, 5)}
	p.mtu.Store(DefaultMTU)
	return p
}

// unproven has the first frames sent to a peer since it was last heard. The peer may have lost the session.
// They are sent again if it says so: a lost SYN is repeated only after a second, and a request over UDP
// perhaps never. It is not changed after it was stored.
type unproven struct {
	since  time.Time // when the first of them was sent
	frames [][]byte
}

// Bounds of unproven frames. A longer frame is a segment of a stream that runs already.
const (
	maxUnproven    = 8
	maxUnprovenLen = 2048
	// unprovenAfter is how long nothing must have been received from a peer before frames to it are kept.
	unprovenAfter = 100 * time.Millisecond
	// unprovenFor is how long a kept frame may be sent again.
	unprovenFor = 2 * time.Second
)

// keep stores a copy of a frame that is being sent, if the peer has been quiet. It is for the transmitter.
func (p *peer) keep(frame []byte, now time.Time) {
	if stamp(now)-p.received.Load() <= int64(unprovenAfter) || len(frame) > maxUnprovenLen {
		return
	}
	u := p.unproven.Load()
	switch {
	case u == nil || now.Sub(u.since) > unprovenFor:
		u = &unproven{since: now}
	case len(u.frames) == maxUnproven:
		return
	}
	p.unproven.Store(&unproven{u.since, append(slices.Clip(u.frames), slices.Clone(frame))})
}

// resend queues the lost frames, at the start of a session. mu is held.
func (p *peer) resend(now time.Time) {
	if p.lost != nil && now.Sub(p.lost.since) <= unprovenFor {
		for _, f := range p.lost.frames {
			p.enqueue(f)
		}
	}
	p.lost = nil
}

// epoch is the start of the process. Times are nanoseconds since then: monotonic, and atomic to store.
var epoch = time.Now()

func stamp(t time.Time) int64 { return max(1, int64(t.Sub(epoch))) }

func (p *peer) owns(src uint32) bool {
	return slices.ContainsFunc(*p.subnets.Load(), func(s prefix4) bool { return s.contains(src) })
}

// handshakePaths returns the paths to try a handshake on. mu is held.
func (p *peer) handshakePaths() []Path {
	if p.tries != nil {
		return p.tries
	}
	var out []Path
	for _, a := range p.endpoints {
		out = append(out, Path{Kind: api.PathDirect, Addr: a})
	}
	return out
}

// replyPaths returns the paths on which to answer a message: the path that it came by, or all relays of the
// peer if it was relayed. mu is held.
func (p *peer) replyPaths(from Path) []Path {
	if !from.relayed() {
		return []Path{from}
	}
	return slices.DeleteFunc(slices.Clone(p.handshakePaths()), func(t Path) bool { return !t.relayed() })
}

// plateaus are the inner MTUs of common paths. minMTU is what every host must accept
// (RFC 791).
var plateaus = []int{1340, 1280, 1220, 1100, 1000, minMTU}

const minMTU = 576

// lowerMTU lowers the MTU to the next plateau below n, which was too long.
func (p *peer) lowerMTU(n int) {
	for _, m := range plateaus {
		if old := p.mtu.Load(); m < n && int(old) >= n {
			p.mtu.CompareAndSwap(old, int32(m))
		}
	}
}

// Bounds of the packets that wait for a session.
const (
	maxQueued      = 16
	maxQueuedBytes = 128 << 10
)

// enqueue queues a frame until there is a session. It returns false if there is no room. mu is held.
func (p *peer) enqueue(frame []byte) bool {
	if len(p.queued) >= maxQueued || p.queuedBytes+len(frame) > maxQueuedBytes {
		return false
	}
	p.queued = append(p.queued, slices.Clone(frame))
	p.queuedBytes += len(frame)
	return true
}
