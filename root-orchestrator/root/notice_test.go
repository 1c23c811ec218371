package root

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// notes is the cluster's next report, with notices that it does not wait for.
func (tw *twin) notes(ns ...api.Notice) Report {
	r := tw.report()
	r.Notices = ns
	return r
}

func failed(no uint64, text string, times int) api.Notice {
	return api.Notice{No: no, Reason: api.ReasonNoScheduler, Text: text, Times: times}
}

// noticed are the events of clusters' notices, all that there were.
func (w *world) noticed() (out []api.Event) {
	for _, e := range w.c.Events(EventFilter{}) {
		if e.Kind == "cluster" && e.Detail != "joined" && e.Reason != api.ReasonClusterLost && e.Reason != api.ReasonOutOfBounds {
			out = append(out, e)
		}
	}
	return out
}

func TestAClustersNoticeIsAnEventOnce(t *testing.T) {
	w := newWorld(t, "a", "b")
	tw := w.twins["a"]
	w.must(tw.notes(failed(1, "scheduler http://brain: gone", 1)))
	w.must(tw.notes(failed(1, "scheduler http://brain: gone", 1), failed(2, "scheduler http://brain: late", 7))) // its answer was lost
	want := []api.Event{
		{Tier: "root", Kind: "cluster", Object: "a", Cluster: "a", Reason: api.ReasonNoScheduler, Detail: "scheduler http://brain: gone"},
		{Tier: "root", Kind: "cluster", Object: "a", Cluster: "a", Reason: api.ReasonNoScheduler, Detail: "scheduler http://brain: late (7 times)"},
	}
	check := func() {
		t.Helper()
		got := w.noticed()
		for i := range got {
			got[i].Seq, got[i].Time = 0, time.Time{}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("events\n%+v, want\n%+v", got, want)
		}
	}
	check()
	tw.boot, tw.seq = 2, 0 // it was restarted, and counts anew
	w.must(tw.notes(failed(1, "scheduler http://brain: gone", 1)))
	want = append(want, want[0])
	check()
	w.restart() // the root: its events last
	check()
}

// A cluster is another operator's: whatever it sends as notices, they make few
// events and short ones.
func TestNoticesOfAHostileClusterAreBounded(t *testing.T) {
	w := newWorld(t, "a", "b")
	tw := w.twins["a"]
	no, reports, text := uint64(0), 0, strings.Repeat("ä", 100_000)
	flood := func(d time.Duration) {
		for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(time.Second) {
			var ns []api.Notice
			for range 100 {
				no++
				ns = append(ns, api.Notice{No: no, Reason: "pwned", Text: text, Times: []int{math.MaxInt32, 1, 0}[no%3]})
			}
			tw.boot, tw.seq = tw.boot+1, 0 // always as if it had been restarted
			w.must(tw.notes(ns...))
			reports++
		}
	}
	flood(10 * noticeSpan)
	got := w.noticed()
	if len(got) == 0 || len(got) > 10*mostNotices {
		t.Errorf("%d events of %d reports", len(got), reports)
	}
	for _, e := range got {
		if len(e.Detail) > 1100 || e.Reason != api.ReasonNone || e.Object != "a" || strings.ContainsRune(e.Detail, '\uFFFD') {
			t.Fatalf("%d bytes of %s: %q", len(e.Detail), e.Object, e.Reason)
		}
	}
	if d := got[mostNotices].Detail; !strings.HasSuffix(d, fmt.Sprintf("(%d times)", mostTimes)) {
		t.Errorf("meanwhile it happened %s", d[len(d)-50:])
	}
	w.must(w.twins["b"].notes(failed(1, "scheduler http://brain: gone", 1)))
	if e := w.noticed(); e[len(e)-1].Object != "b" {
		t.Error("another cluster is not heard")
	}
}

// What found no room is counted where there is room again.
func TestNoticesThatAreLeftOutAreCounted(t *testing.T) {
	w := newWorld(t, "a")
	tw := w.twins["a"]
	for i := range uint64(mostNotices + 3) {
		w.must(tw.notes(failed(i+1, "scheduler http://brain: gone", 2)))
	}
	w.pass(noticeSpan)
	w.must(tw.notes(failed(100, "scheduler http://brain: gone", 2)))
	got := w.noticed()
	if len(got) != mostNotices+1 || !strings.HasSuffix(got[len(got)-1].Detail, "gone (8 times)") {
		t.Errorf("%d events, the last %q", len(got), got[len(got)-1].Detail)
	}
}
