package root

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root/applications"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// world runs one core with a store that checks the order of saves, and simple simulated clusters
// (twins).
type world struct {
	t     testing.TB
	cfg   Config
	c     *Core
	now   time.Time
	disk  map[string]store.Doc
	twins map[api.ClusterID]*twin
	last  step.Effects
	told  []wire.ReportAck
	copy  *Copy // of disk, which adopted each save
}

// twin is a simulated cluster with a number of slots, which runs its desired set.
type twin struct {
	id        api.ClusterID
	boot, seq uint64
	gen       api.Generation
	want      map[api.InstanceID]wire.Assignment
	bad       map[api.Revision]bool // SLA revisions whose workloads fail
	badCode   string                // the code of SLAs whose workloads fail
	has       map[api.InstanceID]api.Observed
	local     map[api.InstanceID]api.Observed
	violated  map[api.InstanceID]bool // instances whose place violates their SLA
	moves     map[api.InstanceID][]time.Time
	room      int
	even      bool // its free resources are always the same
	off       bool
	slow      bool   // no instance starts
	full      bool   // it takes no new instance, whatever it reports as free
	lacks     string // the constraint that it then reports
	near      bool   // it refuses instances with links, for latency, until the search is over
	more      int    // nodes in addition to the first
	known     map[api.InstanceID]api.Epoch
	at        *api.Position // the position of all its nodes
	noOverlay bool          // its nodes have no overlay network
	devices   []api.SlotDevice
	yields    []api.Preemptible
	areas     []string
	features  []string
	volumes   bool                              // its nodes support local volumes
	disrupts  map[api.InstanceID]api.Generation // disruptions that it requests or carries out
	down      map[api.InstanceID]bool           // instances that have failed and are restarted
}

func newWorld(t testing.TB, clusters ...api.ClusterID) *world {
	w := &world{t: t, now: epoch, disk: map[string]store.Doc{}, twins: map[api.ClusterID]*twin{}, copy: NewCopy()}
	w.c = New(w.cfg)
	w.do(Start{})
	for _, id := range clusters {
		w.join(id, 10)
	}
	return w
}

func (w *world) join(id api.ClusterID, room int) *twin {
	tw := w.enter(id, room)
	w.settle()
	return tw
}

// enter is join without a first report.
func (w *world) enter(id api.ClusterID, room int) *twin {
	w.must(JoinCluster{Info: api.ClusterInfo{ID: id}})
	tw := newTwin(id, room)
	w.twins[id] = tw
	return tw
}

func newTwin(id api.ClusterID, room int) *twin {
	return &twin{
		id: id, boot: 1, room: room, want: map[api.InstanceID]wire.Assignment{}, bad: map[api.Revision]bool{},
		has: map[api.InstanceID]api.Observed{}, local: map[api.InstanceID]api.Observed{},
		violated: map[api.InstanceID]bool{}, known: map[api.InstanceID]api.Epoch{},
		disrupts: map[api.InstanceID]api.Generation{}, down: map[api.InstanceID]bool{},
	}
}

func (w *world) must(in Input) step.Effects {
	w.t.Helper()
	eff := w.do(in)
	if eff.Err != nil {
		w.t.Fatal(eff.Err)
	}
	return eff
}

func (w *world) do(in Input) step.Effects {
	w.t.Helper()
	eff := w.c.Step(w.now, in)
	w.save(eff.Save)
	w.last = eff
	for _, e := range eff.Send {
		for _, tw := range w.twins {
			if e.To == tw.id.Addr() && !tw.off {
				tw.take(e.Msg)
				if a, ok := e.Msg.(wire.ReportAck); ok {
					w.told = append(w.told, a)
				}
			}
		}
	}
	return eff
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
			if err := w.copy.Adopt(d); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

func (tw *twin) take(msg any) {
	d, ok := msg.(wire.Desired)
	if !ok || d.Gen < tw.gen || d.From != 0 && d.From != tw.gen {
		return
	}
	if d.From == 0 {
		tw.want = map[api.InstanceID]wire.Assignment{}
	}
	for _, a := range d.Put {
		tw.want[a.Instance] = a
		delete(tw.local, a.Instance)
	}
	for _, id := range d.Drop {
		delete(tw.want, id)
		delete(tw.local, id)
	}
	tw.gen = d.Gen
}

// run makes the twin run its desired set, as far as it has slots.
func (tw *twin) run() {
	running := 0
	tw.has = map[api.InstanceID]api.Observed{}
	for _, id := range step.Keys(tw.want) {
		a := tw.want[id]
		o := api.Observed{Instance: id, Epoch: a.Epoch + 1, State: api.Running}
		switch {
		case running >= tw.room:
			o.State, o.HandedBack, o.Reason = api.Requested, true, api.ReasonNoCapacity
		case tw.full && tw.known[id] != a.Epoch:
			o.State, o.HandedBack, o.Reason = api.Requested, true, api.ReasonNoCapacity
			if tw.lacks != "" {
				o.Why = &api.Explanation{Considered: 1, Causes: []api.Cause{{Constraint: tw.lacks, Count: 1}}}
			}
		case tw.near && a.Instance.Service() == front && !a.Searched:
			o.State, o.HandedBack, o.Reason = api.Requested, true, api.ReasonNoCapacity
			o.Why = &api.Explanation{Considered: 1, Causes: []api.Cause{{Constraint: "latency", Count: 1}}}
		case tw.slow && tw.known[id] != a.Epoch:
			o.State = api.NodeScheduled
			running++
		case tw.bad[a.SpecRev], tw.badCode != "" && a.Spec.Code == tw.badCode:
			o.State, o.Reason = api.Failed, api.ReasonExited
			running++
		default:
			running++
			tw.known[id] = a.Epoch
			o.Volumes = tw.volumes && a.Spec.KeepsData()
			if a.Watched {
				o.Position = tw.at
			}
			o.Moves = tw.moves[id]
			if o.Disruption = tw.disrupts[id]; tw.down[id] {
				o.State, o.Reason = api.Failed, api.ReasonExited
			}
			if tw.violated[id] {
				o.HandedBack, o.Reason, o.Violated = true, api.ReasonViolated, "latency 34.9 ms, at most 20 ms to pre.prod"
			}
		}
		tw.has[id] = o
	}
	for id, o := range tw.local {
		tw.has[id] = o
	}
}

func (tw *twin) report() Report {
	tw.seq++
	free := api.Resources{MilliCPU: int64(tw.room) * 1000, MemoryMB: int64(tw.room) * 100}
	for _, o := range tw.has {
		if !o.HandedBack && !tw.even {
			free = free.Minus(api.Resources{MilliCPU: 1000, MemoryMB: 100})
		}
	}
	r := wire.Report{
		Cluster: tw.id, Boot: tw.boot, Seq: tw.seq, Gen: tw.gen, Whole: true,
		Aggregate: api.Aggregate{
			Nodes: 1 + tw.more, Capacity: api.Resources{MilliCPU: 10_000, MemoryMB: 1000}, Free: free, Largest: free,
			Slots: []api.Slot{{Runtime: "container", Arch: "amd64", Network: !tw.noOverlay, Nodes: 1, Free: free, Largest: free}},
		},
	}
	r.Aggregate.Preemptible = tw.yields
	r.Aggregate.Slots[0].Devices, r.Aggregate.Slots[0].Areas, r.Aggregate.Slots[0].Features = tw.devices, tw.areas, append(slices.Clone(tw.features), api.FeatureStorage)
	if tw.volumes {
		a := &r.Aggregate
		for _, part := range []*api.Resources{&a.Capacity, &a.Free, &a.Largest, &a.Slots[0].Free, &a.Slots[0].Largest} {
			part.StorageMB = 1 << 20
		}
		a.Slots[0].Features = append(slices.Clone(a.Slots[0].Features), api.FeatureOfVolume(api.VolumeLocal))
	}
	if tw.at != nil {
		r.Aggregate.Latency = &api.CoordSpread{Center: *tw.at.Coord, Nodes: 1}
		r.Aggregate.Hull = []api.Geo{*tw.at.Geo}
	}
	for _, a := range tw.want {
		r.Desired = r.Desired.Toggle(a.Digest())
	}
	for _, id := range step.Keys(tw.has) {
		r.Known = r.Known.Toggle(tw.has[id].Digest())
		r.Observed = append(r.Observed, tw.has[id])
	}
	return Report{r}
}

// settle lets the clusters run and report until nothing changes.
func (w *world) settle() {
	w.t.Helper()
	for range 4 {
		w.round()
	}
	w.checkCopy()
}

func (w *world) round() {
	w.t.Helper()
	w.now = w.now.Add(1100 * time.Millisecond)
	w.do(Tick{})
	for _, id := range step.Keys(w.twins) {
		if tw := w.twins[id]; !tw.off {
			tw.run()
			w.do(tw.report())
		}
	}
}

func (w *world) pass(d time.Duration) {
	w.t.Helper()
	for end := w.now.Add(d); w.now.Before(end); {
		w.round()
	}
}

func (w *world) restart() {
	w.t.Helper()
	w.restored()
	w.do(Start{})
}

// restored makes a core of what is stored, and returns its revision.
func (w *world) restored() api.Revision {
	w.t.Helper()
	w.c = New(w.cfg)
	var docs []store.Doc
	for _, d := range w.disk {
		docs = append(docs, d)
	}
	if err := w.c.Restore(docs); err != nil {
		w.t.Fatal(err)
	}
	return w.c.Revision()
}

const (
	shop = api.AppID("acme/shop.prod")
	web  = api.ServiceID("acme/shop.prod.web.prod")
)

func application(replicas int, change ...func(*api.Microservice)) api.Application {
	zero := 0
	m := api.Microservice{
		Name: "web", Namespace: "prod", Virtualization: "container", VCPUs: 1, Memory: 100, Replicas: &replicas,
		Update: &api.Update{Surge: &zero, MinHealthyTime: &zero}, // most tests are about a single instance
	}
	for _, f := range change {
		f(&m)
	}
	return api.Application{Name: "shop", Namespace: "prod", Services: []api.Microservice{m}}
}

func exclusive(m *api.Microservice) { m.Exclusive = true }

func code(s string) func(*api.Microservice) {
	return func(m *api.Microservice) { m.Code = s }
}

func (w *world) apply(replicas int, change ...func(*api.Microservice)) {
	w.t.Helper()
	w.must(Apply{Tenant: "acme", Spec: application(replicas, change...), By: "alice"})
}

func (w *world) running() (n int) {
	for _, in := range w.c.Instances("acme") {
		if in.State == api.Running && !in.Leaving {
			n++
		}
	}
	return n
}

func (w *world) on(id api.ClusterID) (n int) {
	for _, in := range w.c.Instances("") {
		if in.Cluster == id {
			n++
		}
	}
	return n
}

// records returns all instances, sorted by id.
func (w *world) records() (out []applications.Instance) {
	for _, id := range w.c.apps.Instances() {
		out = append(out, w.c.apps.Get(id))
	}
	return out
}

func (w *world) record(id api.InstanceID) applications.Instance {
	w.t.Helper()
	in, ok := w.c.apps.Instance(id)
	if !ok {
		w.t.Fatalf("instance %s is not known", id)
	}
	return in
}

// checkBooks compares the states of the sub-machines with each other.
func (w *world) checkBooks() {
	w.t.Helper()
	all := w.records()
	for _, id := range w.c.clusters.IDs() {
		var want api.Digest
		var assigned []api.InstanceID
		for _, in := range all {
			if in.Cluster == id && !in.Leaving || in.TrialAt(id) {
				assigned = append(assigned, in.ID)
				want = want.Toggle(in.Digest(id))
			}
		}
		if have := w.c.clusters.Assigned(id); !slices.Equal(have, assigned) {
			w.t.Fatalf("cluster %s is assigned %v, want %v", id, have, assigned)
		}
		if _, digest := w.c.clusters.Generation(id); digest != want {
			w.t.Fatalf("the desired set of cluster %s has digest %x, want %x", id, digest, want)
		}
		if w.c.placement.Candidate(id) == nil {
			w.t.Fatalf("cluster %s is no candidate", id)
		}
	}
	for _, in := range all {
		awaited := slices.Clone(in.Stopping)
		if in.Leaving {
			awaited = append(awaited, in.Cluster)
		}
		if in.Vacating != "" && !slices.Contains(in.Stopping, in.Vacating) {
			w.t.Fatalf("%s waits for %s and stops in %v", in.ID, in.Vacating, in.Stopping)
		}
		for _, at := range awaited {
			if !w.c.clusters.Known(at) {
				w.t.Fatalf("%s waits for cluster %q, which is not known", in.ID, at)
			}
			if !slices.Contains(w.c.clusters.Leaving(at), in.ID) {
				w.t.Fatalf("%s waits for cluster %s, which is not to confirm its end", in.ID, at)
			}
		}
	}
	for _, id := range w.c.apps.Services() {
		peers, n := map[string]int{}, 0
		for in := range w.c.apps.EachOf(id) {
			n++
			if in.Cluster != "" && !in.Leaving {
				peers[string(in.Cluster)]++
			}
			if in.Next != nil {
				peers[string(in.Next.Cluster)]++
			}
		}
		if have := w.c.placement.Peers(id); len(peers)+len(have) > 0 && !maps.Equal(have, peers) {
			w.t.Fatalf("service %s counts %v by cluster, want %v", id, have, peers)
		}
		if app, _ := w.c.apps.Service(id); app == nil && n == 0 {
			w.t.Fatalf("service %s is left without an application and instances", id)
		}
	}
	if known, n := len(w.c.clusters.IDs()), len(w.c.placement.Candidates()); known != n {
		w.t.Fatalf("%d clusters, %d candidates", known, n)
	}
}

// TestRandomInputsWithCrashesConverge applies random valid inputs and crashes between any two saves.
// The sub-machines must always agree, and at the end every instance must be in its place.
func TestRandomInputsWithCrashesConverge(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 7))
		w := newWorld(t, "a", "b", "c")
		id := func() api.ClusterID { return []api.ClusterID{"a", "b", "c"}[rng.IntN(3)] }
		for range 80 {
			var in Input
			switch rng.IntN(20) {
			case 0:
				in = Apply{Tenant: "acme", Spec: application(rng.IntN(9), code([]string{"1", "2", "3"}[rng.IntN(3)]), func(m *api.Microservice) {
					if m.Priority = api.Priorities[rng.IntN(len(api.Priorities))]; rng.IntN(3) > 0 {
						m.Update = nil
					}
				})}
			case 1:
				in = Apply{Tenant: "acme", Spec: application(rng.IntN(4), exclusive)}
			case 2:
				in = Scale{Service: web, Replicas: rng.IntN(12)}
			case 3:
				if rng.IntN(3) == 0 {
					in = DeleteApp{App: shop}
				}
			case 4:
				if k := id(); rng.IntN(4) == 0 {
					in = RemoveCluster{k}
				}
			case 5:
				in = JoinCluster{Info: api.ClusterInfo{ID: id()}}
			case 6:
				tw := w.twins[id()]
				in = Hello{wire.Hello{Cluster: tw.id, Since: tw.gen}}
			case 7:
				tw := w.twins[id()]
				tw.off = !tw.off
			case 8:
				tw := w.twins[id()]
				tw.room, tw.yields = rng.IntN(10), nil
				if rng.IntN(2) == 0 {
					most := api.Resources{MilliCPU: rng.Int64N(9000), MemoryMB: rng.Int64N(900)}
					tw.yields = []api.Preemptible{{Urgency: rng.IntN(4), Free: most, Largest: most}}
				}
			case 14:
				tw := w.twins[id()]
				tw.violated[web.Instance(rng.IntN(9))] = rng.IntN(3) > 0
			case 15:
				tw := w.twins[id()]
				tw.slow = !tw.slow
			case 16:
				tw := w.twins[id()]
				tw.full = !tw.full
			case 18, 19:
				actions := []RollOutAction{PauseRollOut, ResumeRollOut, PromoteRollOut, UndoRollOut}
				in = RollOut{Service: web, Action: actions[rng.IntN(len(actions))], By: "bob"}
			case 17: // web is removed from it
				app := application(0)
				app.Services[0].Name = "other"
				in = Apply{Tenant: "acme", Spec: app}
			case 9:
				w.now = w.now.Add(time.Duration(rng.IntN(40)) * time.Second)
				in = Tick{}
			default:
				w.round()
			}
			if in != nil && rng.IntN(4) == 0 {
				eff := w.c.Step(w.now, in)
				w.save(eff.Save[:rng.IntN(len(eff.Save)+1)])
				w.restart()
			} else if in != nil {
				w.do(in)
			}
			w.checkBooks()
			w.checkCopy()
		}
		for _, tw := range w.twins {
			tw.off, tw.room, tw.slow, tw.full = false, 10, false, false
			clear(tw.violated)
			w.do(JoinCluster{Info: api.ClusterInfo{ID: tw.id}})
		}
		w.do(RollOut{Service: web, Action: ResumeRollOut})
		w.pass(2 * time.Minute)
		w.checkBooks()
		if s, ok := w.c.Service(web); ok {
			if app, _ := w.c.App(shop); !app.Leaving && w.running() != s.Replicas {
				t.Fatalf("seed %d: %d of %d run: %+v", seed, w.running(), s.Replicas, w.c.Instances(""))
			}
		} else if n := len(w.c.Instances("")); n != 0 {
			t.Fatalf("seed %d: %d instances of no application, want 0", seed, n)
		}
		w.do(DeleteApp{App: shop})
		w.pass(10 * time.Second)
		if len(w.records())+len(w.c.apps.Apps())+len(w.c.apps.Services())+w.c.placement.Waiting() > 0 {
			t.Fatalf("seed %d: left: %+v", seed, w.c.Instances(""))
		}
	}
}
