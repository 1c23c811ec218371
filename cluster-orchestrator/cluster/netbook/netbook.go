// Package netbook is a cluster's part of the overlay network: it leases subnets to nodes, and
// exchanges subscriptions and records with nodes and the root, repeated until acknowledged.
// Package routes has the content of the records.
//
// It is a sub-machine of the cluster's core and not safe for concurrent use. The core passes
// it messages of nodes and the root, and changes of instances and placements.
package netbook

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/netbook/routes"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Config configures a Machine. Tickets and secrets of the relay are derived from Seed, which
// must never change.
type Config struct {
	Cluster     api.ClusterID
	Seed        []byte
	Relay       string         // host:port of the cluster's relay for nodes; empty: there is none
	Unencrypted []netip.Prefix // networks of the operator on which packets need no encryption
	Interest    time.Duration  // lifetime of a subscription that is not renewed
	Return      time.Duration  // how long to wait after a start for nodes to report their subnets
}

// Machine is the cluster's part of the overlay network.
type Machine struct {
	fx     *effects.Sink
	cfg    Config
	routes *routes.Registry
	leases leases
	nodes  map[api.NodeID]*node
	hosted map[routes.Place]bool
	due    map[api.NodeID]bool // nodes to consider in Flush
	out    Result              // of the current call

	unsaved map[api.ServiceID]bool // services whose route from the root has changed since it was saved

	whole bool   // the root requested everything
	sent  uint64 // unacknowledged report with news; 0: none
}

type node struct {
	id      api.NodeID
	subnet  netip.Prefix
	claimed netip.Prefix // the subnet that it reports
	self    *wire.NetSelf
	silent  bool
	load    uint8 // as in routes
	loadAt  time.Time

	boot, seq  uint64     // of the netmanager's messages
	held       api.Digest // of the records that it holds, as it reported last
	acked      uint64     // newest message that it had received at that time
	leaseHeld  api.Digest // of its lease, as it reported last
	heard      bool       // it sent a message in this step
	owesAnswer bool       // its message needs an answer
	askWhole   bool       // request all its subscriptions
	askHeld    bool       // request the digest of the records that it holds
	sent       uint64     // newest message with changes
	asked      int        // consecutive requests without an answer
	behind     bool       // more changes are pending than fitted into the last message
	resync     interest.Resync
	complete   bool   // all resources were known in every part of the resync so far
	partSent   uint64 // message with the last part of the resync
	measures   measures
}

// measures is the state of sending a node its Measures.
type measures struct {
	held       api.Digest // of its Measures, as it reports
	lastSent   api.Digest // of the Measures that were sent last
	lastSentAt time.Time
	sentRev    uint64 // revision of that message
	tries      int    // how often the same Measures were sent again
}

// Result is the effect of a call on the other sub-machines.
type Result struct {
	Save    []api.NodeID // nodes whose document must be saved: Subnet or Self changed
	Leased  []api.NodeID // nodes whose Subnet changed
	Places  []api.NodeID // nodes whose places must be set again
	Members []api.NodeID // nodes whose records changed
	Report  bool         // a report to the root is due
	Demands []routes.Wanted
}

func New(fx *effects.Sink, cfg Config) *Machine {
	return &Machine{
		fx: fx, cfg: cfg, routes: routes.New(cfg.Cluster), nodes: map[api.NodeID]*node{},
		hosted: map[routes.Place]bool{}, due: map[api.NodeID]bool{}, unsaved: map[api.ServiceID]bool{}, whole: true, leases: leases{waiting: map[api.NodeID]bool{}},
	}
}

func (m *Machine) result() Result {
	out := m.out
	m.out = Result{}
	return out
}

func (m *Machine) node(id api.NodeID) *node {
	n := m.nodes[id]
	if n == nil {
		n = &node{id: id}
		m.nodes[id] = n
	}
	return n
}

// Subnet returns a node's subnet, or the zero value if it has none.
func (m *Machine) Subnet(id api.NodeID) netip.Prefix {
	if n := m.nodes[id]; n != nil {
		return n.subnet
	}
	return netip.Prefix{}
}

// Self returns the node's own description, or nil.
func (m *Machine) Self(id api.NodeID) *wire.NetSelf {
	if n := m.nodes[id]; n != nil {
		return n.self
	}
	return nil
}

// MarkDue makes Flush consider a node.
func (m *Machine) MarkDue(id api.NodeID) { m.due[id] = true }

// SetInstance adds an instance or changes the network's part of its assignment.
func (m *Machine) SetInstance(id api.InstanceID, s routes.Spec) { m.routes.SetSpec(id, s) }

func (m *Machine) DropInstance(id api.InstanceID) { m.routes.DropSpec(id) }

func (m *Machine) PlacesOf(id api.InstanceID) []routes.Place { return m.routes.PlacesOf(id) }

// SetPlace sets whether a node has an instance, assigned or leaving, and its backend there. A
// backend whose address is not in the node's subnet is ignored. be.Load and be.Peer are
// filled in. It reports whether hosted changed.
func (m *Machine) SetPlace(p routes.Place, hosted bool, be api.Backend) (changed bool) {
	if changed = hosted != m.hosted[p]; changed {
		if m.hosted[p] = hosted; !hosted {
			delete(m.hosted, p)
		}
		m.routes.SetHosted(p, hosted)
	}
	n := m.nodes[p.Node]
	if n == nil || n.self == nil || !n.subnet.IsValid() || !n.subnet.Contains(be.Address) {
		be = api.Backend{}
	} else {
		be.Load = max(1, n.load) // 0 means unknown: such a node gets the average
	}
	m.routes.SetBackend(p, be)
	return changed
}

// Remote returns the nodes of other clusters in a service's route; see
// routes.Registry.Remote.
func (m *Machine) Remote(id api.ServiceID) map[api.NodeID]api.ClusterID { return m.routes.Remote(id) }

// Totals returns the number of subscriptions of nodes, and how many have no answer yet.
func (m *Machine) Totals() (all, open int) { return m.routes.Nodes.Total() }

// A node's load is updated when it has changed by loadStep percent, at most every loadEvery.
const (
	loadEvery = 10 * time.Second
	loadStep  = 20
)

func (m *Machine) SetLoad(id api.NodeID, cpu uint8) Result {
	n := m.nodes[id]
	if n != nil && n.self != nil && max(cpu, n.load)-min(cpu, n.load) >= loadStep && m.fx.Now.Sub(n.loadAt) >= loadEvery {
		n.load, n.loadAt = cpu, m.fx.Now
		m.out.Places = append(m.out.Places, id)
	}
	return m.result()
}

// Up handles a message of a node's netmanager. ok is false for an old message, which has no
// effect.
func (m *Machine) Up(id api.NodeID, up wire.NetUp) (r Result, ok bool) {
	n := m.node(id)
	if up.Boot == 0 {
		return Result{}, false
	}
	if up.Boot < n.boot {
		n.owesAnswer = true // with the number, so that a netmanager that lost its store takes a higher one
		m.MarkDue(id)
		return Result{}, false
	}
	if up.Boot > n.boot {
		n.boot, n.seq, n.measures.sentRev = up.Boot, 0, 0
		n.resync.Stop()
		m.routes.Nodes.Reset(id)
	}
	if up.Seq <= n.seq {
		return Result{}, false
	}
	n.askWhole = n.askWhole && !up.Whole || up.Seq != n.seq+1 && !up.Whole
	n.seq, n.held, n.acked, n.leaseHeld, n.heard, n.asked = up.Seq, up.Held, up.Rev, up.Lease, true, 0
	n.owesAnswer = n.askWhole || up.Self != nil || up.Whole || len(up.Subscribe)+len(up.Unsubscribe) > 0
	n.measures.held = up.Measure
	m.MarkDue(id)
	if up.Self != nil {
		m.setSelf(n, *up.Self)
	}
	if n.claimed = up.Subnet; !n.subnet.IsValid() {
		m.lease(n)
	}
	if up.Whole {
		m.routes.Unsubscribe(id, m.routes.Nodes.Absent(id, wire.Span{}, up.Subscribe))
	}
	until := m.fx.Now.Add(m.cfg.Interest)
	for _, w := range up.Subscribe {
		m.routes.Subscribe(id, w, until)
	}
	m.routes.Unsubscribe(id, up.Unsubscribe)
	for _, w := range up.Demand {
		if x, ok := m.routes.Demand(id, w); ok {
			m.out.Demands = append(m.out.Demands, x)
		}
	}
	if len(up.Subscribe) > 0 {
		m.fx.Timers.SetEarlier(effects.Key{Kind: effects.Interest, Node: id}, until)
	}
	return m.result(), true
}

// setSelf stores a node's own description. A change of the coordinate alone is frequent, so it
// is published with the next other change.
func (m *Machine) setSelf(n *node, self wire.NetSelf) {
	old := n.self
	n.self = &self
	if old != nil && old.Key == self.Key && slices.Equal(old.Endpoints, self.Endpoints) && slices.Equal(old.Mapped, self.Mapped) &&
		slices.EqualFunc(old.Chain, self.Chain, bytes.Equal) && bytes.Equal(old.Proof, self.Proof) {
		return
	}
	m.out.Save = append(m.out.Save, n.id)
	m.setMember(n)
	if old == nil {
		m.out.Places = append(m.out.Places, n.id)
	}
}

// setMember publishes the record of a node that has a lease and a description.
func (m *Machine) setMember(n *node) {
	s := n.self
	if s == nil || !n.subnet.IsValid() {
		return
	}
	ok := m.routes.SetMember(n.id, api.Peer{
		Key: s.Key, Subnets: []netip.Prefix{n.subnet}, Endpoints: s.Endpoints, Relay: m.relayAt(n.id, n.subnet),
		Chain: s.Chain, Proof: s.Proof, Coord: s.Coord,
	}, s.Mapped)
	m.out.Members = append(m.out.Members, n.id)
	if !ok {
		n.self = nil // another node has the key
		m.out.Save = append(m.out.Save, n.id)
	}
}

// InterestDue drops expired subscriptions of a node.
func (m *Machine) InterestDue(id api.NodeID) {
	if m.nodes[id] == nil {
		return
	}
	expired, next := m.routes.Nodes.Expired(id, m.fx.Now)
	m.routes.Unsubscribe(id, expired)
	if !next.IsZero() {
		m.fx.Timers.Set(effects.Key{Kind: effects.Interest, Node: id}, next)
	}
	m.MarkDue(id)
}

// AckDue requests the digest of the records that a node holds, because it has not
// acknowledged a message.
func (m *Machine) AckDue(id api.NodeID) {
	n := m.nodes[id]
	if n == nil || n.silent || n.boot == 0 && !n.askWhole {
		return
	}
	n.asked++
	n.askHeld = true
	m.MarkDue(id)
}

// Heard requests all subscriptions of a node that is no longer silent or is heard for the
// first time since the start, because earlier messages may be lost.
func (m *Machine) Heard(id api.NodeID) {
	n := m.node(id)
	n.silent = false
	if n.self != nil { // it has a netmanager
		n.askWhole = true
		m.MarkDue(id)
	}
}

// Rejoined handles a node that may have lost its state. It accepts any boot number of the
// netmanager. It requests all subscriptions, because a netmanager that has sent its messages
// before the join has no reason to send another.
func (m *Machine) Rejoined(id api.NodeID) {
	n := m.node(id)
	if n.boot != 0 {
		n.askWhole = true
		m.MarkDue(id)
	}
	n.boot, n.seq = 0, 0
	m.routes.Nodes.Reset(id)
}

// Silent drops the subscriptions and the session state of a node that fell silent.
func (m *Machine) Silent(id api.NodeID) Result {
	m.resetSession(m.node(id))
	return m.result()
}

func (m *Machine) resetSession(n *node) {
	m.routes.Remove(n.id)
	m.fx.Timers.Clear(effects.Key{Kind: effects.Ack, Node: n.id})
	m.fx.Timers.Clear(effects.Key{Kind: effects.Interest, Node: n.id})
	n.measures.held, n.measures.sentRev = 0, 0
	*n = node{id: n.id, subnet: n.subnet, self: n.self, silent: true, load: n.load, loadAt: n.loadAt, measures: n.measures}
	m.out.Places = append(m.out.Places, n.id)
}

// Remove removes a node and takes its subnet back.
func (m *Machine) Remove(id api.NodeID) Result {
	n := m.node(id)
	m.resetSession(n)
	m.endLease(n)
	delete(m.nodes, id)
	return m.result()
}

// Start begins a process lifetime, after Restore and RestoreNode.
func (m *Machine) Start() Result {
	// Revisions grow over restarts: the number of starts is in their upper half.
	m.routes.Begin(m.fx.Boot << 32)
	m.startLeases()
	for _, id := range step.Keys(m.nodes) {
		n := m.nodes[id]
		if n.subnet.IsValid() {
			m.setSlot(n)
		} else if n.self != nil {
			m.lease(n)
		}
		m.setMember(n)
		m.out.Places = append(m.out.Places, id)
	}
	return m.result()
}

// RestoreNode restores a node. Call Restore first. A subnet outside the cluster's shares is
// ignored.
func (m *Machine) RestoreNode(id api.NodeID, self *wire.NetSelf, subnet netip.Prefix) {
	n := m.node(id)
	n.self = self
	if m.leases.mark(subnet) {
		n.subnet = subnet
	}
}

// RouteKind is the kind of documents with the root's routes, by service. Without them, a restarted cluster would give
// nodes routes without the instances in other clusters until the root answers.
const RouteKind = "route"

// RestoreRoute restores a route of the root, and returns its service.
func (m *Machine) RestoreRoute(data []byte) (api.ServiceID, error) {
	var r api.Route
	if err := json.Unmarshal(data, &r); err != nil {
		return "", err
	}
	m.routes.RestoreRoute(r)
	return r.Service, nil
}

// saveEvery is the least time between two saves of routes, of which other clusters decide how often they change.
const saveEvery = 5 * time.Second

// RoutesDue saves the root's routes that have changed since the last save.
func (m *Machine) RoutesDue() {
	if len(m.unsaved) == 0 {
		return
	}
	for _, id := range step.Keys(m.unsaved) {
		if r, ok := m.routes.Foreign(id); ok {
			m.fx.Journal.Put(RouteKind, string(id), r)
		} else {
			m.fx.Journal.Delete(RouteKind, string(id))
		}
	}
	clear(m.unsaved)
	m.fx.Timers.Set(effects.Key{Kind: effects.Routes}, m.fx.Now.Add(saveEvery))
}

// FromRoot handles a message of the root. It returns the services whose route from the root
// changed.
func (m *Machine) FromRoot(msg wire.RootNet) (changed []api.ServiceID, r Result) {
	changed, ok := m.routes.ApplyRoot(msg)
	if !ok {
		return nil, Result{}
	}
	for _, id := range changed {
		m.unsaved[id] = true
	}
	if !m.fx.Timers.Has(effects.Key{Kind: effects.Routes}) {
		m.RoutesDue()
	}
	m.setShares(msg.Ranges, msg.Shares)
	m.whole = m.whole || msg.RequestWhole
	m.out.Report = m.out.Report || msg.RequestWhole || msg.RequestHeld
	for _, a := range msg.Demand[:min(len(msg.Demand), wire.MaxDemands)] {
		if x, ok := m.routes.Wanted(a); ok {
			m.out.Demands = append(m.out.Demands, x)
		}
	}
	return changed, m.result()
}

// Forward passes a demand of a node to the root; see routes.Registry.Forward.
func (m *Machine) Forward(w wire.Subscription) bool { return m.routes.Forward(w) }

// HasNews reports whether there is something to report to the root.
func (m *Machine) HasNews() bool { return m.routes.HasChanges() }

// Report returns the network's part of the report seq, or nil if there is no network. With
// all, it reports everything. news is false if it only repeats digests.
func (m *Machine) Report(seq uint64, all bool) (net *wire.ClusterNet, news bool) {
	m.whole = m.whole || all
	if m.leases.blocks == nil && len(m.leases.waiting) == 0 {
		return nil, false
	}
	lost := m.sent != 0
	if m.whole {
		m.routes.Resync()
		lost = false
	}
	n := m.routes.Net(lost)
	m.returnShares()
	n.Subnets, n.Returned = m.leases.needed(m.fx.Wall), slices.Clone(m.leases.returned)
	if news = n.Whole || len(n.Demand) > 0 || len(n.Subscribe)+len(n.Unsubscribe) > 0 || !n.Records.Empty(); news {
		m.sent = seq
	}
	m.whole = false
	return &n, news
}

// Acked records that the root has received the report seq.
func (m *Machine) Acked(seq uint64) {
	if seq >= m.sent {
		m.sent = 0
	}
}

// Route returns a service's route as sent to nodes.
func (m *Machine) Route(id api.ServiceID) (api.Route, bool) { return m.routes.RouteOf(id) }

// Subscriptions returns the subscriptions of a node, in order.
func (m *Machine) Subscriptions(id api.NodeID) []wire.Subscription { return m.routes.Nodes.List(id) }

// Held returns the digest of the records that a node should hold.
func (m *Machine) Held(id api.NodeID) api.Digest { return m.routes.Nodes.Held(id) }
