package nodelink

import (
	"sync"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// maxDeltas bounds the queued changes of the desired set, and the queued stream requests, for
// one node. A node that misses a change gets the whole set later.
const maxDeltas = 64

// outbox has the messages to be published, by node. A whole set replaces an earlier one and
// its changes. A lease replaces an earlier one. One worker at a time handles a node, so that
// its messages stay in order.
type outbox struct {
	mu      sync.Mutex // guards the fields below
	ready   sync.Cond
	nodes   map[api.NodeID]*letters
	queue   []api.NodeID // nodes that have messages and no worker
	closed  bool
	dropped uint64
}

type letters struct {
	whole   *wire.Desired
	deltas  []wire.Desired
	lease   *wire.Lease
	net     netQueue
	streams []wire.StreamRequest
	probes  []wire.ProbeOrder
	clear   bool // clear the retained set, because the node is removed
	queued  bool // in outbox.queue
	busy    bool // a worker handles the node
}

func (l *letters) empty() bool {
	return l.whole == nil && len(l.deltas) == 0 && l.lease == nil && len(l.net) == 0 && len(l.streams) == 0 && len(l.probes) == 0 && !l.clear
}

func newOutbox() *outbox {
	o := &outbox{nodes: map[api.NodeID]*letters{}}
	o.ready.L = &o.mu
	return o
}

// put queues a message for a node. It does not block.
func (o *outbox) put(n api.NodeID, m wire.ClusterToNode) {
	o.change(n, func(l *letters) { m.DeliverToNode(posting{o, l}) })
}

func (o *outbox) stream(n api.NodeID, m wire.StreamRequest) {
	o.change(n, func(l *letters) {
		if len(l.streams) < maxDeltas {
			l.streams = append(l.streams, m)
		} else {
			o.dropped++
		}
	})
}

// clear drops the queued messages for a node and clears the message that the broker retains.
func (o *outbox) clear(n api.NodeID) {
	o.change(n, func(l *letters) { *l = letters{clear: true, queued: l.queued, busy: l.busy} })
}

func (o *outbox) change(n api.NodeID, do func(*letters)) {
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
	do(l)
	o.enqueue(n, l)
}

// posting adds a message to the letters of a node. The caller holds o.mu.
type posting struct {
	o *outbox
	l *letters
}

// Desired replaces the whole set and its changes, or adds a change.
func (p posting) Desired(m wire.Desired) {
	switch {
	case m.From == 0:
		p.l.whole, p.l.deltas = &m, nil
	case len(p.l.deltas) < maxDeltas:
		p.l.deltas = append(p.l.deltas, m)
	default:
		p.o.dropped++
	}
}

// Lease replaces the lease. A request for a heartbeat (Seq 0) does not renew the lease.
func (p posting) Lease(m wire.Lease) {
	if old := p.l.lease; old != nil {
		if m.Seq == 0 {
			m = *old
			m.RequestAlive = true
		}
		m.RequestAlive = m.RequestAlive || old.RequestAlive
	}
	p.l.lease = &m
}

// NetDown adds a message for the node's netmanager.
func (p posting) NetDown(m wire.NetDown) { p.count(p.l.net.put(m)) }

func (p posting) ProbeOrder(m wire.ProbeOrder) { p.count(p.l.putProbe(m)) }

func (p posting) count(queued bool) {
	if !queued {
		p.o.dropped++
	}
}

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

// next waits for a node with messages and takes them. The caller must then call done. ok is
// false when the outbox is closed.
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
