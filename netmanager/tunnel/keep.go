package tunnel

import (
	"context"
	"encoding/binary"
	"io"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/netmanager/tunnel/session"
)

// The engine's times. Without traffic to a peer, only the timer that erases keys runs.
const (
	keepAfter    = 500 * time.Millisecond  // from the first unacknowledged data to an empty message that acknowledges it
	silentAfter  = 1500 * time.Millisecond // plus twice the RTT: from the first unanswered data to Silent
	tryFor       = 20 * time.Second        // until a handshake fails
	tryMax       = 4 * time.Second         // longest wait between its messages; tryMin is the first
	tryMin       = 250 * time.Millisecond
	renewTry     = 5 * time.Second        // until its message is replaced; until then a response to any copy is accepted
	nextFor      = 10 * time.Second       // until an unused offered session is removed
	strangerFor  = 2 * time.Second        // how long an initiation of an unknown peer is kept
	pause        = 250 * time.Millisecond // a wake-up that is later by more means that this process was suspended
	cookiePeriod = time.Second            // how long cookies are required after too many initiations waited
)

const (
	maxWaiting   = 128 // initiations, answers and cookies each that wait for the keeper
	longQueue    = 16  // waiting initiations from which on cookies are required
	maxAtOnce    = 64  // messages between two looks at the timers
	maxStrangers = 64
)

type handshake struct {
	from Path
	n    int
	b    [session.InitiationLen]byte
}

// attempt is a handshake that this node started.
type attempt struct {
	init   *session.Initiation
	msg    []byte // without cookie
	cookie [16]byte
	index  uint32
	began  time.Time
	made   time.Time // msg
	at     time.Time // when to send again
	wait   time.Duration
	sent   int
}

// stranger is an initiation of an unknown node.
type stranger struct {
	offer *session.Offer
	msg   []byte
	from  Path
	until time.Time
}

// outgoing is a message that the keeper sends when it holds no lock.
type outgoing struct {
	via Path
	msg []byte
}

// release is packets that waited for a session and can be sent.
type release struct {
	peer    *peer
	session *session.Session
	path    Path
	frames  [][]byte
}

// keeper makes handshakes and runs the timers, on one goroutine.
type keeper struct {
	e        *Engine
	tx       *transmitter // created when first needed
	out      []outgoing
	releases []release
}

// cookieReply is a cookie for a source, and whether one waits for it.
type cookieReply struct {
	outgoing
	waits *atomic.Bool
}

func (e *Engine) keep(ctx context.Context) error {
	k := &keeper{e: e}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.wake:
		case <-timer.C:
		}
		now := time.Now()
		k.receive(now)
		next := k.tick(now)
		k.send(now)
		k.deliver()
		wait := time.Hour
		if !next.IsZero() {
			wait = max(0, time.Until(next))
		}
		timer.Reset(wait)
	}
}

// receive handles waiting messages, of all kinds in turn.
func (k *keeper) receive(now time.Time) {
	e := k.e
	for range maxAtOnce {
		select {
		case h := <-e.initiations:
			k.handshake(now, h.from, h.b[:h.n])
		case h := <-e.answers:
			k.handshake(now, h.from, h.b[:h.n])
		case c := <-e.cookies:
			c.waits.Store(false)
			k.out = append(k.out, c.outgoing)
		default:
			return
		}
	}
	e.wakeKeeper()
}

func (k *keeper) deliver() {
	e := k.e
	e.mu.Lock()
	events := e.events
	e.events = nil
	e.mu.Unlock()
	for _, ev := range events {
		e.cfg.Hooks.Event(ev)
	}
}

func (k *keeper) send(now time.Time) {
	for _, o := range k.out {
		msg := o.msg
		if o.via.Kind == api.PathRelay {
			msg = append(o.via.header(make([]byte, 0, relayHeader+len(o.msg))), o.msg...)
		}
		if err := k.e.sendOne(o.via, msg); err != nil {
			k.e.drops.add(SendFailed, 1)
		}
	}
	k.out = k.out[:0]
	for _, r := range k.releases {
		if k.tx == nil {
			k.tx = newTransmitter(k.e)
		}
		r.peer.unanswered.CompareAndSwap(0, stamp(now))
		k.e.arm(r.peer)
		for _, f := range r.frames {
			k.tx.seal(r.peer, r.session, r.path, f)
		}
		k.tx.flush()
	}
	clear(k.releases)
	k.releases = k.releases[:0]
}

// tick handles everything that is due, and returns when to call it again; zero: never.
func (k *keeper) tick(now time.Time) (next time.Time) {
	e := k.e
	e.mu.Lock()
	defer e.mu.Unlock()
	at := func(t time.Time) { next = step.Earliest(next, t) }
	for key, s := range e.strangers {
		switch p := e.peers[key]; {
		case p != nil:
			delete(e.strangers, key)
			k.answer(now, p, s.offer, s.from, s.msg)
		case now.Before(s.until):
			at(s.until)
		default:
			delete(e.strangers, key)
		}
	}
	for p := range e.active {
		if t := k.examine(now, p); t.IsZero() {
			delete(e.active, p)
		} else {
			at(t)
		}
	}
	return next
}

// examine handles everything that is due for a peer, and returns when to call it again; zero: after the next
// event. mu is held.
func (k *keeper) examine(now time.Time, p *peer) (next time.Time) {
	e := k.e
	at := func(t time.Time) { next = step.Earliest(next, t) }
	p.armed.Store(false) // before reading the fields whose writers arm it
	expire(e, now, &p.next, nextFor, at)
	expire(e, now, &p.current, session.RejectAfter, at)
	for i := range p.older {
		expire(e, now, &p.older[i], session.RejectAfter, at)
	}
	if p.current == nil {
		p.send.Store(nil)
	}

	if w := p.unanswered.Load(); w != 0 {
		due := epoch.Add(time.Duration(w) + silentAfter + 2*p.rtt)
		switch {
		case now.Before(due):
			p.armed.Store(true)
			at(due)
		case now.Sub(due) > pause && p.unanswered.CompareAndSwap(w, stamp(now)):
			// This process was suspended and could not receive: the peer was not silent.
			p.armed.Store(true)
			at(now.Add(silentAfter))
		case p.silent.CompareAndSwap(false, true):
			e.post(Silent{p.key})
			e.startHandshake(p)
		}
	}
	if o := p.unacked.Load(); o != 0 {
		due := epoch.Add(time.Duration(o) + keepAfter)
		if now.Before(due) {
			p.armed.Store(true)
			at(due)
		} else {
			p.unacked.Store(0)
			k.keepalive(p)
		}
	}
	if s, path := p.send.Load(), p.path.Load(); s != nil && path != nil && len(p.queued) > 0 {
		k.releases = append(k.releases, release{p, s, *path, p.queued})
		p.queued, p.queuedBytes = nil, 0
	}
	if p.try != nil {
		k.attempt(now, p)
		if p.try != nil {
			at(p.try.at)
		}
	}
	return next
}

// expire erases keys that are older than after.
func expire(e *Engine, now time.Time, k **keys, after time.Duration, at func(time.Time)) {
	if *k == nil {
		return
	}
	if due := (*k).Created.Add(after); now.Before(due) {
		at(due)
		return
	}
	e.removeKeys(*k)
	*k = nil
}

// keepalive sends an empty message to a peer. mu is held.
func (k *keeper) keepalive(p *peer) {
	s, path := p.send.Load(), p.path.Load()
	if s == nil || path == nil {
		return
	}
	if msg := s.Seal(nil, session.Data, nil); msg != nil {
		k.out = append(k.out, outgoing{*path, msg})
	}
}

// attempt sends the initiation to a peer when it is due, or gives up. mu is held.
func (k *keeper) attempt(now time.Time, p *peer) {
	e, t := k.e, p.try
	if now.Before(t.at) {
		return
	}
	if t.began.IsZero() {
		t.began = now
	}
	if now.Sub(t.began) >= tryFor {
		// The next packet starts another handshake.
		e.endTry(p)
		p.traffic.drops.add(NoAnswer, len(p.queued))
		p.queued, p.queuedBytes = nil, 0
		p.stale.Store(false)
		if p.silent.Load() {
			p.send.Store(nil)
			e.removeKeys(p.current)
			p.current = nil
			p.unanswered.Store(0)
		} else {
			p.silent.Store(true)
			e.post(Silent{p.key})
		}
		return
	}
	if t.msg == nil || now.Sub(t.made) >= renewTry {
		if t.index != 0 {
			delete(e.tries, t.index)
		}
		t.index = e.newIndex()
		e.stamp = max(e.stamp+1, uint64(time.Now().UnixNano()))
		hello := session.Hello{Stamp: e.stamp, AES: session.HasAES, Claim: e.lease.Load().claim}
		var err error
		if t.init, t.msg, err = session.Initiate(e.cfg.Rand, e.id, p.key, t.index, hello); err != nil {
			// The peer's key is not a point of the curve: no handshake is possible.
			t.at = now.Add(tryMax)
			return
		}
		e.tries[t.index], t.made, t.sent = p, now, 0
		session.Sign(t.msg, p.key, t.cookie)
	}
	if t.wait = min(2*t.wait, tryMax); t.wait == 0 {
		t.wait = tryMin
	}
	t.at = now.Add(t.wait)
	t.sent++
	paths := p.handshakePaths()
	if path := p.path.Load(); path != nil && !slices.Contains(paths, *path) {
		paths = append(slices.Clone(paths), *path)
	}
	for _, path := range paths {
		k.out = append(k.out, outgoing{path, t.msg})
	}
}

// startHandshake starts a handshake with a peer, unless one is under way. mu is held.
func (e *Engine) startHandshake(p *peer) {
	if p.try == nil && !p.dropped {
		p.try = &attempt{}
		e.activate(p)
	}
}

func (e *Engine) endTry(p *peer) {
	if p.try != nil {
		delete(e.tries, p.try.index)
		p.try = nil
	}
}

// activate makes the keeper examine a peer. mu is held.
func (e *Engine) activate(p *peer) {
	if !p.dropped {
		e.active[p] = struct{}{}
		e.wakeKeeper()
	}
}

// arm is activate for the data path, which calls it often and without mu.
func (e *Engine) arm(p *peer) {
	if p.armed.Load() || !p.armed.CompareAndSwap(false, true) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.activate(p)
}

// recovered reports that a silent peer sends again. mu is held.
func (e *Engine) recovered(p *peer, from Path) {
	if p.silent.CompareAndSwap(true, false) {
		e.post(Recovered{p.key, from})
	}
}

// newIndex returns an unused index. mu is held.
func (e *Engine) newIndex() uint32 {
	for {
		var b [4]byte
		if _, err := io.ReadFull(e.cfg.Rand, b[:]); err != nil {
			panic("tunnel: read random bytes: " + err.Error())
		}
		i := binary.BigEndian.Uint32(b[:])
		if i != 0 && e.tries[i] == nil && (*e.indexes.Load())[i] == nil {
			return i
		}
	}
}

// addKeys adds keys for the receiver. mu is held.
func (e *Engine) addKeys(k *keys) {
	m := maps.Clone(*e.indexes.Load())
	m[k.Local] = k
	e.indexes.Store(&m)
}

// removeKeys removes keys, if they are not nil, from the receiver. mu is held.
func (e *Engine) removeKeys(ks ...*keys) {
	m := maps.Clone(*e.indexes.Load())
	for _, k := range ks {
		if k != nil {
			delete(m, k.Local)
		}
	}
	e.indexes.Store(&m)
}
