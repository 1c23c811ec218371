package autoscale

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

func TestRequestsPerSecondScale(t *testing.T) {
	w := newWorld(t)
	w.add(web, &api.Scale{Max: 6, Requests: &api.RequestGoal{Target: 50, Port: 80, Counter: "hits"}, StabilisationDown: number(30)}, 6)
	for _, c := range []struct {
		perSecond float64 // of all instances together
		want      int
	}{{40, 1}, {120, 3}, {1e9, 6}, {140, 3}, {0, 1}} {
		w.run(3*time.Minute, func(api.InstanceID) (Sample, bool) {
			return Sample{Requests: int64(1000 * c.perSecond / float64(max(1, w.awake(web))))}, true
		})
		if got := w.awake(web); got != c.want {
			t.Errorf("at %g/s %d instances run, want %d", c.perSecond, got, c.want)
		}
	}
}

// A counter that cannot be read stops nothing and starts nothing, and people are told once.
func TestUnknownRequestsKeepTheNumber(t *testing.T) {
	w := newWorld(t)
	w.add(web, &api.Scale{Max: 6, Requests: &api.RequestGoal{Target: 50, Port: 80, Counter: "hits"}, StabilisationDown: number(0)}, 6)
	w.run(3*time.Minute, func(api.InstanceID) (Sample, bool) {
		return Sample{Requests: int64(200_000 / max(1, w.awake(web)))}, true
	})
	if f := w.m.Faults(); w.awake(web) != 4 || len(f) > 0 {
		t.Fatalf("%d instances run, faults %v", w.awake(web), f)
	}
	all := w.run(10*time.Minute, busy(Sample{Requests: -1, Fault: "connection refused"}))
	f := w.m.Faults()
	if len(all) > 0 || len(f) != 1 || f[web] != (Fault{web.Instance(0), "requests: connection refused"}) {
		t.Errorf("%+v was decided, faults %+v", all, f)
	}
	if st, ok := w.m.Standing(w.now, web.Instance(2)); !ok || st.Metrics[0].Value != nil || !strings.Contains(st.Fault, "refused") || st.Awake != 4 || st.Assigned != 6 {
		t.Errorf("standing %+v", st)
	}
	w.run(time.Minute, busy(Sample{Requests: 50_000}))
	if f := w.m.Faults(); len(f) != 1 || f[web].Text != "" {
		t.Errorf("when it is known again: %+v", f)
	}
	if st, _ := w.m.Standing(w.now, web.Instance(0)); st.Metrics[0].Value == nil || *st.Metrics[0].Value != 50 || st.Metrics[0].Target != 50 {
		t.Errorf("standing %+v", st.Metrics)
	}
}

func expression(low, high int) *api.Scale {
	return &api.Scale{Min: number(low), Max: high, Prometheus: &api.QueryGoal{Query: "sum(jobs)", Target: 10}, StabilisationDown: number(30), IdleTime: 60}
}

func TestTheValueOfAnExpressionScales(t *testing.T) {
	w := newWorld(t)
	w.add(web, expression(0, 8), 4) // the cluster has half of the service
	if all, changed := w.m.Queries(); !changed || all[web] != "sum(jobs)" {
		t.Fatalf("queries %v", all)
	}
	if _, changed := w.m.Queries(); changed {
		t.Error("they are passed on again without a change")
	}
	for _, c := range []struct {
		value float64
		want  int
	}{{0, 0}, {1, 1}, {20, 1}, {41, 3}, {1e300, 4}, {-5, 1}, {60, 3}} {
		for range 24 {
			w.m.Value(w.now, web, "sum(jobs)", c.value, "")
			w.run(10*time.Second, busy(Sample{}))
		}
		if got := w.awake(web); got != c.want && !(c.value == -5 && got == 0) {
			t.Errorf("at %g %d instances run, want %d", c.value, got, c.want)
		}
	}
	n := w.awake(web)
	for range 60 {
		w.m.Value(w.now, web, "sum(jobs)", 0, "the server is down")
		w.m.Value(w.now, web, "sum(other)", 0, "")
		w.m.Value(w.now, web, "sum(jobs)", math.NaN(), "")
		w.run(10*time.Second, busy(Sample{Idle: time.Hour}))
	}
	if got, f := w.awake(web), w.m.Faults()[web].Text; got != n || f != "prometheus: the server is down" {
		t.Errorf("without a value %d instances run, want %d as before; fault %q", got, n, f)
	}
	for id := range w.st {
		w.m.Remove(id)
	}
	if all, changed := w.m.Queries(); !changed || len(all) > 0 || w.m.expressions.Size() > 0 || len(w.m.Faults()) > 0 {
		t.Errorf("a removed service leaves %v", all)
	}
}

// A value that has changed is decided upon when it arrives, but not more often than values do.
func TestANewValueIsDecidedUponAtOnce(t *testing.T) {
	w := newWorld(t)
	scale := expression(1, 8)
	scale.StabilisationDown = number(0)
	w.add(web, scale, 8)
	w.run(5*time.Second, busy(Sample{}))
	for _, c := range []struct {
		value float64
		want  int
	}{{35, 4}, {0, 1}, {20, 2}} {
		w.m.Value(w.now, web, "sum(jobs)", c.value, "")
		w.carryOut()
		if got := w.awake(web); got != c.want {
			t.Errorf("as soon as the value is %g %d instances run, want %d", c.value, got, c.want)
		}
		w.now = w.now.Add(time.Second)
	}
	for range 10 {
		w.m.Value(w.now, web, "sum(jobs)", 20, "")
		w.m.Value(w.now, web, "sum(jobs)", 0, "the server is down")
		if next := w.m.Next(); !next.After(w.now) {
			t.Fatalf("it decides again at once although the value is the same")
		}
		w.now = w.now.Add(100 * time.Millisecond)
	}
}

func TestAValueKeepsAnIdleServiceAwake(t *testing.T) {
	w := newWorld(t)
	w.add(web, expression(0, 1), 1)
	for value, want := range map[float64]int{5: 1} {
		for range 30 {
			w.m.Value(w.now, web, "sum(jobs)", value, "")
			w.run(10*time.Second, busy(Sample{Idle: time.Hour}))
		}
		if got := w.awake(web); got != want {
			t.Errorf("at %g %d instances run, want %d", value, got, want)
		}
	}
	for range 30 {
		w.m.Value(w.now, web, "sum(jobs)", 0, "")
		w.run(10*time.Second, busy(Sample{Idle: time.Hour}))
	}
	if got := w.awake(web); got != 0 {
		t.Errorf("at 0 %d idle instances run", got)
	}
}

func TestExpressionsOfOneTenantLeaveRoomForOthers(t *testing.T) {
	w := newWorld(t)
	for n := range 3 * MaxTenantExpressions {
		w.m.Set(w.now, api.ServiceID(fmt.Sprintf("hostile/team%d/a.n.s.n", n)).Instance(0), State{Scale: expression(0, 1)})
	}
	w.add(web, expression(0, 1), 1)
	all, _ := w.m.Queries()
	if len(all) != MaxTenantExpressions+1 || all[web] == "" {
		t.Errorf("%d expressions are evaluated, want %d of the tenant and one of another", len(all), MaxTenantExpressions)
	}
}
