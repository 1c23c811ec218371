package notice

import (
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/peermsg"
)

const (
	// FirstRepeat is when a Notice that a peer did not confirm is repeated. The wait doubles.
	FirstRepeat = 100 * time.Millisecond
	// Tries bounds how often a Notice is sent.
	Tries = 6
	// KeepGone is how long notices include a placement that is gone. It should exceed the usual downtime
	// of an orchestrator.
	KeepGone = 15 * time.Minute
	// strayInterval is the least time between two notices to a peer about packets for
	// addresses without an instance.
	strayInterval = 100 * time.Millisecond
)

// Sender keeps the state of this node's instances for notices, and which peers confirmed it. The caller
// sends the notices.
type Sender struct {
	serial  uint64
	entries []dated // one per address, the newest last
	changed bool    // since the last Publish
	tries   int     // how often the current serial was sent
	repeat  time.Time
	peers   map[api.PeerKey]*receiver
}

// dated is an entry and the time of its last change.
type dated struct {
	peermsg.Entry
	at time.Time
}

// receiver is a peer to which notices were sent.
type receiver struct {
	confirmed    uint64 // serial
	unresponsive bool   // it did not confirm the last notice, which was sent Tries times
	strayAt      time.Time
}

// NewSender returns a sender without entries.
func NewSender() *Sender { return &Sender{peers: map[api.PeerKey]*receiver{}} }

// Start begins a process lifetime. boot grows with each process, and so do the serials.
func (s *Sender) Start(boot uint64) { s.serial = boot << 32 }

// Set sets the state of a placement. Publish sends it.
func (s *Sender) Set(now time.Time, a netip.Addr, k wire.Key, st peermsg.State) {
	e := peermsg.Entry{Address: a, Of: peermsg.PlacementOf(k), State: st}
	switch old := s.index(a); {
	case old >= 0 && s.entries[old].Entry == e:
		return
	case old >= 0:
		s.entries = slices.Delete(s.entries, old, old+1)
	case len(s.entries) == peermsg.MaxEntries-1: // leave one entry for Stray
		s.entries = slices.Delete(s.entries, 0, 1)
	}
	s.entries = append(s.entries, dated{e, now})
	s.changed = true
}

func (s *Sender) index(a netip.Addr) int {
	return slices.IndexFunc(s.entries, func(e dated) bool { return e.Address == a })
}

// Has reports whether there is an entry for an address.
func (s *Sender) Has(a netip.Addr) bool { return s.index(a) >= 0 }

// notice returns the present notice.
func (s *Sender) notice(now time.Time) peermsg.Notice {
	n := peermsg.Notice{Serial: s.serial}
	for _, e := range s.entries {
		if e.State != peermsg.Gone || now.Sub(e.at) < KeepGone {
			n.Entries = append(n.Entries, e.Entry)
		}
	}
	return n
}

// Serial returns the serial of the last notice.
func (s *Sender) Serial() uint64 { return s.serial }

// Len returns the number of entries.
func (s *Sender) Len() int { return len(s.entries) }

// Changed reports whether there is something to Publish.
func (s *Sender) Changed() bool { return s.changed }

// Next returns when Repeat has to be called; zero: never.
func (s *Sender) Next() time.Time { return s.repeat }

// Publish gives the changed entries a new serial. It returns the notice, and the reachable peers that
// need it.
func (s *Sender) Publish(now time.Time, reachable []api.PeerKey) (n peermsg.Notice, to []api.PeerKey) {
	s.changed, s.tries = false, 0
	s.serial++
	return s.Repeat(now, reachable)
}

// Repeat returns the notice for the reachable peers that did not confirm it.
func (s *Sender) Repeat(now time.Time, reachable []api.PeerKey) (n peermsg.Notice, to []api.PeerKey) {
	if !s.repeat.After(now) {
		s.repeat = time.Time{}
	}
	for _, k := range reachable {
		switch p := s.peer(k); {
		case p.confirmed >= s.serial:
		case s.tries == Tries:
			p.unresponsive = true
		default:
			to = append(to, k)
		}
	}
	if len(to) > 0 {
		s.repeat = now.Add(FirstRepeat << s.tries)
		s.tries++
	}
	return s.notice(now), to
}

// Session returns the notice for a peer with which a session began, because the peer may have lost
// earlier ones. ok is false if there are no entries.
func (s *Sender) Session(now time.Time, k api.PeerKey) (n peermsg.Notice, ok bool) {
	if n = s.notice(now); len(n.Entries) == 0 {
		return n, false
	}
	s.peer(k).confirmed, s.tries = 0, 1
	s.repeat = step.Earliest(s.repeat, now.Add(FirstRepeat))
	return n, true
}

// Confirm handles a peer's NoticeAck.
func (s *Sender) Confirm(k api.PeerKey, serial uint64) {
	if p := s.peer(k); serial <= s.serial && serial >= p.confirmed {
		p.confirmed, p.unresponsive = serial, false
	}
}

// Confirmed reports whether these peers have confirmed the last notice. It ignores peers that do not
// answer.
func (s *Sender) Confirmed(peers []api.PeerKey) bool {
	return !slices.ContainsFunc(peers, func(k api.PeerKey) bool {
		p := s.peers[k]
		return p == nil && s.serial > 0 || p != nil && !p.unresponsive && p.confirmed < s.serial
	})
}

// Stray returns the notice for a peer that sent a packet to an address of this node without an instance.
// ok is false if the last such notice is less than strayInterval ago.
func (s *Sender) Stray(now time.Time, k api.PeerKey, a netip.Addr) (n peermsg.Notice, ok bool) {
	p := s.peer(k)
	if now.Sub(p.strayAt) < strayInterval {
		return n, false
	}
	p.strayAt = now
	n = s.notice(now)
	if !slices.ContainsFunc(n.Entries, func(e peermsg.Entry) bool { return e.Address == a }) {
		n.Entries = append(n.Entries, peermsg.Entry{Address: a, State: peermsg.Gone})
	}
	return n, true
}

// Remove removes a peer.
func (s *Sender) Remove(k api.PeerKey) { delete(s.peers, k) }

func (s *Sender) peer(k api.PeerKey) *receiver {
	p := s.peers[k]
	if p == nil {
		p = &receiver{}
		s.peers[k] = p
	}
	return p
}
