package root

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

const (
	front = api.ServiceID("acme/shop.prod.front.prod")
	pre   = api.ServiceID("acme/shop.prod.pre.prod")
)

// at returns a position that many milliseconds and kilometres along a line.
func at(ms, km float64) *api.Position {
	vec := make([]float64, 8)
	vec[0] = ms / 1000
	return &api.Position{
		Geo:   &api.Geo{Lat: 0, Lon: math.Mod(km/111.19+180, 360) - 180},
		Coord: &api.Coordinate{Vec: vec, Height: 1e-5, Error: 0.1},
	}
}

// linked returns an application whose service front has a latency link to pre.
func linked(ms float64, change ...func(front, pre *api.Microservice)) api.Application {
	one := 1
	f := api.Microservice{
		Name: "front", Namespace: "prod", Virtualization: "container", VCPUs: 1, Memory: 100, Replicas: &one,
		Constraints: []api.Constraint{{Type: api.ConstrainLatency, Service: "pre.prod", Threshold: ms}},
	}
	p := api.Microservice{Name: "pre", Namespace: "prod", Virtualization: "container", VCPUs: 1, Memory: 100, Replicas: &one}
	for _, c := range change {
		c(&f, &p)
	}
	return api.Application{Name: "shop", Namespace: "prod", Services: []api.Microservice{f, p}}
}

func (w *world) where(id api.InstanceID) api.ClusterID {
	w.t.Helper()
	return w.record(id).Cluster
}

// appliesInTurn applies the application without instances of its first service, and then with one.
func (w *world) appliesInTurn(app api.Application) {
	w.t.Helper()
	for n := range 2 {
		app.Services[0].Replicas = &n
		w.must(Apply{Tenant: "acme", Spec: app})
		w.settle()
	}
}

// Linked services of one document are placed together before any of them runs.
func TestLinkedServicesGoTogether(t *testing.T) {
	for _, turned := range []bool{false, true} {
		w := newWorld(t, "a", "b", "c", "d")
		app := linked(20)
		if turned {
			app.Services[0], app.Services[1] = app.Services[1], app.Services[0]
		}
		w.must(Apply{Tenant: "acme", Spec: app})
		if f, p := w.where(front.Instance(0)), w.where(pre.Instance(0)); f != p || f == "" {
			t.Errorf("front is on %q and pre on %q", f, p)
		}
	}
}

func TestALinkRestrictsBothServices(t *testing.T) {
	only := func(m *api.Microservice, clusters ...string) {
		m.Constraints = append(m.Constraints, api.Constraint{Type: api.ConstrainClusters, Allowed: clusters})
	}
	for _, last := range []api.ServiceID{front, pre} {
		w := newWorld(t, "here", "near", "far")
		w.twins["here"].at, w.twins["near"].at, w.twins["far"].at = at(0, 0), at(12, 900), at(60, 9000)
		w.settle()
		zero := 0
		w.must(Apply{Tenant: "acme", Spec: linked(20, func(f, p *api.Microservice) {
			f.Constraints[0].ConvergenceTime = 60
			if last == front {
				only(f, "near", "far")
				only(p, "here")
				f.Replicas = &zero
			} else {
				only(f, "here")
				only(p, "near", "far")
				p.Replicas = &zero
			}
		})})
		w.settle()
		w.must(Scale{Service: last, Replicas: 1})
		w.twins["near"].room = 0
		w.settle()
		if got := w.where(last.Instance(0)); got == "far" {
			t.Errorf("%s is on %q", last, got)
		}
		w.twins["near"].room = 10
		w.settle()
		if got := w.where(last.Instance(0)); got != "near" {
			t.Errorf("%s is on %q, want 'near'", last, got)
		}
	}
}

func TestAnInstanceTooFarFromItsLinkWaitsWithAReason(t *testing.T) {
	w := newWorld(t, "here", "far")
	w.twins["here"].at, w.twins["far"].at = at(0, 0), at(60, 9000)
	w.settle()
	app := linked(20, func(f, p *api.Microservice) {
		f.Constraints = append(f.Constraints, api.Constraint{Type: api.ConstrainClusters, Allowed: []string{"far"}})
		p.Constraints = append(p.Constraints, api.Constraint{Type: api.ConstrainClusters, Allowed: []string{"here"}})
	})
	w.appliesInTurn(app)
	if got := w.where(front.Instance(0)); got != "" {
		t.Fatalf("it is on %s, want ''", got)
	}
	why, _ := w.c.Why(front.Instance(0), w.now)
	if why.Root.Nearest == nil || why.Root.Nearest.Constraint != sched.ConstraintLatency || len(why.WouldHelp) == 0 || !strings.Contains(why.WouldHelp[0], "latency") {
		t.Errorf("%+v\n%q", why.Root.Nearest, why.WouldHelp)
	}
	w.twins["far"].at = at(10, 9000) // a lower latency
	w.pass(30 * time.Second)
	if got := w.where(front.Instance(0)); got != "far" {
		t.Errorf("it still waits: %q, want 'far'", got)
	}
}

func TestClustersGetTheTargetsOfLinks(t *testing.T) {
	w := newWorld(t, "here", "there")
	w.twins["here"].at, w.twins["there"].at = at(0, 0), at(12, 900)
	w.settle()
	w.must(Apply{Tenant: "acme", Spec: linked(20, func(f, p *api.Microservice) {
		f.Constraints = append(f.Constraints, api.Constraint{Type: api.ConstrainClusters, Allowed: []string{"here"}})
		p.Constraints = append(p.Constraints, api.Constraint{Type: api.ConstrainClusters, Allowed: []string{"there"}})
	})})
	w.pass(15 * time.Second)
	targets := func(c api.ClusterID, id api.InstanceID) []api.Target { return w.twins[c].want[id].Targets }
	got := targets("here", front.Instance(0))
	if len(got) != 1 || got[0].Service != pre || len(got[0].Positions) != 1 || got[0].Positions[0].Coord.Vec[0] != 0.012 {
		t.Fatalf("front's cluster is told %+v", got)
	}
	if got := targets("there", pre.Instance(0)); len(got) != 1 || got[0].Service != front {
		t.Errorf("pre's cluster is told %+v", got)
	}
	rev, epoch := w.record(front.Instance(0)).SpecRev, w.record(front.Instance(0)).Epoch
	gen, _, _ := w.c.Desired("here")

	w.twins["there"].at = at(12.5, 900) // by less than a fifth
	w.pass(30 * time.Second)
	if now, _, _ := w.c.Desired("here"); now != gen {
		t.Error("a little jitter is told")
	}
	w.twins["there"].at = at(18, 900)
	tell := 0
	for range 8 {
		w.round()
		if now, _, _ := w.c.Desired("here"); now != gen {
			tell, gen = tell+1, now
		}
		w.twins["there"].at = at(w.twins["there"].at.Coord.Vec[0]*1000+9, 900)
	}
	if tell != 1 {
		t.Errorf("in 9 seconds it is told %d times, want 1", tell)
	}
	if in := w.record(front.Instance(0)); in.SpecRev != rev || in.Epoch != epoch {
		t.Error("that was taken for a new SLA")
	}
	w.checkBooks()

	w.restart()
	w.settle()
	if got := targets("here", front.Instance(0)); len(got) != 1 {
		t.Errorf("after a restart it is told %+v, want 1 of got", got)
	}
	w.must(Scale{Service: pre, Replicas: 0})
	w.pass(15 * time.Second)
	if got := targets("here", front.Instance(0)); len(got) != 0 {
		t.Errorf("it is still told of what is gone: %+v, want 0 of got", got)
	}
}

func TestCentresOfClustersInAnAreaAreSentAsTargets(t *testing.T) {
	w := newWorld(t, "here", "munich", "mixed")
	w.twins["here"].at, w.twins["munich"].at = at(0, 0), at(9, 500)
	w.twins["munich"].areas = []string{"de", "munich"}
	w.settle()
	w.must(Apply{Tenant: "acme", Spec: linked(20, func(f, _ *api.Microservice) {
		f.Constraints = []api.Constraint{
			{Type: api.ConstrainLatency, Area: "munich", Threshold: 20}, {Type: api.ConstrainClusters, Allowed: []string{"here"}},
		}
	})})
	w.settle()
	got := w.twins["here"].want[front.Instance(0)].Targets
	if len(got) != 1 || got[0].Area != "munich" || len(got[0].Positions) != 1 {
		t.Errorf("told %+v", got)
	}
}

func TestLinkToAnAreaRulesOutClustersThatAreTooFar(t *testing.T) {
	w := newWorld(t, "here", "munich", "far")
	w.twins["here"].at, w.twins["munich"].at, w.twins["far"].at = at(0, 0), at(9, 500), at(90, 5000)
	w.twins["munich"].areas = []string{"munich"}
	w.settle()
	w.must(Apply{Tenant: "acme", Spec: linked(5, func(f, _ *api.Microservice) {
		f.Constraints = []api.Constraint{
			{Type: api.ConstrainLatency, Area: "munich", Threshold: 5}, {Type: api.ConstrainClusters, Allowed: []string{"here", "far"}},
		}
	})})
	w.settle()
	if got := w.where(front.Instance(0)); got != "" {
		t.Errorf("it is on %s, want ''", got)
	}
	why, _ := w.c.Why(front.Instance(0), w.now)
	if n := why.Root.Nearest; n == nil || n.Constraint != sched.ConstraintLatency || n.Candidate != "here" {
		t.Errorf("the nearest miss is %+v, want the latency of cluster here", n)
	}
}

func TestSpreadAndAntiAffinityByCluster(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	w.apply(4, func(m *api.Microservice) {
		m.Constraints = []api.Constraint{{Type: api.ConstrainSpread, By: "cluster", Limit: 1}}
	})
	w.settle()
	if w.running() != 3 || w.on("a") != 1 || w.on("b") != 1 || w.on("c") != 1 {
		t.Errorf("%d run", w.running())
	}
	if why, _ := w.c.Why(web.Instance(3), w.now); why.Root.Causes[0].Constraint != sched.ConstraintSpread || why.Root.Causes[0].Count != 3 {
		t.Errorf("the explanation is %+v, want 3 candidates excluded by spread", why.Root)
	}
	w = newWorld(t, "a", "b")
	w.must(Apply{Tenant: "acme", Spec: linked(20, func(f, p *api.Microservice) {
		f.Constraints = nil
		p.Constraints = []api.Constraint{{Type: api.ConstrainAntiAffinity, By: "cluster", Services: []string{"front.prod"}}}
	})})
	w.settle()
	if f, p := w.where(front.Instance(0)), w.where(pre.Instance(0)); f == p || f == "" || p == "" {
		t.Errorf("front is on %q and pre on %q", f, p)
	}
}

func TestInvalidPositionsAreIgnored(t *testing.T) {
	w := newWorld(t, "a")
	w.must(Apply{Tenant: "acme", Spec: linked(20)})
	w.settle()
	r := w.twins["a"].report()
	r.Aggregate.Latency = &api.CoordSpread{Center: api.Coordinate{Vec: []float64{1}}, Radius: -1}
	for i := range r.Observed {
		r.Observed[i].Position = &api.Position{Geo: &api.Geo{Lat: 1e9}, Coord: &api.Coordinate{}}
	}
	w.do(r)
	if cand := w.c.placement.Candidate("a"); cand.Coord != nil || cand.Out != "" || w.record(pre.Instance(0)).Position != nil && w.record(pre.Instance(0)).Position.Geo != nil {
		t.Errorf("candidate a is %+v, want no coordinate, and no position of the instance", cand)
	}
	r = w.twins["a"].report()
	r.Aggregate.Hull = []api.Geo{{Lat: 4000}}
	w.do(r)
	if cand := w.c.placement.Candidate("a"); cand.Hull != nil || cand.Out == "" {
		t.Errorf("a cluster beyond the earth is a candidate: %+v", cand)
	}
}

// Both services are in one document, and no cluster has reported a position yet.
func TestLinksHoldBetweenServicesOfOneDocument(t *testing.T) {
	only := func(m *api.Microservice, cluster string) {
		m.Constraints = append(m.Constraints, api.Constraint{Type: api.ConstrainClusters, Allowed: []string{cluster}})
	}
	for _, turned := range []bool{false, true} {
		for _, tt := range []struct {
			to     api.ClusterID
			placed int
		}{{"near", 2}, {"far", 1}} {
			w := newWorld(t, "here", "near", "far")
			w.twins["here"].at, w.twins["near"].at, w.twins["far"].at = at(0, 0), at(12, 900), at(60, 9000)
			w.settle()
			app := linked(20, func(f, p *api.Microservice) { only(f, "here"); only(p, string(tt.to)) })
			if turned {
				app.Services[0], app.Services[1] = app.Services[1], app.Services[0]
			}
			w.must(Apply{Tenant: "acme", Spec: app})
			if n := len(w.c.Instances("")) - w.c.placement.Waiting(); n != tt.placed {
				t.Errorf("turned %v: with the other end in %s, %d are placed, want %d", turned, tt.to, n, tt.placed)
			}
			w.settle()
			if n := w.running(); n != tt.placed {
				t.Errorf("turned %v: with the other end in %s, %d run, want %d", turned, tt.to, n, tt.placed)
			}
			w.checkBooks()
		}
	}
}

// An instance without resource needs frees none. Its end must still admit an instance that has an
// anti-affinity to it, and the next sibling under a spread limit.
func TestAnInstanceThatWaitsForADomainIsPlacedWhenItIsFree(t *testing.T) {
	none := func(m *api.Microservice) { m.VCPUs, m.Memory = 0, 0 }
	for name, turned := range map[string]bool{"its own wish": false, "the other's": true} {
		w := newWorld(t, "a")
		w.twins["a"].even = true
		app := linked(20, func(f, p *api.Microservice) {
			none(f)
			none(p)
			f.Constraints = nil
			x, y := f, "pre.prod"
			if turned {
				x, y = p, "front.prod"
			}
			x.Constraints = []api.Constraint{{Type: api.ConstrainAntiAffinity, Services: []string{y}, By: "cluster"}}
		})
		w.appliesInTurn(app)
		if got := w.where(front.Instance(0)); got != "" {
			t.Fatalf("%s: it is on %s beside the other, want ''", name, got)
		}
		w.must(Scale{Service: pre, Replicas: 0})
		w.settle()
		if got := w.where(front.Instance(0)); got != "a" {
			t.Errorf("%s: the other has gone, and it is on %q, want 'a'", name, got)
		}
	}
	w := newWorld(t, "a", "b")
	w.twins["a"].even, w.twins["b"].even = true, true
	w.apply(3, none, func(m *api.Microservice) {
		m.Constraints = []api.Constraint{{Type: api.ConstrainSpread, By: "cluster", Limit: 1}}
	})
	w.settle()
	if w.running() != 2 {
		t.Fatalf("%d run", w.running())
	}
	w.do(Report{wire.Report{ // its operator removes one instance
		Cluster: "a", Boot: 1, Seq: w.twins["a"].seq + 1, Gen: w.twins["a"].gen, Aggregate: w.twins["a"].report().Aggregate,
		Observed: []api.Observed{{Instance: w.c.clusters.Assigned("a")[0], Epoch: w.record(w.c.clusters.Assigned("a")[0]).Epoch, State: api.Terminated, Reason: api.ReasonScaledLocally, Stopped: true}},
	}})
	w.settle()
	if w.running() != 2 || w.on("a") != 1 {
		t.Errorf("%d run, %d on a", w.running(), w.on("a"))
	}
}
