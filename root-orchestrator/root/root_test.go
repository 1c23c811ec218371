package root

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/eventlog"
	"github.com/treeline-edge/treeline/internal/wire"
)

func TestApplyIsIdempotentAndMindsItsConditions(t *testing.T) {
	w := newWorld(t, "a")
	w.apply(2)
	w.settle()
	app, _ := w.c.App(shop)
	if app.Running != 2 || app.Wanted != 2 {
		t.Fatalf("the application is %+v, want 2 of 2 running", app)
	}
	w.apply(2)
	if again, _ := w.c.App(shop); again.Revision != app.Revision || len(w.last.Save) != 0 {
		t.Errorf("the same again changed revision %d to %d and saved %d", app.Revision, again.Revision, len(w.last.Save))
	}
	refused := []struct {
		in   Input
		kind error
	}{
		{Apply{Tenant: "acme", Spec: application(1), IfMatch: app.Revision + 1}, api.ErrPrecondition},
		{Apply{Tenant: "acme", Spec: application(1), MustNotExist: true}, api.ErrPrecondition},
		{Apply{Tenant: "other", Spec: application(1), IfMatch: 1}, api.ErrPrecondition},
		{Scale{Service: web, Replicas: -1}, api.ErrInvalid},
		{Scale{Service: web, Replicas: MaxReplicas + 1}, api.ErrInvalid},
		{Scale{Service: web, Replicas: 1, IfMatch: app.Revision + 1}, api.ErrPrecondition},
		{Scale{Service: "acme/none.prod.web.prod", Replicas: 1}, api.ErrNotFound},
		{DeleteApp{App: "acme/none.prod"}, api.ErrNotFound},
		{DeleteApp{App: shop, IfMatch: app.Revision + 1}, api.ErrPrecondition},
		{RemoveCluster{"none"}, api.ErrNotFound},
		{JoinCluster{Info: api.ClusterInfo{ID: "a", Tenant: "thief"}}, api.ErrConflict},
		{Report{wire.Report{Cluster: "none"}}, api.ErrNotFound},
		{Hello{wire.Hello{Cluster: "none"}}, api.ErrNotFound},
	}
	for _, r := range refused {
		if eff := w.do(r.in); !errors.Is(eff.Err, r.kind) || len(eff.Save) != 0 {
			t.Errorf("%T: %v, %d saves, want %v", r.in, eff.Err, len(eff.Save), r.kind)
		}
	}
}

func TestScaleAndDelete(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.apply(2)
	w.settle()
	w.must(Scale{Service: web, Replicas: 5})
	w.settle()
	if w.running() != 5 {
		t.Fatalf("%d run", w.running())
	}
	w.must(Scale{Service: web, Replicas: 1})
	w.settle()
	if all := w.c.Instances("acme"); len(all) != 1 || all[0].Number != 0 {
		t.Fatalf("left are %+v", all)
	}
	w.must(DeleteApp{App: shop})
	if eff := w.do(Apply{Tenant: "acme", Spec: application(1)}); !errors.Is(eff.Err, api.ErrConflict) {
		t.Errorf("applied while it is deleted: %v", eff.Err)
	}
	w.settle()
	if _, ok := w.c.App(shop); ok || len(w.c.Instances("")) > 0 {
		t.Error("it is still there")
	}
	w.apply(1)
	w.settle()
	if w.running() != 1 {
		t.Error("it cannot be made anew")
	}
}

func TestHandedBackInstanceGoesToTheNextCluster(t *testing.T) {
	for _, excl := range []bool{false, true} {
		w := newWorld(t, "a", "b")
		w.twins["a"].room = 0
		change := func(m *api.Microservice) { m.Exclusive = excl }
		w.apply(3, change)
		w.pass(10 * time.Second)
		if w.running() != 3 || w.on("b") != 3 {
			t.Errorf("exclusive %v: %d run, %d on b", excl, w.running(), w.on("b"))
		}
	}
}

func TestAWaitingInstanceIsPlacedWhenCapacityIsFreed(t *testing.T) {
	w := newWorld(t, "a")
	w.twins["a"].room = 1
	w.settle()
	w.apply(3)
	w.pass(20 * time.Second)
	if w.running() != 1 {
		t.Fatalf("%d run", w.running())
	}
	waiting := 0
	for _, in := range w.c.Instances("") {
		if in.State == api.Requested {
			waiting++
			if why, ok := w.c.Why(in.ID, w.now); !ok || len(why.WouldHelp) == 0 {
				t.Errorf("%s does not say what would help: %+v", in.ID, why)
			}
		}
	}
	if waiting != 2 {
		t.Errorf("%d wait", waiting)
	}
	w.twins["a"].room = 5
	w.settle()
	if w.running() != 3 {
		t.Errorf("%d run when there is room", w.running())
	}
}

func TestANewKindOfNodeTakesWaitingInstances(t *testing.T) {
	w := newWorld(t, "a")
	w.apply(1, func(m *api.Microservice) { m.Virtualization = "runsc" })
	w.settle()
	r := w.twins["a"].report()
	r.Aggregate.Slots[0].Runtime = "runsc"
	w.do(r)
	if w.on("a") != 1 {
		t.Error("it still waits")
	}
}

func TestSilentClustersInstancesGoElsewhereAndItsExclusiveOnesWait(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.twins["b"].room = 0
	w.settle()
	w.apply(2)
	other := application(1, exclusive)
	other.Name = "one"
	w.must(Apply{Tenant: "acme", Spec: other})
	w.settle()
	w.twins["b"].room = 10
	w.twins["a"].off = true
	w.pass(40 * time.Second)
	if w.on("b") != 2 || w.on("a") != 1 {
		t.Fatalf("%d on b, %d on a", w.on("b"), w.on("a"))
	}
	w.twins["a"].off = false
	w.settle()
	if got := len(w.twins["a"].want); got != 1 {
		t.Errorf("a still has %d", got)
	}
	w.twins["a"].off = true
	w.must(RemoveCluster{"a"})
	w.settle()
	if w.on("b") != 3 || w.running() != 3 {
		t.Errorf("forgotten, %d are on b and %d run", w.on("b"), w.running())
	}
}

func TestAReasonReturnsWithTheClusterThatReportedIt(t *testing.T) {
	w := newWorld(t, "a")
	for rev := range api.Revision(200) {
		w.twins["a"].bad[rev] = true
	}
	w.apply(1)
	w.settle()
	w.twins["a"].off = true
	w.pass(40 * time.Second)
	w.twins["a"].off = false
	w.settle()
	if in := w.c.Instances("")[0]; in.State != api.Failed || in.Reason != api.ReasonExited {
		t.Errorf("it is %s: %q", in.State, in.Reason)
	}
}

func TestRestartSendsWhatIsDesiredAndLosesNothing(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.apply(6)
	w.settle()
	before := w.c.Instances("")
	w.restart()
	w.settle()
	after := w.c.Instances("")
	if len(after) != len(before) {
		t.Fatalf("%d instances, were %d", len(after), len(before))
	}
	for i := range after {
		if after[i].Epoch != before[i].Epoch || after[i].Cluster != before[i].Cluster {
			t.Errorf("%s was moved", after[i].ID)
		}
	}
}

func TestAClusterResumesFromTheLogOrGetsTheWholeSet(t *testing.T) {
	w := newWorld(t, "a")
	w.twins["a"].room = 100
	w.settle()
	w.apply(3)
	w.settle()
	since, digest, _ := w.c.Desired("a")
	sent := func(from api.Generation, d api.Digest) *wire.Desired {
		for _, e := range w.do(Hello{wire.Hello{Cluster: "a", Since: from, Digest: d}}).Send {
			if d, ok := e.Msg.(wire.Desired); ok {
				return &d
			}
		}
		return nil
	}
	if d := sent(since, digest); d != nil {
		t.Errorf("a cluster that has it all gets %+v", d)
	}
	w.must(Scale{Service: web, Replicas: 1})
	if d := sent(since, digest); d == nil || d.From != since || len(d.Drop) != 2 || len(d.Put) != 0 {
		t.Errorf("resumed, it gets %+v", d)
	}
	if d := sent(0, 0); d == nil || d.From != 0 || len(d.Put) != 1 {
		t.Errorf("anew, it gets %+v", d)
	}
	for n := 0; n <= 1024/60; n++ {
		w.must(Scale{Service: web, Replicas: 64})
		w.settle()
		w.must(Scale{Service: web, Replicas: 1})
		w.settle()
	}
	if d := sent(since, digest); d == nil || d.From != 0 {
		t.Errorf("beyond the log it gets %+v", d)
	}
}

func TestStaleEpochsAndForeignClustersAreNotBelieved(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.apply(1)
	w.settle()
	in := w.c.Instances("")[0]
	own, foreign := w.twins[in.Cluster], w.twins["a"]
	if foreign == own {
		foreign = w.twins["b"]
	}
	say := func(tw *twin, o api.Observed) {
		r := tw.report()
		r.Whole, r.Observed = false, []api.Observed{o}
		w.do(r)
	}
	lie := api.Observed{Instance: in.ID, Epoch: in.Epoch, State: api.Failed, HandedBack: true}
	say(foreign, lie)
	lie.Epoch = api.EpochOf(in.Epoch.Root()-1, 9)
	say(own, lie)
	lie.Epoch = api.EpochOf(in.Epoch.Root(), 0)
	say(own, lie)
	lie = api.Observed{Instance: web.Instance(foreignNumber(w, foreign.id)), Epoch: 1 << 20, State: api.Running, Local: true}
	say(foreign, lie)
	if got := w.c.Instances(""); len(got) != 1 || got[0].State != api.Running || got[0].Cluster != in.Cluster {
		t.Errorf("now there is %+v", got)
	}
	if len(foreign.want) != 0 {
		t.Error("a cluster learned a foreign SLA")
	}
}

func foreignNumber(w *world, id api.ClusterID) int {
	cl, _ := w.c.Cluster(id)
	return cl.LocalNumbers()
}

func TestRootTakesOverWhatAnOperatorAdded(t *testing.T) {
	w := newWorld(t, "a")
	w.apply(1)
	w.settle()
	in := w.c.Instances("")[0]
	id := web.Instance(foreignNumber(w, "a"))
	w.twins["a"].local[id] = api.Observed{Instance: id, Epoch: in.Epoch, State: api.Running, Local: true}
	w.settle()
	if s, _ := w.c.Service(web); s.Replicas != 2 || w.running() != 2 || len(w.twins["a"].local) != 0 {
		t.Errorf("%d replicas, %d run", s.Replicas, w.running())
	}
	w.must(DeleteApp{App: shop})
	w.twins["a"].local[id] = api.Observed{Instance: id, Epoch: in.Epoch, State: api.Running, Local: true}
	w.settle()
	if len(w.twins["a"].local) != 0 || len(w.c.Instances("")) != 0 {
		t.Error("what nobody wants any more was not withdrawn")
	}
}

func TestTenantsWithTheSameNamesDoNotMeet(t *testing.T) {
	w := newWorld(t, "a")
	w.must(Apply{Tenant: "acme", Spec: application(1)})
	w.must(Apply{Tenant: "globex", Spec: application(2)})
	w.settle()
	if len(w.c.Instances("acme")) != 1 || len(w.c.Instances("globex")) != 2 || len(w.c.Instances("acm")) != 0 {
		t.Error("a tenant sees another's")
	}
	w.must(DeleteApp{App: shop})
	w.settle()
	if len(w.c.Apps("acme")) != 0 || len(w.c.Apps("globex")) != 1 {
		t.Error("one tenant's deletion met the other")
	}
}

func TestEventsAreKeptOverRestartsUpToTheirBound(t *testing.T) {
	w := newWorld(t)
	w.cfg.EventsKept = 16
	w.restart()
	for i := range 50 {
		w.must(JoinCluster{Info: api.ClusterInfo{ID: api.ClusterID(fmt.Sprintf("c%02d", i))}})
		if i%7 == 0 {
			w.restart()
		}
	}
	w.restart()
	es := w.c.Events(eventlog.Filter{})
	if len(es) != 16 || es[15].Object != "c49" || es[0].Object != "c34" {
		t.Fatalf("%d events: %+v", len(es), es)
	}
	if got := w.c.Events(eventlog.Filter{Since: es[12].Seq}); len(got) != 3 {
		t.Errorf("%d later events", len(got))
	}
	stored := 0
	for _, d := range w.disk {
		if d.Kind == kindEvent {
			stored++
		}
	}
	if stored != 16 {
		t.Errorf("%d are stored", stored)
	}
}

// TestThousandsOfInstancesInOneStep checks the order of growth: a sum over all instances in each
// placement took minutes.
func TestThousandsOfInstancesInOneStep(t *testing.T) {
	w := newWorld(t, "a")
	w.twins["a"].room = 1 << 19
	w.settle()
	w.apply(4000)
	w.settle()
	if w.running() != 4000 {
		t.Errorf("%d run", w.running())
	}
	w.must(DeleteApp{App: shop})
	w.settle()
	if n := len(w.c.Instances("")); n != 0 {
		t.Errorf("%d are left", n)
	}
	w.checkBooks()
}
