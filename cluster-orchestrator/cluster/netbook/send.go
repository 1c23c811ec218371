package netbook

import (
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

const (
	ackWait    = 2 * time.Second // for a node to acknowledge a message; doubles
	ackWaitMax = time.Minute
	// The pause before the same peers to measure are sent again, and its bound: a node that
	// refuses a record will not accept it soon.
	measureWait, measureWaitMax = 5 * time.Second, 10 * time.Minute
)

// Measures is what a node measures: its round trips to Peers, and those of the connections
// of Services. Known is false before anything was chosen.
type Measures struct {
	Known    bool
	Peers    []api.NodeID
	Services []api.ServiceID
}

// Flush sends nodes what changed. It comes before the nodes' desired sets, so that new flows avoid
// an instance before its node stops it. measures returns what a node measures.
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

// send sends a node what it does not have yet.
func (m *Machine) send(n *node, measures func(api.NodeID) Measures) {
	if n.boot == 0 && !n.askWhole {
		return // its netmanager has not sent anything yet
	}
	nodes := m.routes.Nodes
	// Changes beyond one message follow when the node has the message before.
	room := wire.MaxPart
	if n.behind && n.taken < n.sent {
		room = 0
	}
	before := nodes.Held(n.id)
	rec, without := m.routes.Flush(n.id, room)
	n.behind = nodes.Pending(n.id)
	if n.spoke {
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
	if part || !rec.Empty() || d.Lease != nil || d.Measure != nil || n.answer || n.askWhole || n.askHeld {
		d.Rev = m.routes.NextRev()
		m.fx.ToNode(n.id, d)
		if part || !rec.Empty() {
			n.sent = d.Rev
		}
		if part {
			n.partSent = d.Rev
		}
		if d.Measure != nil {
			n.measures.sent = d.Rev
		}
		if d.RequestHeld || d.RequestWhole {
			m.askSoon(n, m.fx.Now.Add(min(ackWait<<min(n.asked, 6), ackWaitMax)))
		}
	}
	n.spoke, n.answer, n.askHeld = false, false, false
}

func (m *Machine) askSoon(n *node, at time.Time) {
	m.fx.Timers.SetEarlier(effects.Key{Kind: effects.Ack, Node: n.id}, at)
}

// compare detects by the digest in a node's message whether it has all that it was sent.
// without is the digest without records that the node may drop by itself: no subscription
// of it leads to them any more.
func (m *Machine) compare(n *node, before, without api.Digest) {
	key := effects.Key{Kind: effects.Ack, Node: n.id}
	switch {
	case n.held == before || n.held == without:
		n.resync.Settled()
		m.fx.Timers.Clear(key)
	case n.taken < n.sent:
		m.askSoon(n, m.fx.Now.Add(ackWait)) // it sent this before it had our last message
	case n.resync.Incomplete(): // not everything was sent yet
		m.fx.Timers.Clear(key)
	default:
		n.resync.Due = true
		m.askSoon(n, n.resync.Next())
	}
}

// measuresOf returns what a node should measure; nil if it has that or it may be on its way.
func (m *Machine) measuresOf(n *node, measures func(api.NodeID) Measures) ([]api.Peer, []api.ServiceID) {
	of := measures(n.id)
	if !of.Known {
		return nil, nil // what it measures since before the start stays valid
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
	case should == s.has:
		s.told, s.tries = should, 0
		return nil, nil
	case should != s.told:
		s.tries = 0
	case n.taken < s.sent:
		return nil, nil // it is on its way or lost, which AckDue finds out
	default:
		if again := s.toldAt.Add(min(measureWait<<min(s.tries, 7), measureWaitMax)); again.After(m.fx.Now) {
			m.askSoon(n, again)
			return nil, nil
		}
		s.tries++
	}
	s.told, s.toldAt = should, m.fx.Now
	return peers, of.Services
}

// resyncPart adds the next part of all that a node should hold, if its digest differs and it has
// the part before, and reports whether it did. The node drops what it should not have only once
// all that it should hold is known.
func (m *Machine) resyncPart(n *node, rec *wire.Records, d *wire.NetDown) bool {
	r, nodes := &n.resync, m.routes.Nodes
	if r.On() && n.taken < n.partSent || !nodes.Advance(n.id, r, m.fx.Now, n.taken > n.partSent, true) {
		return false
	}
	more, of := m.routes.Part(n.id, r.Part.After)
	d.Whole = nodes.Open(n.id) == 0
	if d.Whole {
		d.Of = of
	}
	n.complete = d.Whole && (n.complete || r.Part == (wire.Span{}))
	if of.Last() {
		r.Due = !n.complete
	}
	if nodes.Sent(n.id, r, of) { // it has everything, and so all that changed
		*rec = rec.Removals()
	}
	rec.Append(more)
	return true
}
