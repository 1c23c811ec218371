package root

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/root-orchestrator/root/applications"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Within one step, before any report, the root reserves no more than clusters have.
func TestReservationsCountAtOnce(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 3))
		w := newWorld(t, "a", "b", "c")
		for _, id := range []api.ClusterID{"a", "b", "c"} {
			free := api.Resources{
				MilliCPU: rng.Int64N(9000), MemoryMB: rng.Int64N(4000), StorageMB: rng.Int64N(4000), InMbit: rng.Int64N(900), OutMbit: rng.Int64N(900),
			}
			r := w.twins[id].report()
			r.Aggregate.Free, r.Aggregate.Capacity, r.Aggregate.Largest = free, free, free
			r.Aggregate.Slots = []api.Slot{{
				Runtime: "container", Arch: "amd64", Network: true, Nodes: 1, Free: free, Largest: free,
				Devices: []api.SlotDevice{{Name: "gpu", Free: rng.IntN(6), Largest: 2}},
			}}
			w.do(r)
		}
		for k := range 4 {
			app := application(rng.IntN(12), func(m *api.Microservice) {
				m.VCPUs, m.Memory = float64(rng.IntN(20))/10, rng.Int64N(400)
				m.Storage, m.BandwidthIn, m.BandwidthOut = rng.Int64N(400), rng.Int64N(90), rng.Int64N(90)
				m.VGPUs = rng.IntN(3)
			})
			app.Name = "app" + string(rune('a'+k))
			w.must(Apply{Tenant: "acme", Spec: app})
		}
		w.checkBooks()
		gpus := map[api.ClusterID]int{}
		for _, in := range w.records() {
			gpus[in.Cluster] += in.Spec.VGPUs
		}
		for _, cl := range w.c.Clusters() {
			if !cl.Reserved.Fits(cl.Aggregate.Free) {
				t.Fatalf("seed %d: %s has %s free and %s reserved", seed, cl.ID, cl.Aggregate.Free, cl.Reserved)
			}
			if free := cl.Aggregate.Slots[0].Devices[0].Free; gpus[cl.ID] > free {
				t.Fatalf("seed %d: %s has %d GPUs free and %d reserved", seed, cl.ID, free, gpus[cl.ID])
			}
		}
	}
}

func TestSameSeedSamePlaces(t *testing.T) {
	run := func() string {
		w := newWorld(t, "a", "b", "c", "d")
		w.must(Apply{Tenant: "acme", Spec: linked(20)})
		w.apply(9)
		var b strings.Builder
		for _, in := range w.c.Instances("") {
			b.WriteString(string(in.ID) + " " + string(in.Cluster) + "\n")
		}
		return b.String()
	}
	first := run()
	for range 5 {
		if again := run(); again != first {
			t.Fatalf("placements with the same seed differ:\n%s\nand\n%s", first, again)
		}
	}
}

func TestAClusterThatReportsNoSlotsMayHaveAnyKind(t *testing.T) {
	w := newWorld(t, "a")
	r := w.twins["a"].report()
	r.Aggregate.Slots = nil
	w.do(r)
	w.apply(1, func(m *api.Microservice) {
		m.Virtualization, m.Arch, m.VGPUs, m.Privileged = "runsc", []string{"riscv64"}, 1, true
		m.Constraints = []api.Constraint{{Type: api.ConstrainAddons, Needs: []string{"x"}}, {Type: api.ConstrainGeo, Area: "de"}}
	})
	if w.on("a") != 1 {
		why, _ := w.c.Why(web.Instance(0), w.now)
		t.Errorf("not placed on a cluster that reports no kinds of nodes: %+v", why.Root)
	}
}

// A cluster that does not report its kinds of nodes reports how many nodes have an overlay network.
func TestAClusterThatReportsNoSlotsReportsItsOverlayNetwork(t *testing.T) {
	for _, tt := range []struct {
		says    *int
		network string
		takes   int
	}{
		{new(0), api.NetworkOverlay, 0},
		{new(0), api.NetworkAny, 1},
		{new(1), api.NetworkOverlay, 1},
		{nil, api.NetworkOverlay, 1}, // an earlier release
	} {
		w := newWorld(t, "a")
		r := w.twins["a"].report()
		r.Aggregate.Slots, r.Aggregate.Overlay = nil, tt.says
		w.do(r)
		w.apply(1, func(m *api.Microservice) { m.Network = tt.network })
		why, _ := w.c.Why(web.Instance(0), w.now)
		if w.on("a") != tt.takes || (tt.takes == 0) != (why.Root.Nearest != nil && why.Root.Nearest.Constraint == sched.ConstraintNetwork) {
			t.Errorf("%v %s: %d placed, %+v", tt.says, tt.network, w.on("a"), why.Root)
		}
	}
}

// A cluster of an earlier release reports no features and would ignore health checks.
func TestClusterWithoutKindsReportsItsFeatures(t *testing.T) {
	for _, tt := range []struct {
		says  []string
		takes int
	}{{nil, 0}, {[]string{"other"}, 0}, {[]string{api.FeatureHealth}, 1}} {
		w := newWorld(t, "a")
		r := w.twins["a"].report()
		r.Aggregate.Slots, r.Aggregate.Features = nil, tt.says
		w.do(r)
		w.apply(1, healthy)
		why, _ := w.c.Why(web.Instance(0), w.now)
		if w.on("a") != tt.takes || (tt.takes == 0) != (why.Root.Nearest != nil && why.Root.Nearest.Constraint == sched.ConstraintFeatures) {
			t.Errorf("a cluster with the features %v takes %d, want %d; %+v", tt.says, w.on("a"), tt.takes, why.Root)
		}
	}
}

func healthy(m *api.Microservice) {
	m.Health = &api.Health{Liveness: &api.Check{TCP: &api.TCPCheck{Port: 80}}}
}

// A cluster without an overlay network is asked again when a node gets one.
func TestWaitingInstancesArePlacedWhenANodeGetsTheOverlay(t *testing.T) {
	w := newWorld(t, "a")
	tw := w.twins["a"]
	tw.noOverlay = true
	w.settle()
	w.apply(1, func(m *api.Microservice) { m.Network = api.NetworkOverlay })
	w.settle()
	why, _ := w.c.Why(web.Instance(0), w.now)
	if w.on("a") != 0 || why.Root.Nearest == nil || why.Root.Nearest.Constraint != sched.ConstraintNetwork {
		t.Fatalf("%d instances are placed without an overlay network: %+v", w.on("a"), why.Root)
	}
	tw.noOverlay = false
	w.settle()
	if w.on("a") != 1 {
		t.Errorf("the instance waits although a node has an overlay network")
	}
}

func TestScoreFadesWithAge(t *testing.T) {
	w := newWorld(t, "old", "young")
	w.twins["old"].off = true
	w.pass(20 * time.Second)
	if a, b := w.c.placement.Candidate("old").Age, w.c.placement.Candidate("young").Age; a < 15*time.Second || b != 0 {
		t.Fatalf("ages %s and %s, want at least 15 s and 0", a, b)
	}
	w.apply(6)
	if w.on("young") <= w.on("old") {
		t.Errorf("%d instances on young and %d on old, want more on young", w.on("young"), w.on("old"))
	}
	w.twins["old"].off = false
	w.round()
	if a := w.c.placement.Candidate("old").Age; a != 0 {
		t.Errorf("after a report the candidate is %s old, want 0", a)
	}
}

// A cluster that reports every 30 s because nothing changes is not lost after Config.Dead.
func TestQuietClusterIsNotLost(t *testing.T) {
	w := newWorld(t, "a")
	w.apply(1)
	w.settle()
	tw := w.twins["a"]
	say := func(after time.Duration) {
		for end := w.now.Add(after); w.now.Before(end); {
			w.now = w.now.Add(500 * time.Millisecond)
			w.do(Tick{})
		}
		tw.run()
		w.do(tw.report())
	}
	for _, pause := range []time.Duration{2, 5, 10, 20, 29, 30, 30, 31, 30} {
		say(pause * time.Second)
		if cl, _ := w.c.Cluster("a"); cl.Status != api.ClusterReady {
			t.Fatalf("after a pause of %d s the cluster is %s, want ready", pause, cl.Status)
		}
	}
	silent := func(after time.Duration) bool {
		for end := w.now.Add(after); w.now.Before(end); {
			w.now = w.now.Add(500 * time.Millisecond)
			w.do(Tick{})
		}
		cl, _ := w.c.Cluster("a")
		return cl.Status == api.ClusterSilent
	}
	if silent(60*time.Second) || !silent(35*time.Second) {
		t.Error("a cluster with long pauses is lost too soon or never")
	}
	tw.run()
	w.do(tw.report())
	for range 30 {
		say(time.Second)
	}
	if silent(25*time.Second) || !silent(10*time.Second) {
		t.Error("a cluster with short pauses is lost too soon or too late")
	}
}

// BenchmarkDecision measures one placement, with its reservation and its end, among a thousand
// clusters.
func BenchmarkDecision(b *testing.B) {
	for name, app := range map[string]api.Application{"rom": application(0), "linked": linked(20)} {
		b.Run(name, func(b *testing.B) {
			w := newWorld(b)
			for i := range 1000 {
				id := api.ClusterID("c" + strings.Repeat("x", i%3) + time.Duration(i).String())
				w.must(JoinCluster{Info: api.ClusterInfo{ID: id}})
				tw := &twin{id: id, boot: 1, room: 50, at: at(float64(i%100), float64(i)), areas: []string{"de"}}
				w.do(tw.report())
			}
			w.must(Apply{Tenant: "acme", Spec: app})
			s := app.Services[0]
			in := &applications.Instance{ID: shop.Service(s.Name, s.Namespace).Instance(5000), Spec: &s, State: api.Requested}
			w.c.restoreInstance(in)
			b.ReportAllocs()
			for b.Loop() {
				if d := w.c.placement.Decide(facts(in)); d.Cluster == "" {
					b.Fatal("nowhere")
				}
			}
		})
	}
}
