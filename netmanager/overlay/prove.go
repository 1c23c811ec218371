package overlay

import (
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/agree"
)

// What is agreed may still be lost on the way, by a firewall or by a switch that
// forwards no strangers' addresses, and the tunnel, which nobody uses then, notices
// nothing. So who sends by a kernel path asks its peer what has arrived.

const (
	// countEvery is how often what passes by kernel paths is looked at.
	countEvery = time.Second
	// lostMisses is after how many answers in a row that nothing has arrived, of what
	// was sent meanwhile, ours take the tunnel; lostUnanswered is after how many looks
	// at which nothing came back, not even an answer. The tunnel knows of relays.
	lostMisses     = 2
	lostUnanswered = 3
	// shunFirst is how long the tunnel is taken then; each time in a row it is twice
	// that, up to shunMost.
	shunFirst = 30 * time.Second
	shunMost  = 15 * time.Minute
)

// traffic is how kernel paths are looked at.
type traffic struct {
	asked  time.Time // the plane, which has not answered; zero: it has
	probes uint64
}

// proof is what shows that a kernel path carries.
type proof struct {
	at       time.Time // of the last look; zero: there was none
	to, from uint64    // then

	probe uint64 // that was not answered; 0: all were
	sent  uint64 // to, when it was asked

	known       bool   // an answer came
	arrived     uint64 // by it
	arrivedSent uint64 // of sent

	misses, unanswered int
	wanted             uint64 // the peer's Probe that waits for Counted
}

// awaitCount has kernel paths looked at from now on.
func (c *Core) awaitCount() { c.timers.SetEarlier(timerKey{what: timerCount}, c.now) }

// count looks, as long as there is a kernel path.
func (c *Core) count() {
	for _, q := range c.peers {
		if q.kernel.Path != "" {
			c.timers.Set(timerKey{what: timerCount}, c.now.Add(countEvery))
			c.askCount()
			return
		}
	}
}

// askCount asks the plane, after what it was told.
func (c *Core) askCount() {
	if t := &c.traffic; t.asked.IsZero() || c.now.Sub(t.asked) >= countEvery {
		t.asked = c.now
		c.emitLate(ToPlane, Count{})
	}
}

// probed is a peer that asks what arrived.
func (c *Core) probed(in Probed) {
	if q := c.peers[in.Key]; q != nil && q.kernel.Takes.Or(q.deal.leaving) != none {
		q.proof.wanted = in.Serial
		c.askCount()
	}
}

// counted takes in what the plane counted.
func (c *Core) counted(in Counted) {
	c.traffic.asked = time.Time{}
	if in.Peers == nil {
		return
	}
	for _, k := range sortedKeys(c.peers) {
		q := c.peers[k]
		n, known := in.Peers[k]
		if known {
			q.carried = &api.Carried{Sent: n[0], Received: n[1]}
		}
		if w := q.proof.wanted; w != 0 {
			q.proof.wanted = 0
			c.emit(ToTunnel, TunnelSay{Key: k, Message: agree.Arrived{Serial: w, Bytes: n[1]}})
		}
		if q.kernel.Path != "" {
			c.look(q, n[0], n[1])
		}
	}
}

// look compares what passed with the last look.
func (c *Core) look(q *peer, to, from uint64) {
	p := &q.proof
	if c.now.Sub(p.at) < countEvery*3/4 {
		return // it was counted for a peer
	}
	first := p.at.IsZero()
	sent, came := !first && to > p.to, !first && from != p.from
	p.at, p.to, p.from = c.now, to, from
	if sent || came {
		c.measureUsed(q)
	}
	switch {
	case came:
		p.unanswered = 0
	case sent && p.probe != 0:
		if p.unanswered++; p.unanswered >= lostUnanswered {
			c.shun(q, "nothing comes back by %s, which is tried again later")
			return
		}
	}
	if first || sent || p.probe != 0 {
		c.traffic.probes++
		p.probe, p.sent = c.traffic.probes, to
		// Without a sign of life there must be a session to ask in.
		c.emit(ToTunnel, TunnelSay{Key: q.record.Key, Message: agree.Probe{Serial: p.probe}, Connect: sent && !came})
	}
}

// arrived takes a peer's answer.
func (c *Core) arrived(in Arrived) {
	q := c.peers[in.Key]
	if q == nil || q.kernel.Path == "" || in.Serial == 0 || in.Serial != q.proof.probe {
		return
	}
	p := &q.proof
	p.probe, p.unanswered = 0, 0
	if p.known && p.sent == p.arrivedSent {
		return
	}
	switch {
	case !p.known || p.sent < p.arrivedSent:
	case in.Bytes == p.arrived:
		p.misses++
	default:
		p.misses, q.deal.fails = 0, 0
	}
	p.known, p.arrived, p.arrivedSent = true, in.Bytes, p.sent
	if p.misses >= lostMisses {
		c.shun(q, "nothing gets through by %s, which is tried again later")
	}
}

// shun has ours take the tunnel for a while.
func (c *Core) shun(q *peer, why string) {
	d := &q.deal
	d.why = fmt.Sprintf(why, q.kernel.Path)
	d.shun = c.now.Add(min(shunFirst<<min(d.fails, 10), shunMost))
	d.fails++
	c.choosePath(q)
}
