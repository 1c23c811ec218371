package overlay

import (
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/notice"
)

// Nodes tell their peers by themselves which of their placements take no new flows
// any more. The way by cluster and root is longer than a placement has to end, and
// broken while one of them is away. A record that says otherwise of the same
// placement is older than its host's word.

const (
	// tellFirst is when a notice that nobody has confirmed is repeated, twice that when
	// again, and so on; tellTries is how often it is said.
	tellFirst = 100 * time.Millisecond
	tellTries = 6
	// keepWord is how long what is gone is told of: longer than orchestrators are away,
	// as a rule.
	keepWord = 15 * time.Minute
	// strayEvery bounds how often a peer is told what it did not hear.
	strayEvery = 100 * time.Millisecond
)

// notices is what peers are told of this node's instances.
type notices struct {
	serial uint64
	words  []spoken // one for each address, the latest last
	news   bool
	tries  int // how often the last was said
}

// spoken is a word and when it became true.
type spoken struct {
	notice.Word
	at time.Time
}

// say has peers told of an address of ours.
func (c *Core) say(a netip.Addr, k api.Key, s notice.State) {
	n := &c.notices
	w := notice.Word{Address: a, Of: notice.Of(k), State: s}
	old := slices.IndexFunc(n.words, func(o spoken) bool { return o.Address == a })
	if old >= 0 {
		if n.words[old].Word == w {
			return
		}
		n.words = slices.Delete(n.words, old, old+1)
	} else if len(n.words) == notice.MaxWords-1 { // one more has room for a stray's
		n.words = slices.Delete(n.words, 0, 1)
	}
	n.words = append(n.words, spoken{w, c.now})
	n.news = true
}

// sayOf has peers told how it stands with an attachment, where they have heard of
// it before or must avoid it. That it listens for the first time is for its cluster to tell.
func (c *Core) sayOf(a *attachment) {
	s := notice.Takes
	if a.Draining || !a.Ready {
		s = notice.Leaving
	}
	if a.Draining || slices.ContainsFunc(c.notices.words, func(o spoken) bool { return o.Address == a.Address }) {
		c.say(a.Address, a.Attach.Key, s)
	}
}

// remember has the words of an earlier life said anew: peers may have missed the
// last. What takes flows is said as well, for peers may believe otherwise.
func (c *Core) remember(freed map[netip.Addr]api.Key) {
	c.notices.serial = c.boot << 32 // grows with each life; a boot is the wall clock's seconds or little more
	for _, a := range sortedKeys(freed) {
		if freed[a].Instance != "" {
			c.say(a, freed[a], notice.Gone)
		}
	}
	for _, a := range sortedKeys(c.at) {
		if at := c.at[a]; at.Ready && !at.Draining {
			c.say(a, at.Attach.Key, notice.Takes)
		}
	}
	for _, a := range sortedKeys(c.at) { // what matters most is forgotten last
		if at := c.at[a]; !at.Ready || at.Draining {
			c.say(a, at.Attach.Key, notice.Leaving)
		}
	}
}

// notice is what is to be told now.
func (c *Core) notice() notice.Notice {
	out := notice.Notice{Serial: c.notices.serial}
	for _, w := range c.notices.words {
		if c.at[w.Address] != nil || c.now.Sub(w.at) < keepWord {
			out.Words = append(out.Words, w.Word)
		}
	}
	return out
}

// hears reports whether the peer can be told: there is or was a session, or a
// kernel path, which came of one. A session begins anew for that where it has ended.
func (c *Core) hears(q *peer) bool {
	return q.record.Key != c.self.Key && (q.path.Kind != "" && q.path.Kind != api.PathNone || q.kernel.Path != "")
}

// tell tells all peers what is new, at the end of a step.
func (c *Core) tell() {
	n := &c.notices
	if !n.news {
		return
	}
	n.news, n.tries = false, 0
	n.serial++
	c.tellPeers()
}

// tellPeers tells those who have not confirmed the last, a few times.
func (c *Core) tellPeers() {
	n := &c.notices
	waiting, now := false, c.notice()
	for _, k := range sortedKeys(c.peers) {
		q := c.peers[k]
		switch {
		case !c.hears(q) || q.heeded >= n.serial:
		case n.tries == tellTries:
			q.deaf = true
		default:
			waiting = true
			c.emit(ToTunnel, TunnelTell{k, now})
		}
	}
	if waiting {
		c.timers.Set(timerKey{what: timerTell}, c.now.Add(tellFirst<<n.tries))
		n.tries++
	}
}

// session is a session with a peer that began: whatever either was told before, it
// may have forgotten.
func (c *Core) session(in Session) {
	q := c.peers[in.Key]
	now := c.notice()
	if q == nil || len(now.Words) == 0 {
		return
	}
	c.emit(ToTunnel, TunnelTell{in.Key, now})
	q.heeded, c.notices.tries = 0, 1
	c.timers.SetEarlier(timerKey{what: timerTell}, c.now.Add(tellFirst))
}

// heeded takes a peer's confirmation.
func (c *Core) heeded(in Heeded) {
	if q := c.peers[in.Key]; q != nil && in.Serial <= c.notices.serial && in.Serial >= q.heeded {
		q.heeded, q.deaf = in.Serial, false
	}
}

// Heeded reports whether all peers that can be told have confirmed what was told
// last. Of those that do not answer nothing is expected.
func (c *Core) Heeded() bool {
	for _, q := range c.peers {
		if c.hears(q) && !q.deaf && !q.path.Silent && q.heeded < c.notices.serial {
			return false
		}
	}
	return true
}

// stray is a packet of a peer's to an address of ours where nobody is: what it
// knows is old.
func (c *Core) stray(in Stray) {
	q := c.peers[in.Key]
	if q == nil || c.lease == nil || !c.lease.Subnet.Contains(in.Address) || c.at[in.Address] != nil || c.now.Sub(q.strayed) < strayEvery {
		return
	}
	q.strayed = c.now
	now := c.notice()
	if !slices.ContainsFunc(now.Words, func(w notice.Word) bool { return w.Address == in.Address }) {
		now.Words = append(now.Words, notice.Word{Address: in.Address, State: notice.Gone})
	}
	c.emit(ToTunnel, TunnelTell{in.Key, now})
}
