// Package uplink is a cluster's connection to the root: which desired set the cluster has
// applied, reports that are repeated until the root acknowledges them, notices for the
// operator, and the capacity that the cluster offers.
//
// It is a sub-machine of the cluster's core and not safe for concurrent use. The core passes
// it changes and the values of a report.
package uplink

import (
	"cmp"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Config configures a Machine.
type Config struct {
	Cluster api.ClusterID
	Idle    time.Duration // initial interval of reports without changes
	Retry   time.Duration // an unanswered report is repeated after this time
	Offer   Offer
}

// Machine is the state of the connection.
type Machine struct {
	fx  *effects.Sink
	cfg Config

	up      bool
	gen     api.Generation // of the desired set from the root
	wanted  api.Digest     // of that set
	helloAt time.Time

	seq    uint64
	sent   uint64 // the unanswered report; 0: none
	sentAt time.Time
	due    bool
	whole  bool                      // the next report must have all instances
	known  api.Digest                // of all observations
	dirty  map[api.InstanceID]uint64 // unacknowledged instances, with the last report that had them; 0: none
	gone   map[api.InstanceID]goneReport
	fresh  bool // a change or a notice has not been reported yet

	dead       time.Duration // silence after which the root counts the cluster as dead; 0: unknown
	idle       time.Duration // from the last report to the next, if nothing changes
	reported   Totals        // in the last report
	changes    uint64        // number of changes of Totals
	reportedAt uint64        // changes at the last report

	notices   notices
	aggregate *api.Aggregate
	version   uint64 // of the candidates in aggregate
}

// goneReport is the last observation of a removed instance, kept until the root acknowledges
// it.
type goneReport struct {
	api.Observed
	seq uint64
}

// Totals is the cluster's capacity and its free part.
type Totals struct{ Capacity, Free api.Resources }

// New returns a Machine without a desired set. Its first report is whole.
func New(fx *effects.Sink, cfg Config) *Machine {
	return &Machine{fx: fx, cfg: cfg, dirty: map[api.InstanceID]uint64{}, gone: map[api.InstanceID]goneReport{}, whole: true}
}

// Restore sets the generation that was applied before a restart.
func (m *Machine) Restore(gen api.Generation) { m.gen = gen }

// Start begins a process lifetime: it requests the missing changes of the desired set and
// schedules a report.
func (m *Machine) Start() {
	m.fx.Timers.Set(reportKey, m.fx.Now)
	m.hello(m.gen)
}

var reportKey = effects.Key{Kind: effects.Report}

func (m *Machine) Up() bool { return m.up }

// Gen returns the generation of the root's desired set that was applied last.
func (m *Machine) Gen() api.Generation { return m.gen }

func (m *Machine) Digests() (desired, observed api.Digest) { return m.wanted, m.known }

// SetUp records that the stream from the root opened or ended.
func (m *Machine) SetUp(up bool) {
	if m.up = up; up {
		m.due, m.sent = true, 0
	}
}

// helloEvery is the minimum time between two requests for the desired set.
const helloEvery = time.Second

// hello requests the changes of the desired set since a generation; 0: the whole set.
func (m *Machine) hello(since api.Generation) {
	m.helloAt = m.fx.Now
	m.fx.ToRoot(wire.Hello{Cluster: m.cfg.Cluster, Since: since, Digest: m.wanted})
}

func (m *Machine) helloIfDue(since api.Generation) {
	if m.helloAt.IsZero() || m.fx.Now.Sub(m.helloAt) >= helloEvery {
		m.hello(since)
	}
}

// Accept reports whether a desired set must be applied. If it is a change from a generation
// that the cluster does not have, Accept requests the missing changes and returns false.
func (m *Machine) Accept(d wire.Desired) bool {
	if d.From != 0 && d.From != m.gen {
		if d.Gen > m.gen {
			m.helloIfDue(m.gen)
		}
		return false
	}
	return d.Gen > m.gen || d.Gen == m.gen && (d.Digest != m.wanted || len(d.Drop) > 0)
}

// Applied records that a desired set was applied. Call Toggle with its changes first.
func (m *Machine) Applied(d wire.Desired) {
	m.gen = d.Gen
	m.due = true // the root keeps its reservations until the generation is reported
	if m.wanted != d.Digest {
		m.helloIfDue(0) // a change was lost: request the whole set
	}
}

// Toggle applies changes to the digests of the desired set and of all observations.
func (m *Machine) Toggle(wanted, known api.Digest) {
	m.wanted, m.known = m.wanted^wanted, m.known^known
}

// MarkChanged schedules a report of an instance.
func (m *Machine) MarkChanged(id api.InstanceID) {
	m.dirty[id], m.fresh = 0, true
	delete(m.gone, id)
}

// Removed schedules a report of the last observation of a removed instance.
func (m *Machine) Removed(o api.Observed) {
	delete(m.dirty, o.Instance)
	m.gone[o.Instance], m.fresh = goneReport{Observed: o}, true
}

// Unreported returns how many removed instances wait for the root's acknowledgement.
func (m *Machine) Unreported() int { return len(m.gone) }

// Due sends a report at the end of the step.
func (m *Machine) Due() { m.due = true }

// IsDue reports whether Due was called since the last report.
func (m *Machine) IsDue() bool { return m.due }

// The time from a change of Totals to its report.
const (
	largeDelay  = 250 * time.Millisecond // for a large change; changes within this time share a report
	smallDelay  = 2 * time.Second        // for a small change
	largeChange = 0.05                   // fraction of the capacity above which a change is large
	maxIdle     = 30 * time.Second       // maximum interval of reports; a third of Machine.dead if that is less
)

// TotalsChanged schedules a report of Totals. With large, the report is sent soon even if the
// amounts changed little.
func (m *Machine) TotalsChanged(r Totals, large bool) {
	m.changes++
	was, is, of := parts(m.reported.Free), parts(r.Free), parts(m.reported.Capacity)
	for i := range is {
		d := is[i] - was[i]
		large = large || float64(max(d, -d)) > largeChange*float64(of[i])
	}
	wait := smallDelay
	if large {
		wait = largeDelay
	}
	m.fx.Timers.SetEarlier(reportKey, m.fx.Now.Add(wait))
}

// Ack handles the root's answer to a report. ok is false if the report is not of this process
// lifetime. Instances for which keep returns true are reported again.
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
		m.helloIfDue(m.gen) // in case the stream does not deliver it
	}
	return true
}

// Begin starts a report if there is something to report and no report is unanswered. news
// means that the network has something to report. whole means that Facts.All must be set.
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
	NetNews   bool // Net has more than repeated digests
	Aggregate api.Aggregate
	Totals    Totals
}

// Send sends the report that Begin started. The aggregate must not be older than the
// observations, because the root counts its own placements until they are observed.
func (m *Machine) Send(f Facts) {
	rep := wire.Report{
		Cluster: m.cfg.Cluster, Boot: m.fx.Boot, Seq: m.seq, Gen: m.gen, Desired: m.wanted, Known: m.known,
		Whole: m.whole, Readiness: true, Aggregate: f.Aggregate, Net: f.Net,
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
	rep.Notices = m.notices.attach(m.seq)
	m.scheduleNext(f.NetNews || len(rep.Observed)+len(rep.Notices) > 0)
	m.reported, m.reportedAt = f.Totals, m.changes
	m.sent, m.sentAt, m.due, m.whole, m.fresh = m.seq, m.fx.Now, false, false, false
	m.fx.ToRoot(rep)
}

// scheduleNext schedules the next report. Its interval doubles after each report without
// news, up to maxIdle.
func (m *Machine) scheduleNext(news bool) {
	if news || m.reportedAt != m.changes || m.idle == 0 {
		m.idle = m.cfg.Idle
	} else {
		m.idle = max(m.cfg.Idle, min(2*m.idle, maxIdle, cmp.Or(m.dead, 3*m.cfg.Idle)/3))
	}
	m.fx.Timers.Set(reportKey, m.fx.Now.Add(m.idle))
}

// Last returns the number of the last report, and whether it is unanswered.
func (m *Machine) Last() (seq uint64, waits bool) { return m.seq, m.sent != 0 }
