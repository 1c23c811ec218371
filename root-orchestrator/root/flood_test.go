package root

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/eventlog"
	"github.com/treeline-edge/treeline/internal/wire"
)

// reports returns the cluster's next report, with some instances in state s.
func (tw *twin) reports(s api.State, which ...api.InstanceID) Report {
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

// hosted returns the instances that the cluster has.
func (w *world) hosted(id api.ClusterID) (out []api.InstanceID) {
	for _, in := range w.c.Instances("") {
		if in.Cluster == id {
			out = append(out, in.ID)
		}
	}
	return out
}

// written returns how many events the last step stored.
func (w *world) written() (n int) {
	for _, d := range w.last.Save {
		if d.Kind == kindEvent && d.Data != nil {
			n++
		}
	}
	return n
}

// A cluster that reports changes of more and more instances writes a limited number of events,
// which say how many were omitted. The events of other clusters stay, even after restarts with a
// smaller log.
func TestAFloodOfEventsDoesNotEvictThoseOfOthers(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.cfg.EventsKept = 300
	w.restart()
	w.settle()
	w.apply(4)
	w.settle()
	of := func(id api.ClusterID) (out []api.Event) {
		for _, e := range w.c.Events(eventlog.Filter{}) {
			if e.Cluster == id {
				out = append(out, e)
			}
		}
		return out
	}
	others, mine := fmt.Sprint(of("b"), of("")), w.hosted("a")
	tw, first, wrote := w.twins["a"], w.c.clusters.Info("a").LocalNumbers(), 0
	const minutes = 3
	for i := range minutes * 60 * 10 {
		w.now = w.now.Add(100 * time.Millisecond)
		r := tw.reports([]api.State{api.Failed, api.Running}[i%2], mine...)
		// Add an instance as the operator, and remove it again.
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
	most := (100 + 8*(len(mine)+2)) * (minutes + 1) // see events.Limiter
	if wrote > most || wrote < w.cfg.EventsKept {
		t.Errorf("a flood wrote %d events, want %d to %d", wrote, w.cfg.EventsKept, most)
	}
	if got := fmt.Sprint(of("b"), of("")); got != others {
		t.Errorf("the log has the events of others\n%s\nwant\n%s", got, others)
	}
	summaries := func() (n int) {
		for _, e := range of("a") {
			if strings.Contains(e.Detail, "events were left out, the last of instance shop.prod.web.prod#") {
				n++
			}
		}
		return n
	}
	if summaries() == 0 {
		t.Error("no event says that events were left out")
	}
	for range 2 {
		w.restart()
		if got := fmt.Sprint(of("b"), of("")); got != others {
			t.Errorf("after a restart the log has the events of others\n%s\nwant\n%s", got, others)
		}
		w.cfg.EventsKept = 100
	}
	w.must(tw.reports(api.Failed, mine...))
	docs := 0
	for _, d := range w.disk {
		if d.Kind == kindEvent {
			docs++
		}
	}
	if n := len(w.c.Events(eventlog.Filter{})); n > 100 || docs > 100 || len(of("b")) < 5 {
		t.Errorf("%d events are listed and %d stored, %d of them of b; want at most 100, at least 5 of b", n, docs, len(of("b")))
	}
}

func TestANoticeOfAClusterIsStoredAsAnEvent(t *testing.T) {
	w := newWorld(t, "a")
	r := w.twins["a"].report()
	r.Notices = []wire.Notice{{No: 1, Reason: api.ReasonNoScheduler, Text: "scheduler http://brain: gone", Times: 1}}
	w.must(r)
	w.restart()
	all := w.c.Events(eventlog.Filter{})
	got := all[len(all)-1]
	got.Seq, got.Time = 0, time.Time{}
	want := api.Event{Tier: "root", Kind: "cluster", Object: "a", Cluster: "a", Reason: api.ReasonNoScheduler, Detail: "scheduler http://brain: gone"}
	if got != want {
		t.Errorf("the last event is %+v, want %+v", got, want)
	}
}
