package tunnel

import (
	"slices"
	"time"

	"github.com/treeline-edge/treeline/netmanager/tunnel/session"
)

// replayWithin: if the peer sent something within this time, an initiation without a newer stamp is a
// replay. Otherwise the peer may have lost its clock.
const replayWithin = 5 * time.Second

func (k *keeper) handshake(now time.Time, from Path, msg []byte) {
	switch session.Type(msg) {
	case session.TypeInitiation:
		k.initiation(now, from, msg)
	case session.TypeResponse:
		k.response(now, from, msg)
	case session.TypeCookie:
		k.cookie(now, msg)
	case session.TypeUnknown:
		k.unknown(now, msg)
	}
}

func (k *keeper) initiation(now time.Time, from Path, msg []byte) {
	e := k.e
	offer, err := session.ReadInitiation(e.cfg.Rand, e.id, msg)
	if err != nil {
		e.drops.add(Denied, 1)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.peers[offer.Peer]; p != nil {
		k.answer(now, p, offer, from, msg)
		return
	}
	_, known := e.strangers[offer.Peer]
	if offer.Peer == e.id.Public() || !known && len(e.strangers) >= maxStrangers {
		e.drops.add(Flooded, 1)
		return
	}
	e.strangers[offer.Peer] = stranger{offer, slices.Clone(msg), from, now.Add(strangerFor)}
	if !known {
		e.post(UnknownPeer{offer.Peer, offer.Hello.Claim})
	}
}

// answer answers a peer's initiation. The same initiation on another path gets the same response there.
// mu is held.
func (k *keeper) answer(now time.Time, p *peer, offer *session.Offer, from Path, msg []byte) {
	e := k.e
	back := p.replyPaths(from)
	if len(back) == 0 {
		p.traffic.drops.add(NoPath, 1)
		return
	}
	ephemeral := [32]byte(msg[8:])
	if offer.Hello.Stamp <= p.stamp {
		switch {
		case ephemeral == p.answered.ephemeral:
			for _, b := range back {
				k.out = append(k.out, outgoing{b, p.answered.msg})
			}
			return
		case p.received.Load() != 0 && now.Sub(epoch.Add(time.Duration(p.received.Load()))) < replayWithin,
			p.next != nil && now.Sub(p.next.Created) < time.Second:
			p.traffic.drops.add(Replayed, 1)
			return
		}
	}
	p.stamp = offer.Hello.Stamp
	reply, s, err := offer.Accept(e.newIndex(), session.Hello{AES: session.HasAES, Claim: e.lease.Load().claim})
	if err != nil {
		p.traffic.drops.add(Denied, 1)
		return
	}
	session.Sign(reply, p.key, [16]byte{})
	s.Created = now
	e.removeKeys(p.next)
	p.next = &keys{Session: s, peer: p}
	e.addKeys(p.next)
	p.answered = answer{ephemeral, reply}
	e.activate(p)
	for _, b := range back {
		k.out = append(k.out, outgoing{b, reply})
	}
}

func (e *Engine) confirm(ks *keys, from Path, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := ks.peer
	ks.confirmed.Store(true)
	if p.next != ks {
		return
	}
	p.next = nil
	e.establish(p, ks, from, 0)
}

func (k *keeper) response(now time.Time, from Path, msg []byte) {
	e := k.e
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.tries[session.Receiver(msg)]
	if p == nil {
		return // another response came first
	}
	s, _, err := p.try.init.Finish(msg)
	if err != nil {
		p.traffic.drops.add(Denied, 1)
		return
	}
	s.Created = now
	rtt := time.Duration(0)
	if p.try.sent == 1 { // otherwise it is unknown which copy was answered
		rtt = now.Sub(p.try.made)
	}
	ks := &keys{Session: s, peer: p}
	ks.confirmed.Store(true)
	e.addKeys(ks)
	p.received.Store(stamp(now))
	e.establish(p, ks, from, rtt)
	e.recovered(p, from)
	if len(p.queued) == 0 {
		k.keepalive(p) // the peer sends only after the session is confirmed
	}
}

// establish makes ks the current keys of a peer. mu is held.
func (e *Engine) establish(p *peer, ks *keys, from Path, rtt time.Duration) {
	e.removeKeys(p.older[len(p.older)-1])
	copy(p.older[1:], p.older[:])
	p.older[0], p.current = p.current, ks
	if rtt > 0 {
		p.rtt = rtt
	}
	p.since = time.Now()
	if !p.fixed {
		if back := p.replyPaths(from); len(back) > 0 {
			p.path.Store(&back[0])
		}
	}
	e.endTry(p)
	p.stale.Store(false)
	p.unanswered.Store(0)
	p.send.Store(ks.Session)
	p.resend(p.since)
	e.post(Established{p.key, from, rtt})
	e.activate(p) // sends the queued packets
}

// cookie handles a busy peer's request to prove this node's address.
func (k *keeper) cookie(now time.Time, msg []byte) {
	e := k.e
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.tries[session.Receiver(msg)]
	if p == nil {
		return
	}
	cookie, err := session.Cookie(msg, p.try.msg, p.key)
	if err != nil {
		p.traffic.drops.add(Denied, 1)
		return
	}
	if cookie != p.try.cookie { // otherwise the cookie was already sent
		p.try.cookie = cookie
		session.Sign(p.try.msg, p.key, cookie)
		p.try.at = now
	}
}

// unknown handles the hint that a peer has lost a session. The hint is not authenticated. It causes at
// most a handshake, and the session stays.
func (k *keeper) unknown(now time.Time, msg []byte) {
	e := k.e
	e.mu.Lock()
	defer e.mu.Unlock()
	index := session.Receiver(msg)
	for _, p := range e.peers {
		if s := p.send.Load(); s != nil && s.Remote == index {
			if p.next == nil && p.hints.AllowN(now, 1) { // otherwise the peer has just started a handshake
				p.lost = p.unproven.Swap(nil)
				e.startHandshake(p)
			}
			return
		}
	}
}
