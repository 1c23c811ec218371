package placing_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/uplink"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
	"github.com/treeline-edge/treeline/testbed/placing"
)

// apart returns a world of two clusters, 100 ms from each other, with one node each.
func apart(far cluster.Config) *placing.World {
	w := placing.New()
	w.Cluster(cluster.Config{ID: "c1"}, placing.Node("n1"))
	far.ID = "c2"
	w.Cluster(far, placing.Node("n2"))
	w.Put("n1", place(0))
	w.Put("n2", place(100))
	w.Pass(20 * time.Second) // clusters have reported their positions to the root
	return w
}

// until returns how long it takes until an instance has a node, at most the given time.
func until(t *testing.T, w *placing.World, service string, most time.Duration) time.Duration {
	t.Helper()
	const step = 500 * time.Millisecond
	for took := time.Duration(0); took <= most; took += step {
		if _, n := w.Place(service, 0); n != "" {
			return took
		}
		w.Pass(step)
	}
	why, _ := w.Root.Why(placing.ID(service, 0), w.Now)
	t.Fatalf("%s has no node after %s: %s", service, most, why.Summary)
	return 0
}

// Two services are linked. b runs in one cluster, and a can only run in another one, which is too far
// away. a is placed there when the link's convergence_time has passed, whichever end has the link,
// and whether the root or the cluster detects the distance.
func TestALinkToAnotherClusterIsSearchedForAndThenBroken(t *testing.T) {
	const link = "connectivity: [{target_microservice_id: %, con_constraints: [{type: latency, threshold: 20, convergence_time: 3}]}]"
	to := func(service string) string { return strings.ReplaceAll(link, "%", service) }
	const near, far = "constraints: [{type: clusters, allowed: [c1]}]", "constraints: [{type: clusters, allowed: [c2]}]"
	for name, tt := range map[string]struct {
		a, b string // their fields
		far  cluster.Config
	}{
		"a has the link":                       {a: far + ", " + to("b"), b: near},
		"b has the link":                       {a: far, b: near + ", " + to("a")},
		"a is exclusive":                       {a: far + ", exclusive: true, " + to("b"), b: near},
		"only the cluster knows where it is":   {a: far + ", " + to("b"), b: near, far: cluster.Config{Offer: uplink.Offer{Detail: uplink.DetailSums}}},
		"only the cluster knows, exclusive":    {a: far + ", exclusive: true, " + to("b"), b: near, far: cluster.Config{Offer: uplink.Offer{Detail: uplink.DetailSums}}},
		"a has the link, another cluster full": {a: to("b"), b: near + ", memory: 4096"},
	} {
		t.Run(name, func(t *testing.T) {
			w := apart(tt.far)
			if err := w.Apply("b: {" + tt.b + "}\na: {replicas: 0, " + tt.a + "}"); err != nil {
				t.Fatal(err)
			}
			until(t, w, "b", time.Second)
			w.Pass(2 * time.Second)

			both := "b: {" + tt.b + "}\na: {replicas: 1, memory: 64, " + tt.a + "}"
			plan := planned(t, w, both)
			if plan.Action != root.PlanPlace || plan.Cluster != "c2" || plan.Node != "n2" || plan.After != 3 {
				t.Errorf("planned: %+v", plan)
			}

			if err := w.Apply(both); err != nil {
				t.Fatal(err)
			}
			w.Pass(time.Second)
			if _, n := w.Place("a", 0); n != "" {
				t.Fatalf("the instance was placed without a search on %s", n)
			}
			why, _ := w.Root.Why(placing.ID("a", 0), w.Now)
			if at := why.SearchingUntil; !strings.Contains(why.Summary, "searching until "+at.UTC().Format("15:04:05 UTC")) || at.Before(w.Now) || at.After(w.Now.Add(3*time.Second)) {
				t.Errorf("unexpected explanation during the search, at %s, until %s: %s", w.Now, at, why.Summary)
			}
			if took := until(t, w, "a", 5*time.Second); took > 3*time.Second {
				t.Errorf("the instance was placed %s after the first second", took)
			}
			if c, n := w.Place("a", 0); c != "c2" || n != "n2" {
				t.Errorf("it is on %s of %s", n, c)
			}
			why, _ = w.Root.Why(placing.ID("a", 0), w.Now)
			if !why.SearchingUntil.IsZero() || strings.Contains(why.Summary, "searching") {
				t.Errorf("unexpected explanation after the placement: %s", why.Summary)
			}
			w.Pass(2 * time.Minute) // the link stays violated, and nothing moves
			for _, s := range []string{"a", "b"} {
				if _, n := w.Place(s, 0); n == "" {
					t.Errorf("%s has lost its node", s)
				}
			}
			in, _ := w.Root.Instance(placing.ID("a", 0))
			if name == "b has the link" {
				in, _ = w.Root.Instance(placing.ID("b", 0))
			}
			if in.Violated == "" {
				t.Errorf("the violated link of %s is not reported", in.ID)
			}
		})
	}
}

// TestPlanAndApplyAgreeOnLinks: in random worlds of two clusters, an instance with a link is placed
// where and when both tiers planned it, or waits if they planned that. During the search, why says
// so.
func TestPlanAndApplyAgreeOnLinks(t *testing.T) {
	at, late, waited := 0, 0, 0
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 5))
		w := placing.New()
		for c, id := range []api.ClusterID{"c1", "c2"} {
			cfg := cluster.Config{ID: id}
			if rng.IntN(4) == 0 {
				cfg.Offer.Detail = uplink.DetailSums
			}
			var nodes []api.NodeInfo
			for n := range 1 + rng.IntN(2) {
				nodes = append(nodes, placing.Node(fmt.Sprintf("n%d", 2*c+n), func(i *api.NodeInfo) { i.Capacity.MemoryMB = int64(256*(1+rng.IntN(4)) + 7*c + 3*n) }))
			}
			w.Cluster(cfg, nodes...)
			for _, n := range nodes {
				w.Put(n.ID, place([]float64{0, 15, 40}[rng.IntN(3)]+float64(80*c)))
			}
		}
		w.Pass(20 * time.Second)
		seconds := 1 + rng.IntN(4)
		link := fmt.Sprintf(", connectivity: [{target_microservice_id: %%s, con_constraints: [{type: latency, threshold: %d, convergence_time: %d}]}]", []int{5, 20, 60}[rng.IntN(3)], seconds) // ms, s
		a, b := fmt.Sprintf("memory: %d", 64*(1+rng.IntN(8))), fmt.Sprintf("memory: %d", 64*(1+rng.IntN(8)))
		if rng.IntN(2) == 0 {
			a += ", constraints: [{type: clusters, allowed: [c2]}]"
		}
		if rng.IntN(3) == 0 {
			a += ", exclusive: true"
		}
		if rng.IntN(2) == 0 {
			a += fmt.Sprintf(link, "b")
		} else {
			b += fmt.Sprintf(link, "a")
		}
		if err := w.Apply("b: {" + b + "}\na: {replicas: 0, " + a + "}"); err != nil {
			t.Fatal(err)
		}
		w.Pass(20 * time.Second)
		if _, n := w.Place("b", 0); n == "" {
			continue
		}
		both := "b: {" + b + "}\na: {replicas: 1, " + a + "}"
		plan := planned(t, w, both)
		if err := w.Apply(both); err != nil {
			t.Fatal(err)
		}
		began := w.Now
		took := func() time.Duration { return w.Now.Sub(began) }
		for w.Pass(500 * time.Millisecond); took() < 12*time.Second; w.Pass(500 * time.Millisecond) {
			if _, n := w.Place("a", 0); n != "" {
				break
			}
			why, _ := w.Root.Why(placing.ID("a", 0), w.Now)
			if is, should := strings.Contains(why.Summary, "searching until "), took() < time.Duration(seconds)*time.Second; plan.After > 0 && is != should {
				t.Errorf("seed %d: planned %+v, but after %s why says %s", seed, plan, took(), why.Summary)
			}
		}
		after := time.Duration(plan.After * float64(time.Second))
		why, _ := w.Root.Why(placing.ID("a", 0), w.Now)
		switch c, n := w.Place("a", 0); {
		case plan.Action == root.PlanWait && n == "":
			waited++
		case plan.Action == root.PlanWait || c != plan.Cluster || n != plan.Node:
			t.Errorf("seed %d: planned %+v, but the instance is on %s of %s after %s: %s", seed, plan, n, c, took(), why.Summary)
		case took() < after || took() > after+time.Second:
			t.Errorf("seed %d: planned %+v, but the instance was placed after %s", seed, plan, took())
		case after > 0:
			late++
		default:
			at++
		}
	}
	t.Logf("%d were placed at once, %d after a search, %d waited", at, late, waited)
	if at < 50 || late < 30 || waited < 5 {
		t.Errorf("%d were placed at once, %d after a search, %d waited: too few to prove anything", at, late, waited)
	}
}

// planned returns the plan of both tiers for a#0, as for POST /v1/apps:plan.
func planned(t *testing.T, w *placing.World, services string) (plan api.InstancePlan) {
	t.Helper()
	app, err := placing.Application(services)
	if err != nil {
		t.Fatal(err)
	}
	doubts := map[api.InstanceID][]root.Doubt{}
	for range 4 {
		p, err := w.Root.Plan(w.Now, "acme", []api.Application{app}, doubts)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range p.Apps[0].Instances {
			if i.ID == placing.ID("a", 0) {
				plan = i
			}
		}
		again := false
		for id, asks := range p.Asks {
			for k, v := range w.Clusters[id].Plan(api.ClusterPlanRequest{Instances: asks, Gone: p.Gone[id]}).Instances {
				if v.Action == root.PlanWait {
					doubts[v.ID] = append(doubts[v.ID], root.Doubt{Cluster: id, Searched: asks[k].Searched})
					again = true
				} else if v.ID == plan.ID {
					plan.Node, plan.After = v.Node, max(plan.After, v.After)
				}
			}
		}
		if !again {
			break
		}
	}
	return plan
}

// Both ends are placed in one cluster, which has no capacity for both near each other. Plan and
// reason show how long it searches, and then it does what it planned.
func TestAClusterPlansWhereItsSearchEnds(t *testing.T) {
	w := placing.New()
	w.Cluster(cluster.Config{ID: "c1"}, placing.Node("n1"), placing.Node("n2"))
	w.Put("n1", place(0))
	w.Put("n2", place(100))
	w.Pass(time.Second)
	const b = "b: {memory: 4096, constraints: [{type: direct, node: n1}]}\n"
	const a = "a: {memory: 64, connectivity: [{target_microservice_id: b, con_constraints: [{type: latency, threshold: 20, convergence_time: 3}]}]}"
	if err := w.Apply(b); err != nil {
		t.Fatal(err)
	}
	until(t, w, "b", time.Second)
	w.Pass(2 * time.Second)
	if plan := planned(t, w, b+a); plan.Action != root.PlanPlace || plan.Node != "n2" || plan.After != 3 {
		t.Errorf("planned: %+v", plan)
	}
	if err := w.Apply(b + a); err != nil {
		t.Fatal(err)
	}
	w.Pass(time.Second)
	why, _ := w.Root.Why(placing.ID("a", 0), w.Now)
	own, _ := w.Clusters["c1"].Why(placing.ID("a", 0))
	in, _ := w.Clusters["c1"].Instance(placing.ID("a", 0))
	said := false
	for _, c := range own.Causes {
		said = said || strings.Contains(c.Detail, "searching until ")
	}
	if !strings.Contains(why.Summary, "searching until ") || !strings.Contains(in.Detail, "searching until ") || !said {
		t.Errorf("unexpected reasons: of the root %q, of the cluster %q and %+v", why.Summary, in.Detail, own.Causes)
	}
	until(t, w, "a", 3*time.Second)
	if _, n := w.Place("a", 0); n != "n2" {
		t.Errorf("it is on %s", n)
	}
}
