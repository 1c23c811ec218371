package runs

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

var dawn = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func each(d time.Duration) func(time.Time) time.Time {
	return func(t time.Time) time.Time { return t.Truncate(d).Add(d) }
}

func show(l *Log) string {
	var out []string
	for _, r := range l.Runs() {
		out = append(out, fmt.Sprintf("%s %s", r.At.Sub(dawn), r.Result))
	}
	return strings.Join(out, ", ")
}

// Each case is a list of moments after the start, with what happens before Step is called there.
func TestRunsOfASchedule(t *testing.T) {
	type at struct {
		after  time.Duration
		before string // "start", "end": the present run starts or ends before Step
		act    Action
	}
	const m = time.Minute
	for _, c := range []struct {
		name  string
		s     Schedule
		steps []at
		want  string
	}{
		{"one after another", Schedule{}, []at{{10 * m, "", Start}, {11 * m, "start", Nothing}, {15 * m, "end", Nothing}, {20 * m, "", Start}}, "10m0s completed, 20m0s waiting"},
		{"an overlap is skipped", Schedule{}, []at{{10 * m, "", Start}, {11 * m, "start", Nothing}, {20 * m, "", Nothing}, {29 * m, "end", Nothing}, {30 * m, "", Start}}, "20m0s skipped, 10m0s completed, 30m0s waiting"},
		{"an overlap replaces", Schedule{Overlap: api.OverlapReplace}, []at{{10 * m, "", Start}, {11 * m, "start", Nothing}, {20 * m, "", Restart}}, "10m0s stopped, 20m0s waiting"},
		{"an overlap waits", Schedule{Overlap: api.OverlapWait}, []at{{10 * m, "", Start}, {11 * m, "start", Nothing}, {20 * m, "", Nothing}, {22 * m, "end", Start}}, "10m0s completed, 20m0s waiting"},
		{"an overlap waits too long", Schedule{Overlap: api.OverlapWait, Within: 5 * m}, []at{{10 * m, "", Start}, {11 * m, "start", Nothing}, {20 * m, "", Nothing}, {26 * m, "", Nothing}, {27 * m, "end", Nothing}}, "20m0s missed, 10m0s completed"},
		{"no room", Schedule{Within: 5 * m}, []at{{10 * m, "", Start}, {16 * m, "", GiveUp}, {20 * m, "", Start}}, "10m0s missed, 20m0s waiting"},
		{"no room until the next", Schedule{Within: 30 * m}, []at{{10 * m, "", Start}, {20 * m, "", Nothing}}, "10m0s missed, 20m0s waiting"},
		{"the cluster was down", Schedule{Within: 5 * m}, []at{{43 * m, "", Start}}, "10m0s missed, 40m0s waiting"},
		{"the cluster was down too long", Schedule{Within: 2 * m}, []at{{43 * m, "", Nothing}}, "10m0s missed"},
		{"suspended", Schedule{Suspend: true}, []at{{43 * m, "", Nothing}}, ""},
		{"held until the root has answered", Schedule{Hold: dawn.Add(12 * m)}, []at{{12 * m, "", Nothing}, {13 * m, "", Nothing}, {20 * m, "", Start}}, "10m0s missed, 20m0s waiting"},
		{"a clock that goes back", Schedule{}, []at{{10 * m, "", Start}, {11 * m, "start", Nothing}, {11 * m, "end", Nothing}, {5 * m, "", Nothing}, {10 * m, "", Nothing}, {20 * m, "", Start}}, "10m0s completed, 20m0s waiting"},
		{"a clock that was far ahead", Schedule{}, []at{{1000 * time.Hour, "", Start}, {1000 * time.Hour, "start", Nothing}, {1000 * time.Hour, "end", Nothing}, {15 * m, "", Nothing}, {20 * m, "", Start}}, "10m0s missed, 999h0m0s missed, 1000h0m0s completed, 20m0s waiting"},
	} {
		c.s.Next = each(10 * m)
		if c.s.Within == 0 {
			c.s.Within = time.Hour
		}
		l := New(time.Time{}, dawn)
		for _, x := range c.steps {
			now := dawn.Add(x.after)
			switch x.before {
			case "start":
				l.Started(now)
			case "end":
				l.End(api.Run{Result: api.RunCompleted}, now)
			}
			act, next, _ := l.Step(c.s, now)
			if act != x.act || !next.IsZero() && !next.After(now) {
				t.Errorf("%s: at %s the action is %d, next at %s; want %d", c.name, x.after, act, next.Sub(dawn), x.act)
			}
		}
		if got := show(l); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// Whatever happens, no scheduled time starts twice, also after a restart that lost nothing and in a
// cluster that takes over.
func TestNoTimeStartsTwice(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		s := Schedule{
			Next: each(10 * time.Minute), Within: time.Duration(1+rng.IntN(3000)) * time.Second,
			Overlap: []api.Overlap{"", api.OverlapReplace, api.OverlapWait}[rng.IntN(3)],
		}
		now, l, begun := dawn, New(time.Time{}, dawn), map[time.Time]bool{}
		for range 400 {
			now = now.Add(time.Duration(rng.IntN(900)-100) * time.Second)
			switch rng.IntN(8) {
			case 0:
				l.Started(now)
			case 1:
				l.End(api.Run{Result: api.RunCompleted}, now)
			case 2:
				l = New(l.Decided, now.Add(-time.Duration(rng.IntN(600))*time.Second)) // another cluster, whose clock is behind
			case 3:
				s.Suspend = !s.Suspend
			}
			was := l.Current
			l.Step(s, now)
			if c := l.Current; c != nil && c != was {
				if begun[c.At] || c.At.After(now) || c.At.Before(now.Add(-s.Within)) {
					t.Fatalf("seed %d: at %s, %s begins (begun before: %v)", seed, now.Sub(dawn), c.At.Sub(dawn), begun[c.At])
				}
				begun[c.At] = true
			}
			if n := len(l.Runs()); n > api.MaxRuns {
				t.Fatalf("seed %d: %d runs are kept", seed, n)
			}
		}
	}
}
