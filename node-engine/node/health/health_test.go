package health_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/node-engine/node/health"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func get(port int) api.Check { return api.Check{HTTP: &api.HTTPCheck{Port: port, Path: "/healthz"}} }

// run drives a machine: results names, for each kind, the text of the results from a time on; "ok" passes
// and "?" is unknown.
type run struct {
	t   testing.TB
	m   *health.Machine
	now time.Time
	all []string // "1.5s ready: readiness: …", the changes of the verdict
}

func begin(t testing.TB, h api.Health, known health.Known) *run {
	return &run{t: t, m: health.New(h, start, 0, known), now: start}
}

// until carries out the checks that are due until a time after the start, each with a result at once.
func (r *run) until(end time.Duration, result func(kind api.CheckKind, at time.Duration) string) {
	r.t.Helper()
	for steps := 0; ; steps++ {
		next := r.m.Next()
		if next.IsZero() || next.After(start.Add(end)) {
			r.now = start.Add(end)
			return
		}
		if steps > 100_000 {
			r.t.Fatal("the checks do not end")
		}
		if next.After(r.now) {
			r.now = next
		}
		for kind, ok := r.m.Due(r.now); ok; kind, ok = r.m.Due(r.now) {
			text := result(kind, r.now.Sub(start))
			v, changed := r.m.Result(r.now, kind, health.Result{Passed: text == "ok", Unknown: text == "?", Text: text})
			if changed {
				r.all = append(r.all, fmt.Sprintf("%s %s: %s", r.now.Sub(start), state(v), v.Text))
			}
			if v != r.m.Verdict() {
				r.t.Fatalf("Result returned %+v, and Verdict %+v", v, r.m.Verdict())
			}
		}
	}
}

func state(v health.Verdict) string {
	switch {
	case v.Failed:
		return "failed"
	case v.Ready:
		return "ready"
	case v.Started:
		return "started"
	}
	return "starting"
}

func (r *run) want(lines ...string) {
	r.t.Helper()
	if got := strings.Join(r.all, "\n"); got != strings.Join(lines, "\n") {
		r.t.Errorf("verdicts:\n%s\nwant:\n%s", got, strings.Join(lines, "\n"))
	}
}

func from(at time.Duration, then string) func(api.CheckKind, time.Duration) string {
	return func(_ api.CheckKind, now time.Duration) string {
		if now >= at {
			return then
		}
		return "connection refused"
	}
}

func TestReadySoonAfterItServes(t *testing.T) {
	ready := get(8080)
	r := begin(t, api.Health{Readiness: &ready}, health.Known{})
	if v := r.m.Verdict(); v.Ready || !v.Started || v.Text != "readiness: GET :8080/healthz has not passed yet" {
		t.Errorf("the first verdict is %+v, want started and not ready, with a reason", v)
	}
	r.until(30*time.Second, from(2*time.Second, "ok"))
	r.want("0s started: readiness: GET :8080/healthz: connection refused", "3.1s ready: readiness: GET :8080/healthz passed")
}

func TestStartupGatesTheOthers(t *testing.T) {
	start, ready, live := get(1), get(2), get(3)
	r := begin(t, api.Health{Startup: &start, Readiness: &ready, Liveness: &live}, health.Known{})
	var early []api.CheckKind
	r.until(time.Minute, func(kind api.CheckKind, at time.Duration) string {
		if at < 12*time.Second && kind != api.CheckStartup {
			early = append(early, kind)
		}
		if kind == api.CheckReadiness {
			return from(20*time.Second, "ok")(kind, at)
		}
		return from(12*time.Second, "ok")(kind, at)
	})
	if len(early) > 0 {
		t.Errorf("checks before the start: %v, want none", early)
	}
	r.want(
		"0s starting: startup: GET :1/healthz: connection refused",
		"12.7s started: readiness: GET :2/healthz has not passed yet",
		"25.4s ready: readiness: GET :2/healthz passed",
	)
}

func TestVerdictsOfFailures(t *testing.T) {
	quick := func(c api.Check) *api.Check { c.Interval, c.Failures = 1, 3; return &c }
	for name, c := range map[string]struct {
		health api.Health
		result func(api.CheckKind, time.Duration) string
		want   []string
	}{
		"a start-up check that never passes": {
			api.Health{Startup: quick(get(80))},
			from(time.Hour, "ok"),
			[]string{
				"0s starting: startup: GET :80/healthz: connection refused",
				"3.5s failed: startup: GET :80/healthz: connection refused, 3 of 3 failed",
			},
		},
		"liveness": {
			api.Health{Liveness: quick(get(8080))},
			from(0, "status 503"),
			[]string{"2s failed: liveness: GET :8080/healthz: status 503, 3 of 3 failed"},
		},
		"liveness that passes in between": {
			api.Health{Liveness: quick(get(80))},
			func(_ api.CheckKind, at time.Duration) string {
				if at%(3*time.Second) < time.Second {
					return "ok"
				}
				return "status 500"
			}, nil,
		},
		"liveness that cannot be checked": {
			api.Health{Liveness: quick(get(80))}, from(0, "?"), nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := begin(t, c.health, health.Known{})
			r.until(time.Minute, c.result)
			r.want(c.want...)
			if failed := len(c.want) > 0; failed != r.m.Next().IsZero() {
				t.Errorf("the next check is at %v after the failure (%t), want none only then", r.m.Next(), failed)
			}
		})
	}
}

func TestReadinessThatChangesOftenIsDamped(t *testing.T) {
	ready := get(80)
	ready.Interval, ready.Failures = 1, 1
	r := begin(t, api.Health{Readiness: &ready}, health.Known{})
	n := 0
	r.until(10*time.Minute, func(api.CheckKind, time.Duration) string {
		if n++; n%2 == 0 {
			return "status 503"
		}
		return "ok"
	})
	if len(r.all) < 10 || len(r.all) > 60 {
		t.Errorf("%d changes in 10 minutes, want at least 10 and at most 60", len(r.all))
	}
	if last := r.all[len(r.all)-1]; !strings.Contains(strings.Join(r.all, "\n"), "it changes often, so that it is ready again after 1m0s") {
		t.Errorf("the last change is %q, want one that explains the hold of a minute", last)
	}
}

func TestARestartOfTheEngineKeepsTheVerdict(t *testing.T) {
	start, ready, live := get(1), get(2), get(3)
	h := api.Health{Startup: &start, Readiness: &ready, Liveness: &live}
	r := begin(t, h, health.Known{Started: true, Ready: true})
	if v := r.m.Verdict(); !v.Ready || !v.Started {
		t.Errorf("the verdict after a restart is %+v, want ready as before", v)
	}
	r.until(time.Minute, from(0, "ok"))
	r.want()
	r = begin(t, h, health.Known{Started: true})
	r.until(time.Minute, from(0, "ok"))
	r.want("0s ready: readiness: GET :2/healthz passed")
	// Its liveness had failed, and the engine ended before the restart: without a readiness check nothing else would say
	// that it is ready.
	r = begin(t, api.Health{Startup: &start, Liveness: &live}, health.Known{Started: true})
	r.until(time.Minute, from(0, "ok"))
	r.want("0s ready: startup: GET :1/healthz passed")
}

func TestInitialDelayAndSuccesses(t *testing.T) {
	ready := get(80)
	ready.InitialDelay, ready.Successes, ready.Interval = 7, 3, 4
	r := begin(t, api.Health{Readiness: &ready}, health.Known{})
	r.until(time.Minute, from(0, "ok"))
	r.want("11s ready: readiness: GET :80/healthz passed")
}

func TestNothingIsDueWithoutChecks(t *testing.T) {
	live := get(80)
	for name, h := range map[string]api.Health{"no checks": {}, "none": {None: true, Liveness: &live}} {
		m := health.New(h, start, 0, health.Known{})
		if _, due := m.Due(start.Add(time.Hour)); due || !m.Next().IsZero() || !m.Verdict().Ready {
			t.Errorf("%s: a check is due (%t) at %v, verdict %+v; want none, and ready", name, due, m.Next(), m.Verdict())
		}
	}
}

// Commands are not repeated ten times a second, whatever their results are.
func TestCommandsAreNotHurried(t *testing.T) {
	c := api.Check{Command: []string{"x"}, Interval: 5}
	r := begin(t, api.Health{Startup: &c}, health.Known{})
	n := 0
	r.until(20*time.Second, func(api.CheckKind, time.Duration) string { n++; return "exit code 1" })
	if n > 7 {
		t.Errorf("%d commands in 20 s, want at most 7", n)
	}
}

// TestSafety checks any sequence of results and times against what the documentation promises.
func TestSafety(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) *api.Check {
			if !rapid.Bool().Draw(t, name) {
				return nil
			}
			c := get(80)
			c.Interval, c.Failures = rapid.IntRange(1, 20).Draw(t, "interval"), rapid.IntRange(1, 4).Draw(t, "failures")
			c.InitialDelay = rapid.IntRange(0, 5).Draw(t, "delay")
			if name == "readiness" {
				c.Successes = rapid.IntRange(1, 3).Draw(t, "successes")
			}
			return &c
		}
		h := api.Health{Startup: draw("startup"), Readiness: draw("readiness"), Liveness: draw("liveness")}
		m := health.New(h, start, rapid.Uint64().Draw(t, "seed"), health.Known{})
		now := start
		last := map[api.CheckKind][]bool{} // results that are not unknown
		running := map[api.CheckKind]bool{}
		verdict := m.Verdict()
		changes := 0
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if next := m.Next(); !next.IsZero() && next.After(now) && len(running) == 0 {
				now = next
			}
			now = now.Add(time.Duration(rapid.IntRange(0, 2000).Draw(t, "ms")) * time.Millisecond)
			for kind, ok := m.Due(now); ok; kind, ok = m.Due(now) {
				if running[kind] {
					t.Fatalf("%s is due while it runs", kind)
				}
				if now.Before(start.Add(time.Duration(m.Check(kind).InitialDelay) * time.Second)) {
					t.Fatalf("%s is due at %s, before its initial delay", kind, now.Sub(start))
				}
				if (kind == api.CheckStartup) == verdict.Started || verdict.Failed {
					t.Fatalf("%s is due in the state %+v", kind, verdict)
				}
				running[kind] = true
			}
			for _, kind := range []api.CheckKind{api.CheckStartup, api.CheckReadiness, api.CheckLiveness} {
				if !running[kind] || rapid.IntRange(0, 3).Draw(t, "still runs") == 0 {
					continue
				}
				delete(running, kind)
				res := health.Result{Passed: rapid.Bool().Draw(t, "passed"), Unknown: rapid.IntRange(0, 9).Draw(t, "unknown") == 0, Text: "x"}
				if res.Unknown {
					res.Passed = false
				} else {
					last[kind] = append(last[kind], res.Passed)
				}
				v, changed := m.Result(now, kind, res)
				if changed != (v != verdict) {
					t.Fatalf("changed is %t from %+v to %+v", changed, verdict, v)
				}
				if v.Ready != verdict.Ready {
					changes++
				}
				switch {
				case verdict.Failed && v != verdict:
					t.Fatalf("the verdict changes after the failure to %+v", v)
				case v.Failed && v.Ready, v.Ready && !v.Started, changed && v.Text == "" && h.Readiness != nil:
					t.Fatalf("contradictory verdict %+v", v)
				case v.Failed && !verdict.Failed && (kind == api.CheckReadiness || !endsWith(last[kind], false, m.Check(kind).Failures)):
					t.Fatalf("failed by %s after %v", kind, last[kind])
				case v.Ready && !verdict.Ready && kind == api.CheckReadiness && !endsWith(last[kind], true, m.Check(kind).Successes):
					t.Fatalf("ready after %v", last[kind])
				case verdict.Ready && !v.Ready && !v.Failed && !endsWith(last[api.CheckReadiness], false, m.Check(api.CheckReadiness).Failures):
					t.Fatalf("not ready after %v", last[kind])
				}
				verdict = v
			}
		}
		if limit := 14 + 2*int(now.Sub(start)/time.Minute+1); changes > limit {
			t.Fatalf("%d changes of readiness in %s, want at most %d", changes, now.Sub(start), limit)
		}
	})
}

func endsWith(all []bool, want bool, n int) bool {
	if len(all) < n {
		return false
	}
	for _, x := range all[len(all)-n:] {
		if x != want {
			return false
		}
	}
	return true
}
