package placement

import (
	"iter"
	"maps"
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/membership"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/netbook/routes"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/account"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/nodeset"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/relations"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

type node struct {
	membership.Node // as of the last change

	account          *account.Node   // bookings of instances
	bandwidthUnknown int             // 1: its capacity's bandwidth is 0 because it is unknown
	geo              *api.Geo        // nil: unknown
	coord            *api.Coordinate // in the latency space, as in the candidate; nil: unknown

	reportSeq uint64
	synced    bool           // it sent a whole report in this boot and since the start of this process
	must      api.Generation // that it must acknowledge before its reports count; see requireAck
	complete  bool           // no report of this boot is missing: an unreported instance is not there
	ack       api.Generation // newest that it acknowledged

	set       nodeset.Set // its desired set: the assigned instances, and old placements that continue until the new one runs elsewhere
	assigned  map[api.InstanceID]*instance
	leaving   map[api.InstanceID]bool // no longer assigned, but may still run
	weight    weight                  // in the sums over all nodes
	shifted   bool                    // its position in the latency space has changed
	described bool                    // its candidate is up to date with its Info

	reachable bool // while it is silent: other nodes probably reach it

	leased int // number of assigned instances that stop when cut off

	observed      map[api.InstanceID]api.Observed
	claims        map[api.InstanceID]account.Claim // claims of instances that were assigned to it or observed there
	unknownClaims map[api.InstanceID]bool          // instances on it whose claim is unknown
	features      []string                         // of Info, without drivers that the cluster does not have
	volumes       map[api.InstanceID]localVolumes  // local volumes that it reports, by instance
	volumesPlaced map[api.InstanceID]api.Epoch     // the last placements with local volumes there; no other volumes count
	volumesUnseen map[api.InstanceID]bool          // of volumesPlaced, those of which it reports no volume
	known         api.Digest                       // of observed
	differ        int                              // consecutive heartbeats with a different digest of observations

	subnet   netip.Prefix                 // on the overlay network
	reserved map[api.InstanceID]*instance // instances for which capacity is reserved

	shownLoad struct { // of Changes.Nodes
		cpu, mem uint8
		next     time.Time // the next load is shown then at the earliest
	}

	changes *Changes // of the Machine
}

// AddNode adds a node that joined or was restored. Its reports count once it holds the
// generation must. placed are the epochs of the last placements with local volumes there.
func (m *Machine) AddNode(facts membership.Node, subnet netip.Prefix, must api.Generation, placed map[api.InstanceID]api.Epoch) {
	n := &node{
		Node:          facts,
		account:       &account.Node{},
		subnet:        subnet,
		must:          must,
		changes:       &m.changes,
		assigned:      map[api.InstanceID]*instance{},
		leaving:       map[api.InstanceID]bool{},
		unknownClaims: map[api.InstanceID]bool{},
		observed:      map[api.InstanceID]api.Observed{},
		claims:        map[api.InstanceID]account.Claim{},
		volumesPlaced: map[api.InstanceID]api.Epoch{},
		volumesUnseen: map[api.InstanceID]bool{},
	}
	for id, epoch := range placed {
		n.volumesPlaced[id], n.volumesUnseen[id] = epoch, true
	}
	m.nodes[facts.Info.ID] = n
	m.describe(n)
	m.refresh(n)
}

// describe updates what depends on a node's Info and subnet.
func (m *Machine) describe(n *node) {
	capacity := n.Info.Capacity.Max(api.Resources{}).Min(maxAmounts)
	if n.bandwidthUnknown = 0; n.Info.BandwidthUnknown {
		n.bandwidthUnknown, capacity.InMbit, capacity.OutMbit = 1, 0, 0
	}
	n.account.Describe(capacity, account.DevicesOf(n.Info.Devices))
	n.features = m.usable(n.Info.Features)
	n.setAddresses()
	if n.geo = m.cfg.Location; n.Info.Location != nil && n.Info.Location.Valid() {
		n.geo = n.Info.Location
	}
	m.relations.SetNode(n.Info.ID, n.relation())
	m.setVolumes(n)
}

// setAddresses updates the number of addresses in the node's subnet.
func (n *node) setAddresses() {
	holds := wire.SubnetCapacity(n.subnet)
	if n.Info.Network != api.NetworkOverlay {
		holds = 0
	}
	n.account.SetAddresses(holds)
}

// position returns the node's location and coordinate, where known.
func (n *node) position() api.Position {
	return api.Position{Node: n.Info.ID, Geo: n.geo, Coord: n.coord}
}

func (n *node) relation() relations.Node {
	return relations.Node{Position: n.position(), Labels: n.Info.Labels, Areas: n.Info.Areas}
}

// SetNode stores membership's state of a node. Use DescribeNode if Info has changed.
func (m *Machine) SetNode(facts membership.Node) {
	n := m.nodes[facts.Info.ID]
	if n.Status() != facts.Status() || n.Purging != facts.Purging || n.PurgeError != facts.PurgeError || n.showsLoad(&facts, m.fx.Now) {
		m.changes.Nodes[facts.Info.ID] = true
	}
	n.Node = facts
}

// Changes of a node's load by at least loadStep percent are shown, at most one in loadEvery: the load is the node's word.
const (
	loadStep  = 5
	loadEvery = 5 * time.Second
)

// showsLoad reports whether the load in facts is to be shown, and remembers it then.
func (n *node) showsLoad(facts *membership.Node, now time.Time) bool {
	far := func(a, b uint8) bool { return max(a, b)-min(a, b) >= loadStep }
	if !far(facts.CPUUsed, n.shownLoad.cpu) && !far(facts.MemUsed, n.shownLoad.mem) || now.Before(n.shownLoad.next) {
		return false
	}
	n.shownLoad.cpu, n.shownLoad.mem, n.shownLoad.next = facts.CPUUsed, facts.MemUsed, now.Add(loadEvery)
	return true
}

// RefreshNode updates a node's candidate after SetNode.
func (m *Machine) RefreshNode(id api.NodeID) { m.refresh(m.nodes[id]) }

// TouchNode sends the node its desired set under a new generation at the end of the step.
func (m *Machine) TouchNode(id api.NodeID) { m.touch(m.nodes[id]) }

// Must returns the generation that a node must hold before its reports count.
func (m *Machine) Must(id api.NodeID) api.Generation { return m.nodes[id].must }

// DescribeNode is SetNode for a node whose Info has changed. It saves the node.
func (m *Machine) DescribeNode(facts membership.Node) {
	n := m.nodes[facts.Info.ID]
	n.Node = facts
	n.described = false
	m.describe(n)
	m.cfg.SaveNode(n.Info.ID)
	m.refresh(n)
}

// MoveNode stores a node's position in the latency space if it differs enough, and reports
// whether it does.
func (m *Machine) MoveNode(id api.NodeID, at *api.Coordinate) bool {
	n := m.nodes[id]
	if !n.setCoord(at) {
		return false
	}
	m.relations.SetNode(id, n.relation())
	m.refresh(n)
	return true
}

// requireAck ignores the node's reports until it acknowledges its present desired set. It is
// called where capacity is released without the node's confirmation: the broker may still
// deliver an older set, and the node would start its instances. The generation is saved
// because the older set may outlive a restart of the cluster.
func (m *Machine) requireAck(n *node) {
	if gen := n.set.Gen(); n.must != gen {
		n.must = gen
		m.cfg.SaveNode(n.Info.ID)
	}
}

// RejoinNode handles another join of a node, which may have lost its record of ended
// instances.
func (m *Machine) RejoinNode(id api.NodeID) {
	n := m.nodes[id]
	m.RestartNode(id)
	for _, in := range n.sorted() {
		if in.ended() {
			m.unassign(in, false) // otherwise the node would run it again
			m.requireAck(n)
			m.changed(in)
		}
	}
}

// out returns why the node takes no new work, or "" if it does.
func (n *node) out() string {
	switch {
	case n.Silent:
		return "silent"
	case !n.Heard:
		return "not heard yet"
	case !n.synced:
		return "has not reported yet" // it may still run instances
	case len(n.unknownClaims) > 0:
		return "runs instances of unknown size" // with unknown claims
	case n.Suspect:
		return "connection lost"
	case n.Draining:
		return "draining"
	case n.Cordoned:
		return "cordoned"
	case n.Info.RuntimeError != "":
		return "runtime: " + n.Info.RuntimeError
	case n.Info.NetworkError != "":
		return "network: " + n.Info.NetworkError
	}
	return ""
}

// Details that are reported to the root, which must not learn names of nodes.
const (
	lostDetail    = "its node has not been heard"
	removedDetail = "its node was removed"
)

// Held returns the number of instances that the node may run, and how many of them may be
// exclusive.
func (m *Machine) Held(id api.NodeID) (held, leased int) {
	n := m.nodes[id]
	return len(n.assigned) + len(n.leaving), n.leased + len(n.leaving)
}

// Orphans are instances that were on a removed node (lost), had a reservation there, or waited for
// their local volumes.
type Orphans struct{ lost, reserved, waited []*instance }

// RemoveNode removes a node. PlaceOrphans places its instances elsewhere.
func (m *Machine) RemoveNode(id api.NodeID) (o Orphans) {
	n := m.nodes[id]
	for _, other := range step.Keys(n.leaving) {
		n.releaseClaim(other)
		if in := m.instances[other]; in != nil {
			m.endOldPlacement(in, id)
		}
	}
	o.lost = n.sorted()
	for _, in := range o.lost {
		m.unassign(in, false)
	}
	o.waited = m.loseVolumes(n)
	n.allChanged()
	m.changes.Nodes[id] = true
	delete(m.nodes, id)
	delete(m.freedNodes, id)
	delete(m.touched, id)
	m.table.Drop(string(id))
	m.short = shortlist{}
	m.version++
	m.updateSums(n, nil)
	m.relations.DropNode(id)
	for _, rid := range step.Keys(n.reserved) {
		in := n.reserved[rid]
		m.unreserve(in)
		o.reserved = append(o.reserved, in)
	}
	return o
}

func (m *Machine) PlaceOrphans(o Orphans) {
	for _, in := range o.lost {
		if in.ended() {
			m.changed(in)
			continue
		}
		if in.State != api.ClusterScheduled {
			m.applyEvent(in, lifecycle.NodeLost, api.ReasonNodeLost, removedDetail)
		}
		m.tryPlace(in)
	}
	for _, in := range o.reserved {
		m.placeUnreserved(in)
	}
	for _, in := range o.waited {
		if m.instances[in.id()] == in && in.Node == "" {
			m.tryPlace(in)
		}
	}
	m.sumsChanged(true)
}

// allChanged records that the backends of all instances on a node may have changed.
func (n *node) allChanged() {
	for _, ids := range []iter.Seq[api.InstanceID]{maps.Keys(n.observed), maps.Keys(n.assigned), maps.Keys(n.leaving)} {
		for id := range ids {
			n.placeChanged(id)
		}
	}
}

// NoteNode records that the backends of all instances on a node may have changed.
func (m *Machine) NoteNode(id api.NodeID) {
	if n := m.nodes[id]; n != nil {
		n.allChanged()
	}
}

func (n *node) placeChanged(id api.InstanceID) {
	n.changes.Places[routes.Place{Node: n.Info.ID, Instance: id}] = true
}

// assign assigns an instance to the node. The node may still have an earlier placement with a
// larger claim: the larger of both is booked until the node reports the new one.
func (n *node) assign(in *instance) {
	id := in.id()
	n.placeChanged(id)
	delete(n.leaving, id)
	n.assigned[id] = in
	n.account.Assign(id, in.demand.request.Urgency)
	n.claims[id] = n.account.Booked(id).Max(in.demand.takes.Claim) // one that has ended takes nothing beside it
	n.account.Publish(id, in.demand.takes.Ports)
	n.set.Put(in.assignment())
	claim := in.demand.takes.Claim
	if in.ended() {
		claim = claim.Ended(in.Address)
	}
	n.book(id, n.account.Booked(id).Max(n.withoutVolumes(id, claim)))
	if in.Desired.Spec.StopsWhenCutOff() {
		n.leased++
	}
}

// unassign takes an instance off the node. With held, it may still run and stays booked.
func (n *node) unassign(in *instance, held bool) {
	id := in.id()
	n.placeChanged(id)
	n.account.Unassign(id)
	delete(n.assigned, id)
	n.set.Drop(id)
	if in.Desired.Spec.StopsWhenCutOff() {
		n.leased--
	}
	if held {
		n.leaving[id] = true
		return
	}
	n.releaseClaim(id)
}

// bookUnassigned books capacity for an instance that is on the node but not assigned to it.
func (n *node) bookUnassigned(id api.InstanceID, k account.Claim) {
	if n.assigned[id] == nil && !n.leaving[id] && n.reserved[id] == nil {
		n.placeChanged(id)
		n.leaving[id] = true
		n.book(id, k)
	}
}

func (n *node) releaseClaim(id api.InstanceID) {
	n.placeChanged(id)
	delete(n.leaving, id)
	delete(n.unknownClaims, id)
	if n.assigned[id] != nil {
		return
	}
	n.account.Release(id)
	if _, still := n.observed[id]; !still {
		delete(n.claims, id)
	}
}
