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
	conn   *udp.Conn
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
	return &transmitter{e: e, run: make([]byte, 0, udp.MaxRun)}
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
		e.traffic(p)
	}
	p.sent.Store(at)
	s, path := p.send.Load(), p.path.Load()
	if s == nil || path == nil || !s.Usable(now) {
		e.hold(p, frame)
		return
	}
	if s.Old(now) && p.stale.CompareAndSwap(false, true) {
		e.wantSoon(p)
	}
	if p.waiting.Load() == 0 {
		p.waiting.Store(at)
		e.arm(p)
	}
	if p.owed.Load() != 0 {
		p.owed.Store(0)
	}
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
		if len(t.seg.Packet) > most {
			if !t.cut(s, most) {
				p.traffic.drops.add(TooLong, 1)
				continue
			}
		} else if !t.add(s, t.seg) {
			p.traffic.drops.add(NoAnswer, 1)
			continue
		}
		bytes += len(t.seg.Packet)
		packets++
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

func (t *transmitter) cut(s *session.Session, most int) bool {
	return offload.Fragment(t.seg, most, t.e.fragments.Add(1), func(f []byte) { t.add(s, offload.Segment{Packet: f}) })
}

func (t *transmitter) flush() {
	if t.count == 0 {
		return
	}
	if err := t.send(); err != nil {
		cause := SendFailed
		if errors.Is(err, udp.ErrTooLong) {
			cause = TooLong
			t.peer.narrow(t.each - len(t.path.header(nil)) - session.Overhead)
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
	if c := t.e.conn.Load(); c != t.conn {
		t.conn, t.sender = c, c.NewSender()
	}
	return t.sender.Send(t.path.Addr, t.run, t.each)
}

// hold queues a frame for a peer without a session, and starts a handshake.
func (e *Engine) hold(p *peer, frame []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !p.hold(frame) {
		p.traffic.drops.add(NoAnswer, 1)
	}
	if p.send.Load() != nil && p.path.Load() != nil {
		e.look(p) // a session was established while this waited for mu
	}
	e.want(p)
}

// quiet is how long nothing must be sent to a peer before Traffic is posted again.
const quiet = 10 * time.Second

func (e *Engine) traffic(p *peer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.post(Traffic{p.key})
}
