package placement

import (
	"cmp"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// The root keeps the instances of a schedule in one cluster if they decide together when each runs:
//
// With overlap: allow, the instances of a lane (api.Schedule.Lane) share the scheduled times. Each
// time goes to the first instance of the lane that has no run. All of them record it as decided, and
// the newest record counts, so that a crash between two saves repeats nothing.
//
// With parallelism, an instance whose run is due waits for its turn while as many instances of the
// service as allowed hold one. It stays dormant, and has a present run.

// turns are those of one service. They follow from the instances' records.
type turns struct {
	holds  map[api.InstanceID]bool // runs, waits for a node, or is not known to have ended
	queued map[api.InstanceID]time.Time
}

// queued reports whether the instance's run waits for its turn.
func (in *instance) queued() bool {
	return in.Runs != nil && in.Runs.Current != nil && in.dormant() && in.cron != nil && !in.Leaving && !in.Withdrawn
}

// noteTurn records whether the instance holds a turn or waits for one. gone: it is being removed.
func (m *Machine) noteTurn(in *instance, gone bool) {
	id, s := in.id(), in.id().Service()
	gone = gone || in.Runs == nil || m.instances[id] != in
	t := m.schedules.turns[s]
	if t == nil {
		if gone {
			return
		}
		if m.schedules.turns == nil {
			m.schedules.turns = map[api.ServiceID]*turns{}
		}
		t = &turns{holds: map[api.InstanceID]bool{}, queued: map[api.InstanceID]time.Time{}}
		m.schedules.turns[s] = t
	}
	delete(t.queued, id)
	had := t.holds[id]
	delete(t.holds, id)
	switch {
	case gone:
	case !in.ended() || len(in.OldPlacements) > 0:
		t.holds[id] = true
	case in.queued():
		t.queued[id] = in.Runs.Current.At
	}
	if had && !t.holds[id] {
		m.nextTurn(s)
	}
	if len(t.holds)+len(t.queued) == 0 {
		delete(m.schedules.turns, s)
	}
}

// hasTurn reports whether one more instance of the service may run.
func (m *Machine) hasTurn(in *instance) bool {
	n, t := in.Desired.Spec.Parallelism, m.schedules.turns[in.id().Service()]
	if n == 0 || t == nil {
		return true
	}
	others := len(t.holds)
	if t.holds[in.id()] {
		others--
	}
	return others < n
}

// nextTurn decides soon about the instance of the service that waits longest for its turn, if there is
// one and it has it.
func (m *Machine) nextTurn(s api.ServiceID) {
	t := m.schedules.turns[s]
	if t == nil {
		return
	}
	var best api.InstanceID
	for id, at := range t.queued {
		if best == "" || cmp.Or(at.Compare(t.queued[best]), cmp.Compare(id.Number(), best.Number())) < 0 {
			best = id
		}
	}
	if in := m.instances[best]; in != nil && m.hasTurn(in) {
		m.schedules.at.SetEarlier(best, m.fx.Wall)
	}
}

// lane returns the instances that share the scheduled times with this one and itself, by number.
func (m *Machine) lane(in *instance) []*instance {
	k := in.Desired.Spec.Schedule.Lane()
	if k <= 1 {
		return []*instance{in}
	}
	var all []*instance
	for first, n := in.id().Number()/k*k, 0; n < k; n++ {
		if x := m.instances[in.id().Service().Instance(first+n)]; x != nil && x.Runs != nil {
			all = append(all, x)
		}
	}
	return all
}

// taker makes the instances of a lane agree on what was decided, and returns the one that takes the
// next scheduled time. If all have a run, it is the first, which records that the time is skipped.
func (m *Machine) taker(all []*instance) (best *instance) {
	var decided time.Time
	for _, x := range all {
		if d := x.Runs.Decided; d.After(decided) {
			decided = d
		}
	}
	for _, x := range all {
		if x.Runs.Advance(decided, m.fx.Wall) {
			m.changed(x)
		}
		switch {
		case x.cron == nil || x.Leaving || x.Withdrawn:
		case best == nil, best.Runs.Current != nil && x.Runs.Current == nil:
			best = x
		}
	}
	return best
}

// decideRun decides the scheduled times of the instance's lane, and whether its run starts or is given
// up.
func (m *Machine) decideRun(in *instance) {
	if in.Runs == nil || in.Desired.Spec.Schedule == nil {
		return
	}
	all := m.lane(in)
	taker := m.taker(all)
	if taker != in {
		m.stepRun(in, func(time.Time) time.Time { return time.Time{} })
	}
	if taker == nil {
		return
	}
	m.stepRun(taker, taker.cron.Next)
	next := taker.cron.Next(m.fx.Wall)
	for _, x := range all {
		if len(all) > 1 && x.Runs.Advance(taker.Runs.Decided, m.fx.Wall) {
			m.changed(x)
		}
		if x != taker && !next.IsZero() && !x.Desired.Spec.Schedule.Suspend {
			m.schedules.at.SetEarlier(x.id(), next)
		}
	}
}
