package membership

import (
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/membership/rollcall"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

func (m *Machine) Timing() wire.Timing {
	t := m.cfg.Timing
	return wire.Timing{Heartbeat: t.Heartbeat * time.Duration(m.scale), Lease: t.Lease * time.Duration(m.scale)}
}

// Dead returns the silence after which a node is dead.
func (m *Machine) Dead() time.Duration { return m.cfg.Dead * time.Duration(m.scale) }

func (m *Machine) Scale() int { return m.scale }

func (m *Machine) SetScale(scale int) { m.scale = max(scale, 1) }

// Rescale adapts the timing to the number of nodes, and reports whether it grew.
func (m *Machine) Rescale() bool {
	s := 1 + len(m.nodes)/NodesAtBase
	grown := s > m.scale
	m.scale = max(s, m.scale)
	return grown
}

// Boot handles the boot number of a node's message. fresh reports whether the node has
// restarted. ok is false for a message of an earlier boot or of an unknown node.
func (m *Machine) Boot(id api.NodeID, boot uint64) (fresh, ok bool) {
	n := m.nodes[id]
	if n == nil || boot < n.Boot {
		return false, false
	}
	if boot > n.Boot {
		n.Boot, n.aliveSeq, fresh = boot, 0, true
	}
	return fresh, true
}

func (m *Machine) SetAnswers(id api.NodeID, answers bool) { m.nodes[id].Answers = answers }

// Return is the change of a node's state by a heartbeat.
type Return struct {
	First   bool // first heartbeat since the start of the cluster
	Silent  bool // the node was silent
	Changed bool // First, Silent, or the node was suspect
}

// Alive handles a heartbeat of the node's present boot. ok is false if it is not newer than
// the last one.
func (m *Machine) Alive(id api.NodeID, a wire.Alive) (r Return, ok bool) {
	n := m.nodes[id]
	if a.Seq <= n.aliveSeq {
		return r, false
	}
	r = Return{First: !n.Heard, Silent: n.Silent, Changed: !n.Heard || n.Silent || n.Suspect}
	n.aliveSeq, n.LastAlive = a.Seq, m.fx.Now
	n.CPUUsed, n.MemUsed = a.CPUUsed, a.MemUsed
	n.Heard, n.Silent, n.Suspect = true, false, false
	if r.Silent {
		m.silent--
		m.fx.Timers.Set(effects.Key{Kind: effects.Dead, Node: id}, m.fx.Now.Add(m.Dead()-rollcall.Lead))
	}
	return r, true
}

// Suspect keeps new work off the node until its next heartbeat. It returns false if the node
// is already suspect or unknown.
func (m *Machine) Suspect(id api.NodeID) bool {
	n := m.nodes[id]
	if n == nil || n.Suspect {
		return false
	}
	n.Suspect = true
	return true
}

// CheckSilence declares the node silent if it was not heard within the dead time. Shortly
// before a node with work (busy) becomes silent, it returns the nodes of which a heartbeat
// must be requested (roll): the fault may have cut off others too, which look alive until
// their next heartbeat is overdue.
func (m *Machine) CheckSilence(id api.NodeID, busy bool) (silent bool, roll []api.NodeID) {
	n := m.nodes[id]
	if due := n.LastAlive.Add(m.Dead()); due.After(m.fx.Now) {
		if ask := due.Add(-rollcall.Lead); ask.After(m.fx.Now) {
			due = ask
		} else if busy && m.roll.Call(m.fx.Now) {
			for _, id := range step.Keys(m.nodes) {
				if m.nodes[id].Answers {
					roll = append(roll, id)
				}
			}
		}
		m.fx.Timers.Set(effects.Key{Kind: effects.Dead, Node: id}, due)
		return false, roll
	}
	if n.Silent {
		return false, nil
	}
	n.Silent, n.silentAt = true, m.fx.Now
	m.silent++
	return true, nil
}

// SilentFor returns for how long a node has been silent, counted from its dead time; 0 if it is not.
func (m *Machine) SilentFor(id api.NodeID) time.Duration {
	if n := m.nodes[id]; n != nil && n.Silent {
		return m.fx.Now.Sub(n.silentAt)
	}
	return 0
}

// Overdue reports whether the node's next heartbeat is late. beat is the interval of
// heartbeats.
func (n *Node) Overdue(now time.Time, beat time.Duration) bool {
	return n.LastAlive.Before(now.Add(-beat * 3 / 2))
}

// SuspectLate marks as suspect the nodes whose heartbeat is overdue or that did not answer
// the roll call, because they may be cut off too. It returns those that were not suspect
// before, and the number of overdue nodes.
func (m *Machine) SuspectLate() (suspects []api.NodeID, overdue int) {
	for _, id := range step.Keys(m.nodes) {
		n := m.nodes[id]
		if !n.Heard || n.Silent {
			continue
		}
		late := n.Overdue(m.fx.Now, m.Timing().Heartbeat)
		if late {
			overdue++
		}
		if (late || n.Answers && m.roll.Missed(n.LastAlive, m.fx.Now)) && !n.Suspect {
			n.Suspect = true
			suspects = append(suspects, id)
		}
	}
	return suspects, overdue
}

// CutOff reports whether no node of the cluster, of at least 2, is known to be connected: all became silent or
// their heartbeats are overdue. Then the nodes probably still reach each other.
func (m *Machine) CutOff(overdue int) bool {
	return len(m.nodes) >= 2 && m.silent+overdue >= len(m.nodes)
}

// DoubtsItself reports whether the cluster itself is probably cut off: at least half of its
// nodes, of at least 4, became silent within the last dead time or are overdue. Nodes that
// have been silent for longer, and nodes that have returned, do not count.
func (m *Machine) DoubtsItself(overdue int) bool {
	since, recent := m.fx.Now.Add(-m.Dead()), 0
	for _, n := range m.nodes {
		if n.Silent && !n.silentAt.Before(since) {
			recent++
		}
	}
	heard := len(m.nodes) - m.silent + recent
	return heard >= 4 && 2*(recent+overdue) >= heard
}
