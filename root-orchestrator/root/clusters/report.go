package clusters

import (
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Reported has the changes by a report.
type Reported struct {
	Repeated bool   // the report was handled before; nothing has changed
	Nodes    bool   // the number of nodes has changed
	Replaced bool   // the cluster may have other nodes than before
	Above    string // values above the caps, if an event about them is due
}

// Report records the sequence numbers and the aggregate of a report, and releases the reservations
// that the aggregate includes.
func (m *Machine) Report(r *wire.Report) (out Reported) {
	cl := m.clusters[r.Cluster]
	if r.Boot < cl.boot || r.Boot == cl.boot && r.Seq <= cl.seq {
		return Reported{Repeated: true}
	}
	was := &cl.aggregate
	is, above := m.limit(cl, r.Aggregate)
	out = Reported{Nodes: was.Nodes != is.Nodes, Replaced: r.Boot != cl.boot || kindsDiffer(was, &is), Above: above}
	cl.boot, cl.seq = r.Boot, r.Seq
	cl.reported(m.now)
	m.setAge(r.Cluster, cl)
	if out.Replaced {
		cl.kinds++
	}
	if positionsDiffer(was, &is) {
		cl.places++
	}
	cl.aggregate = is
	for id, p := range cl.reservations.pending {
		if p.gen <= r.Gen {
			cl.reservations.release(id)
		}
	}
	return out
}

func (m *Machine) Answer(r *wire.Report) wire.ReportAck {
	return wire.ReportAck{Boot: r.Boot, Seq: r.Seq, Gen: m.clusters[r.Cluster].desired.gen, Dead: m.cfg.Dead}
}

// Behind reports whether the cluster does not have its present set although it was sent longer than
// resendAfter ago, so that the message must have been lost.
func (m *Machine) Behind(r *wire.Report) bool {
	d := &m.clusters[r.Cluster].desired
	return (r.Gen != d.gen || r.Desired != d.digest) && m.now.Sub(d.sentAt) >= resendAfter && !d.touched
}

// ObserveWhole removes the observations that a report of all instances does not contain.
func (m *Machine) ObserveWhole(r *wire.Report) {
	cl := m.clusters[r.Cluster]
	present := make(map[api.InstanceID]bool, len(r.Observed))
	for _, o := range r.Observed {
		present[o.Instance] = true
	}
	for id := range cl.observed {
		if !present[id] {
			m.Forget(r.Cluster, id)
		}
	}
}

// Observe records an observation, so that the cluster need not repeat it. The number of
// observations of instances outside the desired set is limited.
func (m *Machine) Observe(id api.ClusterID, o *api.Observed) {
	cl := m.clusters[id]
	d := &cl.desired
	if o.Stopped {
		m.Forget(id, o.Instance)
	} else if m.Has(id, o.Instance) || len(cl.observed) < len(d.assigned)+len(d.leaving)+maxRemovals {
		m.Forget(id, o.Instance)
		cl.observed[o.Instance] = o.Digest()
		cl.known = cl.known.Toggle(o.Digest())
	}
}

// Observes reports whether the cluster has reported an instance.
func (m *Machine) Observes(id api.ClusterID, in api.InstanceID) bool {
	_, ok := m.clusters[id].observed[in]
	return ok
}

// Unassigned returns the instances that the cluster has reported and that are not in its set, sorted.
func (m *Machine) Unassigned(id api.ClusterID) []api.InstanceID {
	return slices.DeleteFunc(step.Keys(m.clusters[id].observed), func(in api.InstanceID) bool { return m.Has(id, in) })
}

// Forget removes an observation, so that the root requests a report of all instances.
func (m *Machine) Forget(id api.ClusterID, in api.InstanceID) {
	cl := m.clusters[id]
	if d, ok := cl.observed[in]; ok {
		cl.known = cl.known.Toggle(d)
		delete(cl.observed, in)
	}
}

// KnowsAll reports whether the root has the same observations as the cluster.
func (m *Machine) KnowsAll(r *wire.Report) bool { return m.clusters[r.Cluster].known == r.Known }

// kindsDiffer reports whether a cluster's nodes differ, apart from their free resources.
func kindsDiffer(was, is *api.Aggregate) bool {
	if (was.Overlay == nil) != (is.Overlay == nil) || was.Overlay != nil && *was.Overlay != *is.Overlay {
		return true
	}
	return was.Nodes != is.Nodes || !slices.Equal(was.Features, is.Features) || was.Capacity != is.Capacity || was.BandwidthUnknown != is.BandwidthUnknown || !slices.EqualFunc(was.Slots, is.Slots, func(a, b api.Slot) bool {
		return a.Runtime == b.Runtime && a.Arch == b.Arch && a.Privileged == b.Privileged && a.Network == b.Network &&
			a.Nodes == b.Nodes && a.BandwidthUnknown == b.BandwidthUnknown && slices.Equal(a.Areas, b.Areas) && slices.Equal(a.Addons, b.Addons) &&
			slices.Equal(a.Features, b.Features)
	})
}

// positionsDiffer reports whether the positions of a cluster's nodes may differ.
func positionsDiffer(was, is *api.Aggregate) bool {
	a, b := was.Latency, is.Latency
	switch {
	case was.Unplaced != is.Unplaced, !slices.Equal(was.Hull, is.Hull), (a == nil) != (b == nil):
		return true
	case a == nil:
		return false
	}
	const jitter = time.Millisecond
	return vivaldi.Distance(a.Center, b.Center)+b.Radius-a.Radius > jitter
}
