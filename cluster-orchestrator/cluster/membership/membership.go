// Package membership keeps the nodes of a cluster: which have joined, what they report about
// themselves, which are alive, and what the operator ordered for them. Other sub-machines
// keep what runs on them.
//
// It is a sub-machine of the cluster's core and not safe for concurrent use.
package membership

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/membership/nodecaps"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/membership/rollcall"
	"github.com/treeline-edge/treeline/internal/bounds"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Config has the settings of a Machine.
type Config struct {
	Cluster api.ClusterID
	Timing  wire.Timing   // for up to NodesAtBase nodes
	Dead    time.Duration // silence after which a node is dead, for up to NodesAtBase nodes
	Return  time.Duration // added to Dead after a start
	Caps    nodecaps.Policy
}

// NodesAtBase is the number of nodes up to which the configured timing is used. With more
// nodes the timing grows in proportion, so that the rate of heartbeats stays bounded.
const NodesAtBase = 2000

// Machine has all nodes.
type Machine struct {
	cfg     Config
	fx      *effects.Sink
	nodes   map[api.NodeID]*member
	scale   int // factor of the timing; it never shrinks, because a node may still hold a longer lease
	silent  int // number of silent nodes
	awaited int // number of nodes that have not reported since the start
	refused uint64
	roll    rollcall.Roll
}

// Node is a copy of a node's state for other sub-machines.
type Node struct {
	Info       api.NodeInfo // its claims, limited by its caps
	Caps       api.Caps     // set by an order
	Capped     []api.Capped // claims above their caps
	Joined     time.Time
	Cordoned   bool
	Draining   bool
	Purging    bool   // it is ordered to delete its workloads, keys and data
	PurgeError string // error of its last attempt to purge

	Heard     bool // it sent a heartbeat since the start of the cluster
	Silent    bool
	Suspect   bool // its connection broke, or a heartbeat is overdue
	Answers   bool // it answers roll calls
	Awaited   bool // it has not reported since the start of the cluster
	LastAlive time.Time
	Boot      uint64
	CPUUsed   uint8 // percent
	MemUsed   uint8 // percent
}

// Closed reports whether the node will not take work soon. A node that is only suspect or has
// not been heard yet is not closed.
func (n *Node) Closed() bool {
	return n.Silent || n.Draining || n.Cordoned || n.Info.RuntimeError != "" || n.Info.NetworkError != ""
}

func (n *Node) Status() api.NodeStatus {
	switch {
	case n.Silent:
		return api.NodeSilent
	case !n.Heard:
		return api.NodeJoining
	case n.Draining:
		return api.NodeDraining
	case n.Cordoned:
		return api.NodeCordoned
	}
	return api.NodeReady
}

type member struct {
	Node
	claims   api.NodeInfo // Info as reported
	digest   api.Digest   // of claims
	token    string       // id of the join token of its last join
	existing bool         // it accepted privileged workloads before node caps existed
	silentAt time.Time    // when it was last declared silent
	aliveSeq uint64
	refusals bounds.Log // of values in its messages
	notice   capsNotice
}

// Extra are the values of other sub-machines in a node's document.
type Extra struct {
	Subnet netip.Prefix
	Net    *wire.NetSelf
	Must   api.Generation // that the node must hold before its reports count
	// Placed are the epochs of the last placements with local volumes on the node.
	Placed map[api.InstanceID]api.Epoch
}

type record struct {
	Info   api.NodeInfo `json:"info"` // as reported, because caps may change
	Joined time.Time    `json:"joined"`
	// Token is the id of the join token of the last join; empty in records of earlier
	// releases.
	Token    string        `json:"token,omitempty"`
	Cordoned bool          `json:"cordoned,omitempty"`
	Draining bool          `json:"draining,omitempty"`
	Purging  bool          `json:"purging,omitempty"`
	Subnet   netip.Prefix  `json:"subnet,omitzero"`
	Net      *wire.NetSelf `json:"net,omitempty"` // so that routes are complete before the node reports again
	// Existing reports whether the node accepted privileged workloads before node caps
	// existed. It is nil in records of earlier releases, where Info.Privileged is the value.
	Existing *bool          `json:"existing_privileged,omitempty"`
	Must     api.Generation `json:"must,omitempty"`
	Caps     api.Caps       `json:"caps,omitzero"`

	VolumesPlaced map[api.InstanceID]api.Epoch `json:"volumes_placed,omitempty"`
}

// Kind is the kind of the nodes' documents. The key is the node's id.
const Kind = "node"

func New(cfg Config, fx *effects.Sink) *Machine {
	return &Machine{cfg: cfg, fx: fx, nodes: map[api.NodeID]*member{}, scale: 1}
}

// Restore adds the node of a document. It returns the values of other sub-machines.
func (m *Machine) Restore(data []byte) (Node, Extra, error) {
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return Node{}, Extra{}, err
	}
	n := &member{token: r.Token, existing: r.Info.Privileged}
	if r.Existing != nil {
		n.existing = *r.Existing
	}
	n.Caps, n.Joined, n.Cordoned, n.Draining, n.Purging = r.Caps, r.Joined, r.Cordoned, r.Draining, r.Purging
	m.setClaims(n, r.Info)
	m.nodes[n.Info.ID] = n
	return n.Node, Extra{r.Subnet, r.Net, r.Must, r.VolumesPlaced}, nil
}

func (m *Machine) Save(id api.NodeID, k Extra) {
	n := m.nodes[id]
	m.fx.Journal.Put(Kind, string(id), record{
		n.claims, n.Joined, n.token, n.Cordoned, n.Draining, n.Purging, k.Subnet, k.Net, &n.existing, k.Must, n.Caps, k.Placed,
	})
}

// Start expects a report of every node after a start of the cluster.
func (m *Machine) Start() {
	for _, id := range step.Keys(m.nodes) {
		n := m.nodes[id]
		// A node that was cut off for a long time retries at the longest interval.
		n.LastAlive, n.Awaited = m.fx.Now.Add(m.cfg.Return), true
		m.fx.Timers.Set(effects.Key{Kind: effects.Dead, Node: id}, m.fx.Now.Add(m.Dead()))
	}
	m.awaited = len(m.nodes)
}

// Awaited returns the number of nodes that have not reported since the start.
func (m *Machine) Awaited() int { return m.awaited }

// Reported records that the node has reported since the start. It returns false if it had
// already.
func (m *Machine) Reported(id api.NodeID) bool {
	n := m.nodes[id]
	if n == nil || !n.Awaited {
		return false
	}
	n.Awaited = false
	m.awaited--
	return true
}

// Join adds a node. It returns false if the node exists; see Rejoin.
func (m *Machine) Join(info api.NodeInfo, token string) bool {
	if m.nodes[info.ID] != nil {
		return false
	}
	n := &member{token: token}
	n.Joined, n.LastAlive = m.fx.Wall, m.fx.Now
	m.setClaims(n, info)
	m.nodes[info.ID] = n
	m.fx.Timers.Set(effects.Key{Kind: effects.Dead, Node: info.ID}, m.fx.Now.Add(m.Dead()-rollcall.Lead))
	return true
}

// Rejoin handles another join of a known node. fresh reports whether the token is new; a new
// token ends an order to purge the node.
func (m *Machine) Rejoin(id api.NodeID, token string) (fresh bool) {
	n := m.nodes[id]
	if fresh = n.token != token; fresh {
		n.token, n.Purging, n.PurgeError = token, false, ""
	}
	return fresh
}

// ForgetBoot accepts any boot number of the node, which may have lost its counter.
func (m *Machine) ForgetBoot(id api.NodeID) { m.nodes[id].Boot, m.nodes[id].aliveSeq = 0, 0 }

// SetInfo stores a node's reported Info. It returns false if nothing changed.
func (m *Machine) SetInfo(id api.NodeID, info api.NodeInfo) bool {
	n := m.nodes[id]
	info.ID = id
	if info.Digest() == n.digest {
		return false
	}
	m.setClaims(n, info)
	return true
}

func (m *Machine) Node(id api.NodeID) (Node, bool) {
	n := m.nodes[id]
	if n == nil {
		return Node{}, false
	}
	return n.Node, true
}

// All returns all nodes in the order of their ids.
func (m *Machine) All() (out []Node) {
	for _, id := range step.Keys(m.nodes) {
		out = append(out, m.nodes[id].Node)
	}
	return out
}

// IDs returns the ids of all nodes, sorted.
func (m *Machine) IDs() []api.NodeID { return step.Keys(m.nodes) }

// Digest returns the digest of the node's Info as reported.
func (m *Machine) Digest(id api.NodeID) api.Digest { return m.nodes[id].digest }

func (m *Machine) Len() int { return len(m.nodes) }

// CheckRemove returns api.ErrConflict if the node may still run instances. held is the number
// of its instances, leased the number of those that must not run twice.
func (m *Machine) CheckRemove(id api.NodeID, held, leased int) error {
	n := m.nodes[id]
	if !n.Silent && n.Heard && held > 0 {
		return fmt.Errorf("remove node %s: it is alive and has %d instances; drain it first: %w", id, held, api.ErrConflict)
	}
	if left := m.Dead() - m.fx.Now.Sub(n.LastAlive); !n.Silent && left > 0 && leased > 0 {
		return fmt.Errorf("remove node %s: it may still run instances that must not run twice; try again in %s: %w", id, left, api.ErrConflict)
	}
	return nil
}

// Remove removes the node. The caller deletes its document. awaited reports whether the node
// had not reported since the start.
func (m *Machine) Remove(id api.NodeID) (awaited bool) {
	n := m.nodes[id]
	m.fx.Timers.Clear(effects.Key{Kind: effects.Dead, Node: id})
	if n.Silent {
		m.silent--
	}
	if n.Awaited {
		m.awaited--
	}
	delete(m.nodes, id)
	return n.Awaited
}

// NotFound returns an api.ErrNotFound that lists existing nodes.
func (m *Machine) NotFound(id api.NodeID) error {
	const maxNamed = 20
	var names []string
	for _, known := range step.Keys(m.nodes) {
		names = append(names, string(known))
	}
	has := "no nodes"
	if len(names) > 0 {
		has = strings.Join(names[:min(len(names), maxNamed)], ", ")
	}
	if more := len(names) - maxNamed; more > 0 {
		has += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Errorf("node %q: cluster %s has %s: %w", id, m.cfg.Cluster, has, api.ErrNotFound)
}

// Cordon cordons the node, or ends its cordon, a drain and an order to purge it. purged
// reports whether there was an order to purge it.
func (m *Machine) Cordon(id api.NodeID, on bool) (purged bool) {
	n := m.nodes[id]
	if n.Cordoned = on; on {
		return false
	}
	purged = n.Purging
	n.Draining, n.Purging, n.PurgeError = false, false, ""
	return purged
}

func (m *Machine) Drain(id api.NodeID) { m.nodes[id].Cordoned, m.nodes[id].Draining = true, true }

// Purge marks the node as ordered to purge itself. It returns false if it already was.
func (m *Machine) Purge(id api.NodeID) bool {
	n := m.nodes[id]
	fresh := !n.Purging
	n.Purging = true
	return fresh
}

// PurgeFailed stores the error of the node's last attempt to purge itself; empty: none.
func (m *Machine) PurgeFailed(id api.NodeID, text string) {
	if n := m.nodes[id]; n.Purging {
		n.PurgeError = text
	}
}

// Refused counts values in the node's messages that were out of bounds. It returns a notice
// at most once a minute, otherwise "".
func (m *Machine) Refused(id api.NodeID, bad bounds.Violations) string {
	n := m.nodes[id]
	if n == nil || bad.Total == 0 {
		return ""
	}
	m.refused += uint64(bad.Total)
	text := n.refusals.Add(m.fx.Now, bad)
	if text == "" {
		return ""
	}
	return fmt.Sprintf("node %s: %s", id, text)
}

// RefusedValues returns the number of values counted by Refused since the start.
func (m *Machine) RefusedValues() uint64 { return m.refused }
