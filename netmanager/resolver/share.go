package resolver

import (
	"errors"
	"net/netip"
	"sync"
)

// share divides room among clients: a client gets a place only while more are free than it
// holds. One client gets at most half; n busy clients get 1/(n+1) each, and the last part is
// free for others (Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory
// Packet Switches", with a factor of 1).
type share struct {
	mu   sync.Mutex // guards the fields below
	free int
	by   map[netip.Addr]int // places held, without zeros
}

func newShare(room int) *share { return &share{free: room, by: map[netip.Addr]int{}} }

var errBusy = errors.New("too many questions wait for name servers")

// take takes a place, which give, called once, returns. ok is false if the client has its
// share.
func (s *share) take(client netip.Addr) (give func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by[client] >= s.free {
		return nil, false
	}
	s.free--
	s.by[client]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.free++
		if s.by[client]--; s.by[client] == 0 {
			delete(s.by, client)
		}
	}, true
}
