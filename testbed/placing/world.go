package placing

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/internal/yaml"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// World is a root, its clusters and their nodes. Messages arrive at once and in order.
type World struct {
	Now      time.Time
	Root     *root.Core
	Clusters map[api.ClusterID]*cluster.Core

	// RTT returns the round trip of a node's probe of a target; below 0 there is no answer. If RTT is
	// nil, no target answers.
	RTT func(n api.NodeID, target string) time.Duration
	// Timed is called with the duration of each step with an assignment or a document.
	Timed func(tier string, took time.Duration)

	nodes  map[api.NodeID]*machine
	queue  []func()
	wakes  map[api.Addr]time.Time // when a core is to be woken
	events []string
}

// machine is a node that runs all its instances.
type machine struct {
	info    api.NodeInfo
	cluster api.ClusterID
	dead    bool
	seq     uint64
	gen     api.Generation
	desired api.Digest
	runs    map[api.InstanceID]api.Observed
	coord   *api.Coordinate
	netSeq  uint64
}

// Node returns a machine with 4 vCPUs, 4 GiB, 10 GiB of disk and 1 Gbit/s that runs containers on
// amd64; with changes it.
func Node(id string, with ...func(*api.NodeInfo)) api.NodeInfo {
	n := api.NodeInfo{
		ID: api.NodeID(id), Arch: "amd64", OS: "linux", Runtimes: []string{"container"}, Network: api.NetworkOverlay,
		Capacity: api.Resources{MilliCPU: 4000, MemoryMB: 4096, StorageMB: 10_240, InMbit: 1000, OutMbit: 1000},
	}
	for _, f := range with {
		f(&n)
	}
	return n
}

// New returns a world with only a root.
func New() *World {
	w := &World{
		Now: time.Unix(1_800_000_000, 0), Root: root.New(root.Config{}), Clusters: map[api.ClusterID]*cluster.Core{},
		nodes: map[api.NodeID]*machine{}, wakes: map[api.Addr]time.Time{},
	}
	w.AtRoot(root.Start{})
	return w
}

// Cluster adds a cluster with nodes.
func (w *World) Cluster(cfg cluster.Config, nodes ...api.NodeInfo) {
	w.AtRoot(root.JoinCluster{Info: api.ClusterInfo{ID: cfg.ID}})
	info, _ := w.Root.Cluster(cfg.ID)
	cfg.LocalNumbers = info.LocalNumbers()
	w.Clusters[cfg.ID] = cluster.New(cfg)
	w.At(cfg.ID, cluster.Start{})
	w.At(cfg.ID, cluster.RootLink{Up: true})
	for _, n := range nodes {
		w.Join(cfg.ID, n)
	}
	w.Pass(time.Second) // so that changes are reported together
}

// Join makes a node join a cluster.
func (w *World) Join(c api.ClusterID, info api.NodeInfo) {
	m := &machine{info: info, cluster: c, runs: map[api.InstanceID]api.Observed{}}
	w.nodes[info.ID] = m
	w.At(c, cluster.JoinNode{Info: info})
	w.report(m, &m.info)
}

// Change changes a node, which reports that.
func (w *World) Change(id api.NodeID, with func(*api.NodeInfo)) {
	m := w.nodes[id]
	with(&m.info)
	w.report(m, &m.info)
}

// Kill makes a node silent.
func (w *World) Kill(id api.NodeID) { w.nodes[id].dead = true }

// Put sets a node's coordinate in the latency space.
func (w *World) Put(id api.NodeID, c api.Coordinate) {
	m := w.nodes[id]
	m.coord = &c
	m.netSeq++
	self := wire.NetSelf{Key: sha256.Sum256([]byte(id)), Chain: [][]byte{{1}}, Coord: &c}
	if err := w.At(m.cluster, cluster.NetUp{Node: id, NetUp: wire.NetUp{Boot: 1, Seq: m.netSeq, Whole: m.netSeq == 1, Self: &self}}); err != nil {
		panic("put " + string(id) + ": " + err.Error()) // a bug of the caller: the cluster refuses it
	}
}

// Apply applies an application, see Application.
func (w *World) Apply(services string) error {
	app, err := Application(services)
	if err != nil {
		return err
	}
	return w.ApplyApp(app)
}

// Application returns the application "app.prod". The YAML has the fields of each service by its
// name: "svc: {vcpus: 2}". Without fields a service is a container without requirements.
func Application(services string) (app api.Application, err error) {
	var b strings.Builder
	b.WriteString("sla_version: v2.0\napplications:\n- application_name: app\n  application_namespace: prod\n  microservices:\n")
	for line := range strings.Lines(services) {
		name, fields, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		fields = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(fields), "{"), "}")
		_, _ = fmt.Fprintf(&b, "  - {microservice_name: %s, microservice_namespace: prod, code: img", name)
		if !strings.Contains(fields, "virtualization:") {
			b.WriteString(", virtualization: container")
		}
		if fields != "" {
			b.WriteString(", " + fields)
		}
		b.WriteString("}\n")
	}
	doc, err := yaml.ToJSON([]byte(b.String()))
	if err != nil {
		return app, err
	}
	sla, err := api.ParseSLA(doc)
	if err != nil {
		return app, err
	}
	return sla.Applications[0], nil
}

// ApplyApp applies an application for the tenant acme.
func (w *World) ApplyApp(a api.Application) error {
	began := time.Now()
	eff := w.Root.Step(w.Now, root.Apply{Tenant: "acme", Spec: a})
	w.timed("root", began)
	w.rootSaid(eff)
	w.drain()
	return eff.Err
}

// ID returns the id of an instance of a service of the application that Apply applies.
func ID(service string, n int) api.InstanceID {
	return api.Tenant("acme").App("app", "prod").Service(service, "prod").Instance(n)
}

// Place returns the cluster and node of an instance, "" if it has none.
func (w *World) Place(service string, n int) (api.ClusterID, api.NodeID) {
	id := ID(service, n)
	in, _ := w.Root.Instance(id)
	c := w.Clusters[in.Cluster]
	if c == nil {
		return in.Cluster, ""
	}
	at, _ := c.Instance(id)
	return in.Cluster, at.Node
}

// Events returns the root's events of instances, "web.prod#0 running", oldest first.
func (w *World) Events() []string { return w.events }

// Pass lets time pass: cores wake when they are due, and nodes send heartbeats.
func (w *World) Pass(d time.Duration) {
	const beat = 500 * time.Millisecond
	for end := w.Now.Add(d); w.Now.Before(end); {
		w.Now = w.Now.Add(min(beat, end.Sub(w.Now)))
		for _, id := range step.Keys(w.nodes) {
			w.alive(w.nodes[id])
		}
		for _, at := range step.Keys(w.wakes) {
			if t := w.wakes[at]; t.IsZero() || t.After(w.Now) {
				continue
			}
			if at == wire.ToRoot {
				w.AtRoot(root.Tick{})
			} else {
				w.At(api.ClusterID(strings.TrimPrefix(string(at), "cluster/")), cluster.Tick{})
			}
		}
	}
}

// AtRoot passes an input to the root and delivers the resulting messages.
func (w *World) AtRoot(in root.Input) error {
	eff := w.Root.Step(w.Now, in)
	w.rootSaid(eff)
	w.drain()
	return eff.Err
}

// At passes an input to a cluster and delivers the resulting messages.
func (w *World) At(id api.ClusterID, in cluster.Input) error {
	eff := w.Clusters[id].Step(w.Now, in)
	w.clusterSaid(id, eff)
	w.drain()
	return eff.Err
}

func (w *World) drain() {
	for len(w.queue) > 0 {
		next := w.queue[0]
		w.queue = w.queue[1:]
		next()
	}
}

func (w *World) timed(tier string, began time.Time) {
	if w.Timed != nil {
		w.Timed(tier, time.Since(began))
	}
}

func (w *World) rootSaid(eff step.Effects) {
	w.wakes[wire.ToRoot] = eff.Wake
	for _, e := range eff.Send {
		id := api.ClusterID(strings.TrimPrefix(string(e.To), "cluster/"))
		switch m := e.Msg.(type) {
		case wire.Desired:
			w.queue = append(w.queue, func() { w.toCluster(id, cluster.Desired{Desired: m}, len(m.Put) > 0) })
		case wire.ReportAck:
			w.queue = append(w.queue, func() { w.toCluster(id, cluster.Ack{ReportAck: m}, false) })
		case wire.RootNet:
			w.queue = append(w.queue, func() { w.toCluster(id, cluster.RootNet{RootNet: m}, false) })
		case api.Change:
			if in, ok := m.Object.(api.Instance); ok {
				w.events = append(w.events, fmt.Sprintf("%s %s %s", strings.TrimPrefix(in.ID.Name(), "app.prod."), in.State, in.Reason))
			}
		}
	}
}

func (w *World) toCluster(id api.ClusterID, in cluster.Input, timed bool) {
	c := w.Clusters[id]
	if c == nil {
		return // it has joined, but its core does not exist yet
	}
	began := time.Now()
	eff := c.Step(w.Now, in)
	if timed {
		w.timed("cluster", began)
	}
	w.clusterSaid(id, eff)
}

func (w *World) clusterSaid(id api.ClusterID, eff step.Effects) {
	w.wakes[id.Addr()] = eff.Wake
	for _, e := range eff.Send {
		n := api.NodeID(strings.TrimPrefix(string(e.To), "node/"))
		switch m := e.Msg.(type) {
		case wire.Report:
			w.queue = append(w.queue, func() { w.rootSaid(w.Root.Step(w.Now, root.Report{Report: m})) })
		case wire.Hello:
			w.queue = append(w.queue, func() { w.rootSaid(w.Root.Step(w.Now, root.Hello{Hello: m})) })
		case wire.Desired:
			w.queue = append(w.queue, func() { w.desired(n, m) })
		case wire.ProbeOrder:
			w.queue = append(w.queue, func() { w.probe(n, m) })
		}
	}
}

// desired makes a node run its desired set.
func (w *World) desired(id api.NodeID, d wire.Desired) {
	m := w.nodes[id]
	if m == nil || m.dead || d.Gen < m.gen {
		return
	}
	put := map[api.InstanceID]bool{}
	for _, a := range d.Put {
		put[a.Instance] = true
		m.runs[a.Instance] = api.Observed{
			Instance: a.Instance, Epoch: a.Epoch, State: api.Running, Ready: true, Address: netip.AddrFrom4([4]byte{10, 16, 0, 9}),
		}
	}
	for _, gone := range step.Keys(m.runs) {
		if d.From == 0 && !put[gone] || slices.Contains(d.Drop, gone) {
			delete(m.runs, gone)
		}
	}
	m.gen, m.desired = d.Gen, d.Digest
	w.report(m, nil)
}

func (w *World) report(m *machine, info *api.NodeInfo) {
	if m.dead {
		return
	}
	m.seq++
	r := wire.NodeReport{Node: m.info.ID, Boot: 1, Seq: m.seq, Gen: m.gen, Whole: true, Info: info}
	for _, id := range step.Keys(m.runs) {
		r.Observed = append(r.Observed, m.runs[id])
	}
	w.clusterSaid(m.cluster, w.Clusters[m.cluster].Step(w.Now, cluster.NodeReport{NodeReport: r}))
	w.alive(m)
}

func (w *World) alive(m *machine) {
	if m.dead {
		return
	}
	m.seq++
	said := m.info.Digest()
	for _, id := range step.Keys(m.runs) {
		said = said.Toggle(m.runs[id].Digest())
	}
	_ = w.At(m.cluster, cluster.NodeAlive{
		Node: m.info.ID, Alive: wire.Alive{Boot: 1, Seq: m.seq, Gen: m.gen, Desired: m.desired, Observed: said},
	})
}

func (w *World) probe(id api.NodeID, o wire.ProbeOrder) {
	m := w.nodes[id]
	if m == nil || m.dead || w.RTT == nil {
		return
	}
	answer := wire.Probed{ID: o.ID, RTT: w.RTT(id, o.Target), How: "icmp"}
	if answer.RTT <= 0 {
		answer = wire.Probed{ID: o.ID, Error: "no answer"}
	}
	_ = w.At(m.cluster, cluster.NodeProbed{Node: id, Probed: answer})
}
