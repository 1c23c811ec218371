package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/netbook"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/uplink"
	"github.com/treeline-edge/treeline/internal/bus/redial"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/node-engine/node"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// RootMachine runs the root orchestrator.
type RootMachine struct {
	away bool // it cannot start
	w    *World
	name string
	core *root.Core
	proc process[root.Input]

	shown map[api.InstanceID]api.Instance // as of the step before
}

// ClusterMachine runs a cluster orchestrator and, unless the broker is an
// external one, the broker of its nodes.
type ClusterMachine struct {
	w     *World
	name  string
	id    api.ClusterID
	info  api.ClusterInfo
	core  *cluster.Core
	proc  process[cluster.Input]
	link  *link // to the root
	nodes []*NodeMachine

	retained map[api.NodeID]func() wire.Desired // retained by the broker
	sent     wire.Desired                       // by the root, last: generation and digest
	reported wire.Report                        // last
	gone     bool                               // its operator removed it for good
	tasks    placement.Tasks                    // of its adapter for moves

	restarted moment // by chaos.restart, last

	offer        uplink.Offer // of its operator
	preempt      bool         // from its next start on
	everPreempts bool
	lastUrgent   map[int]moment               // when there was an instance of each priority
	preempted    map[api.InstanceID]bool      // being preempted
	moved        map[api.InstanceID]api.Epoch // the newest epoch that a violation caused
	known        map[wire.Key][]api.NodeID    // the nodes of which it knew that they have volumes of the instance, when it placed it
}

// NodeMachine runs a node engine and workloads.
type NodeMachine struct {
	w       *World
	name    string
	id      api.NodeID
	info    api.NodeInfo
	cluster *ClusterMachine

	asJoined api.NodeInfo // at first
	at       float64      // where the console put it, ms
	puts     uint64

	clock   *clock
	core    *node.Core
	proc    process[node.Input]
	link    *link
	runtime *FakeRuntime
	checks  *fakeChecks
	net     *NetMachine // nil if its workloads have no network
	volumes map[api.VolumeID]api.NodeVolume

	data     map[api.VolumeID]data // of volumes
	incoming map[api.VolumeID]incoming

	sent   wire.Desired // by the cluster, last
	alive  wire.Alive   // sent last
	beats  [16]beat     // the last ones, as many as a node remembers
	leased moment       // when the newest answered heartbeat was sent
	dial   node.Dial    // how the shell dials the broker
	gone   bool         // its provider removed it for good
	wiped  bool         // it lost its identity with its store and must join again
}

func (w *World) addRoot() *RootMachine {
	m := &RootMachine{w: w, name: "root", shown: map[api.InstanceID]api.Instance{}}
	m.proc = process[root.Input]{w: w, name: m.name, clock: w.newClock(), disk: newDisk(), tick: root.Tick{}, send: m.send}
	m.proc.watch = w.checkBudgets
	m.proc.fell = func() { m.fell(); w.after(w.downTime(), m.start) }
	m.proc.holds = m.holds
	w.root = m
	m.start()
	return m
}

func (m *RootMachine) start() {
	if m.proc.alive || m.away {
		return
	}
	ranges := wire.DefaultNetRanges()
	if m.w.Scarce {
		ranges.Subnet = 29
	}
	m.core = root.New(root.Config{Ranges: ranges})
	if err := m.core.Restore(m.proc.disk.load(m.w.chance)); err != nil {
		m.w.violate("restore", m.name, "%v", err)
		return
	}
	clear(m.shown)
	for _, in := range m.core.Instances("") {
		m.shown[in.ID] = in
	}
	m.w.note(m.name, "starts")
	m.proc.start(m.core, root.Start{})
}

func (m *RootMachine) crash() {
	if m.proc.alive {
		m.w.note(m.name, "crashes")
		m.proc.crash()
		m.fell()
	}
}

func (m *RootMachine) fell() {
	for _, c := range m.w.clusters {
		c.link.reset(m.w.learns(), 0)
	}
}

func (m *RootMachine) send(e wire.Envelope) {
	if c, ok := e.Msg.(api.Change); ok && e.To == wire.ToWatchers {
		m.w.checkChange(c)
		m.checkReplaced(c)
		return
	}
	id, ok := strings.CutPrefix(string(e.To), "cluster/")
	c := m.w.cluster(api.ClusterID(id))
	if !ok || c == nil {
		m.w.violate("wire", m.name, "sends %T to %q", e.Msg, e.To)
		return
	}
	e.Msg.(wire.RootToCluster).DeliverToCluster(rootSender{m, c})
}

// rootSender carries the messages of the root's core to a cluster.
type rootSender struct {
	*RootMachine
	to *ClusterMachine
}

func (s rootSender) Desired(msg wire.Desired) {
	s.to.sent = wire.Desired{Gen: msg.Gen, Digest: msg.Digest}
	if get := encoded(msg); s.streams(msg) {
		s.to.link.carry(down, msg, func() { s.to.proc.give(cluster.Desired{Desired: get()}) })
	}
}

func (s rootSender) ReportAck(msg wire.ReportAck) {
	s.w.traffic(msg)
	get := encoded(msg)
	s.to.link.carry(down, msg, func() { s.to.proc.give(cluster.Ack{ReportAck: get()}) })
}

func (s rootSender) RootNet(msg wire.RootNet) {
	if get := encoded(msg); s.streams(msg) {
		s.to.link.carry(down, msg, func() { s.to.proc.give(cluster.RootNet{RootNet: get()}) })
	}
}

// streams reports whether the cluster's stream is open to take the message.
func (s rootSender) streams(msg any) bool {
	s.w.traffic(msg)
	open := s.to.link.stream == s.to.link.conn && s.to.link.conn != 0
	if !open {
		s.w.said(s.name, s.to.name, "✗ no stream: ", msg)
	}
	return open
}

func (w *World) addCluster(id api.ClusterID) *ClusterMachine {
	m := &ClusterMachine{w: w, name: string(id), id: id, retained: map[api.NodeID]func() wire.Desired{}, moved: map[api.InstanceID]api.Epoch{}, known: map[wire.Key][]api.NodeID{}, lastUrgent: map[int]moment{}}
	m.proc = process[cluster.Input]{w: w, name: m.name, clock: w.newClock(), disk: newDisk(), tick: cluster.Tick{}, send: m.send}
	m.proc.fell = func() { m.fell(); w.after(w.downTime(), m.start) }
	m.proc.holds = m.holds
	m.link = &link{
		w: w, q: w.quality,
		lower: end{m.name, m.isAlive, m.proc.running, m.linked},
		upper: end{"root", func() bool { return w.root.proc.alive }, w.root.proc.running, func(bool) {}},
	}
	w.clusters = append(w.clusters, m)
	return m
}

func (m *ClusterMachine) isAlive() bool { return m.proc.alive }

// join makes the cluster join the root, as its operator does by hand, and repeats the
// request until it is answered.
func (m *ClusterMachine) join() {
	a := m.w.root.proc.give(root.JoinCluster{Info: api.ClusterInfo{ID: m.id}})
	if !a.taken || a.err != nil {
		m.w.after(time.Second, m.join)
		return
	}
	c, ok := m.w.root.core.Cluster(m.id)
	if !ok {
		m.w.violate("lost", "root", "cluster %s has joined, but is unknown", m.id)
		return
	}
	m.info = c.ClusterInfo
	m.start()
	for _, n := range m.nodes {
		n.join()
	}
}

func (m *ClusterMachine) start() {
	if m.proc.alive || m.gone || m.info.ID == "" {
		return
	}
	m.everPreempts = m.everPreempts || m.preempt
	m.core = cluster.New(cluster.Config{
		ID: m.id, LocalNumbers: m.info.LocalNumbers(), Seed: []byte(m.id), Relay: "192.0.2.1:7443", Offer: m.offer, Preempt: m.preempt,
	})
	if err := m.core.Restore(m.proc.disk.load(m.w.chance)); err != nil {
		m.w.violate("restore", m.name, "%v", err)
		return
	}
	m.w.note(m.name, "starts")
	m.tasks = nil
	m.proc.start(m.core, cluster.Start{})
	m.setTasks(m.core.MoveTasks())
	m.link.changed()
	m.link.dial(m.w.between(10*time.Millisecond, time.Second))
}

func (m *ClusterMachine) crash() {
	if m.proc.alive {
		m.w.note(m.name, "crashes")
		m.proc.crash()
		m.fell()
	}
}

func (m *ClusterMachine) fell() {
	m.link.reset(0, m.w.learns())
	if m.w.externalBroker {
		return
	}
	clear(m.retained)
	for _, n := range m.nodes {
		n.link.reset(m.w.learns(), 0)
	}
}

func (m *ClusterMachine) node(id api.NodeID) *NodeMachine {
	for _, n := range m.nodes {
		if n.id == id {
			return n
		}
	}
	return nil
}

func (m *ClusterMachine) send(e wire.Envelope) {
	if e.To == wire.ToRoot {
		m.w.traffic(e.Msg)
		e.Msg.(wire.ClusterToRoot).DeliverToRoot(m)
		return
	}
	if all, ok := e.Msg.(placement.Tasks); ok && e.To == placement.ToMoves {
		m.setTasks(all)
		return
	}
	if e.To == netbook.ToRelay || e.To == wire.ToWatchers {
		return // paths are given here, see NetMachine
	}
	id, ok := strings.CutPrefix(string(e.To), "node/")
	n := m.node(api.NodeID(id))
	if !ok || n == nil {
		m.w.violate("wire", m.name, "sends %T %+v to %q", e.Msg, e.Msg, e.To)
		return
	}
	m.w.traffic(e.Msg)
	e.Msg.(wire.ClusterToNode).DeliverToNode(clusterSender{m, n})
}

// clusterSender carries the messages of a cluster's core to a node.
type clusterSender struct {
	*ClusterMachine
	to *NodeMachine
}

func (s clusterSender) Desired(msg wire.Desired) {
	n := s.to
	n.sent = wire.Desired{Gen: msg.Gen, Digest: msg.Digest}
	s.w.checkPreempted(s.ClusterMachine)
	s.noteKnown(msg)
	get := encoded(msg)
	if msg.From == 0 && !(s.w.quality.Hostile && s.w.chance.Float64() < s.w.quality.Loss) {
		s.retained[n.id] = get
	}
	n.link.carry(down, msg, func() { n.proc.give(node.Desired{Desired: get()}) })
}

func (s clusterSender) Lease(msg wire.Lease) {
	n, get := s.to, encoded(msg)
	n.link.carry(down, msg, func() {
		n.answered(msg)
		n.proc.give(node.Lease{Lease: get()})
	})
}

func (s clusterSender) ProbeOrder(msg wire.ProbeOrder) {
	n, get := s.to, encoded(msg)
	n.link.carry(down, msg, func() {
		if n.proc.running() {
			n.probe(get())
		}
	})
}

func (s clusterSender) NetDown(msg wire.NetDown) {
	n, get := s.to, encoded(msg)
	n.link.carry(down, msg, func() {
		if n.net != nil && n.proc.alive {
			n.net.proc.give(overlay.Down{NetDown: get()})
		}
	})
}

// Report implements wire.ClusterToRootHandler, as does Hello.
func (m *ClusterMachine) Report(msg wire.Report) {
	m.reported = msg
	m.w.checkMoves(m, msg)
	get := encoded(msg)
	m.link.carry(up, msg, func() { m.w.root.proc.give(root.Report{Report: get()}) })
}

// Hello opens the stream of desired state anew.
func (m *ClusterMachine) Hello(wire.Hello) { m.openStream() }

// openStream requests the desired state that the core does not have. The adapter does this
// on each connection, and again when the core sends Hello. A stream that does not open is
// requested again, because the HTTP request fails and is not lost.
func (m *ClusterMachine) openStream() {
	if !m.proc.alive {
		return
	}
	conn := m.link.conn
	m.w.after(m.link.q.Silence, func() {
		if conn != 0 && m.link.conn == conn && m.link.stream != conn {
			m.openStream()
		}
	})
	digest, _ := m.core.Digests()
	hello := wire.Hello{Cluster: m.id, Since: m.core.Gen(), Digest: digest}
	m.link.carry(up, hello, func() {
		m.link.stream = m.link.conn
		m.w.root.proc.give(root.Hello{Hello: hello})
	})
}

// linked passes the state of the connection to the core, and opens the stream on it.
func (m *ClusterMachine) linked(up bool) {
	if up {
		m.openStream()
	}
	m.proc.give(cluster.RootLink{Up: up})
}

func (m *ClusterMachine) addNode(id api.NodeID, info api.NodeInfo) *NodeMachine {
	info.ID = id
	n := &NodeMachine{w: m.w, name: m.name + "/" + string(id), id: id, info: info, asJoined: info, cluster: m, clock: m.w.newClock()}
	n.info.Features = []string{api.FeatureDeadline, api.FeatureHealth, api.FeatureScale, api.FeatureRequests, api.FeatureStorage, api.FeatureVolumeCopy, api.FeatureOfVolume(api.VolumeLocal)}
	n.runtime, n.checks, n.volumes = newRuntime(n), newChecks(n), map[api.VolumeID]api.NodeVolume{}
	n.data, n.incoming = map[api.VolumeID]data{}, map[api.VolumeID]incoming{}
	if m.w.Network {
		n.addNet()
		n.info.Network = api.NetworkOverlay
	}
	n.proc = process[node.Input]{w: m.w, name: n.name, clock: n.clock, disk: newDisk(), tick: node.Tick{}, send: n.send}
	n.proc.fell = func() { n.fell(true); m.w.after(m.w.downTime(), n.start) }
	n.proc.holds = n.holds
	broker := end{m.name, m.isAlive, m.proc.running, n.willed}
	if m.w.externalBroker {
		always := func() bool { return true }
		broker.alive, broker.running = always, always
	}
	n.link = &link{
		w: m.w, q: m.w.quality, upper: broker,
		lower: end{n.name, func() bool { return n.proc.alive }, n.proc.running, n.linked},
		pace:  &redial.Pace{Min: 500 * time.Millisecond, Max: 5 * time.Second}, hurry: n.hurries,
	}
	m.nodes = append(m.nodes, n)
	n.loads()
	return n
}

// hurries reports whether the node dials its broker again without growing pauses.
func (m *NodeMachine) hurries() bool { return m.dial.Hurry }

// join makes the node known to its cluster and starts it.
func (m *NodeMachine) join() {
	if m.gone {
		return
	}
	a := m.cluster.proc.give(cluster.JoinNode{Info: m.info})
	if !a.taken || a.err != nil {
		m.w.after(time.Second, m.join)
		return
	}
	m.wiped = false
	m.start()
}

func (m *NodeMachine) start() {
	switch {
	case m.proc.alive || m.gone:
		return
	case m.wiped: // it has no identity until it has joined
		m.join()
		return
	}
	// Completed instances leave the network before the world has settled.
	m.core = node.New(node.Config{ID: m.id, Linger: 5 * time.Second})
	if err := m.core.Restore(m.proc.disk.load(m.w.chance)); err != nil {
		m.w.violate("restore", m.name, "%v", err)
		return
	}
	found := m.runtime.found()
	m.w.note(m.name, "starts and finds %d workloads", len(found))
	m.proc.start(m.core, node.Start{Info: m.present(), Found: found})
	m.runtime.repeatExits()
	m.link.changed()
	m.link.dial(m.w.between(10*time.Millisecond, 500*time.Millisecond))
	if m.net != nil {
		m.net.start()
		m.net.reconcile()
	}
}

// present returns the properties that the node reports.
func (m *NodeMachine) present() api.NodeInfo {
	info := m.truth()
	if m.w.opts.Plant == PlantOldLabels {
		info.Labels, info.Addons = m.asJoined.Labels, m.asJoined.Addons
	}
	return info
}

// truth returns the real properties of the node.
func (m *NodeMachine) truth() api.NodeInfo {
	info := m.info
	info.Volumes = m.hasVolumes()
	if m.runtime.down {
		info.RuntimeError = runtimeDownDetail
	}
	if m.net != nil && !m.net.isReady() {
		info.NetworkError = "the netmanager is not ready"
	}
	return info
}

// crash ends the node engine; its workloads keep running.
func (m *NodeMachine) crash() {
	if m.proc.alive {
		m.w.note(m.name, "the node engine crashes")
		m.proc.crash()
		m.fell(true)
	}
}

// crashMachine ends the machine with its workloads.
func (m *NodeMachine) crashMachine(wipe bool) {
	m.w.note(m.name, "the machine crashes")
	m.proc.crash()
	if m.wiped = m.wiped || wipe; wipe {
		m.w.note(m.name, "and loses its store")
		m.proc.disk.wipe()
		m.proc.before = nil
	}
	if m.net != nil {
		m.net.machineEnds(wipe)
	}
	m.runtime.machineEnds(wipe || m.w.chance.IntN(3) > 0)
	m.fell(false)
	m.clock.offset += m.w.rebootShift()
}

func (m *NodeMachine) fell(prompt bool) {
	m.runtime.engineEnds()
	m.checks.engineEnds()
	if m.net != nil {
		m.net.linked(false)
	}
	learns := m.w.learns()
	if !prompt {
		learns = m.link.q.Silence
	}
	m.link.reset(0, learns)
}

// setRuntime makes the runtime unavailable or available.
func (m *NodeMachine) setRuntime(down bool) {
	if m.runtime.down == down {
		return
	}
	m.runtime.down = down
	if down {
		m.w.note(m.name, "the runtime goes away")
		m.proc.give(node.Info{Info: m.present()})
		return
	}
	m.w.note(m.name, "the runtime is back")
	m.proc.give(node.Info{Info: m.present(), Found: m.runtime.found(), Fresh: true})
	if m.net != nil {
		m.net.reconcile()
	}
}

func (m *NodeMachine) happened(e wire.WorkloadEvent) { m.proc.give(node.Workload{WorkloadEvent: e}) }

// linked also delivers the message that the broker retained, however old it is.
func (m *NodeMachine) linked(up bool) {
	m.proc.give(node.Link{Up: up})
	if m.net != nil {
		m.net.linked(up)
	}
	if get := m.cluster.retained[m.id]; up && get != nil {
		m.link.carry(down, retained{get()}, func() { m.proc.give(node.Desired{Desired: get()}) })
	}
}

// willed delivers the node's last will to the cluster.
func (m *NodeMachine) willed(up bool) {
	if !up {
		m.w.said(m.name, m.cluster.name, "", "last will")
		m.cluster.proc.give(cluster.NodeWill{Node: m.id})
	}
}

func (m *NodeMachine) send(e wire.Envelope) {
	switch e.To {
	case wire.ToRuntime:
		m.w.traffic(e.Msg)
		m.w.said(m.name, m.name+"/runtime", "", e.Msg)
		era := m.runtime.era
		m.w.after(10*time.Microsecond, func() {
			if m.runtime.era == era {
				e.Msg.(wire.WorkloadOrder).Deliver(m.runtime)
			}
		})
	case wire.ToCluster:
		m.w.traffic(e.Msg)
		e.Msg.(wire.NodeToCluster).DeliverFromNode(m)
	case node.ToDialer:
		m.dial = e.Msg.(node.Dial)
	case node.ToMeter: // see loads
	case node.ToChecker:
		switch o := e.Msg.(type) {
		case node.Check:
			m.checks.check(o)
		case node.Uncheck:
			m.checks.uncheck(o.Key)
		}
	default:
		m.w.violate("wire", m.name, "sends %T to %q", e.Msg, e.To)
	}
}

// NodeReport implements wire.NodeToClusterHandler, as does Alive.
func (m *NodeMachine) NodeReport(msg wire.NodeReport) {
	m.w.checkKept(m, msg)
	get := encoded(msg)
	m.link.carry(up, msg, func() { m.cluster.proc.give(cluster.NodeReport{NodeReport: get()}) })
}

// Alive sends a heartbeat.
func (m *NodeMachine) Alive(msg wire.Alive) {
	m.alive = msg
	m.beats[msg.Seq%uint64(len(m.beats))] = beat{msg.Boot, msg.Seq, m.w.now}
	m.link.carry(up, msg, func() { m.cluster.proc.give(cluster.NodeAlive{Node: m.id, Alive: msg}) })
	if m.w.opts.Plant == PlantIgnoreLeases {
		m.w.after(time.Millisecond, func() {
			m.proc.give(node.Lease{Lease: wire.Lease{Boot: msg.Boot, Seq: msg.Seq, Gen: msg.Gen}})
		})
	}
}

func (w *World) cluster(id api.ClusterID) *ClusterMachine {
	for _, c := range w.clusters {
		if c.id == id {
			return c
		}
	}
	return nil
}

// machine finds a node by "cluster/node".
func (w *World) machine(name string) (*NodeMachine, error) {
	c, n, _ := strings.Cut(name, "/")
	if m := w.cluster(api.ClusterID(c)); m != nil {
		if nm := m.node(api.NodeID(n)); nm != nil {
			return nm, nil
		}
	}
	return nil, fmt.Errorf("node %q: %w", name, api.ErrNotFound)
}
