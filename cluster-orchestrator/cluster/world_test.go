package cluster

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
)

// defaultDead is the default of Config.Dead.
const defaultDead = 7 * time.Second

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// world drives one core. It has the time, a store, and simulated nodes (twins) that apply
// desired sets at once.
type world struct {
	t      testing.TB
	cfg    Config
	c      *Core
	now    time.Time
	disk   map[string]store.Doc
	nodes  map[api.NodeID]*twin
	gen    api.Generation
	want   map[api.InstanceID]wire.Assignment
	last   step.Effects
	report wire.Report                 // the last one to the root
	claims map[api.NodeID]api.NodeInfo // what each node reported about itself last
	deaf   bool                        // nodes do not receive messages
	shown  map[string]any              // what watchers of the core lists have, by kind and id
	lists  *Core                       // whose lists watchers have read
}

// twin is a simulated node that applies and reports each desired set.
type twin struct {
	id        api.NodeID
	boot      uint64
	seq, beat uint64
	gen       api.Generation
	has       map[api.InstanceID]api.Observed
	want      map[api.InstanceID]wire.Assignment
	off       bool       // neither receives nor sends
	slow      bool       // its instances do not listen
	hangs     bool       // instances that it must not have any more do not end
	reason    api.Reason // of its instances that run
	answers   bool       // it answers roll calls
	said      uint64     // number of its netmanager's last message
	got       []any
}

func newWorld(t testing.TB, nodes int) *world {
	w := &world{
		t: t, cfg: Config{ID: "munich", LocalNumbers: 100_000}, now: epoch,
		shown: map[string]any{}, claims: map[api.NodeID]api.NodeInfo{}, disk: map[string]store.Doc{}, nodes: map[api.NodeID]*twin{}, want: map[api.InstanceID]wire.Assignment{},
	}
	w.c = New(w.cfg)
	w.step(Start{})
	for i := range nodes {
		w.join(api.NodeID(fmt.Sprintf("n%d", i)), api.Resources{MilliCPU: 4000, MemoryMB: 4096})
	}
	return w
}

func (w *world) save(docs []store.Doc) {
	w.t.Helper()
	if err := store.Validate(docs); err != nil {
		w.t.Fatal(err)
	}
	for i, d := range docs {
		k := d.Kind + "\x00" + d.Key
		switch store.Decide(w.disk[k], docs[i:]) {
		case store.Refuse:
			w.t.Fatalf("the store refuses %s %s version %d over %d", d.Kind, d.Key, d.Version, w.disk[k].Version)
		case store.Write:
			if w.disk[k] = d; d.Data == nil {
				delete(w.disk, k)
			}
		}
	}
}

func (w *world) step(in Input) step.Effects {
	w.t.Helper()
	switch in := in.(type) {
	case JoinNode:
		w.claims[in.Info.ID] = in.Info
	case NodeReport:
		if in.Info != nil {
			w.claims[in.Node] = *in.Info
		}
	}
	eff := w.c.Step(w.now, in)
	w.save(eff.Save)
	w.last = eff
	for _, e := range eff.Send {
		if r, ok := e.Msg.(wire.Report); ok {
			w.report = r
		}
	}
	w.watch(eff.Send)
	if !w.deaf {
		w.deliver(eff.Send)
	}
	return eff
}

// watch applies the changes as a watcher does, and compares what it has then with the lists.
func (w *world) watch(envs []wire.Envelope) {
	w.t.Helper()
	for _, e := range envs {
		if ch, ok := e.Msg.(api.Change); ok && e.To == wire.ToWatchers {
			if w.shown[ch.Kind+" "+ch.ID] = ch.Object; ch.Object == nil {
				delete(w.shown, ch.Kind+" "+ch.ID)
			}
		}
	}
	nodes, instances := w.c.Nodes(), w.c.Instances()
	if w.lists != w.c { // a new process
		w.lists, w.shown = w.c, map[string]any{}
		for _, n := range nodes {
			w.shown["node "+string(n.ID)] = n
		}
		for _, i := range instances {
			w.shown["instance "+string(i.ID)] = i
		}
	}
	if len(nodes)+len(instances) > 20 {
		return // each step would cost too much
	}
	if len(nodes)+len(instances) != len(w.shown) {
		w.t.Errorf("watchers have %v, want %d nodes and %d instances", slices.Sorted(maps.Keys(w.shown)), len(nodes), len(instances))
	}
	for _, n := range nodes {
		has, _ := w.shown["node "+string(n.ID)].(api.Node)
		n.Heard, n.CPUUsed, n.MemUsed, n.Remaining = has.Heard, has.CPUUsed, has.MemUsed, has.Remaining
		if !reflect.DeepEqual(has, n) {
			w.t.Errorf("watchers have the node %+v, want %+v", has, n)
		}
	}
	for _, i := range instances {
		if has, _ := w.shown["instance "+string(i.ID)].(api.Instance); !reflect.DeepEqual(has, i) {
			w.t.Errorf("watchers have the instance %+v, want %+v", has, i)
		}
	}
}

// ack acknowledges the last report.
func (w *world) ack() step.Effects {
	w.t.Helper()
	return w.step(Ack{wire.ReportAck{Boot: w.report.Boot, Seq: w.report.Seq}})
}

func (w *world) deliver(envs []wire.Envelope) {
	for _, e := range envs {
		for id, n := range w.nodes {
			if e.To == id.Addr() && !n.off {
				n.take(e.Msg)
			}
		}
	}
}

func (n *twin) take(msg any) {
	n.got = append(n.got, msg)
	d, ok := msg.(wire.Desired)
	if !ok || d.Gen < n.gen || d.From != 0 && d.From != n.gen {
		return
	}
	if d.From == 0 {
		n.want = map[api.InstanceID]wire.Assignment{}
	}
	for _, a := range d.Put {
		n.want[a.Instance] = a
	}
	for _, id := range d.Drop {
		delete(n.want, id)
	}
	n.gen = d.Gen
}

// settle makes the twin run its desired set.
func (n *twin) settle() {
	for id := range n.has {
		if _, ok := n.want[id]; !ok && !n.hangs {
			delete(n.has, id)
		}
	}
	for id, a := range n.want {
		if o := n.has[id]; o.Epoch != a.Epoch {
			n.has[id] = api.Observed{Instance: id, Epoch: a.Epoch, State: api.Running, Reason: n.reason, Node: n.id, Ready: !n.slow}
		}
	}
}

func (n *twin) digests() (desired, observed api.Digest) {
	for _, a := range n.want {
		desired = desired.Toggle(a.Digest())
	}
	for _, o := range n.has {
		observed = observed.Toggle(o.Digest())
	}
	return desired, observed
}

func (w *world) join(id api.NodeID, has api.Resources) *twin {
	w.nodes[id] = &twin{
		id: id, boot: 1, has: map[api.InstanceID]api.Observed{}, want: map[api.InstanceID]wire.Assignment{},
	}
	w.step(JoinNode{Info: nodeInfo(id, has)})
	w.speak(id)
	return w.nodes[id]
}

func nodeInfo(id api.NodeID, has api.Resources) api.NodeInfo {
	return api.NodeInfo{ID: id, Arch: "amd64", OS: "linux", Capacity: has, Runtimes: []string{"container"}, Network: api.NetworkOverlay, Features: []string{api.FeatureScale, api.FeatureStorage}}
}

// whole returns the twin's whole report.
func (n *twin) whole() NodeReport {
	n.seq++
	r := wire.NodeReport{Node: n.id, Boot: n.boot, Seq: n.seq, Gen: n.gen, Whole: true, AnswersLease: n.answers}
	for _, id := range step.Keys(n.has) {
		r.Observed = append(r.Observed, n.has[id])
	}
	return NodeReport{r}
}

func (n *twin) alive() NodeAlive {
	n.beat++
	d, o := n.digests()
	return NodeAlive{Node: n.id, Alive: wire.Alive{Boot: n.boot, Seq: n.beat, Gen: n.gen, Desired: d, Observed: o}}
}

// speak sends a node's whole report and a heartbeat.
func (w *world) speak(id api.NodeID) {
	n := w.nodes[id]
	if n.off {
		return
	}
	w.step(n.whole())
	w.step(n.alive())
}

// beat lets every node that is not off settle and report, twice, so that the effects of the
// first round are reported too.
func (w *world) beat() {
	for range 2 {
		for _, id := range step.Keys(w.nodes) {
			if n := w.nodes[id]; !n.off {
				n.settle()
				w.speak(id)
			}
		}
	}
}

// pass advances the time, with a tick at every wake-up and a beat every two seconds.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	end, beat := w.now.Add(d), w.now.Add(2*time.Second)
	for w.now.Before(end) {
		next := end
		if beat.Before(next) {
			next = beat
		}
		if wake := w.last.Wake; !wake.IsZero() && wake.Before(next) && wake.After(w.now) {
			next = wake
		}
		w.now = next
		w.step(Tick{})
		if !w.now.Before(beat) {
			w.beat()
			beat = w.now.Add(2 * time.Second)
		}
	}
}

func spec(cpu float64, mem int64) api.Microservice {
	return api.Microservice{Name: "web", Namespace: "prod", Virtualization: "container", VCPUs: cpu, Memory: mem}
}

func exclusive(cpu float64, mem int64) api.Microservice {
	m := spec(cpu, mem)
	m.Exclusive = true
	return m
}

const web = api.ServiceID("acme/shop.prod.web.prod")

func assignment(n int, root api.Revision, m api.Microservice) wire.Assignment {
	return wire.Assignment{Instance: web.Instance(n), Epoch: api.EpochOf(root, 0), SpecRev: 1, Spec: m}
}

// desire sends the root's whole desired set.
func (w *world) desire() {
	w.gen++
	d := wire.Desired{Gen: w.gen}
	for _, id := range step.Keys(w.want) {
		d.Put = append(d.Put, w.want[id])
		d.Digest = d.Digest.Toggle(w.want[id].Digest())
	}
	w.step(Desired{d})
}

func (w *world) wants(as ...wire.Assignment) {
	for _, a := range as {
		w.want[a.Instance] = a
	}
	w.desire()
}

func (w *world) drops(ids ...api.InstanceID) {
	for _, id := range ids {
		delete(w.want, id)
	}
	w.desire()
}

// crash restores a core from the saves before the step and a prefix of the step's saves.
func (w *world) restart() {
	w.t.Helper()
	w.c = New(w.cfg)
	var docs []store.Doc
	for _, k := range step.Keys(w.disk) {
		docs = append(docs, w.disk[k])
	}
	if err := w.c.Restore(docs); err != nil {
		w.t.Fatal(err)
	}
	w.step(Start{})
}

func (w *world) crashAfter(in Input, saves int) {
	eff := w.c.Step(w.now, in)
	w.save(eff.Save[:min(saves, len(eff.Save))])
	w.restart()
}

func (w *world) at(n int) api.Instance {
	w.t.Helper()
	in, ok := w.c.Instance(web.Instance(n))
	if !ok {
		w.t.Fatalf("there is no instance %d", n)
	}
	return in
}

func (w *world) expect(n int, s api.State, node api.NodeID) api.Instance {
	w.t.Helper()
	in := w.at(n)
	if in.State != s || in.Node != node {
		w.t.Fatalf("instance %d is %s on %q (%s: %s), want %s on %q", n, in.State, in.Node, in.Reason, in.Detail, s, node)
	}
	return in
}

// reports returns the reports to the root in the last step.
func (w *world) reports() (out []wire.Report) {
	for _, e := range w.last.Send {
		if r, ok := e.Msg.(wire.Report); ok {
			out = append(out, r)
		}
	}
	return out
}

func (w *world) told(msgs []any) (ds []wire.Desired) {
	for _, m := range msgs {
		if d, ok := m.(wire.Desired); ok {
			ds = append(ds, d)
		}
	}
	return ds
}

// record returns the document of an instance, or the zero value if it does not exist.
func (w *world) record(id api.InstanceID) placement.Record {
	r, _ := w.c.place.Record(id)
	return r
}

// records returns the documents of all instances.
func (w *world) records() map[api.InstanceID]placement.Record {
	out := map[api.InstanceID]placement.Record{}
	for _, id := range w.c.place.IDs() {
		out[id] = w.record(id)
	}
	return out
}

// observed returns the observation of an instance for the root.
func (w *world) observed(id api.InstanceID) api.Observed {
	o, _ := w.c.place.Observed(id)
	return o
}

// node returns a node as in the API.
func (w *world) node(id api.NodeID) api.Node {
	n, _ := w.c.Node(id)
	return n
}

func gpus(ids ...string) (out []api.NodeDevice) {
	for _, id := range ids {
		out = append(out, api.NodeDevice{ID: id, Kinds: []string{api.DeviceGPU, "nvidia.com/gpu"}})
	}
	return out
}

// lastReport returns the number of a core's last report.
func lastReport(c *Core) uint64 {
	seq, _ := c.uplink.Last()
	return seq
}

// waits reports whether a core's last report is unanswered.
func waits(c *Core) bool {
	_, waits := c.uplink.Last()
	return waits
}

// wanted returns the digest of the root's desired set.
func wanted(c *Core) api.Digest {
	digest, _ := c.Digests()
	return digest
}
