package placement

import (
	"reflect"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Growth is the way in which a cluster may take more than before.
type Growth int

// The kinds of growth.
const (
	NoGrowth         Growth = iota
	PositionsChanged        // its nodes have other positions and may meet other links
	MoreCapacity            // it has more resources, nodes or rights
)

// Snapshot is a cluster at a time, for Grown.
type Snapshot struct {
	candidate   sched.Candidate
	preemptible []api.Preemptible
}

func (m *Machine) Snapshot(id api.ClusterID) Snapshot {
	return Snapshot{*m.Candidate(id), m.facts[id].Preemptible}
}

// Grown compares a cluster with an earlier snapshot. replaced says that its nodes have changed.
func (m *Machine) Grown(id api.ClusterID, was Snapshot, replaced bool) Growth {
	is := m.Candidate(id)
	how := growth(&was.candidate, is)
	if is.Out == "" && (replaced || preemptibleGrew(was.preemptible, m.facts[id].Preemptible)) {
		how = MoreCapacity
	}
	return how
}

// AreasChanged marks the targets of services with links to areas as outdated.
func (m *Machine) AreasChanged() {
	for id := range m.inAreas {
		m.outdated[id] = true
	}
}

func growth(was, is *sched.Candidate) Growth {
	switch {
	case is.Out != "":
		return NoGrowth
	case was.Out != "", !reflect.DeepEqual(was.Grant, is.Grant), len(is.Slots) > len(was.Slots), !is.Free.Fits(was.Free):
		return MoreCapacity
	}
	for i := range is.Slots {
		a, b := &was.Slots[i], &is.Slots[i]
		if !b.Largest.Fits(a.Largest) || a.Arch != b.Arch || a.Privileged != b.Privileged || a.Network != b.Network ||
			!slices.Equal(a.Runtimes, b.Runtimes) || !slices.Equal(a.Areas, b.Areas) || !slices.Equal(a.Addons, b.Addons) ||
			!slices.Equal(a.Features, b.Features) {
			return MoreCapacity
		}
		for kind, n := range b.Devices {
			if n > a.Devices[kind] {
				return MoreCapacity
			}
		}
	}
	if is.Unplaced > was.Unplaced || !slices.Equal(is.Hull, was.Hull) {
		return PositionsChanged
	}
	if is.Coord == nil || was.Coord == nil {
		if is.Coord != was.Coord {
			return PositionsChanged
		}
	} else if reachesFarther(was.Coord, is.Coord, is.Radius-was.Radius) {
		return PositionsChanged
	}
	return NoGrowth
}

// preemptibleGrew reports whether preemption would free more than before for any urgency.
func preemptibleGrew(was, is []api.Preemptible) bool {
	return slices.ContainsFunc(is, func(y api.Preemptible) bool {
		old := preemptibleFor(was, y.Urgency)
		return old == nil || !y.Free.Fits(old.Free) || !y.Largest.Fits(old.Largest)
	})
}

// Retries returns the clusters that may take more because a reservation was released or a probe
// ended.
func (m *Machine) Retries() []api.ClusterID { return step.Keys(m.retry) }

// Retried removes a cluster from Retries, and reports whether the cluster still exists.
func (m *Machine) Retried(id api.ClusterID) bool {
	delete(m.retry, id)
	return m.Candidate(id) != nil
}

// Round offers the waiting instances to one cluster. Of several that request the same and do not
// fit, it tries one.
type Round struct {
	cluster api.ClusterID
	how     Growth
	full    map[sameRequest]bool // requests that do not fit
}

type sameRequest struct {
	service api.ServiceID
	spec    api.Revision
	late    bool
}

// maxExplained limits the requests for which a round updates the reason for waiting. Explain
// computes the present reason in any case.
const maxExplained = 16

// Retry begins a round. The core calls Offer for each returned instance, the most urgent first.
func (m *Machine) Retry(cl api.ClusterID, how Growth) (*Round, []api.InstanceID) {
	return &Round{cl, how, map[sameRequest]bool{}}, m.waiting.List()
}

// Offer decides about a waiting instance, if the cluster may take it.
func (m *Machine) Offer(r *Round, in Instance) (d Decision, ok bool) {
	k := sameRequest{in.ID.Service(), in.SpecRev, m.Late(in)}
	if r.full[k] || in.Cluster == r.cluster || r.how == PositionsChanged && !bindsPlaces(in.Spec) || m.refusalHolds(in, r.cluster, k.late) {
		return Decision{}, false
	}
	if m.fits(in, r.cluster) {
		m.noFit = noFit{}
		return m.Decide(in), true
	}
	r.full[k] = in.Reason != api.ReasonViolated && !in.Spec.KeepsData() // a violated instance requests more than its siblings
	if in.Cluster == "" && in.Reason == api.ReasonNoCluster && len(r.full) <= maxExplained {
		req := m.request(in)
		return m.waitExplained(in, &req), true
	}
	return Decision{}, false
}

// bindsPlaces reports whether the SLA depends on the positions of clusters.
func bindsPlaces(v *api.Microservice) bool {
	return len(v.Connectivity) > 0 || slices.ContainsFunc(v.Constraints, func(k api.Constraint) bool {
		return k.Type == api.ConstrainGeo || k.Type == api.ConstrainLatency
	})
}
