package placement

import (
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/runs"
	"github.com/treeline-edge/treeline/internal/cron"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// runBound applies every paceEvery. Each tenant has at least one run in it.
var runBound = fairshare.Declare(fairshare.Bound{
	Resource: "runs of schedules that a cluster decides in half a second", Total: 200, Share: []int{20}, Per: "topmost tenant",
	Beyond: "the run begins later; one that is later than its starting_deadline is missed",
	Attack: "TestManySchedulesOfATenantDelayNobodyElse",
})

// schedules has the times at which scheduled instances are looked at, by the wall clock. The clock
// may jump, so that they are compared with it in every step.
type schedules struct {
	at       step.Timers[api.InstanceID]
	due      map[api.Tenant][]api.InstanceID // of topmost tenants; no longer in at
	pacedAt  time.Time                       // when runs were last taken from due
	answered bool                            // the root has answered a report of this process
	since    time.Time                       // start of this process
	turns    map[api.ServiceID]*turns
}

// startSchedules begins a process. The store may be an older copy, so that times before the start are
// decided only when the root has answered and has told what it knows.
func (m *Machine) startSchedules() {
	m.schedules.answered, m.schedules.since = false, m.fx.Wall
	for _, id := range step.Keys(m.instances) {
		if m.instances[id].Runs != nil {
			m.schedules.at.Set(id, m.fx.Wall)
		}
	}
}

// RootAnswered handles an answer of the root to a report of this process. Call AdvanceRuns first.
func (m *Machine) RootAnswered() {
	if m.schedules.answered {
		return
	}
	m.schedules.answered = true
	for _, id := range step.Keys(m.instances) {
		if m.instances[id].Runs != nil {
			m.schedules.at.Set(id, m.fx.Wall)
		}
	}
}

// AdvanceRuns handles what the root knows of scheduled times that this cluster has decided.
func (m *Machine) AdvanceRuns(marks []wire.RunMark) {
	for _, k := range marks {
		if in := m.instances[k.Instance]; in != nil && in.Runs != nil && in.Runs.Advance(k.Decided, m.fx.Wall) {
			m.changed(in)
		}
	}
}

// RunsDue starts the runs that are due, and sets the timer for the next ones.
func (m *Machine) RunsDue() {
	s := &m.schedules
	for {
		id, ok := s.at.Pop(m.fx.Wall)
		if !ok {
			break
		}
		if s.due == nil {
			s.due = map[api.Tenant][]api.InstanceID{}
		}
		t := id.Tenant().Top()
		s.due[t] = append(s.due[t], id)
	}
	key := effects.Key{Kind: effects.Run}
	if len(s.due) > 0 && (s.pacedAt.IsZero() || m.fx.Now.Sub(s.pacedAt) >= paceEvery) {
		s.pacedAt = m.fx.Now
		share := max(1, min(runBound.Share[0], runBound.Total/len(s.due)))
		for _, t := range step.Keys(s.due) {
			ids := s.due[t]
			n := min(share, len(ids))
			if s.due[t] = ids[n:]; n == len(ids) {
				delete(s.due, t)
			}
			for _, id := range ids[:n] {
				if in := m.instances[id]; in != nil {
					m.decideRun(in)
				}
			}
		}
	}
	switch next := s.at.Next(); {
	case len(s.due) > 0:
		m.fx.Timers.Set(key, s.pacedAt.Add(paceEvery))
	case !next.IsZero():
		m.fx.Timers.Set(key, m.fx.Now.Add(next.Sub(m.fx.Wall)))
	default:
		m.fx.Timers.Clear(key)
	}
}

// stepRun takes the next step of the instance's runs, and carries out what it decides.
func (m *Machine) stepRun(in *instance, next func(time.Time) time.Time) {
	sched := in.Desired.Spec.Schedule
	if in.cron == nil || in.Leaving || in.Withdrawn {
		return
	}
	s := runs.Schedule{Next: next, Overlap: sched.Overlap, Within: sched.Within(), Suspend: sched.Suspend, Queued: in.queued()}
	if !m.schedules.answered {
		s.Hold = m.schedules.since
	}
	if in.why != nil {
		s.Why = summary(*in.why)
	}
	act, at, changed := in.Runs.Step(s, m.fx.Wall)
	if !at.IsZero() {
		m.schedules.at.SetEarlier(in.id(), at)
	}
	if act == runs.Restart {
		m.sleep(in, api.ReasonScheduled, "")
	}
	switch {
	case act == runs.GiveUp && !in.dormant():
		m.sleep(in, api.ReasonScheduled, m.nextRun(in))
	case in.queued() && m.hasTurn(in):
		in.Runs.Turn = m.fx.Wall
		m.Wake(in.id(), "the run of "+in.Runs.Current.At.Format(time.RFC3339)+" is due")
	case in.queued():
		n := in.Desired.Spec.Parallelism
		in.Detail = fmt.Sprintf("the run of %s waits for its turn: %d instances of the service run, the most that parallelism allows", in.Runs.Current.At.Format(time.RFC3339), n)
		m.changed(in)
	case act == runs.GiveUp:
		in.Detail = m.nextRun(in)
		m.changed(in)
	case changed:
		m.changed(in)
	}
	m.nextTurn(in.id().Service())
}

// nextRun describes the next run for people.
func (m *Machine) nextRun(in *instance) string {
	s := in.Desired.Spec.Schedule
	switch {
	case in.cron == nil:
		_, err := cron.Of(s)
		return "no run starts: its schedule cannot be read: " + err.Error()
	case s.Suspend:
		return "no run starts: its schedule is suspended"
	}
	from := m.fx.Wall
	if in.Runs.Decided.After(from) {
		from = in.Runs.Decided
	}
	next := in.cron.Next(from)
	if next.IsZero() {
		return "its schedule has no further time"
	}
	return "the next run is due at " + next.Format(time.RFC3339)
}

// beginSchedule prepares the runs of an instance with a new SLA.
func (m *Machine) beginSchedule(in *instance) {
	if in.Runs == nil {
		in.Runs = runs.New(in.Desired.Decided, m.fx.Wall)
	} else {
		in.Runs.End(api.Run{Result: api.RunStopped, Reason: api.ReasonUpdated, Detail: "a new SLA replaced it"}, m.fx.Wall)
		in.Runs.Advance(in.Desired.Decided, m.fx.Wall)
		in.Runs.Advance(m.fx.Wall, m.fx.Wall)
	}
	m.schedules.at.Set(in.id(), m.fx.Wall)
}

// endRun makes a scheduled instance dormant whose run its node reports as ended. Its node keeps the
// logs until the next run.
func (m *Machine) endRun(in *instance, before api.State, o *api.Observed) {
	how := api.Run{Result: api.RunCompleted, ExitCode: o.ExitCode}
	if o.State == api.Failed {
		how.Result, how.Reason, how.Detail = api.RunFailed, o.Reason, step.Clip(o.Detail)
	}
	in.Runs.End(how, m.fx.Wall)
	in.State, in.Reason, in.Detail = lifecycle.Must(before, lifecycle.Sleep), api.ReasonScheduled, m.nextRun(in)
	in.Restarts, in.Failures, in.ExitCode, in.avoid = 0, 0, nil, nil
	m.schedules.at.Set(in.id(), m.fx.Wall) // a due run may have waited for the end of this one
}

// waitForRoom keeps a scheduled instance in the cluster whose run fits nowhere: the root may be away,
// and a run is decided in one place only. The run is given up at its starting deadline.
func (m *Machine) waitForRoom(in *instance, r api.Reason, detail string, why *api.Explanation) {
	if in.Node != "" {
		m.unassign(in, true)
	}
	in.GivenUp = false
	m.waiting.Add(in.id())
	m.explain(in, r, detail, why)
}
