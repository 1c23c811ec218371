// Package violations decides when a placement is checked against its SLA, and when an
// instance whose SLA is violated must be moved. Package placement finds violations and
// better places.
//
// A watched instance is checked every 10 s, a tenth of them at a time. It must be moved when
// its SLA has been violated for longer than its rigidness allows.
//
// It is a sub-machine of the cluster's core and not safe for concurrent use.
package violations

import (
	"iter"
	"math/bits"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// CheckEvery is the time between two checks of an instance.
const CheckEvery = 10 * time.Second

const checkSlots = 10

// MovesAtOnce bounds the instances that are moved every 100 ms. A renamed label may violate
// the SLAs of thousands of instances at once.
const MovesAtOnce = 20

const relieveEvery = 100 * time.Millisecond

// Breach is the constraint of an instance's SLA that its placement violates.
type Breach struct {
	Text      string        // empty: none
	Estimated bool          // by coordinates; a measurement may differ
	Tolerated time.Duration // how long the SLA tolerates the breach
	Shared    bool          // Tolerated is the total over the last 5 minutes, not without interruption
}

// Machine is the state of all instances with watched or violated SLAs.
type Machine struct {
	fx        *effects.Sink
	watched   [checkSlots]map[api.InstanceID]bool
	slot      int
	instances map[api.InstanceID]*instance
	toMove    step.Queue[api.InstanceID] // instances to move
}

type instance struct {
	epoch     api.Epoch // of the placement
	since     time.Time // start of the violation; zero: none
	shownAt   time.Time // when the breach was last shown
	estimated bool      // the shown breach was estimated by coordinates
	checks    checks
}

func New(fx *effects.Sink) *Machine {
	return &Machine{fx: fx, instances: map[api.InstanceID]*instance{}}
}

func (m *Machine) get(id api.InstanceID, e api.Epoch) *instance {
	in := m.instances[id]
	if in == nil {
		in = &instance{epoch: e}
		m.instances[id] = in
	}
	if in.epoch != e {
		in.epoch, in.since = e, time.Time{}
	}
	return in
}

func (m *Machine) Watch(id api.InstanceID, on bool) {
	watched := &m.watched[sched.SeedOf("check", id)%checkSlots]
	if !on {
		delete(*watched, id)
		return
	}
	if *watched == nil {
		*watched = map[api.InstanceID]bool{}
	}
	(*watched)[id] = true
	m.fx.Timers.SetEarlier(effects.Key{Kind: effects.Check}, m.fx.Now.Add(CheckEvery/checkSlots))
}

func (m *Machine) Watched(id api.InstanceID) bool {
	return m.watched[sched.SeedOf("check", id)%checkSlots][id]
}

// Size returns the number of watched instances and of those with state.
func (m *Machine) Size() (watched, known int) {
	for _, w := range m.watched {
		watched += len(w)
	}
	return watched, len(m.instances)
}

func (m *Machine) Drop(id api.InstanceID) {
	m.Watch(id, false)
	delete(m.instances, id)
	m.toMove.Remove(id)
	m.fx.Timers.Clear(effects.Key{Kind: effects.Violated, Instance: id})
}

// Due yields the instances to check now, and then sets the timer of the next checks.
func (m *Machine) Due() iter.Seq[api.InstanceID] {
	return func(yield func(api.InstanceID) bool) {
		m.slot = (m.slot + 1) % checkSlots
		for _, id := range step.Keys(m.watched[m.slot]) {
			if !yield(id) {
				return
			}
		}
		if watched, _ := m.Size(); watched > 0 {
			m.fx.Timers.Set(effects.Key{Kind: effects.Check}, m.fx.Now.Add(CheckEvery/checkSlots))
		}
	}
}

// Checked records the result of a periodic check of a placement.
func (m *Machine) Checked(id api.InstanceID, e api.Epoch) {
	in := m.get(id, e)
	in.checks.record(!in.since.IsZero())
}

// Violated reports whether the last call of Judge for the placement had a breach.
func (m *Machine) Violated(id api.InstanceID, e api.Epoch) bool {
	return !m.get(id, e).since.IsZero()
}

// Judge records the present breach of a placement. shown is the text that is shown now; show
// reports whether b.Text must replace it. Because amounts change all the time, it is replaced
// at most once a minute. Once the breach has lasted longer than tolerated, Relieve yields the
// instance.
func (m *Machine) Judge(id api.InstanceID, e api.Epoch, b Breach, shown string) (show bool) {
	in, due := m.get(id, e), effects.Key{Kind: effects.Violated, Instance: id}
	if b.Text == "" {
		m.fx.Timers.Clear(due)
		in.since = time.Time{}
		return shown != ""
	}
	switch {
	case in.since.IsZero():
		in.since, in.shownAt, in.estimated = m.fx.Now, m.fx.Now, b.Estimated
		show = shown != b.Text
	case shown != b.Text && (m.fx.Now.Sub(in.shownAt) >= time.Minute || in.estimated && !b.Estimated):
		in.shownAt, in.estimated = m.fx.Now, b.Estimated
		show = true
	}
	tolerated := b.Tolerated
	if b.Shared {
		tolerated -= in.checks.earlier()
	}
	if until := in.since.Add(tolerated); m.fx.Now.Before(until) {
		m.fx.Timers.SetEarlier(due, until)
		return show
	}
	m.toMove.Add(id)
	if key := (effects.Key{Kind: effects.Relieve}); !m.fx.Timers.Has(key) {
		m.fx.Timers.Set(key, m.fx.Now)
	}
	return show
}

// Relieve yields the next instances to move, and then sets the timer for the following ones.
func (m *Machine) Relieve() iter.Seq[api.InstanceID] {
	return func(yield func(api.InstanceID) bool) {
		next := m.toMove.List()
		if len(next) == 0 {
			return
		}
		for _, id := range next[:min(len(next), MovesAtOnce)] {
			m.toMove.Remove(id)
			if !yield(id) {
				return
			}
		}
		m.fx.Timers.Set(effects.Key{Kind: effects.Relieve}, m.fx.Now.Add(relieveEvery))
	}
}

// checks has a bit for each of the last periodic checks of an instance, the latest in the
// lowest bit. A bit is set if the SLA was violated. A rigidness that is a share of time is
// measured over these checks.
type checks uint64

// window is the time that checks cover.
const window = 5 * time.Minute

const windowChecks = int(window / CheckEvery)

func (l *checks) record(violated bool) {
	*l = *l << 1 & (1<<windowChecks - 1)
	if violated {
		*l |= 1
	}
}

// earlier returns how long the SLA was violated within the window, without the present
// violation.
func (l checks) earlier() time.Duration {
	lasting := bits.TrailingZeros64(^uint64(l))
	return time.Duration(bits.OnesCount64(uint64(l)>>lasting)) * CheckEvery
}
