package clusters

import (
	"time"

	"github.com/treeline-edge/treeline/api"
)

// longestPause bounds the pause between reports that the root adapts to.
const longestPause = 30 * time.Second

// ageStep is the precision of a candidate's age: the candidate changes that often while
// its cluster does not report.
const ageStep = 5 * time.Second

// DueKind says what a timer is for.
type DueKind uint8

// The kinds of timers.
const (
	DueNone    DueKind = iota // nothing is to be done
	DueSilence                // the cluster counts as lost from now on
	DueAge                    // the cluster's candidate is older by a step
)

// Due is a timer that has expired.
type Due struct {
	Kind    DueKind
	Cluster api.ClusterID
}

// Next returns when the next timer expires; zero: none is set.
func (m *Machine) Next() time.Time { return m.timers.Next() }

// Pop returns a timer that has expired, the earliest first.
func (m *Machine) Pop(now time.Time) (Due, bool) {
	d, ok := m.timers.Pop(now)
	cl := m.clusters[d.Cluster]
	if !ok || cl == nil || cl.silent {
		return Due{}, ok
	}
	if d.Kind == DueAge {
		m.setAge(d.Cluster, cl)
		return d, true
	}
	if at := cl.lastHeard.Add(m.deadAfter(cl)); at.After(m.now) {
		m.timers.Set(d, at)
		return Due{}, true
	}
	cl.silent = true
	return d, true
}

func (m *Machine) setAge(id api.ClusterID, cl *cluster) {
	m.timers.Set(Due{DueAge, id}, cl.lastHeard.Add(m.now.Sub(cl.lastHeard).Truncate(ageStep)+ageStep))
}

// deadAfter is the silence after which the cluster counts as lost: three of its pauses,
// because clusters report less often when nothing changes, but at least Config.Dead.
func (m *Machine) deadAfter(cl *cluster) time.Duration { return max(m.cfg.Dead, 3*cl.pause) }

// DeadAfter returns the silence after which the cluster counts as lost.
func (m *Machine) DeadAfter(id api.ClusterID) time.Duration { return m.deadAfter(m.clusters[id]) }

// reported notes the time of a report.
func (cl *cluster) reported(now time.Time) {
	if cl.heard && !cl.silent {
		cl.pause = min(max(now.Sub(cl.lastHeard), cl.pause*3/4), longestPause)
	}
	cl.lastHeard = now
}

// SetLive takes that the cluster reports. It returns whether it was live before, and
// whether it was silent.
func (m *Machine) SetLive(id api.ClusterID) (live, silent bool) {
	cl := m.clusters[id]
	live, silent = cl.live(), cl.silent
	cl.heard, cl.silent = true, false
	if silent {
		m.timers.Set(Due{DueSilence, id}, m.now.Add(m.cfg.Dead))
	}
	return live, silent
}

func (cl *cluster) live() bool { return cl.heard && !cl.silent }

// Live reports whether the cluster was heard from since the root started, and recently.
// It accepts unknown clusters, which are not live.
func (m *Machine) Live(id api.ClusterID) bool {
	cl := m.clusters[id]
	return cl != nil && cl.live()
}

// Heard returns when the cluster was heard from last.
func (m *Machine) Heard(id api.ClusterID) time.Time { return m.clusters[id].lastHeard }

// Liveness reports whether the cluster was heard from since the root started, and whether
// it has been silent for too long.
func (m *Machine) Liveness(id api.ClusterID) (heard, silent bool) {
	cl := m.clusters[id]
	return cl.heard, cl.silent
}
