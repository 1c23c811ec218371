package tunnel

import (
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Cause is the reason why a packet was dropped.
type Cause int

// The causes.
const (
	NoPeer      Cause = iota // no peer has the destination
	NoAnswer                 // the peer did not answer a handshake in time, or too many packets waited
	NoPath                   // no path to the peer is known
	TooLong                  // longer than the MTU of the path
	SendFailed               // the socket or the host's routes refused it
	Malformed                // not a packet or message
	Unknown                  // unknown session
	Replayed                 // received before, or too old
	Denied                   // authentication failed
	Forged                   // inner source outside the sender's subnets, or destination outside this node's
	Flooded                  // too many handshake messages
	WriteFailed              // the device refused it
	causes
)

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

type counters struct {
	sentBytes, sentPackets, receivedBytes, receivedPackets atomic.Uint64
	drops                                                  drops
}

// Stats are the statistics of a peer.
type Stats struct {
	Peer            api.PeerKey
	Path            Path // of data to the peer
	From            Path // of the last message received
	Carried         Path // of the last data received
	Session         bool // there is a session
	Silent          bool
	MTU             int
	SentBytes       uint64 // of inner packets, headers included
	SentPackets     uint64
	ReceivedBytes   uint64
	ReceivedPackets uint64
	Handshake       time.Time     // time of the last handshake
	RTT             time.Duration // of the last handshake, if this node started it
	Loss            float64       // fraction of the peer's messages lost in this session, 0 to 1
	Received        time.Time     // when the last message was received
	Drops           Drops
}

// Stats returns the statistics of all peers, in no order.
func (e *Engine) Stats() []Stats {
	e.rx.mu.Lock() // locked before mu, as everywhere; guards sessions' counts and peers' last paths
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
		if t := p.received.Load(); t != 0 {
			s.Received = epoch.Add(time.Duration(t))
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

// Total is what an engine has carried and dropped since it started. It never decreases.
type Total struct {
	SentBytes     uint64 // of inner packets, headers included
	ReceivedBytes uint64
	Dropped       uint64 // packets of peers, for all causes
}

func (t *Total) add(c *counters) {
	t.SentBytes += c.sentBytes.Load()
	t.ReceivedBytes += c.receivedBytes.Load()
	for _, n := range c.drops.read() {
		t.Dropped += n
	}
}

// Total returns the totals of all peers, including removed ones.
func (e *Engine) Total() Total {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.removed
	for _, p := range e.peers {
		t.add(&p.traffic)
	}
	return t
}

// Drops counts the dropped packets that belong to no peer.
func (e *Engine) Drops() Drops { return e.drops.read() }
