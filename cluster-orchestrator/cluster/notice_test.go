package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// fails has one more instance wanted, and the scheduler outside fail at it. It is
// what the operator was told then.
func (w *world) fails(how string) (said []api.Notice) {
	w.t.Helper()
	n := len(w.want)
	w.wants(assignment(n, api.Revision(n+1), spec(0.01, 1)))
	asked := w.asked()
	if len(asked) != 1 {
		w.t.Fatalf("asked %d times", len(asked))
	}
	w.step(Ranked{sched.Answer{Key: asked[0].Key, Error: how}})
	for _, e := range w.last.Send {
		if n, ok := e.Msg.(api.Notice); ok && e.To == ToOperator {
			said = append(said, n)
		}
	}
	return said
}

func (w *world) ack(seq uint64) { w.step(Ack{api.ReportAck{Boot: w.c.boot, Seq: seq}}) }

// noticed are the notices of the report that the last step sent.
func (w *world) noticed() []string {
	w.t.Helper()
	reports := w.reports()
	if len(reports) != 1 {
		w.t.Fatalf("%d reports", len(reports))
	}
	return shown(reports[0].Notices)
}

func shown(all []api.Notice) (out []string) {
	for _, n := range all {
		out = append(out, fmt.Sprintf("%d %s %s ×%d", n.No, n.Reason, n.Text, n.Times))
	}
	return out
}

func TestANoticeIsReportedUntilTheRootHasIt(t *testing.T) {
	w := line(t, 2, func(c *Config) { c.Asks = "http://brain" })
	first, second := "1 scheduler_failed scheduler http://brain: gone ×1", "2 scheduler_failed scheduler http://brain: still gone ×3"
	said := w.fails("gone")
	w.ack(w.c.root.seq)
	if !slices.Equal(shown(said), []string{first}) || !slices.Equal(w.noticed(), []string{first}) {
		t.Fatalf("said %q, reported %q", shown(said), w.noticed())
	}
	w.now = w.now.Add(w.c.cfg.ReportIdle) // that report was lost
	w.step(Tick{})
	if got := w.noticed(); !slices.Equal(got, []string{first}) {
		t.Fatalf("then reported %q", got)
	}
	if said := append(w.fails("gone again"), w.fails("and again")...); len(said) > 0 {
		t.Fatalf("said too soon %q", shown(said))
	}
	w.pass(noticeEvery)
	said = w.fails("still gone")
	carried := w.c.root.seq // has the first only
	w.ack(carried - 1)
	w.ack(carried)
	if !slices.Equal(shown(said), []string{second}) || !slices.Equal(w.noticed(), []string{second}) {
		t.Fatalf("said %q, reported %q", shown(said), w.noticed())
	}
	w.ack(w.c.root.seq)
	w.now = w.now.Add(w.c.cfg.ReportIdle)
	w.step(Tick{})
	if got := w.noticed(); len(got) > 0 {
		t.Errorf("the root has them, and is told %q", got)
	}
}

// However long the root is away, what waits for it stays little.
func TestNoticesThatWaitAreTheNewestAndShort(t *testing.T) {
	w := line(t, 2, func(c *Config) { c.Asks = "http://brain" })
	for range 3 * maxNotices {
		if said := w.fails(strings.Repeat("no", 4000)); len(said) != 1 {
			t.Fatalf("said %d", len(said))
		}
		w.pass(noticeEvery + time.Second)
	}
	w.now = w.now.Add(w.c.cfg.ReportIdle)
	w.step(Tick{})
	got := w.reports()[0].Notices
	if len(got) != maxNotices || got[0].No != 2*maxNotices+1 || got[len(got)-1].No != 3*maxNotices {
		t.Errorf("reported %d, from %d", len(got), got[0].No)
	}
	for _, n := range got {
		if len(n.Text) > 1100 {
			t.Errorf("one of %d bytes", len(n.Text))
		}
	}
}
