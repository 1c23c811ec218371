package netbook

import (
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

const (
	ackWait    = 2 * time.Second // until an unacknowledged message is followed up; doubles each time
	ackWaitMax = time.Minute
	// The pause before the same Measures are sent again; it doubles up to its bound. A node
	// that refuses a record will not accept it soon.
	measureWait, measureWaitMax = 5 * time.Second, 10 * time.Minute
)

// Measures is what a node measures: its round trips to Peers, and the round trips of the
// connections of Services. Known is false until peers were chosen.
type Measures struct {
	Known    bool
	Peers    []api.NodeID
	Services []api.ServiceID
}

// Flush sends changes to nodes. measures returns a node's Measures. Call it before sending
// desired sets, so that new flows avoid an instance before its node stops it.
func (m *Machine) Flush(measures func(api.NodeID) Measures) {
	for _, id := range m.routes.Nodes.Dirty() {
		m.due[id] = true
	}
	for _, id := range step.Keys(m.due) {
		if n := m.nodes[id]; n != nil {
			m.send(n, measures)
		}
	}
	clear(m.due)
}

// send sends a node the changes that it does not have yet.
func (m *Machine) send(n *node, measures func(api.NodeID) Measures) {
	if n.boot == 0 && !n.askWhole {
		return // its netmanager has not sent anything yet
	}
	nodes := m.routes.Nodes
	// Changes beyond one message follow once the node has acknowledged it.
	limit := wire.MaxPart
	if n.behind && n.acked < n.sent {
		limit = 0
	}
	before := nodes.Held(n.id)
	rec, without := m.routes.Flush(n.id, limit)
	n.behind = nodes.Pending(n.id)
	if n.heard {
		m.compare(n, before, without)
	}
	d := wire.NetDown{Boot: n.boot, Seq: n.seq, RequestWhole: n.askWhole}
	part := m.resyncPart(n, &rec, &d)
	d.Records = rec
	d.RequestHeld = part || !rec.Empty() || n.askHeld
	if !n.resync.Due && (!n.resync.On() || part && !n.resync.Incomplete()) {
		d.Held = nodes.Held(n.id)
	}
	if l, ok := m.Lease(n.id); ok && l.Digest() != n.leaseHeld {
		l.Rev = m.routes.NextRev()
		d.Lease, d.RequestHeld = &l, true // it is sent until the node has it
	}
	if d.Measure, d.Between = m.measuresOf(n, measures); d.Measure != nil {
		d.RequestHeld = true
	}
	if part || !rec.Empty() || d.Lease != nil || d.Measure != nil || n.owesAnswer || n.askWhole || n.askHeld {
		d.Rev = m.routes.NextRev()
		m.fx.ToNode(n.id, d)
		if part || !rec.Empty() {
			n.sent = d.Rev
		}
		if part {
			n.partSent = d.Rev
		}
		if d.Measure != nil {
			n.measures.sentRev = d.Rev
		}
		if d.RequestHeld || d.RequestWhole {
			m.followUpAt(n, m.fx.Now.Add(min(ackWait<<min(n.asked, 6), ackWaitMax)))
		}
	}
	n.heard, n.owesAnswer, n.askHeld = false, false, false
}

func (m *Machine) followUpAt(n *node, at time.Time) {
	m.fx.Timers.SetEarlier(effects.Key{Kind: effects.Ack, Node: n.id}, at)
}

// compare compares the digest in a node's message with the records that the node should hold,
// and schedules a resync if they differ. without is the digest without records to which no
// subscription of the node leads any more, which the node may drop by itself.
func (m *Machine) compare(n *node, before, without api.Digest) {
	key := effects.Key{Kind: effects.Ack, Node: n.id}
	switch {
	case n.held == before || n.held == without:
		n.resync.Settled()
		m.fx.Timers.Clear(key)
	case n.acked < n.sent:
		m.followUpAt(n, m.fx.Now.Add(ackWait)) // the node sent this before it received the last message
	case n.resync.Incomplete(): // not everything was sent yet
		m.fx.Timers.Clear(key)
	default:
		n.resync.Due = true
		m.followUpAt(n, n.resync.Next())
	}
}

// measuresOf returns the Measures to send to a node. It returns nil if the node has them or
// they may be on their way.
func (m *Machine) measuresOf(n *node, measures func(api.NodeID) Measures) ([]api.Peer, []api.ServiceID) {
	of := measures(n.id)
	if !of.Known {
		return nil, nil // the node continues to measure what it was sent before the start
	}
	peers, should := []api.Peer{}, api.Digest(0)
	for _, id := range of.Peers {
		if p, ok := m.routes.Member(id); ok {
			peers, should = append(peers, p), should.Toggle(p.Digest())
		}
	}
	for _, id := range of.Services {
		should = should.Toggle(id.Digest())
	}
	s := &n.measures
	switch {
	case should == s.held:
		s.lastSent, s.tries = should, 0
		return nil, nil
	case should != s.lastSent:
		s.tries = 0
	case n.acked < s.sentRev:
		return nil, nil // the message is on its way or lost; AckDue finds out
	default:
		if again := s.lastSentAt.Add(min(measureWait<<min(s.tries, 7), measureWaitMax)); again.After(m.fx.Now) {
			m.followUpAt(n, again)
			return nil, nil
		}
		s.tries++
	}
	s.lastSent, s.lastSentAt = should, m.fx.Now
	return peers, of.Services
}

// resyncPart adds the next part of a resync to rec and d, if a resync is due and the node has
// the previous part. It reports whether it did. A node may only drop other records once all
// its subscriptions are known and answered (d.Whole): after a restart of the cluster, nodes keep
// their records until then.
func (m *Machine) resyncPart(n *node, rec *wire.Records, d *wire.NetDown) bool {
	r, nodes := &n.resync, m.routes.Nodes
	if r.On() && n.acked < n.partSent || !nodes.Advance(n.id, r, m.fx.Now, n.acked > n.partSent, !n.askWhole) {
		return false
	}
	more, of := m.routes.Part(n.id, r.Part.After)
	d.Whole = !n.askWhole && nodes.Open(n.id) == 0
	if d.Whole {
		d.Of = of
	}
	n.complete = d.Whole && (n.complete || r.Part == (wire.Span{}))
	if of.Last() {
		r.Due = !n.complete
	}
	if nodes.Sent(n.id, r, of) { // the part has everything, including the changes in rec
		*rec = rec.Removals()
	}
	rec.Append(more)
	return true
}
