package tunnel

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/udp"
	"github.com/treeline-edge/treeline/netmanager/tunnel/offload"
	"github.com/treeline-edge/treeline/netmanager/tunnel/session"
	"golang.org/x/time/rate"
)

// receive carries datagrams from the socket to the device, on one goroutine.
func (e *Engine) receive(ctx context.Context) error {
	r := e.conn.NewReceiver()
	for {
		n, err := r.Receive()
		switch {
		case err == nil:
			e.rx.batch(r, n)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default:
			// Socket errors come from the network below. They pass, or the next call fails too; the pause
			// prevents a busy loop.
			e.drops.add(SendFailed, 1)
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// receiver opens datagrams and writes their packets to the device.
type receiver struct {
	mu    sync.Mutex // guards the fields below, sessions' windows, and writes to the device
	e     *Engine
	join  offload.Joiner
	write func([][]byte) error
	bytes int // bytes in join

	index  *map[uint32]*keys
	last   *keys // keys of the previous message, from index
	local  *map[uint32]struct{}
	dst    uint32      // destination of the previous packet, which is in local
	sender *udp.Sender // sends hints
	hints  *rate.Limiter

	gate         *session.Gate
	cookiesUntil time.Time // cookies are required until then
}

// flushBytes is how many bytes are joined before they are written: a packet cannot hold more.
const flushBytes = 60 << 10

func newReceiver(e *Engine) *receiver {
	r := &receiver{e: e, write: e.cfg.Device.Write, sender: e.conn.NewSender(), hints: rate.NewLimiter(hintsPerSecond, hintsPerSecond), gate: session.NewGate(e.id)}
	r.join.TCP, r.join.UDP = e.cfg.Device.Joins()
	return r
}

func (r *receiver) batch(m *udp.Receiver, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, lease := time.Now(), r.e.lease.Load()
	for i := range n {
		msg := m.Message(i)
		r.message(now, lease, lease.path(msg.From), msg)
		if r.bytes >= flushBytes {
			r.flush()
		}
	}
	r.flush()
}

// take is batch for a message that did not come from the socket.
func (r *receiver) take(from Path, m udp.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.message(time.Now(), r.e.lease.Load(), from, m)
	r.flush()
}

// message handles a run of datagrams from one sender.
func (r *receiver) message(now time.Time, lease *lease, from Path, m udp.Message) {
	e := r.e
	var p *peer // of the last datagram
	var bytes, packets int
	var data bool
	done := func() {
		if p != nil {
			r.received(p, stamp(now), from, data)
			p.traffic.receivedBytes.Add(uint64(bytes))
			p.traffic.receivedPackets.Add(uint64(packets))
		}
		bytes, packets, data = 0, 0, false
	}
	for b := m.Data; len(b) > 0; {
		d := b[:min(m.Each, len(b))]
		b = b[len(d):]
		switch session.Type(d) {
		case session.TypeTransport:
			k := r.keys(session.Receiver(d))
			if k == nil {
				e.drops.add(Unknown, 1)
				r.hint(now, from, d)
				continue
			}
			kind, packet, err := k.Open(d)
			if err != nil {
				cause := Denied
				if errors.Is(err, session.ErrMalformed) {
					cause = Replayed
				}
				k.peer.traffic.drops.add(cause, 1)
				continue
			}
			if !k.confirmed.Load() {
				e.confirm(k, from, now)
			}
			if p != k.peer {
				done()
				p = k.peer
			}
			switch {
			case kind == session.Control:
				if h := e.cfg.Hooks.Control; h != nil {
					h(p.key, from, packet)
				}
			case kind != session.Data && kind != session.Partial:
				p.traffic.drops.add(Malformed, 1)
			case len(packet) > 0 && r.packet(now, lease, p, packet, kind == session.Partial):
				data = true
				bytes += len(packet)
				packets++
			}
		case 0:
			if h := e.cfg.Hooks.Raw; d[0] >= RawType && from.Kind != api.PathRelayTLS && h != nil {
				h(from.Addr, d)
				continue
			}
			e.drops.add(Malformed, 1)
		default:
			r.handshake(now, from, d)
		}
	}
	if len(m.Data) == 0 {
		e.drops.add(Malformed, 1)
	}
	done()
}

func (r *receiver) keys(index uint32) *keys {
	now := r.e.indexes.Load()
	if now != r.index || r.last == nil || r.last.Local != index {
		r.index, r.last = now, (*now)[index]
	}
	return r.last
}

// packet checks an inner packet and adds it to join.
func (r *receiver) packet(now time.Time, lease *lease, p *peer, packet []byte, partial bool) bool {
	src, dst, ok := lease.addresses(packet)
	if !ok || !p.owns(src) || !lease.subnet.contains(dst) {
		p.traffic.drops.add(Forged, 1)
		return false
	}
	if local := r.e.local.Load(); local != nil && (local != r.local || dst != r.dst) {
		if _, ok := (*local)[dst]; ok {
			r.local, r.dst = local, dst
		} else if now.Sub(p.strayed) >= strayEvery {
			p.strayed = now
			r.e.report(Stray{p.key, netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, dst)))})
		}
	}
	if partial && !r.e.cfg.Device.Partial() {
		partial = !offload.Complete(packet)
	}
	if !r.join.Add(packet, partial) {
		p.traffic.drops.add(Malformed, 1)
		return false
	}
	r.bytes += len(packet)
	return true
}

// strayEvery is the least time between two Stray events for a peer.
const strayEvery = 100 * time.Millisecond

func (r *receiver) flush() {
	if err := r.join.Flush(r.write); err != nil {
		r.e.drops.add(WriteFailed, 1)
	}
	r.bytes = 0
}

// received records that an authentic message of a peer was received.
func (r *receiver) received(p *peer, at int64, from Path, data bool) {
	p.received.Store(at)
	if p.unproven.Load() != nil {
		p.unproven.Store(nil)
	}
	if p.unanswered.Load() != 0 {
		p.unanswered.Store(0)
	}
	if p.silent.Load() {
		r.e.mu.Lock()
		r.e.recovered(p, from)
		r.e.mu.Unlock()
	}
	if data {
		p.carried = from
		if p.unacked.Load() == 0 {
			p.unacked.Store(at)
			r.e.arm(p)
		}
	}
	if p.from != from {
		if p.from != (Path{}) {
			r.e.report(Moved{p.key, from})
		}
		p.from = from
	}
}

// hintsPerSecond bounds the hints about unknown sessions.
const hintsPerSecond = 20

// hint requests a handshake from the sender of a message with an unknown session. A relayed message has
// no return path; its sender detects the silence.
func (r *receiver) hint(now time.Time, from Path, d []byte) {
	if from.Kind != api.PathDirect || !r.hints.AllowN(now, 1) {
		return
	}
	reply := session.Unknown(d)
	if err := r.sender.Send(from.Addr, reply[:], len(reply)); err != nil {
		r.e.drops.add(SendFailed, 1)
	}
}

// handshake passes a handshake message to the keeper. Initiations pass the gate before they wait, so that a
// flood of them takes no place from peers that have returned a cookie.
func (r *receiver) handshake(now time.Time, from Path, d []byte) {
	e, queue := r.e, r.e.answers
	if session.Type(d) == session.TypeInitiation {
		if queue = e.initiations; len(queue) >= longQueue {
			r.cookiesUntil = now.Add(cookiePeriod)
		}
		switch r.gate.Check(now, d, from.Addr, from.relayed(), now.Before(r.cookiesUntil)) {
		case session.Pass:
		case session.AskCookie:
			e.drops.add(Flooded, 1)
			r.askCookie(now, from, d)
			return
		case session.Drop:
			e.drops.add(Flooded, 1)
			return
		}
	}
	h := handshake{from: from, n: len(d)}
	copy(h.b[:], d)
	select {
	case queue <- h:
		e.wakeKeeper()
	default:
		e.drops.add(Flooded, 1)
	}
}

// askCookie answers an initiation with a cookie. Only one cookie for a source waits to be sent, so that a flood
// from one source takes no place from others.
func (r *receiver) askCookie(now time.Time, from Path, msg []byte) {
	e := r.e
	waits := &e.asked[r.gate.Slot(from.Addr)]
	if waits.Load() || len(e.cookies) == cap(e.cookies) {
		r.cookiesUntil = now.Add(cookiePeriod)
		return
	}
	reply, err := r.gate.Reply(e.cfg.Rand, now, msg, from.Addr)
	if err != nil {
		return
	}
	waits.Store(true)
	e.cookies <- cookieReply{outgoing{from, reply}, waits} // there is room: only the holder of r.mu sends
	e.wakeKeeper()
}
