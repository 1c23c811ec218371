package relay

import (
	"bytes"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/treeline-edge/treeline/api"
)

type slot struct {
	id uint32

	mu     sync.Mutex // guards the fields below
	node   api.NodeID
	ticket uint64
	secret []byte
	last   uint64         // Seq of its newest binding
	addr   netip.AddrPort // its address, unless conn is set; zero: unknown
	conn   *stream        // its TLS connection, if it opened after the last binding
	late   *time.Timer    // sends the second answer; see Relay.answerLater
	in     *rate.Limiter  // of traffic to the node
	out    *rate.Limiter  // of traffic from the node over all its TLS connections
}

// Set assigns a slot to a node, or changes the slot's ticket and secret without ending its
// binding. A node has one slot: the one that was set last.
func (r *Relay) Set(id uint32, in Slot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.slots[id]
	if s == nil || s.owner() != in.Node {
		if s != nil {
			r.remove(s)
		}
		s = &slot{id: id, in: newLimiter(r.opt.Rate), out: newLimiter(r.opt.Rate)}
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

// Drop removes a slot if it exists, and ends the node's connection.
func (r *Relay) Drop(id uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.slots[id]; s != nil {
		r.remove(s)
	}
}

// remove is Drop. The caller holds r.mu.
func (r *Relay) remove(s *slot) {
	delete(r.slots, s.id)
	if node := s.owner(); r.nodes[node] == s {
		delete(r.nodes, node)
	}
	s.stop()
}

func (r *Relay) slot(id uint32) *slot {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.slots[id]
}

// Where returns the address to which a slot is bound, and whether it is bound over TLS. It
// returns the zero address and false for a slot that is not bound or does not exist.
func (r *Relay) Where(id uint32) (addr netip.AddrPort, overTLS bool) {
	s := r.slot(id)
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

// stop ends the slot's connection and timer, and its binding.
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

// target returns the address or connection to which a run of n bytes must be sent, and
// Datagrams; or else the cause for which the run is dropped.
func (s *slot) target(ticket uint64, n int) (netip.AddrPort, *stream, Count) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ticket != ticket:
		return netip.AddrPort{}, nil, Unknown
	case s.conn == nil && !s.addr.IsValid():
		return netip.AddrPort{}, nil, Unbound
	case !s.in.AllowN(time.Now(), n):
		return netip.AddrPort{}, nil, Limited
	}
	return s.addr, s.conn, Datagrams
}

// minBurst is the size of two of the longest runs. A burst smaller than a run never passes it.
const minBurst = 2 << 16

func newLimiter(bytesPerSecond float64) *rate.Limiter {
	return rate.NewLimiter(rate.Limit(bytesPerSecond), int(max(bytesPerSecond/10, minBurst)))
}
