package events

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

func failed(no uint64, text string, times int) wire.Notice {
	return wire.Notice{No: no, Reason: api.ReasonNoScheduler, Text: text, Times: times}
}

func TestANoticeCausesOneEvent(t *testing.T) {
	r := newRoot(4096, "a")
	event := func(detail string) api.Event {
		return api.Event{Kind: "cluster", Object: "a", Cluster: "a", Reason: api.ReasonNoScheduler, Detail: detail}
	}
	gone, late := failed(1, "scheduler http://brain: gone", 1), failed(2, "scheduler http://brain: late", 7)
	for _, step := range []struct {
		name    string
		boot    uint64
		notices []wire.Notice
		want    []api.Event
	}{
		{"the first", 1, []wire.Notice{gone}, []api.Event{event("scheduler http://brain: gone")}},
		{"one again, whose acknowledgement was lost", 1, []wire.Notice{gone, late}, []api.Event{event("scheduler http://brain: late (7 times)")}},
		{"one after others that the cluster dropped", 1, []wire.Notice{{No: 3, Reason: api.ReasonNoScheduler, Text: "gone", Times: 1, Dropped: 40}}, []api.Event{event("gone; 40 earlier notices were dropped while the root did not answer the cluster")}},
		{"one of a hostile cluster", 1, []wire.Notice{{No: 4, Reason: api.ReasonNoScheduler, Text: "gone", Times: 1, Dropped: math.MaxInt}}, []api.Event{event("gone; 1000000 earlier notices were dropped while the root did not answer the cluster")}},
		{"numbers begin again after a restart", 2, []wire.Notice{gone}, []api.Event{event("scheduler http://brain: gone")}},
	} {
		if got := r.limiter.Notices(r.now, "a", step.boot, step.notices); !reflect.DeepEqual(got, step.want) {
			t.Errorf("%s: events %+v, want %+v", step.name, got, step.want)
		}
	}
}

// The operator of a cluster is not trusted: notices cause a limited number of short events.
func TestEventsOfNoticesAreBounded(t *testing.T) {
	r := newRoot(4096, "a", "b")
	no, boot, text := uint64(0), uint64(1), strings.Repeat("ä", 100_000)
	var got []api.Event
	for range 10 * 60 {
		var notices []wire.Notice
		for range 100 {
			no++
			notices = append(notices, wire.Notice{No: no, Reason: "pwned", Text: text, Times: []int{math.MaxInt32, 1, 0}[no%3]})
		}
		boot++ // as after a restart each time
		got = append(got, r.limiter.Notices(r.now, "a", boot, notices)...)
		r.pass(time.Second)
	}
	if len(got) == 0 || len(got) > 10*maxNotices {
		t.Errorf("10 minutes of notices caused %d events, want 1 to %d", len(got), 10*maxNotices)
	}
	for _, e := range got {
		if len(e.Detail) > 1100 || e.Reason != api.ReasonNone || e.Object != "a" || strings.ContainsRune(e.Detail, '\uFFFD') {
			t.Fatalf("an event of %d bytes about %q with reason %q, want at most 1100 valid bytes, a and no reason", len(e.Detail), e.Object, e.Reason)
		}
	}
	if d := got[maxNotices].Detail; !strings.HasSuffix(d, fmt.Sprintf("(%d times)", maxTimes)) {
		t.Errorf("the second period begins with %q, want %d times", d[len(d)-50:], maxTimes)
	}
	if got := r.limiter.Notices(r.now, "b", 1, []wire.Notice{failed(1, "gone", 1)}); len(got) != 1 || got[0].Object != "b" {
		t.Errorf("a notice of another cluster causes %+v, want one event", got)
	}
}

func TestNoticesAboveTheLimitAreCounted(t *testing.T) {
	r := newRoot(4096, "a")
	var got []api.Event
	for i := range uint64(maxNotices + 3) {
		got = append(got, r.limiter.Notices(r.now, "a", 1, []wire.Notice{failed(i+1, "gone", 2)})...)
	}
	r.pass(noticePeriod)
	got = append(got, r.limiter.Notices(r.now, "a", 1, []wire.Notice{failed(100, "gone", 2)})...)
	if len(got) != maxNotices+1 || got[len(got)-1].Detail != "gone (8 times)" {
		t.Errorf("%d events, the last %q; want %d, the last for 8 times", len(got), got[len(got)-1].Detail, maxNotices+1)
	}
}
