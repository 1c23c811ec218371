package clusters

import (
	"time"

	"github.com/treeline-edge/treeline/api"
)

// longestPause limits the pause between reports to which the root adapts.
const longestPause = 30 * time.Second

// ageStep is the precision of a candidate's age. While a cluster does not report, its candidate
// changes at this interval.
const ageStep = 5 * time.Second

// DueKind is the purpose of a timer.
type DueKind uint8

// The kinds of timers.
const (
	DueNone    DueKind = iota // no action
	DueSilence                // the cluster is silent now
	DueAge                    // the age of the cluster's candidate grows by ageStep
	DueTrust                  // the cluster takes new instances again
)

// Due is a timer that has expired.
type Due struct {
	Kind    DueKind
	Cluster api.ClusterID
}

// Next returns when the next timer expires, or the zero time.
func (m *Machine) Next() time.Time { return m.timers.Next() }

// Pop returns a timer that has expired, the earliest first. If Kind is DueNone and ok is true,
// there may be more.
func (m *Machine) Pop(now time.Time) (Due, bool) {
	d, ok := m.timers.Pop(now)
	cl := m.clusters[d.Cluster]
	if !ok || cl == nil || cl.silent {
		return Due{}, ok
	}
	switch d.Kind {
	case DueAge:
		m.setAge(d.Cluster, cl)
		return d, true
	case DueTrust:
		cl.held = false
		return d, true
	}
	if at := cl.lastHeard.Add(m.deadAfter(cl)); at.After(m.now) {
		m.timers.Set(d, at)
		return Due{}, true
	}
	if m.now.Sub(cl.returned) >= calmAfter {
		cl.losses = 0
	}
	cl.silent = true
	cl.losses++
	return d, true
}

// A cluster that is lost repeatedly would get instances each time it returns, which then move again.
// From its second loss on, it takes no new instances until it has reported for the dead time, and for
// twice as long after each further loss, up to maxHold. Its own instances continue. A loss counts until
// the cluster has reported without interruption for calmAfter.
const (
	maxHold   = 10 * time.Minute
	calmAfter = 30 * time.Minute
)

// hold sets how long a cluster that reports again takes no new instances.
func (m *Machine) hold(id api.ClusterID, cl *cluster) {
	cl.returned, cl.held = m.now, false
	if cl.losses < 2 {
		return
	}
	cl.held, cl.trusted = true, m.now.Add(min(m.cfg.Dead<<min(cl.losses-2, 16), max(maxHold, m.cfg.Dead)))
	m.timers.Set(Due{DueTrust, id}, cl.trusted)
}

// Distrusted returns for how long the cluster takes no new instances, because it was lost repeatedly.
func (m *Machine) Distrusted(id api.ClusterID) time.Duration {
	if cl := m.clusters[id]; cl.held {
		return cl.trusted.Sub(m.now)
	}
	return 0
}

func (m *Machine) setAge(id api.ClusterID, cl *cluster) {
	m.timers.Set(Due{DueAge, id}, cl.lastHeard.Add(m.now.Sub(cl.lastHeard).Truncate(ageStep)+ageStep))
}

// deadAfter returns the silence after which the cluster is lost: three of its pauses, because
// clusters report less often when nothing changes, and at least Config.Dead.
func (m *Machine) deadAfter(cl *cluster) time.Duration { return max(m.cfg.Dead, 3*cl.pause) }

// DeadAfter returns the silence after which the cluster is lost.
func (m *Machine) DeadAfter(id api.ClusterID) time.Duration { return m.deadAfter(m.clusters[id]) }

func (cl *cluster) reported(now time.Time) {
	if cl.heard && !cl.silent {
		cl.pause = min(max(now.Sub(cl.lastHeard), cl.pause*3/4), longestPause)
	}
	cl.lastHeard = now
}

// SetLive records that the cluster has reported. It returns whether the cluster was live and
// whether it was silent before.
func (m *Machine) SetLive(id api.ClusterID) (live, silent bool) {
	cl := m.clusters[id]
	live, silent = cl.live(), cl.silent
	cl.heard, cl.silent = true, false
	if silent {
		m.timers.Set(Due{DueSilence, id}, m.now.Add(m.cfg.Dead))
		m.hold(id, cl)
	}
	return live, silent
}

func (cl *cluster) live() bool { return cl.heard && !cl.silent }

// Live reports whether the cluster has reported since the root started and is not silent. It is
// false for unknown clusters.
func (m *Machine) Live(id api.ClusterID) bool {
	cl := m.clusters[id]
	return cl != nil && cl.live()
}

// Heard returns the time of the cluster's last report. Before the first report, it is when the
// cluster joined or the root started.
func (m *Machine) Heard(id api.ClusterID) time.Time { return m.clusters[id].lastHeard }

// Liveness reports whether the cluster has reported since the root started, and whether it is
// silent.
func (m *Machine) Liveness(id api.ClusterID) (heard, silent bool) {
	cl := m.clusters[id]
	return cl.heard, cl.silent
}
