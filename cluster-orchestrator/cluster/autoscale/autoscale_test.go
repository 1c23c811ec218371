package autoscale

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

func number(n int) *int { return &n }

// world runs a Machine as its caller does: decisions take effect at once.
type world struct {
	*testing.T
	m   *Machine
	now time.Time
	st  map[api.InstanceID]State
}

func newWorld(t *testing.T) *world {
	return &world{T: t, m: New(), now: time.Unix(1000, 0), st: map[api.InstanceID]State{}}
}

func (w *world) add(id api.ServiceID, scale *api.Scale, granted int) {
	for n := range granted {
		st := State{Scale: scale, Limits: api.Resources{MilliCPU: 1000, MemoryMB: 100}, Awake: !scale.Sleeps(n), Placed: !scale.Sleeps(n), Running: !scale.Sleeps(n)}
		w.st[id.Instance(n)] = st
		w.m.Set(w.now, id.Instance(n), st)
	}
}

// carryOut applies what the machine decides now.
func (w *world) carryOut() (all []Decision) {
	for _, d := range w.m.Decide(w.now) {
		st := w.st[d.Instance]
		if st.Awake == d.Wake {
			w.Fatalf("decision %+v changes nothing", d)
		}
		st.Awake, st.Placed, st.Running = d.Wake, d.Wake, d.Wake
		w.st[d.Instance] = st
		w.m.Set(w.now, d.Instance, st)
		all = append(all, d)
	}
	return all
}

func (w *world) awake(id api.ServiceID) (n int) {
	for in, st := range w.st {
		if in.Service() == id && st.Awake {
			n++
		}
	}
	return n
}

// run lets time pass while every instance that is awake reports x.
func (w *world) run(d time.Duration, x func(api.InstanceID) (Sample, bool)) (all []Decision) {
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(5 * time.Second) {
		for id, st := range w.st {
			if s, ok := x(id); ok && st.Awake {
				w.m.Sample(w.now, id, s)
			}
		}
		all = append(all, w.carryOut()...)
	}
	return all
}

func busy(x Sample) func(api.InstanceID) (Sample, bool) {
	return func(api.InstanceID) (Sample, bool) { return x, true }
}

const web = api.ServiceID("acme/shop.prod.web.v1")

func TestTheNumberFollowsTheLoad(t *testing.T) {
	w := newWorld(t)
	w.add(web, &api.Scale{Max: 6, CPU: 50, StabilisationDown: number(60)}, 6)
	for _, c := range []struct {
		cpu  int64 // of all instances together
		want int
	}{{480, 1}, {1400, 3}, {2400, 5}, {9000, 6}, {2400, 5}, {0, 1}} {
		w.run(3*time.Minute, func(api.InstanceID) (Sample, bool) {
			return Sample{MilliCPU: c.cpu / int64(max(1, w.awake(web)))}, true
		})
		if got := w.awake(web); got != c.want {
			t.Errorf("at %d mCPU %d instances run, want %d", c.cpu, got, c.want)
		}
	}
}

func TestTheMetricThatNeedsMostCounts(t *testing.T) {
	w := newWorld(t)
	w.add(web, &api.Scale{Max: 8, CPU: 50, Memory: 80, Connections: 10}, 8)
	w.run(2*time.Minute, func(api.InstanceID) (Sample, bool) {
		return Sample{MilliCPU: 100, MemoryMB: 20, Connections: 40 / max(1, w.awake(web))}, true
	})
	if got := w.awake(web); got != 4 {
		t.Errorf("%d instances run for 40 connections at 10 each, want 4", got)
	}
}

func TestLoadThatSwingsDoesNotFlap(t *testing.T) {
	w := newWorld(t)
	w.add(web, &api.Scale{Max: 4, Connections: 10}, 4)
	i := 0
	all := w.run(time.Hour, func(api.InstanceID) (Sample, bool) {
		i++
		return Sample{Connections: []int{5, 15}[i/12%2]}, true
	})
	sleeps := 0
	for _, d := range all {
		if !d.Wake {
			sleeps++
		}
	}
	if sleeps > 0 {
		t.Errorf("%d instances were stopped while the load swings faster than the window", sleeps)
	}
}

func TestUnknownLoadStopsNothing(t *testing.T) {
	w := newWorld(t)
	w.add(web, &api.Scale{Max: 4, Connections: 10, StabilisationDown: number(0)}, 4)
	w.run(time.Minute, busy(Sample{Connections: 30}))
	if all := w.run(time.Hour, func(api.InstanceID) (Sample, bool) { return Sample{}, false }); len(all) > 0 {
		t.Errorf("without reports of the load %+v was decided", all)
	}
}

func TestAnIdleServiceSleepsAndItsFirstPacketWakesIt(t *testing.T) {
	w := newWorld(t)
	w.add(web, &api.Scale{Min: number(0), Max: 2, Connections: 10, IdleTime: 60}, 2)
	if w.carryOut(); w.awake(web) != 0 {
		t.Fatal("an instance runs that nobody needs")
	}
	if !w.m.Demand(w.now, web, Any) || w.m.Demand(w.now, web, 7) || w.m.Demand(w.now, "acme/shop.prod.other.v1", Any) {
		t.Fatal("a demand was taken for an instance that does not exist, or refused for one that does")
	}
	for range 3 {
		w.m.Demand(w.now, web, Any)
	}
	if all := w.carryOut(); len(all) != 1 || all[0].Instance != web.Instance(0) {
		t.Fatalf("the first packet led to %+v, want instance 0 woken once", all)
	} else if st, _ := w.m.Standing(w.now, web.Instance(0)); st.Why != all[0].Why || st.Why == "" {
		t.Errorf("the last change is said to be %q, want %q", st.Why, all[0].Why)
	}
	if w.m.Demand(w.now, web, Any); len(w.carryOut()) > 0 {
		t.Error("a repeated demand woke another instance")
	}
	if all := w.run(time.Hour, busy(Sample{Connections: 1})); len(all) > 0 {
		t.Errorf("with an open connection %+v was decided", all)
	}
	began := w.now
	all := w.run(10*time.Minute, func(api.InstanceID) (Sample, bool) { return Sample{Idle: w.now.Sub(began)}, true })
	if len(all) != 1 || all[0].Wake || all[0].Why != "idle for 1m0s" {
		t.Fatalf("an idle service led to %+v", all)
	}
}

func TestWhatIsNotKnownToBeIdleDoesNotSleep(t *testing.T) {
	for name, x := range map[string]func(api.InstanceID) (Sample, bool){
		"unknown":   busy(Sample{Idle: -1}),
		"busy":      busy(Sample{Idle: 59 * time.Second}),
		"no report": func(api.InstanceID) (Sample, bool) { return Sample{}, false },
	} {
		w := newWorld(t)
		w.add(web, &api.Scale{Min: number(0), Max: 1, IdleTime: 60}, 1)
		w.m.Demand(w.now, web, Any)
		w.carryOut()
		if all := w.run(time.Hour, x); len(all) > 0 {
			t.Errorf("%s: %+v was decided", name, all)
		}
	}
}

func TestADemandKeepsAnIdleServiceAwake(t *testing.T) {
	w := newWorld(t)
	w.add(web, &api.Scale{Min: number(0), Max: 1, IdleTime: 60}, 1)
	w.m.Demand(w.now, web, Any)
	w.carryOut()
	for range 20 {
		w.m.Demand(w.now, web, Any)
		if all := w.run(30*time.Second, busy(Sample{Idle: time.Hour})); len(all) > 0 {
			t.Fatalf("while packets wait %+v was decided", all)
		}
	}
}

func TestADemandForANumberWakesThatInstance(t *testing.T) {
	w := newWorld(t)
	w.add(web, &api.Scale{Min: number(0), Max: 3, CPU: 50}, 3)
	w.m.Demand(w.now, web, 2)
	if all := w.carryOut(); len(all) != 1 || all[0].Instance != web.Instance(2) {
		t.Errorf("a packet to instance 2 led to %+v", all)
	}
}

func TestColdStartsOfOneTenantLeaveTurnsForOthers(t *testing.T) {
	w := newWorld(t)
	service := func(tenant string, n int) api.ServiceID {
		return api.ServiceID(fmt.Sprintf("%s/team%d/a.n.s%d.n", tenant, n, n)) // a tenant can create tenants below it
	}
	starting := map[api.Tenant]int{}
	one := &api.Scale{Min: number(0), Max: 1}
	demand := func(tenant string, n int) {
		id := service(tenant, n)
		w.m.Set(w.now, id.Instance(0), State{Scale: one})
		w.m.Demand(w.now, id, Any)
	}
	for n := range 100 {
		demand("hostile", n)
	}
	demand("acme", 1)
	var first api.InstanceID
	for _, d := range w.m.Decide(w.now) {
		starting[d.Instance.Tenant().Top()]++
		if d.Instance.Tenant().Top() == "hostile" {
			first = d.Instance
		}
	}
	if starting["acme"] != 1 || starting["hostile"] != coldBound.Share[0] {
		t.Fatalf("%v start at once, want 1 of acme and %d of hostile", starting, coldBound.Share[0])
	}
	says := func(id api.ServiceID, want string) {
		t.Helper()
		if st, _ := w.m.Standing(w.now, id.Instance(0)); !strings.Contains(st.Waits, want) || (want == "") != (st.Waits == "") {
			t.Errorf("%s waits %q, want %q", id, st.Waits, want)
		}
	}
	says(service("hostile", 99), "its turn among the cold starts: 8 of at most 8 of hostile are under way")
	says(service("acme", 1), "")
	for n := range 100 {
		demand("hostile", 100+n)
	}
	says(service("hostile", 199), "services that wait for a cold start")
	w.m.Set(w.now, first, State{Scale: one, Awake: true, Running: true})
	if all := w.m.Decide(w.now); len(all) != 1 {
		t.Errorf("when one had started %+v was decided, want one more", all)
	}
	w.now = w.now.Add(startTime) // none of the others starts
	if all := w.m.Decide(w.now); len(all) < coldBound.Share[0] {
		t.Errorf("starts that take too long keep all but %d waiting", len(all))
	}
}

// An instance that finds no room does not wait on when nobody needs it, and is stopped before one that runs.
func TestAnInstanceWithoutRoomIsIdle(t *testing.T) {
	w := newWorld(t)
	scale := &api.Scale{Min: number(0), Max: 2, Connections: 10, IdleTime: 60, StabilisationDown: number(0)}
	w.add(web, scale, 2)
	w.m.Set(w.now, web.Instance(0), State{Scale: scale, Awake: true})
	w.m.Set(w.now, web.Instance(1), State{Scale: scale, Awake: true, Placed: true, Running: true})
	w.now = w.now.Add(period)
	w.m.Sample(w.now, web.Instance(1), Sample{})
	if all := w.m.Decide(w.now); len(all) != 1 || all[0].Wake || all[0].Instance != web.Instance(0) {
		t.Fatalf("%+v was decided, want the instance that has no room to sleep", all)
	}
	w.m.Set(w.now, web.Instance(0), State{Scale: scale})
	w.m.Set(w.now, web.Instance(1), State{Scale: scale, Awake: true}) // its node is lost
	for _, c := range []struct {
		after time.Duration
		want  int
	}{{30 * time.Second, 0}, {31 * time.Second, 1}} {
		w.now = w.now.Add(c.after)
		if all := w.m.Decide(w.now); len(all) != c.want {
			t.Errorf("%s later %+v was decided, want %d to sleep", c.after, all, c.want)
		}
	}
}

func TestDemandsOfOneTenantLeaveRoomForOthers(t *testing.T) {
	w := newWorld(t)
	for n := range 20_000 {
		id := api.ServiceID(fmt.Sprintf("hostile/team%d/a.n.s%d.n", n, n))
		w.m.Set(w.now, id.Instance(0), State{Scale: &api.Scale{Min: number(0), Max: 1}})
		w.m.Demand(w.now, id, Any)
	}
	if n := len(w.m.queue); n > demandBound.Share[0] {
		t.Errorf("%d services of a tenant wait, want at most %d", n, demandBound.Share[0])
	}
	w.add(web, &api.Scale{Min: number(0), Max: 1}, 1)
	w.m.Demand(w.now, web, Any)
	if w.carryOutHostile(); w.awake(web) != 1 {
		t.Error("a service of another tenant was not woken")
	}
}

func (w *world) carryOutHostile() {
	for _, d := range w.m.Decide(w.now) {
		st := w.st[d.Instance]
		st.Awake = d.Wake
		w.st[d.Instance] = st
	}
}

// Whatever nodes report, the number stays within the bounds, and decisions change something.
func TestTheNumberStaysWithinItsBounds(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t)
		scale := &api.Scale{
			Min: number(r.IntN(3)), Max: 6, CPU: r.IntN(100), Memory: r.IntN(2) * 50, Connections: r.IntN(2) * 10,
			IdleTime: 5 + r.IntN(60), StabilisationUp: r.IntN(60), StabilisationDown: number(r.IntN(60)),
		}
		granted := 1 + r.IntN(6)
		w.add(web, scale, granted)
		for range 300 {
			w.now = w.now.Add(time.Duration(r.IntN(10_000)) * time.Millisecond)
			for id, st := range w.st {
				if st.Awake && r.IntN(3) > 0 {
					w.m.Sample(w.now, id, Sample{
						MilliCPU: r.Int64N(1 << 40), MemoryMB: r.Int64N(1 << 40), Connections: r.IntN(1 << 30), Idle: time.Duration(r.IntN(200)-1) * time.Second,
					})
				}
			}
			if r.IntN(10) == 0 {
				w.m.Demand(w.now, web, r.IntN(9)-1)
			}
			w.carryOut()
			if n := w.awake(web); n < min(scale.Least(), granted) || n > granted {
				t.Fatalf("seed %d: %d instances run, want %d to %d", seed, n, min(scale.Least(), granted), granted)
			}
		}
		for id := range w.st {
			w.m.Remove(id)
		}
		if len(w.m.services) > 0 || len(w.m.queue) > 0 || w.m.colds != 0 || len(w.m.cold) > 0 || w.m.waiting.Size() > 0 || !w.m.Next().IsZero() {
			t.Fatalf("seed %d: removed instances left state behind", seed)
		}
	}
}

// During a roll-out an instance still has the old SLA, which says that it always runs.
func TestAnInstanceSleepsByItsOwnSLA(t *testing.T) {
	w := newWorld(t)
	before := &api.Scale{Min: number(2), Max: 2, Connections: 10, IdleTime: 5, StabilisationDown: number(0)}
	w.add(web, before, 2)
	after := *before
	after.Min = number(0)
	st := State{Scale: &after}
	w.st[web.Instance(0)] = st
	w.m.Set(w.now, web.Instance(0), st)
	if got := w.run(5*time.Minute, busy(Sample{Idle: time.Hour})); len(got) > 0 || w.awake(web) != 1 {
		t.Errorf("%d instances are awake after %v, want #1 to run as its SLA says", w.awake(web), got)
	}
	st = State{Scale: &after, Awake: true, Placed: true, Running: true}
	w.st[web.Instance(1)] = st
	w.m.Set(w.now, web.Instance(1), st)
	if w.run(5*time.Minute, busy(Sample{Idle: time.Hour})); w.awake(web) != 0 {
		t.Errorf("%d instances are awake with the new SLA, want none", w.awake(web))
	}
}
