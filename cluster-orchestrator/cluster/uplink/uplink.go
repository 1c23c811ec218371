// Package uplink is a cluster's link with the root: which desired set the cluster has
// taken, what it reports until the root acknowledges it, notices for the operator, and the
// capacity that it offers.
//
// It is a sub-machine of the cluster's core and not safe for concurrent use. The core tells
// it what changed and gives it the values of a report. Its messages and timers go to the
// sink.
package uplink

import (
	"cmp"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Config is what an uplink needs to know.
type Config struct {
	Cluster api.ClusterID
	Idle    time.Duration // between reports when nothing changes, at first
	Retry   time.Duration // how long a report may stay without an answer
	Offer   Offer
}

// Machine is the state of the link.
type Machine struct {
	fx  *effects.Sink
	cfg Config

	up      bool
	gen     api.Generation // of the desired set from the root
	wanted  api.Digest     // of that set
	helloAt time.Time

	seq    uint64
	sent   uint64 // the report that waits for its answer; 0: none
	sentAt time.Time
	due    bool
	whole  bool                      // the next report has all instances
	known  api.Digest                // of all observations
	dirty  map[api.InstanceID]uint64 // changed, with the report that last carried it; 0: none
	gone   map[api.InstanceID]goneReport
	fresh  bool // a change or a notice was in no report yet

	dead       time.Duration // silence after which the root counts the cluster as dead; 0: unknown
	idle       time.Duration // from the last report to the next, if nothing changes
	reported   Room          // as of the last report
	changes    uint64        // of the capacity and what is free
	reportedAt uint64        // changes, as of the last report

	notices   notices
	aggregate *api.Aggregate
	version   uint64 // of the candidates in aggregate
}

// goneReport is the last report on an instance that is removed, kept until the root has it.
type goneReport struct {
	api.Observed
	seq uint64
}

// Room is what the cluster has, and what of it is free.
type Room struct{ Capacity, Free api.Resources }

// New returns an uplink that has received nothing yet.
func New(fx *effects.Sink, cfg Config) *Machine {
	return &Machine{fx: fx, cfg: cfg, dirty: map[api.InstanceID]uint64{}, gone: map[api.InstanceID]goneReport{}, whole: true}
}

// Restore sets the generation that was taken before a restart.
func (m *Machine) Restore(gen api.Generation) { m.gen = gen }

// Start begins a process lifetime: it asks the root for what is missing, and reports.
func (m *Machine) Start() {
	m.fx.Timers.Set(reportKey, m.fx.Now)
	m.hello(m.gen)
}

var reportKey = effects.Key{Kind: effects.Report}

// Up reports whether the stream from the root is up.
func (m *Machine) Up() bool { return m.up }

// Gen returns the generation of the root's desired set that was taken last.
func (m *Machine) Gen() api.Generation { return m.gen }

// Digests returns those of the desired set and of what the root should know.
func (m *Machine) Digests() (desired, observed api.Digest) { return m.wanted, m.known }

// SetUp notes that the stream from the root came up or went down.
func (m *Machine) SetUp(up bool) {
	if m.up = up; up {
		m.due, m.sent = true, 0
	}
}

// helloEvery is the shortest time between two requests for the desired set.
const helloEvery = time.Second

// hello asks the root for all that changed since a generation; 0: for all.
func (m *Machine) hello(since api.Generation) {
	m.helloAt = m.fx.Now
	m.fx.ToRoot(wire.Hello{Cluster: m.cfg.Cluster, Since: since, Digest: m.wanted})
}

func (m *Machine) helloSoon(since api.Generation) {
	if m.helloAt.IsZero() || m.fx.Now.Sub(m.helloAt) >= helloEvery {
		m.hello(since)
	}
}

// Accept reports whether a desired set is to be taken. A change that does not start from
// what the cluster has is answered with a request for the rest.
func (m *Machine) Accept(d wire.Desired) bool {
	if d.From != 0 && d.From != m.gen {
		if d.Gen > m.gen {
			m.helloSoon(m.gen)
		}
		return false
	}
	return d.Gen > m.gen || d.Gen == m.gen && (d.Digest != m.wanted || len(d.Drop) > 0)
}

// Taken notes that a desired set was taken, after the Toggle of what changed.
func (m *Machine) Taken(d wire.Desired) {
	m.gen = d.Gen
	m.due = true // the root counts what it reserved until it knows that the cluster has it
	if m.wanted != d.Digest {
		m.helloSoon(0) // a change was lost: request the whole set
	}
}

// Toggle changes the digests of the desired set and of the observations.
func (m *Machine) Toggle(wanted, known api.Digest) {
	m.wanted, m.known = m.wanted^wanted, m.known^known
}

// Show has an instance reported.
func (m *Machine) Show(id api.InstanceID) {
	m.dirty[id], m.fresh = 0, true
	delete(m.gone, id)
}

// Removed has the last state of a removed instance reported.
func (m *Machine) Removed(o api.Observed) {
	delete(m.dirty, o.Instance)
	m.gone[o.Instance], m.fresh = goneReport{Observed: o}, true
}

// Due has a report go out at the end of the step.
func (m *Machine) Due() { m.due = true }

// The time from a change of the room to its report.
const (
	gather     = 250 * time.Millisecond // a large one: changes within this time travel together
	gatherMore = 2 * time.Second        // a small one
	little     = 0.05                   // of the capacity; a larger change is large
	maxIdle    = 30 * time.Second       // between two reports; also a third of Machine.dead
)

// RoomChanged schedules a report of the room. large: soon, even if the amounts changed
// little.
func (m *Machine) RoomChanged(r Room, large bool) {
	m.changes++
	was, is, of := parts(m.reported.Free), parts(r.Free), parts(m.reported.Capacity)
	for i := range is {
		d := is[i] - was[i]
		large = large || float64(max(d, -d)) > little*float64(of[i])
	}
	wait := gatherMore
	if large {
		wait = gather
	}
	m.fx.Timers.SetEarlier(reportKey, m.fx.Now.Add(wait))
}

// Ack takes the root's answer to a report. ok is false if it is for no report of this
// process lifetime. keep reports whether an instance is to be reported again all the same.
func (m *Machine) Ack(a wire.ReportAck, keep func(api.InstanceID) bool) (ok bool) {
	if a.Boot != m.fx.Boot || a.Seq > m.seq {
		return false
	}
	if a.Seq >= m.sent {
		m.sent = 0
	}
	for id, seq := range m.dirty {
		if seq != 0 && seq <= a.Seq && !keep(id) {
			delete(m.dirty, id)
		}
	}
	for id, g := range m.gone {
		if g.seq != 0 && g.seq <= a.Seq {
			delete(m.gone, id)
		}
	}
	m.notices.acked(a.Seq)
	m.dead = a.Dead
	if a.RequestWhole {
		m.whole, m.due = true, true
	}
	if a.Gen > m.gen {
		m.helloSoon(m.gen) // the stream should bring it; if not, the next answer asks again
	}
	return true
}

// Begin starts a report, if there is something to report and none waits for its answer.
// news says that the network has something. whole: Send needs all instances.
func (m *Machine) Begin(news bool) (seq uint64, whole, ok bool) {
	if !m.due && !m.whole && !m.fresh && !news {
		return 0, false, false
	}
	if m.sent != 0 {
		if retry := m.sentAt.Add(m.cfg.Retry); m.fx.Now.Before(retry) {
			m.fx.Timers.SetEarlier(reportKey, retry)
			return 0, false, false
		}
	}
	m.seq++
	return m.seq, m.whole, true
}

// Facts are the values of a report.
type Facts struct {
	All       []api.InstanceID                          // all instances, in a whole report
	Observe   func(api.InstanceID) (api.Observed, bool) // false: it does not exist any more
	Net       *wire.ClusterNet
	NetNews   bool // Net has more than digests
	Aggregate api.Aggregate
	Room      Room
}

// Send sends the report that Begin started. The aggregate must not be older than what is
// observed: the root counts itself what it placed here until it is reported.
func (m *Machine) Send(f Facts) {
	rep := wire.Report{
		Cluster: m.cfg.Cluster, Boot: m.fx.Boot, Seq: m.seq, Gen: m.gen, Desired: m.wanted, Known: m.known,
		Whole: m.whole, Aggregate: f.Aggregate, Net: f.Net,
	}
	for _, id := range f.All {
		m.dirty[id] = 0
	}
	for _, id := range step.Keys(m.dirty) {
		if o, ok := f.Observe(id); ok {
			rep.Observed = append(rep.Observed, o)
			m.dirty[id] = m.seq
		} else {
			delete(m.dirty, id)
		}
	}
	for _, id := range step.Keys(m.gone) {
		g := m.gone[id]
		g.seq = m.seq
		m.gone[id] = g
		rep.Observed = append(rep.Observed, g.Observed)
	}
	rep.Notices = m.notices.carry(m.seq)
	m.scheduleNext(f.NetNews || len(rep.Observed)+len(rep.Notices) > 0)
	m.reported, m.reportedAt = f.Room, m.changes
	m.sent, m.sentAt, m.due, m.whole, m.fresh = m.seq, m.fx.Now, false, false, false
	m.fx.ToRoot(rep)
}

// scheduleNext sets when the next report goes out if nothing changes: later each time that
// there was nothing new.
func (m *Machine) scheduleNext(news bool) {
	if news || m.reportedAt != m.changes || m.idle == 0 {
		m.idle = m.cfg.Idle
	} else {
		m.idle = max(m.cfg.Idle, min(2*m.idle, maxIdle, cmp.Or(m.dead, 3*m.cfg.Idle)/3))
	}
	m.fx.Timers.Set(reportKey, m.fx.Now.Add(m.idle))
}

// Last returns the number of the last report, and whether it waits for its answer.
func (m *Machine) Last() (seq uint64, waits bool) { return m.seq, m.sent != 0 }
