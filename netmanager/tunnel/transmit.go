package tunnel

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/udp"
	"github.com/treeline-edge/treeline/netmanager/tunnel/offload"
	"github.com/treeline-edge/treeline/netmanager/tunnel/session"
	"github.com/treeline-edge/treeline/netmanager/tunnel/tun"
)

// transmit carries packets from the device to peers, on one goroutine.
func (e *Engine) transmit(ctx context.Context) error {
	t := newTransmitter(e)
	frame := make([]byte, tun.FrameLen)
	// While the device has packets, sealed datagrams wait for more of the same run. They are sent before
	// Read waits.
	idle := t.flush
	for {
		n, err := e.cfg.Device.Read(frame, idle)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("read from %s: %w", e.cfg.Device.Name(), err)
		}
		t.frame(frame[:n], time.Now())
	}
}

// transmitter turns frames into runs of datagrams. It is for one goroutine.
type transmitter struct {
	e      *Engine
	sender *udp.Sender
	split  offload.Splitter
	seg    offload.Segment

	// The run that waits: datagrams to one peer on one path. All have the same length except the last,
	// which ends the run.
	run   []byte
	peer  *peer
	path  Path
	each  int
	count int
	ended bool
}

func newTransmitter(e *Engine) *transmitter {
	return &transmitter{e: e, sender: e.conn.NewSender(), run: make([]byte, 0, udp.MaxRun)}
}

// frame sends a frame from the device, or queues it until there is a session.
func (t *transmitter) frame(frame []byte, now time.Time) {
	e := t.e
	if len(frame) < offload.VnetLen {
		e.drops.add(Malformed, 1)
		return
	}
	packet := frame[offload.VnetLen:]
	_, dst, ok := e.lease.Load().addresses(packet)
	if !ok {
		e.drops.add(NoPeer, 1)
		return
	}
	p := e.routes.Load().find(dst)
	if p == nil {
		e.drops.add(NoPeer, 1)
		return
	}
	at := stamp(now)
	if last := p.sent.Load(); last == 0 || at-last > int64(quiet) {
		e.report(Traffic{p.key})
	}
	p.sent.Store(at)
	s, path := p.send.Load(), p.path.Load()
	if s == nil || path == nil || !s.Usable(now) {
		e.enqueue(p, frame)
		return
	}
	if s.Old(now) && p.stale.CompareAndSwap(false, true) {
		e.mu.Lock()
		e.startHandshake(p)
		e.mu.Unlock()
	}
	if p.unanswered.Load() == 0 {
		p.unanswered.Store(at)
		e.arm(p)
	}
	if p.unacked.Load() != 0 {
		p.unacked.Store(0)
	}
	p.keep(frame, now)
	t.seal(p, s, *path, frame)
}

// seal segments a frame and adds it to the run.
func (t *transmitter) seal(p *peer, s *session.Session, path Path, frame []byte) {
	if err := t.split.Start(frame); err != nil {
		p.traffic.drops.add(Malformed, 1)
		return
	}
	each, left := t.split.Size()
	most := int(p.mtu.Load())
	// An IPv6 packet of up to 1280 bytes is fragmented if the path is narrower, because its sender would
	// not send shorter ones.
	if six := frame[offload.VnetLen]>>4 == 6; each > most && !(six && each <= offload.LeastIPv6) {
		if six {
			most = max(most, offload.LeastIPv6)
		}
		p.traffic.drops.add(TooLong, left)
		t.e.tooLong(frame[offload.VnetLen:], most)
		return
	}
	if t.count > 0 && (p != t.peer || path != t.path) {
		t.flush()
	}
	t.peer, t.path = p, path
	bytes, packets := 0, 0
	for t.split.Next(&t.seg) {
		sealed, fits := true, true
		if len(t.seg.Packet) > most {
			sealed, fits = t.fragment(s, most)
		} else {
			sealed = t.add(s, t.seg)
		}
		switch {
		case !fits:
			p.traffic.drops.add(TooLong, 1)
		case !sealed:
			p.traffic.drops.add(NoAnswer, 1)
		default:
			bytes += len(t.seg.Packet)
			packets++
		}
	}
	p.traffic.sentBytes.Add(uint64(bytes))
	p.traffic.sentPackets.Add(uint64(packets))
}

// add seals one segment into the run. It reports false if the session is exhausted.
func (t *transmitter) add(s *session.Session, seg offload.Segment) bool {
	n := len(seg.Packet) + session.Overhead
	if t.path.Kind == api.PathRelay {
		n += relayHeader
	}
	if t.count > 0 && (t.ended || n > t.each || t.count == udp.MaxDatagrams || len(t.run)+n > cap(t.run)) {
		t.flush()
	}
	kind := session.Data
	if seg.Partial {
		kind = session.Partial
	}
	sealed := s.Seal(t.path.header(t.run), kind, seg.Packet)
	if sealed == nil {
		return false
	}
	t.run = sealed
	if t.count == 0 {
		t.each = n
	}
	t.ended = n < t.each
	t.count++
	return true
}

// fragment seals the segment in fragments of at most size bytes. fits is false if it cannot be
// fragmented, sealed if the session is exhausted before the last fragment.
func (t *transmitter) fragment(s *session.Session, size int) (sealed, fits bool) {
	sealed = true
	fits = offload.Fragment(t.seg, size, t.e.fragments.Add(1), func(f []byte) {
		sealed = t.add(s, offload.Segment{Packet: f}) && sealed
	})
	return sealed, fits
}

func (t *transmitter) flush() {
	if t.count == 0 {
		return
	}
	if err := t.send(); err != nil {
		cause := SendFailed
		if errors.Is(err, udp.ErrTooLong) {
			cause = TooLong
			t.peer.lowerMTU(t.each - len(t.path.header(nil)) - session.Overhead)
		}
		t.peer.traffic.drops.add(cause, t.count)
	}
	t.run, t.count, t.ended = t.run[:0], 0, false
}

func (t *transmitter) send() error {
	if t.path.Kind == api.PathRelayTLS {
		for b := t.run; len(b) > 0; {
			n := min(t.each, len(b))
			if err := t.e.sendOne(t.path, b[:n]); err != nil {
				return err
			}
			b = b[n:]
		}
		return nil
	}
	return t.sender.Send(t.path.Addr, t.run, t.each)
}

// enqueue queues a frame for a peer without a session, and starts a handshake.
func (e *Engine) enqueue(p *peer, frame []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !p.enqueue(frame) {
		p.traffic.drops.add(NoAnswer, 1)
	}
	if p.send.Load() != nil && p.path.Load() != nil {
		e.activate(p) // a session was established while this waited for mu
	}
	e.startHandshake(p)
}

// quiet is how long nothing must be sent to a peer before Traffic is posted again.
const quiet = 10 * time.Second

// tooLong answers a packet that exceeds mtu with an ICMP error.
func (e *Engine) tooLong(packet []byte, mtu int) {
	reply := offload.TooBig(packet, mtu)
	if reply == nil {
		return
	}
	e.rx.mu.Lock()
	defer e.rx.mu.Unlock()
	if err := e.cfg.Device.Write([][]byte{make([]byte, offload.VnetLen), reply}); err != nil {
		e.drops.add(WriteFailed, 1)
	}
}
