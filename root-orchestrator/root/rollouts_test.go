package root

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// update sets the field update of an SLA.
func update(u api.Update) func(*api.Microservice) {
	return func(m *api.Microservice) { m.Update = &u }
}

// rolled gives an SLA the default policy of roll-outs.
func rolled(m *api.Microservice) { m.Update = nil }

// passReady is pass. It returns the fewest instances that took requests meanwhile.
func (w *world) passReady(d time.Duration) (lowest int) {
	w.t.Helper()
	lowest = MaxReplicas
	for end := w.now.Add(d); w.now.Before(end); {
		w.round()
		lowest = min(lowest, w.ready())
	}
	return lowest
}

func (w *world) ready() (n int) {
	for _, in := range w.c.Instances("acme") {
		if in.State == api.Running && in.Ready && !in.Leaving {
			n++
		}
	}
	return n
}

// codes counts the instances by the code of their SLA.
func (w *world) codes() string {
	count := map[string]int{}
	for _, in := range w.records() {
		if !in.Leaving {
			count[in.Spec.Code]++
		}
	}
	return fmt.Sprint(count)
}

func (w *world) rollOut() api.RollOut {
	w.t.Helper()
	r, ok := w.c.RollOut(web)
	if !ok {
		w.t.Fatal("the service has no roll-out")
	}
	return r
}

// makeBad makes the workloads of SLAs with the code fail.
func (w *world) makeBad(code string) {
	for _, tw := range w.twins {
		tw.badCode = code
	}
}

func TestRollOutKeepsAllInstancesReady(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.apply(4, code("good"), rolled)
	w.pass(20 * time.Second)
	w.apply(4, code("better"), rolled)
	if lowest := w.passReady(2 * time.Minute); lowest < 4 || w.codes() != "map[better:4]" {
		t.Errorf("at least %d were ready, want 4; at the end %s, want 4 of better: %s", lowest, w.codes(), w.rollOut().Standing())
	}
	for n := range 4 {
		w.record(web.Instance(n)) // the numbers are the same as before
	}
	if r := w.rollOut(); r.State != api.RollOutHealthy || r.Extra != 0 {
		t.Errorf("the roll-out is %s", r.Standing())
	}
}

func TestABadVersionReturnsWithoutReplacingAnInstance(t *testing.T) {
	w := newWorld(t, "a")
	w.apply(4, code("good"), rolled)
	w.pass(20 * time.Second)
	before, _ := w.c.Service(web)
	var epochs []api.Epoch
	for n := range 4 {
		epochs = append(epochs, w.record(web.Instance(n)).Epoch)
	}
	w.makeBad("bad")
	w.apply(4, code("bad"), update(api.Update{Deadline: 30}))
	if lowest := w.passReady(90 * time.Second); lowest < 4 || w.codes() != "map[good:4]" {
		t.Errorf("at least %d were ready, want 4; at the end %s, want 4 of good: %s", lowest, w.codes(), w.rollOut().Standing())
	}
	for n := range 4 {
		if now := w.record(web.Instance(n)).Epoch; now != epochs[n] {
			t.Errorf("#%d was placed again: epoch %s, want %s", n, now, epochs[n])
		}
	}
	after, _ := w.c.Service(web)
	app, _ := w.c.App(shop)
	if after.SpecRev != before.SpecRev || after.Spec.Code != "good" || app.By != "automatic rollback" {
		t.Errorf("the service has revision %d with %s by %s, want %d with good by automatic rollback", after.SpecRev, after.Spec.Code, app.By, before.SpecRev)
	}
	h, _ := w.c.RollOutHistory(web)
	var results []string
	for _, v := range h.Versions {
		results = append(results, v.Code+" "+string(v.Result))
	}
	if want := []string{"bad rolled_back", "good healthy"}; !slices.Equal(results, want) {
		t.Errorf("the history is %q, want %q", results, want)
	}
	if r := w.rollOut(); r.State != api.RollOutHealthy || r.Failed == 0 {
		t.Errorf("the roll-out is %+v, want a healthy one that names the failed version", r)
	}
}

func TestANewerVersionSupersedesTheOneThatIsRolledOut(t *testing.T) {
	for _, after := range []time.Duration{0, 3 * time.Second, 8 * time.Second, 20 * time.Second} {
		w := newWorld(t, "a")
		w.apply(3, code("1"), rolled)
		w.pass(20 * time.Second)
		w.apply(3, code("2"), rolled)
		lowest := w.passReady(after)
		w.apply(3, code("3"), rolled)
		lowest = min(lowest, w.passReady(2*time.Minute))
		if lowest < 3 || w.codes() != "map[3:3]" {
			t.Errorf("superseded after %s: at least %d were ready, want 3; at the end %s, want 3 of 3", after, lowest, w.codes())
		}
	}
}

func TestUndoReturnsToTheLastHealthyVersion(t *testing.T) {
	w := newWorld(t, "a")
	w.apply(2, code("1"), rolled)
	w.pass(20 * time.Second)
	w.apply(2, code("2"), rolled)
	w.pass(time.Minute)
	w.must(RollOut{Service: web, Action: UndoRollOut, By: "bob"})
	if lowest := w.passReady(time.Minute); lowest < 2 || w.codes() != "map[1:2]" {
		t.Errorf("at least %d were ready, want 2; at the end %s, want 2 of 1", lowest, w.codes())
	}
	if app, _ := w.c.App(shop); app.By != "bob" {
		t.Errorf("applied by %s, want bob", app.By)
	}
}

func TestAPausedRollOutWaits(t *testing.T) {
	w := newWorld(t, "a")
	w.apply(3, code("1"), rolled)
	w.pass(20 * time.Second)
	w.apply(3, code("2"), rolled)
	w.pass(6 * time.Second)
	w.must(RollOut{Service: web, Action: PauseRollOut, By: "bob"})
	was := w.codes()
	w.pass(time.Minute)
	if s, _ := w.c.Service(web); w.codes() != was || s.RollOut != api.RollOutPaused {
		t.Errorf("paused at %s, now %s; the service is %q, want paused", was, w.codes(), s.RollOut)
	}
	why, _ := w.c.Why(web.Instance(2), w.now)
	if !strings.Contains(why.Summary, "paused by bob") {
		t.Errorf("why says %q, want who paused the roll-out", why.Summary)
	}
	w.must(RollOut{Service: web, Action: ResumeRollOut, By: "bob"})
	w.pass(time.Minute)
	if w.codes() != "map[2:3]" {
		t.Errorf("at the end %s, want 3 of 2", w.codes())
	}
}

func TestAVersionThatFitsNowhereReplacesNothing(t *testing.T) {
	w := newWorld(t, "a")
	w.apply(3, code("1"), rolled)
	w.pass(20 * time.Second)
	w.apply(3, code("2"), update(api.Update{Deadline: 30}), func(m *api.Microservice) { m.Memory = 1 << 20 })
	if lowest := w.passReady(90 * time.Second); lowest < 3 || w.codes() != "map[1:3]" {
		t.Errorf("at least %d were ready, want 3; at the end %s, want 3 of 1: %s", lowest, w.codes(), w.rollOut().Standing())
	}
}

func TestAFullClusterReplacesInPlace(t *testing.T) {
	w := newWorld(t)
	w.join("a", 3)
	w.apply(3, code("1"), rolled)
	w.pass(20 * time.Second)
	w.apply(3, code("2"), rolled)
	if lowest := w.passReady(2 * time.Minute); lowest < 2 || w.codes() != "map[2:3]" {
		t.Errorf("at least %d were ready, want 2; at the end %s, want 3 of 2: %s", lowest, w.codes(), w.rollOut().Standing())
	}
}

func TestALostClusterDoesNotEndARollOut(t *testing.T) {
	for _, after := range []time.Duration{2 * time.Second, 12 * time.Second} {
		w := newWorld(t, "a", "b")
		w.apply(4, code("1"), rolled)
		w.pass(20 * time.Second)
		w.apply(4, code("2"), rolled)
		w.pass(after)
		w.twins["b"].off = true
		w.pass(4 * time.Minute)
		if w.codes() != "map[2:4]" || w.ready() != 4 {
			t.Errorf("cluster lost after %s: at the end %s, %d ready; want 4 of 2: %s", after, w.codes(), w.ready(), w.rollOut().Standing())
		}
	}
}

// TestRootCrashesInARollOut crashes the root between any two saves of a step of a roll-out that fails
// or succeeds. Instances of the version that was healthy before stay ready.
func TestRootCrashesInARollOut(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 3))
		w := newWorld(t, "a", "b")
		w.apply(3, code("1"), rolled)
		w.pass(20 * time.Second)
		bad := rng.IntN(2) == 0
		if bad {
			w.makeBad("2")
		}
		crash := func(in Input) {
			eff := w.c.Step(w.now, in)
			w.save(eff.Save[:rng.IntN(len(eff.Save)+1)])
			w.restart()
		}
		change := Apply{Tenant: "acme", Spec: application(3, code("2"), update(api.Update{Deadline: 40})), By: "alice"}
		crash(change)
		w.must(change)
		lowest := w.ready()
		for range 12 {
			lowest = min(lowest, w.passReady(time.Duration(1+rng.IntN(12))*time.Second))
			w.now = w.now.Add(time.Second)
			crash(Tick{})
			lowest = min(lowest, w.ready())
		}
		w.pass(4 * time.Minute)
		w.checkBooks()
		want := "map[2:3]"
		if bad {
			want = "map[1:3]"
		}
		if w.codes() != want || w.ready() != 3 || lowest < 3 {
			t.Errorf("seed %d: at the end %s, %d ready, at least %d before; want %s and 3 all the time: %s", seed, w.codes(), w.ready(), lowest, want, w.rollOut().Standing())
		}
	}
}

func TestOlderClustersDoNotReportReadiness(t *testing.T) {
	w := newWorld(t, "a")
	w.apply(2)
	w.settle()
	if w.ready() != 2 {
		t.Errorf("%d instances are ready, want 2: running is enough", w.ready())
	}
	r := w.twins["a"].report()
	r.Readiness = true
	w.must(r)
	if w.ready() != 0 {
		t.Errorf("%d instances are ready, want 0: the cluster reports readiness and none is ready", w.ready())
	}
	r = w.twins["a"].report()
	r.Readiness = true
	r.Known = 0
	for i := range r.Observed {
		r.Observed[i].Ready = true
		r.Known = r.Known.Toggle(r.Observed[i].Digest())
	}
	eff := w.must(r)
	for _, e := range eff.Send {
		if a, ok := e.Msg.(wire.ReportAck); ok && a.RequestWhole {
			t.Error("the root requests all observations, although it has them")
		}
	}
	if w.ready() != 2 {
		t.Errorf("%d instances are ready, want 2", w.ready())
	}
}
