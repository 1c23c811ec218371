package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
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

func (w *world) ack(seq uint64) {
	w.step(Ack{api.ReportAck{Boot: w.c.boot, Seq: seq, Dead: time.Minute}})
}

// noticed are the notices of the report that the last step sent.
func (w *world) noticed() []string {
	w.t.Helper()
	reports := w.reports()
	if len(reports) != 1 {
		w.t.Fatalf("%d reports", len(reports))
	}
	return shown(reports[0].Notices)
}

// next lets time go by until the cluster reports, and is what it reports then.
func (w *world) next(within time.Duration) api.Report {
	w.t.Helper()
	for end := w.now.Add(within); w.now.Before(end); {
		w.now = w.now.Add(100 * time.Millisecond)
		w.step(Tick{})
		if r := w.reports(); len(r) > 0 {
			return r[0]
		}
		for _, id := range step.Keys(w.nodes) {
			w.nodes[id].settle()
			for _, in := range []Input{w.nodes[id].whole(), w.nodes[id].alive()} {
				w.step(in)
				if r := w.reports(); len(r) > 0 {
					return r[0]
				}
			}
		}
	}
	w.t.Fatalf("no report within %s", within)
	return api.Report{}
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
	w.ack(w.c.root.seq - 1) // is late, and of one before; that one is lost
	if got := shown(w.next(w.c.cfg.ReportIdle).Notices); !slices.Equal(got, []string{first}) {
		t.Fatalf("then reported %q", got)
	}
	if said := append(w.fails("gone again"), w.fails("and again")...); len(said) > 0 {
		t.Fatalf("said too soon %q", shown(said))
	}
	w.pass(noticeEvery)
	said = w.fails("still gone")
	w.ack(w.c.root.seq) // of one that has the first only
	if !slices.Equal(shown(said), []string{second}) || !slices.Equal(w.noticed(), []string{second}) {
		t.Fatalf("said %q, reported %q", shown(said), w.noticed())
	}
	w.ack(w.c.root.seq)
	if got := w.next(w.c.cfg.ReportIdle).Notices; len(got) > 0 {
		t.Errorf("the root has them, and is told %q", shown(got))
	}
}

// Where nothing else happens, a notice has a report go out at once, and soon again
// if that is lost.
func TestANoticeIsNews(t *testing.T) {
	w := newWorld(t, 2)
	for range 5 { // with nothing to say, more and more rarely
		w.ack(w.next(idleMost + time.Second).Seq)
	}
	w.c.notice(api.ReasonNoScheduler, strings.Repeat("no", 4000))
	w.step(Tick{})
	if got := w.reports(); len(got) != 1 || len(got[0].Notices) != 1 || len(got[0].Notices[0].Text) > 1100 {
		t.Fatalf("reported %+v", got)
	}
	if got := w.next(w.c.cfg.ReportIdle); len(got.Notices) != 1 {
		t.Errorf("then reported %+v", got)
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
	got := w.next(w.c.cfg.ReportIdle).Notices
	if len(got) != maxNotices || got[0].No != 2*maxNotices+1 || got[len(got)-1].No != 3*maxNotices {
		t.Errorf("reported %d, from %d", len(got), got[0].No)
	}
	for _, n := range got {
		if len(n.Text) > 1100 {
			t.Errorf("one of %d bytes", len(n.Text))
		}
	}
}
