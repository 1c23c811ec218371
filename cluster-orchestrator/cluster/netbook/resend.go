package netbook

import (
	"time"

	"github.com/treeline-edge/treeline/internal/wire"
)

// resend is how far a node was told all that it should hold. That may be too much for one
// message: it is told part by part, each when the node has the one before; see wire.Span.
type resend struct {
	on       bool
	complete bool      // all was known with every part so far
	part     wire.Span // the one that was told last
	sent     uint64    // the message that told it and is not acknowledged; 0: none
}

// resendPause returns the pause before a node is told all again: none before the first
// time.
func (n *node) resendPause() time.Duration {
	if n.resends == 0 {
		return 0
	}
	return min(resendWait<<min(n.resends-1, 6), ackWaitMax)
}

// resendPart adds the next part of all that a node should hold, if the node diverged and
// has the part before, and reports whether it did. The node drops what it should not have
// only once all that it should hold is known.
func (m *Machine) resendPart(n *node, rec *wire.Records, d *wire.NetDown) bool {
	r := &n.resend
	switch {
	case r.on && n.taken < r.sent:
		return false // it is on its way
	case r.on && n.taken > r.sent: // the part, or what the node said of it, is lost
	case r.on && !r.part.Last():
		r.part = wire.Span{After: r.part.To}
	case r.on: // compare has seen whether it helped
		r.on = false
		m.routes.Recounted(n.id)
	}
	if !r.on {
		if !n.diverged || m.fx.Now.Before(n.resentAt.Add(n.resendPause())) {
			return false
		}
		*r = resend{on: true, complete: true}
		n.diverged, n.resentAt = false, m.fx.Now
		n.resends++
		m.routes.Recount(n.id)
	}
	more, of := m.routes.Span(n.id, r.part.After)
	r.part = of
	if d.Whole = m.routes.Open(n.id) == 0; d.Whole {
		d.Of = of
	}
	if r.complete = r.complete && d.Whole; of.Last() {
		n.diverged = !r.complete
	}
	if r.on = of != (wire.Span{}); !r.on { // one part holds all, and so all that changed
		*rec = rec.Removals()
		m.routes.Recounted(n.id)
	}
	rec.Append(more)
	return true
}
