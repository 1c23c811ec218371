package uplink

import (
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// StartHeld begins the process lifetime of a restored cluster, which reports what its nodes run, but no capacity. It requests
// the whole desired set.
func (m *Machine) StartHeld() {
	m.fx.Timers.Set(reportKey, m.fx.Now)
	m.hello(0)
}

// RequestWhole requests the root's whole desired set, at most once a second.
func (m *Machine) RequestWhole() { m.helloIfDue(0) }

// ReportHeld reports the desired set that the root has sent, and what nodes run once all have reported it. Until then
// the root keeps what it knows, because the digest of the observations differs.
func (m *Machine) ReportHeld(gen api.Generation, desired api.Digest, all bool, observed []api.Observed) {
	m.seq++
	r := wire.Report{
		Cluster: m.cfg.Cluster, Boot: m.fx.Boot, Seq: m.seq, Gen: gen, Desired: desired, Known: ^m.known, Readiness: true,
		Notices: m.notices.attach(m.seq),
	}
	if all {
		r.Known = 0
		for i := range observed {
			r.Known = r.Known.Toggle(observed[i].Digest())
		}
		if m.whole {
			r.Whole, r.Observed, m.whole = true, observed, false
		}
	}
	m.fx.ToRoot(r)
	m.due, m.fresh = false, false
	m.fx.Timers.Set(reportKey, m.fx.Now.Add(m.cfg.Idle))
}

// EndHeld makes the next report whole.
func (m *Machine) EndHeld() { m.whole = true }

// AckHeld handles the root's answer to such a report.
func (m *Machine) AckHeld(a wire.ReportAck) {
	if a.Boot == m.fx.Boot && a.Seq <= m.seq {
		m.notices.acked(a.Seq)
		m.dead, m.whole = a.Dead, m.whole || a.RequestWhole // at the next report
	}
}
