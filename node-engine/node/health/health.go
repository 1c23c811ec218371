// Package health decides from the results of an instance's health checks whether the instance is ready
// or has failed, and when which check is due. It is pure: time and results are arguments, and package
// node-engine/checks carries the checks out.
//
//	m := health.New(spec, now, seed, health.Known{})
//	for kind, ok := m.Due(now); ok; kind, ok = m.Due(now) { run(m.Check(kind)) }
//	verdict, changed := m.Result(now, kind, health.Result{Passed: true})
//	sleepUntil(m.Next())
package health

import (
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Known is what was known about an attempt before the node engine restarted.
type Known struct {
	Started bool // its start-up check had passed
	Ready   bool
}

// Verdict is what the checks say about an attempt.
type Verdict struct {
	Started bool
	Ready   bool
	Failed  bool   // it has to be restarted; no check runs any more
	Text    string // why, for people: "liveness: GET :8080/healthz: status 503, 3 of 3 failed"
}

// Result is the result of one check.
type Result struct {
	Passed  bool
	Unknown bool   // the check could not be carried out, which says nothing about the instance
	Text    string // what was found, for people: "status 503"
}

// Until a check passes for the first time it runs more often than its interval, so that an instance
// gets flows soon after it can serve. These failures do not count.
const (
	earlyPause   = 100 * time.Millisecond // before the second check; doubles up to the interval
	earlyCommand = time.Second            // the same for a command, which costs more
)

// A readiness that changes often is damped, because each change is announced to other nodes: after a
// loss it returns at the earliest after a hold, which doubles with each loss that follows soon.
const (
	minHold    = time.Second
	maxHold    = time.Minute
	calmPeriod = 5 * time.Minute // an instance that was ready this long begins with the shortest hold again
)

// textPeriod is the shortest time between two verdicts that differ in their text only.
const textPeriod = 30 * time.Second

// Machine has the state of the checks of one attempt. It is not safe for concurrent use.
type Machine struct {
	checks     []*check // startup, readiness, liveness, as far as there are
	verdict    Verdict
	told       time.Time // when a change was returned last; zero: never
	cause      string    // the text of the result that changed the verdict last
	readySince time.Time // zero: not ready
	holds      int       // losses of readiness in a row that followed soon
	heldUntil  time.Time // readiness does not return earlier
}

type check struct {
	api.Check
	kind    api.CheckKind
	passes  bool // its last verdict
	ever    bool // it has passed
	running bool
	seed    uint64
	next    time.Time
	began   time.Time     // of the last check
	passed  int           // results in a row that passed
	failed  int           // results in a row that failed, and count
	counted time.Time     // when the last failure before the first pass was counted
	early   time.Duration // the last pause before the first pass
}

// New returns the machine of an attempt that started at begun. seed differs between instances, so that
// checks of instances that start together spread over their interval.
func New(h api.Health, begun time.Time, seed uint64, known Known) *Machine {
	if h.Startup != nil && h.Readiness == nil && !known.Ready {
		known.Started = false // a failure of its liveness was not followed by a restart: only a check that passes makes it ready again
	}
	m := &Machine{}
	for _, k := range []struct {
		kind   api.CheckKind
		check  *api.Check
		passes bool
	}{
		{api.CheckStartup, h.Startup, known.Started},
		{api.CheckReadiness, h.Readiness, known.Ready},
		{api.CheckLiveness, h.Liveness, true},
	} {
		if k.check == nil || h.None {
			continue
		}
		c := &check{Check: k.check.WithDefaults(k.kind), kind: k.kind, passes: k.passes, ever: k.passes, seed: seed}
		c.next = begun.Add(time.Duration(c.InitialDelay) * time.Second)
		if known.Started { // the instance has run for a while: there is no hurry
			c.next = begun.Add(c.part(c.Every()))
		}
		m.checks = append(m.checks, c)
	}
	m.judge()
	if m.verdict.Ready {
		m.readySince = begun
	}
	m.verdict.Text = m.pending()
	return m
}

// part returns a part of d that is constant for the check.
func (c *check) part(d time.Duration) time.Duration {
	return d / 256 * time.Duration((c.seed*0x9e3779b97f4a7c15>>32)%256)
}

func (m *Machine) of(kind api.CheckKind) *check {
	for _, c := range m.checks {
		if c.kind == kind {
			return c
		}
	}
	return nil
}

// Check returns the check of a kind, with the defaults.
func (m *Machine) Check(kind api.CheckKind) api.Check { return m.of(kind).Check }

// Verdict returns the present verdict.
func (m *Machine) Verdict() Verdict { return m.verdict }

// waits reports whether a check does not run at present: after a failure none does, before the start-up
// check has passed only that, and then all others.
func (m *Machine) waits(c *check) bool {
	return m.verdict.Failed || (c.kind == api.CheckStartup) == m.verdict.Started
}

// Next returns when a check is due; zero: none before a Result.
func (m *Machine) Next() (next time.Time) {
	for _, c := range m.checks {
		if !c.running && !m.waits(c) && (next.IsZero() || c.next.Before(next)) {
			next = c.next
		}
	}
	return next
}

// Due returns a check that has to be carried out now. It is not due again before its Result.
func (m *Machine) Due(now time.Time) (kind api.CheckKind, ok bool) {
	for _, c := range m.checks {
		if !c.running && !m.waits(c) && !c.next.After(now) {
			c.running, c.began = true, now
			return c.kind, true
		}
	}
	return "", false
}

// Result handles the result of a check that was due, and reports whether the verdict has changed.
func (m *Machine) Result(now time.Time, kind api.CheckKind, r Result) (v Verdict, changed bool) {
	c := m.of(kind)
	if c == nil || !c.running {
		return m.verdict, false
	}
	c.running = false
	counts := c.plan(now, r)
	if m.waits(c) { // another check has failed meanwhile
		return m.verdict, false
	}
	switch {
	case r.Unknown:
	case r.Passed:
		c.passed, c.failed = c.passed+1, 0
	default:
		if c.passed = 0; counts {
			c.failed++
		}
	}
	before := m.verdict
	lost := !r.Passed && !r.Unknown && (c.passes || kind == api.CheckStartup) && c.failed >= c.Failures
	switch {
	case lost:
		c.passes = false
	case r.Passed && !c.passes && c.passed >= c.Successes && !now.Before(m.heldUntil):
		c.passes, c.ever = true, true
	}
	m.judge()
	if lost && kind != api.CheckReadiness {
		m.verdict.Failed, m.verdict.Ready = true, false
	}
	m.explain(now, c, r, before, lost)
	if m.verdict.Ready && !before.Ready {
		m.readySince = now
	}
	switch same := m.verdict; {
	case same.Started != before.Started, same.Ready != before.Ready, same.Failed != before.Failed:
	case same.Text == before.Text:
		return before, false
	case !m.told.IsZero() && now.Sub(m.told) < textPeriod:
		m.verdict = before
		return before, false
	}
	m.told, m.cause = now, r.Text
	return m.verdict, true
}

// explain sets the text of the verdict after a result. lost says that the check has failed.
func (m *Machine) explain(now time.Time, c *check, r Result, before Verdict, lost bool) {
	v := &m.verdict
	switch {
	case lost:
		v.Text = fmt.Sprintf("%s: %s: %s, %d of %d failed", c.kind, c.Check, r.Text, c.failed, c.Failures)
		if before.Ready && !v.Failed {
			v.Text += m.hold(now)
		}
	case v.Ready && !before.Ready:
		v.Text = fmt.Sprintf("%s: %s passed", c.kind, c.Check)
	case v.Started && !before.Started:
		v.Text = m.pending()
	case c.passes || r.Passed || r.Text == m.cause || r.Text == "":
	case r.Unknown:
		v.Text = fmt.Sprintf("%s: %s was not carried out: %s", c.kind, c.Check, r.Text)
	default:
		v.Text = fmt.Sprintf("%s: %s: %s", c.kind, c.Check, r.Text)
	}
}

// plan sets when the check is due next, and reports whether its result counts.
func (c *check) plan(now time.Time, r Result) (counts bool) {
	if r.Passed && !c.ever { // from now on at regular times, which differ between instances
		c.next = now.Add(c.Every()/2 + c.part(c.Every()/2))
		return true
	}
	if r.Passed || r.Unknown || c.ever {
		c.next = c.began.Add(c.Every())
		if c.next.Before(now) {
			c.next = now
		}
		return !r.Unknown
	}
	least := earlyPause
	if len(c.Command) > 0 {
		least = earlyCommand
	}
	c.early = min(max(2*c.early, least), c.Every())
	c.next = now.Add(c.early)
	if c.counted.IsZero() {
		c.counted = c.began
	}
	if now.Sub(c.counted) < c.Every() {
		return false
	}
	c.counted = c.counted.Add(c.Every())
	return true
}

// judge sets Started and Ready from what the checks say.
func (m *Machine) judge() {
	passes := func(kind api.CheckKind) bool { c := m.of(kind); return c == nil || c.passes }
	m.verdict.Started = passes(api.CheckStartup)
	m.verdict.Ready = m.verdict.Started && passes(api.CheckReadiness)
}

// pending returns why the instance is not ready before a check has found anything.
func (m *Machine) pending() string {
	for _, c := range m.checks {
		if !c.passes && !m.waits(c) {
			return fmt.Sprintf("%s: %s has not passed yet", c.kind, c.Check)
		}
	}
	return ""
}

// hold sets how long readiness that was lost does not return, and explains it.
func (m *Machine) hold(now time.Time) string {
	if m.holds++; now.Sub(m.readySince) >= calmPeriod {
		m.holds = 1
	}
	m.readySince = time.Time{}
	d := minHold
	for i := 1; i < m.holds && d < maxHold; i++ {
		d *= 2
	}
	d = min(d, maxHold)
	if m.heldUntil = now.Add(d); m.holds == 1 {
		return ""
	}
	return fmt.Sprintf("; it changes often, so that it is ready again after %s at the earliest", d)
}
