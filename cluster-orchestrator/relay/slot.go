package relay

import (
	"bytes"
	"net/netip"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// slot is a node and where it is.
type slot struct {
	id uint32

	mu     sync.Mutex // guards the fields below
	node   api.NodeID
	ticket uint64
	secret []byte
	last   uint64         // Seq of its bindings
	addr   netip.AddrPort // where it is, unless conn is set; zero: not known
	conn   *stream        // its TLS connection, if that came after its last binding
	late   *time.Timer    // the late answer that it waits for
	rate   bucket         // of what comes for it
	sent   bucket         // of what it sends by TLS, over all its connections
}

// Set gives a node its slot, or changes its ticket and secret. Where the node is
// stays known. A node has one slot, the last that was set.
func (r *Relay) Set(id uint32, in Slot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.slots[id]
	if s == nil || s.owner() != in.Node {
		if s != nil {
			r.remove(s)
		}
		s = &slot{id: id, rate: newBucket(r.opt.Rate), sent: newBucket(r.opt.Rate)}
		r.slots[id] = s
	}
	if old := r.nodes[in.Node]; old != nil && old != s {
		r.remove(old)
	}
	r.nodes[in.Node] = s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.node, s.ticket, s.secret = in.Node, in.Ticket, bytes.Clone(in.Secret)
}

// Drop forgets a slot and ends its node's connection. Dropping what is not there
// does nothing.
func (r *Relay) Drop(id uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.slots[id]; s != nil {
		r.remove(s)
	}
}

// remove is called with r.mu held.
func (r *Relay) remove(s *slot) {
	delete(r.slots, s.id)
	if node := s.owner(); r.nodes[node] == s {
		delete(r.nodes, node)
	}
	s.stop()
}

// Where is where a slot's node is bound: an address, or over TLS; neither: it is
// not, or there is no such slot.
func (r *Relay) Where(id uint32) (addr netip.AddrPort, overTLS bool) {
	r.mu.RLock()
	s := r.slots[id]
	r.mu.RUnlock()
	if s == nil {
		return netip.AddrPort{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr, s.conn != nil
}

func (s *slot) owner() api.NodeID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node
}

// stop ends what the slot has running.
func (s *slot) stop() {
	s.mu.Lock()
	conn, late := s.conn, s.late
	s.conn, s.late, s.addr = nil, nil, netip.AddrPort{}
	s.mu.Unlock()
	if late != nil {
		late.Stop()
	}
	if conn != nil {
		conn.close()
	}
}

// target is where a run of n bytes goes that shows a ticket, or why nowhere.
func (s *slot) target(ticket uint64, n int) (netip.AddrPort, *stream, cause) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ticket != ticket:
		return netip.AddrPort{}, nil, unknownSlot
	case s.conn == nil && !s.addr.IsValid():
		return netip.AddrPort{}, nil, unbound
	case !s.rate.take(time.Now(), n):
		return netip.AddrPort{}, nil, limited
	}
	return s.addr, s.conn, forwarded
}

// maySend reports whether the node may send n bytes more by TLS.
func (s *slot) maySend(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent.take(time.Now(), n)
}

// bucket bounds a rate in bytes a second.
type bucket struct {
	rate, burst, have float64
	at                time.Time
}

// leastBurst is two of the longest runs: less would never let one pass.
const leastBurst = 2 << 16

func newBucket(rate float64) bucket {
	burst := max(rate/10, leastBurst)
	return bucket{rate: rate, burst: burst, have: burst}
}

func (b *bucket) take(now time.Time, n int) bool {
	if !b.at.IsZero() {
		b.have = min(b.burst, b.have+b.rate*now.Sub(b.at).Seconds())
	}
	b.at = now
	if b.have < float64(n) {
		return false
	}
	b.have -= float64(n)
	return true
}
