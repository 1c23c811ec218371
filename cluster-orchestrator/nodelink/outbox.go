package nodelink

import (
	"sync"

	"github.com/treeline-edge/treeline/api"
)

// maxDeltas is how many changes may wait for one node. A node that misses one
// asks for the whole set.
const maxDeltas = 64

// outbox holds what waits to be published, by node. A whole set replaces the one
// before and the changes since; a lease replaces the one before. One worker at a
// time has a node, so that a node's messages stay in their order.
type outbox struct {
	mu      sync.Mutex // guards the fields below
	ready   sync.Cond
	nodes   map[api.NodeID]*letters
	queue   []api.NodeID // with letters, and with no worker
	closed  bool
	dropped uint64
}

// letters wait for one node.
type letters struct {
	whole   *api.Desired
	deltas  []api.Desired
	lease   *api.Lease
	net     netQueue
	streams []api.StreamRequest
	probes  []api.ProbeOrder
	clear   bool // take the retained set away: the node is gone
	queued  bool // in the outbox's queue
	busy    bool // with a worker
}

func (l *letters) empty() bool {
	return l.whole == nil && len(l.deltas) == 0 && l.lease == nil && len(l.net) == 0 && len(l.streams) == 0 && len(l.probes) == 0 && !l.clear
}

func newOutbox() *outbox {
	o := &outbox{nodes: map[api.NodeID]*letters{}}
	o.ready.L = &o.mu
	return o
}

// put takes a message for a node, and never blocks.
func (o *outbox) put(n api.NodeID, msg any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	l := o.nodes[n]
	if l == nil {
		l = &letters{}
		o.nodes[n] = l
	}
	switch m := msg.(type) {
	case api.Desired:
		switch {
		case m.From == 0:
			l.whole, l.deltas = &m, nil
		case len(l.deltas) < maxDeltas:
			l.deltas = append(l.deltas, m)
		default:
			o.dropped++
		}
	case api.Lease:
		if old := l.lease; old != nil {
			if m.Seq == 0 { // a request for a sign of life does not renew the lease
				m = *old
				m.Answer = true
			}
			m.Answer = m.Answer || old.Answer
		}
		l.lease = &m
	case api.NetDown:
		if !l.net.put(m) {
			o.dropped++
		}
	case api.StreamRequest:
		if len(l.streams) < maxDeltas {
			l.streams = append(l.streams, m)
		} else {
			o.dropped++
		}
	case api.ProbeOrder:
		if !l.putProbe(m) {
			o.dropped++
		}
	case forget:
		*l = letters{clear: true, queued: l.queued, busy: l.busy}
	}
	o.enqueue(n, l)
}

// forget is the message that clears what is retained for a node.
type forget struct{}

func (o *outbox) enqueue(n api.NodeID, l *letters) {
	switch {
	case l.queued || l.busy:
	case l.empty():
		delete(o.nodes, n)
	default:
		l.queued = true
		o.queue = append(o.queue, n)
		o.ready.Signal()
	}
}

// next waits for a node with letters and takes them; done gives the node back.
// ok is false when the outbox is closed.
func (o *outbox) next() (n api.NodeID, taken letters, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.queue) == 0 && !o.closed {
		o.ready.Wait()
	}
	if o.closed {
		return "", letters{}, false
	}
	n = o.queue[0]
	o.queue = o.queue[1:]
	l := o.nodes[n]
	taken = *l
	*l = letters{busy: true}
	return n, taken, true
}

func (o *outbox) done(n api.NodeID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.nodes[n]
	l.busy = false
	o.enqueue(n, l)
}

func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.ready.Broadcast()
}

func (o *outbox) lost() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.dropped
}
