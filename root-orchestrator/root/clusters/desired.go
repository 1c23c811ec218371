package clusters

import (
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// resendAfter is the least time after which a desired set is sent again to a cluster that reports
// another one.
const resendAfter = time.Second

// maxRemovals limits the log of removals, from which a cluster can catch up without the whole set.
const maxRemovals = 1024

// desired is the set of instances that a cluster should have, under a generation.
type desired struct {
	gen      api.Generation
	from     api.Generation // the generation before this step; 0: the set is sent as a whole
	touched  bool           // in this step
	floor    api.Generation // removals since then are in log
	log      []removal
	digest   api.Digest
	assigned map[api.InstanceID]assigned
	others   int                               // instances that a dry run leaves out
	leaving  map[api.InstanceID]api.Generation // withdrawn at, and not confirmed
	put      map[api.InstanceID]bool           // in this step
	drop     map[api.InstanceID]bool           // in this step
	sentAt   time.Time
}

type assigned struct {
	digest api.Digest     // of the assignment
	gen    api.Generation // at which it was put
}

type removal struct {
	gen api.Generation
	id  api.InstanceID
}

func newDesired() desired {
	return desired{
		assigned: map[api.InstanceID]assigned{}, leaving: map[api.InstanceID]api.Generation{},
		put: map[api.InstanceID]bool{}, drop: map[api.InstanceID]bool{},
	}
}

func (d *desired) start(gen api.Generation) {
	d.gen, d.floor = gen, gen
	for id := range d.leaving {
		d.leaving[id] = gen
	}
	for id, a := range d.assigned {
		d.assigned[id] = assigned{a.digest, gen}
	}
}

// Touch begins a new generation of the cluster's set before any change of it, at most once in a
// step. The generation is at least the result of next.
func (m *Machine) Touch(id api.ClusterID, next func() api.Generation) {
	d := &m.clusters[id].desired
	if d.touched {
		return
	}
	m.touched.Add(id)
	d.touched, d.from, d.gen = true, d.gen, max(next(), d.gen+1)
	if d.from == 0 { // the cluster is new: it cannot catch up from an earlier generation
		d.floor = d.gen
	}
}

func (m *Machine) Put(id api.ClusterID, in api.InstanceID, digest api.Digest) {
	d := &m.clusters[id].desired
	d.assign(in, digest)
	delete(d.drop, in)
	d.put[in] = true
}

// RestorePut adds an instance that was in the set before a restart.
func (m *Machine) RestorePut(id api.ClusterID, in api.InstanceID, digest api.Digest) {
	m.clusters[id].desired.assign(in, digest)
}

func (d *desired) assign(in api.InstanceID, digest api.Digest) {
	if old, ok := d.assigned[in]; ok {
		d.digest = d.digest.Toggle(old.digest)
	}
	d.digest = d.digest.Toggle(digest)
	d.assigned[in] = assigned{digest, d.gen}
}

// Repeat sends the unchanged assignment of an instance again, because its targets have changed.
func (m *Machine) Repeat(id api.ClusterID, in api.InstanceID) {
	d := &m.clusters[id].desired
	d.put[in] = true
	d.assigned[in] = assigned{d.assigned[in].digest, d.gen}
}

// Drop removes an instance from the set, and reports whether it released a reservation.
func (m *Machine) Drop(id api.ClusterID, in api.InstanceID) (freed bool) {
	cl := m.clusters[id]
	d := &cl.desired
	d.digest = d.digest.Toggle(d.assigned[in].digest)
	delete(d.assigned, in)
	delete(d.put, in)
	d.drop[in] = true
	return cl.reservations.release(in)
}

// Has reports whether an instance is in the cluster's set. It accepts unknown clusters.
func (m *Machine) Has(id api.ClusterID, in api.InstanceID) bool {
	cl := m.clusters[id]
	if cl == nil {
		return false
	}
	_, ok := cl.desired.assigned[in]
	return ok
}

func (m *Machine) Assigned(id api.ClusterID) []api.InstanceID {
	return step.Keys(m.clusters[id].desired.assigned)
}

func (m *Machine) Instances(id api.ClusterID) int { return len(m.clusters[id].desired.assigned) }

// Leave waits for the cluster to confirm that nothing is left of an instance that was dropped.
func (m *Machine) Leave(id api.ClusterID, in api.InstanceID) {
	d := &m.clusters[id].desired
	d.leaving[in] = d.gen
}

// Left ends the wait that Leave began. It accepts unknown clusters.
func (m *Machine) Left(id api.ClusterID, in api.InstanceID) {
	if cl := m.clusters[id]; cl != nil {
		delete(cl.desired.leaving, in)
	}
}

// Leaving returns the instances that Leave waits for, sorted by id.
func (m *Machine) Leaving(id api.ClusterID) []api.InstanceID {
	return step.Keys(m.clusters[id].desired.leaving)
}

// Confirmed returns the instances that Leave waits for and of which the cluster, with the
// generation gen, has nothing left, sorted by id.
func (m *Machine) Confirmed(id api.ClusterID, gen api.Generation) (out []api.InstanceID) {
	cl := m.clusters[id]
	for _, in := range m.Leaving(id) {
		if _, still := cl.observed[in]; !still && cl.desired.leaving[in] <= gen {
			out = append(out, in)
		}
	}
	return out
}

func (m *Machine) Generation(id api.ClusterID) (api.Generation, api.Digest) {
	d := &m.clusters[id].desired
	return d.gen, d.digest
}

// TakeTouched returns the clusters whose set has changed, in the order of the first change. Update
// has to be called for each.
func (m *Machine) TakeTouched() []api.ClusterID { return m.known(m.touched.Take()) }

// Update returns the message about this step's changes of the cluster's set. The caller adds the
// assignments of the instances in put.
func (m *Machine) Update(id api.ClusterID) (msg wire.Desired, put []api.InstanceID) {
	d := &m.clusters[id].desired
	msg = wire.Desired{Gen: d.gen, From: d.from, Digest: d.digest, Drop: step.Keys(d.drop)}
	put = step.Keys(d.put)
	for _, in := range msg.Drop {
		d.log = append(d.log, removal{d.gen, in})
	}
	if n := len(d.log); n > maxRemovals {
		d.floor = d.log[n-maxRemovals-1].gen
		d.log = slices.Clone(d.log[n-maxRemovals:])
	}
	clear(d.put)
	clear(d.drop)
	d.touched = false
	if d.from == 0 {
		return m.whole(d)
	}
	d.sentAt = m.now
	return msg, put
}

func (m *Machine) whole(d *desired) (wire.Desired, []api.InstanceID) {
	d.sentAt = m.now
	return wire.Desired{Gen: d.gen, Digest: d.digest}, step.Keys(d.assigned)
}

// Ahead reports whether the cluster has a generation that this root never reached: the store was
// restored from an older copy. Then the core has to call Touch and SendWhole; the next generation
// is above the cluster's.
func (m *Machine) Ahead(id api.ClusterID, since api.Generation) bool {
	d := &m.clusters[id].desired
	if since <= d.gen {
		return false
	}
	d.gen = since
	return true
}

// SendWhole sends the whole set at the end of the step.
func (m *Machine) SendWhole(id api.ClusterID) { m.clusters[id].desired.from = 0 }

// CatchUp returns a message with all changes after a generation, or the whole set if the log is too
// short. The caller adds the assignments of the instances in put. ok is false if the cluster has
// the present set.
func (m *Machine) CatchUp(id api.ClusterID, since api.Generation, has api.Digest) (msg wire.Desired, put []api.InstanceID, ok bool) {
	d := &m.clusters[id].desired
	switch {
	case since == d.gen && has == d.digest:
		return msg, nil, false
	case since == d.gen, since == 0, since < d.floor:
		msg, put = m.whole(d)
		return msg, put, true
	}
	msg = wire.Desired{Gen: d.gen, From: since, Digest: d.digest}
	for _, in := range step.Keys(d.assigned) {
		if d.assigned[in].gen > since {
			put = append(put, in)
		}
	}
	seen := map[api.InstanceID]bool{}
	for _, r := range d.log {
		if _, has := d.assigned[r.id]; r.gen > since && !has && !seen[r.id] {
			seen[r.id] = true
			msg.Drop = append(msg.Drop, r.id)
		}
	}
	d.sentAt = m.now
	return msg, put, true
}

// Discard returns a message that makes the cluster drop an instance which is not in its set.
func (m *Machine) Discard(id api.ClusterID, in api.InstanceID) wire.Desired {
	d := &m.clusters[id].desired
	d.sentAt = m.now
	return wire.Desired{Gen: d.gen, From: d.gen, Drop: []api.InstanceID{in}, Digest: d.digest}
}
