package root

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// says is the cluster's next report, in which its instances are in another state.
func (tw *twin) says(s api.State, which ...api.InstanceID) Report {
	r := tw.report()
	for i := range r.Observed {
		for _, id := range which {
			if o := &r.Observed[i]; o.Instance == id {
				o.State = s
			}
		}
	}
	return r
}

// hosted are the instances that the cluster has.
func (w *world) hosted(id api.ClusterID) (out []api.InstanceID) {
	for _, in := range w.c.Instances("") {
		if in.Cluster == id {
			out = append(out, in.ID)
		}
	}
	return out
}

// written counts the events that the last step saves.
func (w *world) written() (n int) {
	for _, d := range w.last.Save {
		if d.Kind == kindEvent && d.Data != nil {
			n++
		}
	}
	return n
}

// A cluster that says of an instance, twenty times a second, that it is another state
// makes few events; the last tells what has become of it, and all are counted.
func TestEventsOfAFlappingInstanceAreSummedUp(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.apply(2)
	w.settle()
	tw, one := w.twins["a"], w.hosted("a")[0]
	before := len(w.c.Events(EventFilter{Instance: one}))
	const minutes = 5
	wrote, flips := 0, 0
	for ; flips < minutes*60*20; flips++ {
		w.now = w.now.Add(50 * time.Millisecond)
		state := api.Failed
		if flips%2 == 1 {
			state = api.Running
		}
		w.must(tw.says(state, one))
		wrote += w.written()
	}
	if most := eventsOfOne * (minutes + 2); wrote > most || wrote < most/2 {
		t.Errorf("%d changes wrote %d events, want at most %d", flips, wrote, most)
	}
	if why, _ := w.c.Why(one, w.now); why.Instance.State != api.Running || !strings.Contains(why.Summary, "runs on cluster a") {
		t.Errorf("why says %q", why.Summary)
	}
	w.must(tw.says(api.Failed, one))
	flips++
	w.now = w.now.Add(eventSpan)
	w.must(Tick{})
	told, all := 0, w.c.Events(EventFilter{Instance: one})
	for _, e := range all[before:] {
		n := 0
		if _, more, ok := strings.Cut(e.Detail, " … and "); ok {
			fmt.Sscan(more, &n)
		}
		told += n + 1
	}
	if last := all[len(all)-1]; told != flips || last.State != api.Failed {
		t.Errorf("events tell of %d changes of %d, the last %+v", told, flips, last)
	}
}

// Nor does it help to be another instance each time: what a cluster makes in all is
// bounded, it is said how much was left out, and what is told of others stays.
func TestAFloodOfEventsPushesOutNobodyElses(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.cfg.EventsKept = 300
	w.restart()
	w.settle()
	w.apply(4)
	w.settle()
	of := func(id api.ClusterID) (out []api.Event) {
		for _, e := range w.c.Events(EventFilter{}) {
			if e.Cluster == id {
				out = append(out, e)
			}
		}
		return out
	}
	others, mine := fmt.Sprint(of("b"), of("")), w.hosted("a")
	tw, first, wrote := w.twins["a"], w.c.clusters["a"].Info.LocalNumbers(), 0
	const minutes = 3
	for i := range minutes * 60 * 10 {
		w.now = w.now.Add(100 * time.Millisecond)
		r := tw.says([]api.State{api.Failed, api.Running}[i%2], mine...)
		// What its operator adds, and takes away again.
		id := web.Instance(first + i/2)
		o := api.Observed{Instance: id, Epoch: 1, State: api.Running, Local: true}
		if i%2 == 1 {
			o.State, o.Reason = api.Terminated, api.ReasonScaledLocally
		}
		r.Observed = append(r.Observed, o)
		w.do(r)
		wrote += w.written()
		if i%10 == 0 {
			w.must(w.twins["b"].report())
		}
	}
	most := (eventsOfAll + eventsOfEach*(len(mine)+2)) * (minutes + 1)
	if wrote > most || wrote < w.cfg.EventsKept {
		t.Errorf("a flood wrote %d events, want at most %d", wrote, most)
	}
	if got := fmt.Sprint(of("b"), of("")); got != others {
		t.Errorf("of others there is left\n%s of\n%s", got, others)
	}
	said := func() (n int) {
		for _, e := range of("a") {
			if strings.Contains(e.Detail, "events were left out, the last of instance shop.prod.web.prod#") {
				n++
			}
		}
		return n
	}
	if said() == 0 {
		t.Error("it is not said that events were left out")
	}
	for range 2 { // those that an earlier life kept are held to the same
		w.restart()
		if got := fmt.Sprint(of("b"), of("")); got != others {
			t.Errorf("after a restart there is left\n%s of\n%s", got, others)
		}
		w.cfg.EventsKept = 100
	}
	w.must(tw.says(api.Failed, mine...))
	docs := 0
	for _, d := range w.disk {
		if d.Kind == kindEvent {
			docs++
		}
	}
	if n := len(w.c.Events(EventFilter{})); n > 100 || docs > 100 || len(of("b")) < 5 {
		t.Errorf("%d events are shown and %d stored, %d of b; want 100", n, docs, len(of("b")))
	}
}

// A node's death and a deletion are bursts of what happens once: nothing of them is
// left out.
func TestHonestBurstsAreToldWhole(t *testing.T) {
	const many = 200
	w := newWorld(t)
	tw := w.join("a", 2*many)
	w.apply(many)
	w.settle()
	w.pass(3 * eventSpan)
	mine := w.hosted("a")
	if len(mine) != many {
		t.Fatalf("%d instances are placed", len(mine))
	}
	for _, s := range []api.State{api.Failed, api.NodeScheduled, api.Created, api.Running} {
		w.now = w.now.Add(time.Second)
		w.must(tw.says(s, mine...))
	}
	told := func(s api.State) (n int) {
		seen := map[api.InstanceID]bool{}
		for _, e := range w.c.Events(EventFilter{}) {
			if e.State == s && e.Kind == "instance" {
				seen[e.Instance] = true
			}
			if strings.Contains(e.Detail, "left out") || strings.Contains(e.Detail, "more like this") {
				t.Fatalf("%+v", e)
			}
		}
		return len(seen)
	}
	if n := told(api.Failed); n != many {
		t.Errorf("the failures of %d are told, of %d", n, many)
	}
	w.pass(3 * eventSpan)
	w.must(DeleteApp{App: shop})
	w.settle()
	if n := told(api.Terminated); n != many {
		t.Errorf("the ends of %d are told, of %d", n, many)
	}
}

// A tenant whose instances crash all the time, on the cluster where another's run too,
// pushes out none of the other's events, neither those that are kept nor new ones.
func TestEventsOfOneTenantLeaveRoomForOthers(t *testing.T) {
	w := newWorld(t)
	tw := w.join("a", 100)
	w.cfg.EventsKept = 300
	w.restart()
	w.settle()
	w.must(Apply{Tenant: "quiet", Spec: application(2), By: "ann"})
	w.apply(20)
	w.settle()
	var loud, quiet []api.InstanceID
	for _, id := range w.hosted("a") {
		if id.Tenant() == "quiet" {
			quiet = append(quiet, id)
		} else {
			loud = append(loud, id)
		}
	}
	if len(loud) != 20 || len(quiet) != 2 {
		t.Fatalf("%d and %d instances are placed, want 20 and 2", len(loud), len(quiet))
	}
	of := func(tenant api.Tenant) (out []api.Event) {
		for _, e := range w.c.Events(EventFilter{}) {
			if e.Tenant == tenant {
				out = append(out, e)
			}
		}
		return out
	}
	kept := len(of("quiet"))
	before := fmt.Sprint(of("quiet"))
	flood := func(steps int) (wrote int) {
		for i := range steps {
			w.now = w.now.Add(100 * time.Millisecond)
			w.must(tw.says([]api.State{api.Failed, api.Running}[i%2], loud...))
			wrote += w.written()
		}
		return wrote
	}
	if n, most := flood(3*600), 4*(eventsOfAll+eventsOfEach*22); n > most || n < w.cfg.EventsKept {
		t.Errorf("a flood wrote %d events, want at most %d and more than are kept", n, most)
	}
	if got := fmt.Sprint(of("quiet")); got != before {
		t.Fatalf("of the other tenant there is left\n%s of\n%s", got, before)
	}
	for _, s := range []api.State{api.Failed, api.NodeScheduled, api.Created, api.Running} {
		flood(20)
		w.must(tw.says(s, quiet...))
	}
	told := map[api.State]int{}
	for _, e := range of("quiet")[kept:] {
		told[e.State]++
		if strings.Contains(e.Detail, "more") {
			t.Errorf("an event of the other tenant is left out: %+v", e)
		}
	}
	for _, s := range []api.State{api.Failed, api.Running} {
		if told[s] < 2 {
			t.Errorf("%d events tell that the other tenant's 2 instances are %s", told[s], s)
		}
	}
	// What is left out of the loud tenant's is summed up for it.
	w.now = w.now.Add(eventSpan)
	w.must(Tick{})
	summed := 0
	for _, e := range of("acme") {
		if strings.Contains(e.Detail, "more events of instances of tenant acme on cluster a") {
			summed++
		}
	}
	if summed == 0 {
		t.Error("the loud tenant is not told that events were left out")
	}
}
