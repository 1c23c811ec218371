package root

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// checkPlaces recomputes from scratch what is kept of where services are.
func (w *world) checkPlaces() {
	w.t.Helper()
	for id, s := range w.c.services {
		unknown, spots := map[api.ClusterID]int{}, map[*spot]int{}
		for _, in := range s.instances {
			switch {
			case in.Leaving || in.Cluster == "":
				if in.spotIn != "" || in.spot != nil {
					w.t.Fatalf("%s is nowhere and counts in %q", in.ID, in.spotIn)
				}
			case in.spotIn != in.Cluster || (in.spot == nil) != (in.Position == nil):
				w.t.Fatalf("%s is on %s at %v and counts in %q at %v", in.ID, in.Cluster, in.Position, in.spotIn, in.spot)
			case in.spot == nil:
				unknown[in.Cluster]++
			default:
				spots[in.spot]++
			}
		}
		p := &s.places
		if fmt.Sprint(p.unknown) != fmt.Sprint(unknown) && len(p.unknown)+len(unknown) > 0 {
			w.t.Fatalf("of %s it is not known where %v are, want %v", id, p.unknown, unknown)
		}
		if len(p.spots) != len(spots) || len(p.at) != len(spots) {
			w.t.Fatalf("%s is in %d places, %d cells, want %d", id, len(p.spots), len(p.at), len(spots))
		}
		for _, at := range p.spots {
			sum := 0
			for _, n := range at.in {
				sum += n
			}
			if at.all != spots[at] || sum != at.all || p.at[at.cell] != at {
				w.t.Fatalf("%s has %d at %v, Σ %d, want %d", id, at.all, at.Position, sum, spots[at])
			}
		}
		for _, k := range s.link.kin {
			for _, r := range k.in {
				w.checkReach(r)
			}
		}
	}
}

func (w *world) checkReach(r *reach) {
	w.t.Helper()
	open, all := 0, 0
	for _, s := range r.of.spots {
		if !measures(r.link, &s.found) {
			continue
		}
		all++
		n := 0
		for _, o := range r.by.spots {
			if measures(r.link, &o.found) && within(r.link, s.found, o.found) {
				n++
			}
		}
		if got, ok := r.near[s]; !ok || got != n {
			w.t.Fatalf("%d are near %v, want %d", got, s.found, n)
		}
		if n == 0 {
			open++
		}
	}
	if r.open != open || len(r.near) != all {
		w.t.Fatalf("%d of %d places have nobody near, want %d of %d", r.open, len(r.near), open, all)
	}
}

func TestPlacesAreThoseOfTheInstances(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		w := newWorld(t, "a", "b", "c", "d")
		w.c.cfg.MovesPerHour = 60
		for range 60 {
			tw := w.twins[[]api.ClusterID{"a", "b", "c", "d"}[rng.IntN(4)]]
			switch rng.IntN(9) {
			case 0, 1:
				f, p := rng.IntN(6), rng.IntN(6)
				w.do(Apply{Tenant: "acme", Spec: linked(float64(10+rng.IntN(3)*20), func(x, y *api.Microservice) {
					x.Replicas, y.Replicas = &f, &p
				})})
			case 2:
				w.do(Apply{Tenant: "acme", Spec: application(rng.IntN(3))}) // and neither of them
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

// The root knows of more places than it measures against: then anybody may be near
// one, and the clusters are to say.
func TestManyPlacesRuleNobodyOut(t *testing.T) {
	for _, n := range []int{20, mostPoints + 6} {
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
			t.Fatalf("%d of %d run", w.running(), n)
		}
		last := step.Keys(w.c.services[pre].instances)[n-1]
		there := w.where(last)
		w.twins[there].room = 10
		w.settle()
		app.Services[0].Replicas = &one
		w.must(Apply{Tenant: "acme", Spec: app})
		w.settle()
		if got := w.where(front.Instance(0)); got != there {
			t.Errorf("of %d places it found %q, want %s", n, got, there)
		}
		w.checkBooks()
	}
}

// The other way round: who is to be near the unserved goes to the last of them, too.
func TestLastUnservedPlaceIsServed(t *testing.T) {
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
		t.Errorf("%d places are served", len(served))
	}
}

// While some are known and others were placed just now, the next may be near these.
func TestWhoWasPlacedJustNowIsNotForgotten(t *testing.T) {
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
		t.Errorf("pre#1 went to %q, front to %q", a, b)
	}
}

// vast is a core with clusters that have room for anything, in a row.
func vast(t *testing.T, clusters int) (*Core, map[api.ClusterID]uint64) {
	t.Helper()
	c, seq := New(Config{}), map[api.ClusterID]uint64{}
	c.Step(epoch, Start{})
	for i := range clusters {
		id := api.ClusterID(fmt.Sprintf("c%03d", i))
		c.Step(epoch, JoinCluster{Info: api.ClusterInfo{ID: id}})
		seq[id] = 1
		c.Step(epoch, Report{api.Report{Cluster: id, Boot: 1, Seq: 1, Whole: true, Aggregate: vastAggregate(i)}})
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

// Twice as many instances are twice the work, not four times. Work is what is
// allocated: that is the same on any machine.
func TestLinkedApplicationCostsWhatItIs(t *testing.T) {
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
		t.Errorf("2,000 instances cost %d bytes, 500 cost %d", b, a)
	}
}

// Of hundreds of places one moves: only those clusters are told that are nearest.
func TestOneThatMovesIsToldToFew(t *testing.T) {
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
		cl := c.clusters[id]
		c.Step(now, Report{api.Report{Cluster: id, Boot: 1, Seq: seq[id], Gen: cl.gen, Desired: cl.wanted, Known: cl.known, Aggregate: vastAggregate(0), Observed: os}})
	}
	k := 0
	for _, id := range step.Keys(c.clusters) {
		var os []api.Observed
		for _, i := range step.Keys(c.clusters[id].assigned) {
			k++
			os = append(os, api.Observed{Instance: i, Epoch: c.clusters[id].assigned[i].Epoch, State: api.Running, Position: at(float64(k*3), float64(k))})
		}
		report(epoch, id, os...)
	}
	tell := func(from time.Time) (puts int) {
		for s := range 12 {
			for _, e := range c.Step(from.Add(time.Duration(s)*time.Second), Tick{}).Send {
				if d, ok := e.Msg.(api.Desired); ok {
					puts += len(d.Put)
				}
			}
		}
		return puts
	}
	if puts := tell(epoch); puts > 2*2*n {
		t.Errorf("%d assignments tell where %d are", puts, 2*n)
	}
	var host api.ClusterID
	for _, in := range c.services[front].instances {
		if in.spot.all == 1 && (host == "" || in.Cluster < host) {
			host = in.Cluster
		}
	}
	var who *instance
	for _, id := range step.Keys(c.clusters[host].assigned) {
		if who = c.instances[id]; id.Service() == front {
			break
		}
	}
	now := epoch.Add(time.Minute)
	report(now, host, api.Observed{Instance: who.ID, Epoch: who.Epoch, State: api.Running, Position: at(99999, 3)})
	if puts := tell(now); puts > n {
		t.Errorf("one moved, and %d assignments tell it", puts)
	}
}
