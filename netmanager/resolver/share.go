package resolver

import (
	"errors"
	"net/netip"
	"sync"
)

// share divides room among clients: each may have as much as it leaves free. One
// alone gets half, n that want all of it get one part of n+1 each, and whoever
// comes finds the last part (Choudhury and Hahne, "Dynamic Queue Length
// Thresholds for Shared-Memory Packet Switches", with a factor of 1).
type share struct {
	mu   sync.Mutex // guards what follows
	free int
	by   map[netip.Addr]int // none is 0
}

func newShare(room int) *share { return &share{free: room, by: map[netip.Addr]int{}} }

var errBusy = errors.New("too many questions are on their way")

// take is room for one; give, called once, gives it back. ok is false where the
// client has its share.
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
