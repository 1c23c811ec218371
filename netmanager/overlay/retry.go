package overlay

import (
	"net/netip"
	"time"
)

// A flow stays with its backend, and so does one that waits for its first answer. If
// the backend has died meanwhile it waits for ever, while new flows avoid that. Its
// client tries again after a second, and then it may go elsewhere as well: nobody has
// answered yet.

// answersBy is when who leaves has answered what came before it left, if it lives.
const answersBy = 700 * time.Millisecond

// retryLater has flows that an instance which leaves has not answered by then begin
// anew: it may leave because it died.
func (c *Core) retryLater(a netip.Addr) {
	c.timers.Set(timerKey{what: timerRetry, addr: a}, c.now.Add(answersBy))
}

// retryAt does so, unless the instance takes flows again.
func (c *Core) retryAt(a netip.Addr) {
	leaves := false
	if at := c.at[a]; at != nil {
		leaves = at.Draining || !at.Ready
	} else if k, ok := c.peerAt(a); ok {
		_, leaves = c.peers[k].marks[a]
	}
	if leaves {
		c.dirty.retry[a] = struct{}{}
	}
}

// retryAll has flows begin anew that the service's backends at a peer which fell
// silent have not answered.
func (c *Core) retryAll(s *service, q *peer) {
	if s.route == nil {
		return
	}
	for _, b := range s.route.Backends {
		if b.Peer == q.record.Key && c.isInstance(b.Address) && c.at[b.Address] == nil {
			c.dirty.retry[b.Address] = struct{}{}
		}
	}
}
