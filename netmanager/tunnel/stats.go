package tunnel

import (
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Cause is why a packet went no further.
type Cause int

// The causes.
const (
	NoPeer      Cause = iota // its destination is nobody's
	NoAnswer                 // the peer did not answer a handshake in time, or too much waited for it
	NoPath                   // no path to the peer is known
	TooLong                  // longer than the path takes
	SendFailed               // the socket or the host's routes refused it
	Malformed                // no packet or message at all
	Unknown                  // of a session that we do not have
	Replayed                 // taken before, or too old
	Denied                   // it did not authenticate
	Forged                   // its inner source is not the sender's, or its destination not ours
	Flooded                  // a handshake message more than we can or want to answer
	WriteFailed              // the device refused it
	causes
)

var causeNames = [causes]string{
	"no_peer", "no_answer", "no_path", "too_long", "send_failed", "malformed", "unknown", "replayed", "denied", "forged", "flooded", "write_failed",
}

func (c Cause) String() string { return causeNames[c] }

// Drops counts packets by cause.
type Drops [causes]uint64

type drops [causes]atomic.Uint64

func (d *drops) add(c Cause, n int) { d[c].Add(uint64(n)) }

func (d *drops) read() (out Drops) {
	for i := range d {
		out[i] = d[i].Load()
	}
	return out
}

// counters are of inner packets.
type counters struct {
	sentBytes, sentPackets, receivedBytes, receivedPackets atomic.Uint64
	drops                                                  drops
}

// Stats is what an engine has seen of a peer.
type Stats struct {
	Peer            api.PeerKey
	Path            Path // where data goes
	From            Path // by which the last message came
	Carried         Path // by which the last data came
	Session         bool // there is one
	Silent          bool
	MTU             int
	SentBytes       uint64 // of inner packets, headers included
	SentPackets     uint64
	ReceivedBytes   uint64
	ReceivedPackets uint64
	Handshake       time.Time     // the last one
	RTT             time.Duration // of it, if we began it
	Loss            float64       // of what the peer sent in this session, 0 to 1
	Heard           time.Time     // when the last message came
	Drops           Drops
}

// Stats says what was seen of each peer, in no order.
func (e *Engine) Stats() []Stats {
	e.rx.mu.Lock() // before mu, as everywhere: sessions' counts and peers' last paths are the receiver's
	defer e.rx.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make([]Stats, 0, len(e.peers))
	for _, p := range e.peers {
		s := Stats{
			Peer: p.key, From: p.from, Carried: p.carried, Session: p.send.Load() != nil, Silent: p.silent.Load(), MTU: int(p.mtu.Load()),
			SentBytes: p.traffic.sentBytes.Load(), SentPackets: p.traffic.sentPackets.Load(),
			ReceivedBytes: p.traffic.receivedBytes.Load(), ReceivedPackets: p.traffic.receivedPackets.Load(),
			Handshake: p.since, RTT: p.rtt, Drops: p.traffic.drops.read(),
		}
		if path := p.path.Load(); path != nil {
			s.Path = *path
		}
		if t := p.heard.Load(); t != 0 {
			s.Heard = epoch.Add(time.Duration(t))
		}
		if p.current != nil {
			if received, expected := p.current.Counts(); expected > 0 {
				s.Loss = 1 - float64(received)/float64(expected)
			}
		}
		out = append(out, s)
	}
	return out
}

// Total is what an engine has carried and dropped since it began, of peers that are
// gone too: it never falls.
type Total struct {
	SentBytes     uint64 // of inner packets, headers included
	ReceivedBytes uint64
	Dropped       uint64 // packets, by whatever cause that is a peer's
}

func (t *Total) add(c *counters) {
	t.SentBytes += c.sentBytes.Load()
	t.ReceivedBytes += c.receivedBytes.Load()
	for _, n := range c.drops.read() {
		t.Dropped += n
	}
}

// Total says what was seen of all peers there ever were.
func (e *Engine) Total() Total {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.gone
	for _, p := range e.peers {
		t.add(&p.traffic)
	}
	return t
}

// Drops counts packets that no peer is to blame for.
func (e *Engine) Drops() Drops { return e.drops.read() }
