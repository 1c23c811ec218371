package root

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root/applications"
)

// After random changes of linked services, the sub-machines agree.
func TestIndexesOfLinkedServicesStayConsistent(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		w := newWorld(t, "a", "b", "c", "d")
		w.cfg.MovesPerHour = 60
		w.restart()
		for range 60 {
			tw := w.twins[[]api.ClusterID{"a", "b", "c", "d"}[rng.IntN(4)]]
			switch rng.IntN(9) {
			case 0, 1:
				f, p := rng.IntN(6), rng.IntN(6)
				w.do(Apply{Tenant: "acme", Spec: linked(float64(10+rng.IntN(3)*20), func(x, y *api.Microservice) {
					x.Replicas, y.Replicas = &f, &p
				})})
			case 2:
				w.do(Apply{Tenant: "acme", Spec: application(rng.IntN(3))}) // without either of them
			case 3:
				tw.at = at(rng.Float64()*80, rng.Float64()*9000)
			case 4:
				tw.at = nil
			case 5:
				tw.off = !tw.off
			case 6:
				for id := range tw.want {
					tw.violated[id] = rng.IntN(2) == 0
				}
			case 7:
				w.restart()
			default:
				w.now = w.now.Add(time.Duration(rng.IntN(20)) * time.Second)
			}
			w.round()
			w.checkBooks()
		}
	}
}

// With more positions than the root measures to, any cluster may be near one, and the clusters have
// to check.
func TestManyPositionsExcludeNoCluster(t *testing.T) {
	for _, n := range []int{20, 70} { // the root measures to at most 64
		w := newWorld(t)
		for i := range n {
			id := api.ClusterID(fmt.Sprintf("c%03d", i))
			w.enter(id, 1).at = at(float64(100*i), float64(500*i))
		}
		w.settle()
		zero, one := 0, 1
		app := linked(20, func(f, p *api.Microservice) {
			p.Replicas, f.Replicas = &n, &zero
			p.Constraints = []api.Constraint{{Type: api.ConstrainSpread, By: "cluster"}}
		})
		w.must(Apply{Tenant: "acme", Spec: app})
		w.settle()
		if w.running() != n {
			t.Fatalf("%d of %d instances run", w.running(), n)
		}
		last := w.c.apps.InstancesOf(pre)[n-1]
		there := w.where(last)
		w.twins[there].room = 10
		w.settle()
		app.Services[0].Replicas = &one
		w.must(Apply{Tenant: "acme", Spec: app})
		w.settle()
		if got := w.where(front.Instance(0)); got != there {
			t.Errorf("with %d positions the instance is on %q, want %s", n, got, there)
		}
		w.checkBooks()
	}
}

// Each new instance is placed near a position without one near it, including the last such
// position.
func TestTheLastUnservedPositionIsServed(t *testing.T) {
	const n = 24
	w := newWorld(t)
	for i := range n {
		w.enter(api.ClusterID(fmt.Sprintf("c%03d", i)), 2).at = at(float64(100*i), float64(500*i))
	}
	w.settle()
	zero, all := 0, n
	app := linked(20, func(f, p *api.Microservice) {
		f.Replicas, p.Replicas = &all, &zero
		f.Constraints = append(f.Constraints, api.Constraint{Type: api.ConstrainSpread, By: "cluster"})
	})
	w.must(Apply{Tenant: "acme", Spec: app})
	w.settle()
	for i := 1; i <= n; i++ {
		app.Services[1].Replicas = &i
		w.must(Apply{Tenant: "acme", Spec: app})
		w.settle()
	}
	served := map[api.ClusterID]bool{}
	for i := range n {
		served[w.where(pre.Instance(i))] = true
	}
	if len(served) != n || served[""] {
		t.Errorf("%d of %d clusters are served", len(served), n)
	}
}

// An instance without a reported position may be anywhere in its cluster.
func TestUnreportedPositionsCount(t *testing.T) {
	w := newWorld(t, "here", "far")
	w.twins["here"].at, w.twins["far"].at = at(0, 0), at(60, 9000)
	w.settle()
	one, zero := 1, 0
	app := linked(20, func(f, p *api.Microservice) {
		f.Replicas, p.Replicas = &zero, &one
		p.Constraints = []api.Constraint{{Type: api.ConstrainClusters, Allowed: []string{"here", "far"}}, {Type: api.ConstrainSpread, By: "cluster"}}
		f.Constraints = append(f.Constraints, api.Constraint{Type: api.ConstrainClusters, Allowed: []string{"far"}})
	})
	w.must(Apply{Tenant: "acme", Spec: app})
	w.settle()
	two := 2
	if w.where(pre.Instance(0)) == "far" {
		app.Services[0].Constraints[1].Allowed = []string{"here"}
	}
	app.Services[0], app.Services[1] = app.Services[1], app.Services[0]
	app.Services[0].Replicas, app.Services[1].Replicas = &two, &one
	w.must(Apply{Tenant: "acme", Spec: app})
	if a, b := w.where(pre.Instance(1)), w.where(front.Instance(0)); a == "" || a != b {
		t.Errorf("pre#1 is on %q, front on %q, want the same cluster", a, b)
	}
}

// vast returns a core with clusters of unlimited capacity, at positions in a row.
func vast(t *testing.T, clusters int) (*Core, map[api.ClusterID]uint64) {
	t.Helper()
	c, seq := New(Config{}), map[api.ClusterID]uint64{}
	c.Step(epoch, Start{})
	for i := range clusters {
		id := api.ClusterID(fmt.Sprintf("c%03d", i))
		c.Step(epoch, JoinCluster{Info: api.ClusterInfo{ID: id}})
		seq[id] = 1
		c.Step(epoch, Report{wire.Report{Cluster: id, Boot: 1, Seq: 1, Whole: true, Aggregate: vastAggregate(i)}})
	}
	return c, seq
}

func vastAggregate(i int) api.Aggregate {
	r := api.Resources{MilliCPU: 10_000_000, MemoryMB: 10_000_000}
	return api.Aggregate{
		Nodes: 100, Capacity: r, Free: r, Largest: r,
		Latency: &api.CoordSpread{Center: *at(float64(i), 0).Coord, Radius: time.Millisecond, Nodes: 100},
		Slots:   []api.Slot{{Runtime: "container", Arch: "amd64", Network: true, Nodes: 100, Free: r, Largest: r}},
	}
}

// Four times as many instances cost about four times as much. The cost is measured in allocated
// bytes, which do not depend on the machine.
func TestTheCostOfLinksIsLinear(t *testing.T) {
	cost := func(n int) uint64 {
		c, _ := vast(t, 20)
		app := linked(20, func(f, p *api.Microservice) { f.Replicas, p.Replicas, f.VCPUs, p.VCPUs = &n, &n, 0.1, 0.1 })
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if eff := c.Step(epoch, Apply{Tenant: "acme", Spec: app}); eff.Err != nil {
			t.Fatal(eff.Err)
		}
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	if a, b := cost(500), cost(2000); b > 6*a {
		t.Errorf("2,000 instances cost %d bytes and 500 cost %d, want at most six times as much", b, a)
	}
}

// If one of hundreds of instances moves, only the nearest clusters get new targets.
func TestAMoveIsSentToFewClusters(t *testing.T) {
	const clusters = 40
	n := 400
	c, seq := vast(t, clusters)
	app := linked(20, func(f, p *api.Microservice) {
		f.Replicas, p.Replicas, f.VCPUs, p.VCPUs = &n, &n, 0.1, 0.1
		f.Constraints[0].Threshold = 60000
	})
	c.Step(epoch, Apply{Tenant: "acme", Spec: app})
	report := func(now time.Time, id api.ClusterID, os ...api.Observed) {
		seq[id]++
		gen, digest, _ := c.Desired(id)
		c.Step(now, Report{wire.Report{Cluster: id, Boot: 1, Seq: seq[id], Gen: gen, Desired: digest, Aggregate: vastAggregate(0), Observed: os}})
	}
	k := 0
	for _, id := range c.clusters.IDs() {
		var os []api.Observed
		for _, i := range c.clusters.Assigned(id) {
			k++
			os = append(os, api.Observed{Instance: i, Epoch: c.apps.Get(i).Epoch, State: api.Running, Position: at(float64(k*3), float64(k))})
		}
		report(epoch, id, os...)
	}
	tell := func(from time.Time) (puts int) {
		for s := range 12 {
			for _, e := range c.Step(from.Add(time.Duration(s)*time.Second), Tick{}).Send {
				if d, ok := e.Msg.(wire.Desired); ok {
					puts += len(d.Put)
				}
			}
		}
		return puts
	}
	if puts := tell(epoch); puts > 2*2*n {
		t.Errorf("%d assignments are sent about the positions of %d instances, want at most %d", puts, 2*n, 4*n)
	}
	var host api.ClusterID
	for in := range c.apps.EachOf(front) {
		if host == "" || in.Cluster < host {
			host = in.Cluster
		}
	}
	var who applications.Instance
	for _, id := range c.clusters.Assigned(host) {
		if who = c.apps.Get(id); id.Service() == front {
			break
		}
	}
	now := epoch.Add(time.Minute)
	report(now, host, api.Observed{Instance: who.ID, Epoch: who.Epoch, State: api.Running, Position: at(99999, 3)})
	if puts := tell(now); puts > n {
		t.Errorf("%d assignments are sent because one instance moved, want at most %d", puts, n)
	}
}
