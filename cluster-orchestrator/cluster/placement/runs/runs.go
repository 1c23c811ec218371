// Package runs decides when a scheduled instance runs, and remembers its last runs. A scheduled time
// is decided once: Log.Decided only grows, and is saved before a run starts.
package runs

import (
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Log is the saved state of a scheduled instance. Times are of the wall clock.
type Log struct {
	// Decided is the time up to which all scheduled times have begun to run or never will.
	Decided time.Time `json:"decided"`
	Current *api.Run  `json:"current,omitempty"` // due or under way
	Turn    time.Time `json:"turn,omitzero"`     // when Current no longer had to wait for its turn
	Past    []api.Run `json:"past,omitempty"`    // the newest last
}

// maxAhead is how far Decided may be ahead of the clock. Beyond, the clock was wrong when it was
// decided, and runs must not wait until it is right.
const maxAhead = 25 * time.Hour

// New returns the state of an instance that was assigned to the cluster at now. Another cluster may
// have decided scheduled times until then.
func New(decided, now time.Time) *Log {
	l := &Log{Decided: now.UTC()}
	l.Advance(decided, now)
	return l
}

// Advance records that scheduled times up to t were decided, here or elsewhere. It reports whether
// this is news.
func (l *Log) Advance(t, now time.Time) bool {
	if !t.After(l.Decided) || t.Sub(now) > maxAhead {
		return false
	}
	l.Decided = t.UTC()
	return true
}

// Schedule is what Step decides by.
type Schedule struct {
	Next    func(time.Time) time.Time // the first scheduled time after another; zero: none
	Overlap api.Overlap
	Within  time.Duration // how late a run may start
	Suspend bool
	Why     string // why Log.Current has no node, for people
	Queued  bool   // Log.Current waits for its turn among the instances of its service
	// Hold is the start of this process while it is not known what an earlier one decided: times up
	// to then are not decided yet.
	Hold time.Time
}

// Action is what to do with the instance.
type Action int

const (
	Nothing Action = iota
	Start          // begin Log.Current
	Restart        // stop what runs, and begin Log.Current
	GiveUp         // Log.Current could not start in time; let the instance sleep
)

// Step decides the scheduled times up to now. It returns what to do, when to call it next (zero: after
// the present run), and whether the Log has changed.
func (l *Log) Step(s Schedule, now time.Time) (act Action, next time.Time, changed bool) {
	now = now.UTC()
	if l.Decided.Sub(now) > maxAhead {
		l.Decided, changed = now, true
	}
	if s.Suspend && l.Decided.Before(now) {
		l.Decided, changed = now, true
	}
	switch c := l.Current; {
	case c == nil || !c.Started.IsZero():
	case s.Suspend:
		l.End(api.Run{Result: api.RunMissed, Detail: "the schedule was suspended before it started"}, now)
		act, changed = GiveUp, true
	case !s.Queued && now.After(l.since().Add(s.Within)):
		detail := "no node had room until the starting deadline"
		if s.Why != "" {
			detail += ": " + s.Why
		}
		l.End(api.Run{Result: api.RunMissed, Reason: api.ReasonNoCapacity, Detail: detail}, now)
		act, changed = GiveUp, true
	}
	if s.Suspend {
		return act, time.Time{}, changed
	}
	first := s.Next(l.Decided)
	if late := now.Add(-s.Within); !first.IsZero() && first.Before(late) && !held(first, s, now) {
		l.past(api.Run{At: first, Result: api.RunMissed, Detail: "the cluster did not run, or a run before had not ended, until the starting deadline"})
		l.Decided = late.Add(-1)
		first, changed = s.Next(l.Decided), true
	}
	newest := first
	for n := first; !n.IsZero() && !n.After(now); n = s.Next(n) {
		newest = n
	}
	switch {
	case newest.IsZero():
		return act, l.deadline(s), changed
	case newest.After(now):
		return act, earlier(newest, l.deadline(s)), changed
	case held(newest, s, now):
		return act, earlier(s.Next(now), l.deadline(s)), changed
	case l.underWay(s) && s.Overlap == api.OverlapWait:
		return act, earlier(first.Add(s.Within+1), s.Next(now)), changed
	}
	if newest != first {
		l.past(api.Run{At: first, Result: api.RunMissed, Detail: "a later time was due as well"})
	}
	l.Decided = newest
	switch c := l.Current; {
	case c == nil:
		l.Current = &api.Run{At: newest, Result: api.RunWaiting}
		act = Start
	case !l.underWay(s):
		l.End(api.Run{Result: api.RunMissed, Reason: api.ReasonNoCapacity, Detail: "no node had room until the next time was due"}, now)
		l.Current = &api.Run{At: newest, Result: api.RunWaiting}
	case s.Overlap == api.OverlapReplace:
		l.End(api.Run{Result: api.RunStopped, Detail: "the next run replaced it"}, now)
		l.Current = &api.Run{At: newest, Result: api.RunWaiting}
		act = Restart
	default:
		l.past(api.Run{At: newest, Result: api.RunSkipped, Detail: "the run before had not ended"})
	}
	return act, earlier(s.Next(now), l.deadline(s)), true
}

// underWay reports whether the present run has begun: on a node, or in its queue behind others of its
// service, which is no reason to give it up.
func (l *Log) underWay(s Schedule) bool {
	return l.Current != nil && (!l.Current.Started.IsZero() || s.Queued)
}

// since returns the time from which the present run may wait for a node.
func (l *Log) since() time.Time {
	if l.Turn.After(l.Current.At) {
		return l.Turn
	}
	return l.Current.At
}

// held reports whether a due time must wait because an earlier process may have decided it.
func held(at time.Time, s Schedule, now time.Time) bool {
	return !s.Hold.IsZero() && !at.After(s.Hold) && !at.After(now)
}

// deadline returns when a run that has not started is given up, or the zero time.
func (l *Log) deadline(s Schedule) time.Time {
	if l.Current == nil || l.underWay(s) {
		return time.Time{}
	}
	return l.since().Add(s.Within + 1)
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Started records that the present run has a node, and reports whether it had none before.
func (l *Log) Started(now time.Time) bool {
	if l.Current == nil || !l.Current.Started.IsZero() {
		return false
	}
	c := *l.Current
	c.Started, c.Result = now.UTC(), api.RunRunning
	l.Current = &c
	return true
}

// End ends the present run, if there is one, with the result, reason, detail and exit code of how.
func (l *Log) End(how api.Run, now time.Time) {
	if l.Current == nil {
		return
	}
	r := *l.Current
	r.Result, r.Reason, r.Detail, r.ExitCode, r.Ended = how.Result, how.Reason, how.Detail, how.ExitCode, now.UTC()
	l.Current, l.Turn = nil, time.Time{}
	l.past(r)
}

func (l *Log) past(r api.Run) {
	l.Past = append(slices.Clip(l.Past), r)
	if n := len(l.Past) - (api.MaxRuns - 1); n > 0 {
		l.Past = slices.Clone(l.Past[n:])
	}
}

// Runs returns the past runs and the present one, the newest last.
func (l *Log) Runs() []api.Run {
	out := slices.Clone(l.Past)
	if l.Current != nil {
		out = append(out, *l.Current)
	}
	return out
}
