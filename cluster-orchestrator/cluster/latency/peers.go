package latency

import (
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/vivaldi"
)

// Each node on the overlay network continuously measures its round trips to a few peers, so
// that its coordinate is accurate even while it is idle: to near nodes for its position among
// its neighbours, and to random nodes so that the whole space does not drift apart (Dabek et
// al., Vivaldi §4.2). The choice changes slowly, because a coordinate follows each change.

const (
	nearPeers    = 2
	randomPeers  = 2
	amongPeers   = 64               // nodes that are drawn; the nearest of them are chosen
	peersFor     = 10 * time.Minute // until the next choice
	peersFirstIn = 5 * time.Second  // until the first choice, so that nodes that join together can be chosen
)

// peerChoice has the nodes that one node measures.
type peerChoice struct {
	round uint64 // number of choices since the start
	peers []api.NodeID
	by    map[api.NodeID]bool // nodes that measure this one
}

var expirePairs = effects.Key{Kind: effects.Pairs}

func peersKey(id api.NodeID) effects.Key { return effects.Key{Kind: effects.Peers, Node: id} }

// choosePeersSoon sets the timer for the first choice of a member of the overlay network. A
// random part of the delay spreads the choices of many members.
func (m *Machine) choosePeersSoon(n *node) {
	if key := peersKey(n.ID); m.started && n.Overlay && !m.fx.Timers.Has(key) {
		random := newSeededRandom("measure", n.ID)
		m.fx.Timers.Set(key, m.fx.Now.Add(peersFirstIn+random.duration(peersFirstIn)))
	}
}

// ChoosePeers chooses the peers that a node measures. It returns false for a node that is not
// a member of the overlay network.
func (m *Machine) ChoosePeers(id api.NodeID) bool {
	n := m.at[id]
	if n == nil || !n.Overlay {
		return false
	}
	random := newSeededRandom("measure", id, n.peers.round)
	m.fx.Timers.Set(peersKey(id), m.fx.Now.Add(peersFor+random.duration(peersFor/4)))
	n.peers.round++
	var drawn []*node
	for range 2 * amongPeers {
		o := m.nodes[random.intn(len(m.nodes))]
		if o != n && !o.Silent && o.Overlay && !slices.Contains(drawn, o) {
			drawn = append(drawn, o)
		}
		if len(drawn) == amongPeers || len(drawn) == len(m.nodes)-1 {
			break
		}
	}
	peers := make([]api.NodeID, 0, nearPeers+randomPeers)
	for _, o := range drawn[:min(randomPeers, len(drawn))] {
		peers = append(peers, o.ID)
	}
	if drawn = drawn[len(peers):]; n.Coord != nil {
		drawn = slices.DeleteFunc(drawn, func(o *node) bool { return o.Coord == nil })
		slices.SortStableFunc(drawn, func(a, b *node) int {
			return int(vivaldi.Distance(*n.Coord, *a.Coord) - vivaldi.Distance(*n.Coord, *b.Coord))
		})
	}
	for _, o := range drawn[:min(nearPeers, len(drawn))] {
		peers = append(peers, o.ID)
	}
	slices.Sort(peers)
	m.setPeers(n, peers)
	return true
}

func (m *Machine) setPeers(n *node, peers []api.NodeID) {
	for _, id := range n.peers.peers {
		if o := m.at[id]; o != nil {
			delete(o.peers.by, n.ID)
		}
	}
	for _, id := range peers {
		o := m.at[id]
		if o.peers.by == nil {
			o.peers.by = map[api.NodeID]bool{}
		}
		o.peers.by[n.ID] = true
	}
	n.peers.peers = peers
}

// Peers returns the nodes that a node must measure, in order. chosen is false if none were
// chosen since the start; the node then continues to measure earlier ones.
func (m *Machine) Peers(of api.NodeID) (peers []api.NodeID, chosen bool) {
	n := m.at[of]
	if n == nil {
		return nil, false
	}
	return n.peers.peers, n.peers.round > 0
}

// MeasuredBy returns the nodes that measure a node, in order.
func (m *Machine) MeasuredBy(id api.NodeID) []api.NodeID {
	if n := m.at[id]; n != nil {
		return step.Keys(n.peers.by)
	}
	return nil
}

// dropPeers removes a node's choice, and schedules new choices for the nodes that measured
// it.
func (m *Machine) dropPeers(n *node) {
	m.fx.Timers.Clear(peersKey(n.ID))
	m.setPeers(n, nil)
	for _, id := range step.Keys(n.peers.by) {
		m.fx.Timers.SetEarlier(peersKey(id), m.fx.Now.Add(peersFirstIn))
	}
}
