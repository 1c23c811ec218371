package clusters

import (
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// resendAfter is how soon a desired set is sent again to a cluster that does not hold it.
const resendAfter = time.Second

// maxRemovals bounds the log that lets a cluster catch up without the whole set.
const maxRemovals = 1024

// desired is the set of instances that a cluster should have, under a generation.
type desired struct {
	gen      api.Generation
	from     api.Generation // before this step's changes; 0: the set is sent as a whole
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

// Touch begins a new generation of the cluster's set, once a step, before any change of it.
// The generation is at least what next returns.
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

// Put adds an instance to the set, or replaces its assignment.
func (m *Machine) Put(id api.ClusterID, in api.InstanceID, digest api.Digest) {
	d := &m.clusters[id].desired
	d.assign(in, digest)
	delete(d.drop, in)
	d.put[in] = true
}

// RestorePut adds an instance that was in the set when it was saved.
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

// Repeat has the assignment of an instance in the set sent again, because its targets have
// changed.
func (m *Machine) Repeat(id api.ClusterID, in api.InstanceID) {
	d := &m.clusters[id].desired
	d.put[in] = true
	d.assigned[in] = assigned{d.assigned[in].digest, d.gen}
}

// Drop takes an instance out of the set. It reports whether a reservation was given up.
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

// Assigned returns the instances in the cluster's set, in the order of their ids.
func (m *Machine) Assigned(id api.ClusterID) []api.InstanceID {
	return step.Keys(m.clusters[id].desired.assigned)
}

// Instances returns how many instances are in the cluster's set.
func (m *Machine) Instances(id api.ClusterID) int { return len(m.clusters[id].desired.assigned) }

// Leave has the cluster confirm that nothing is left of an instance, which is not in the
// set any more.
func (m *Machine) Leave(id api.ClusterID, in api.InstanceID) {
	d := &m.clusters[id].desired
	d.leaving[in] = d.gen
}

// Left ends the wait for a confirmation. It accepts unknown clusters.
func (m *Machine) Left(id api.ClusterID, in api.InstanceID) {
	if cl := m.clusters[id]; cl != nil {
		delete(cl.desired.leaving, in)
	}
}

// Leaving returns the instances of which the cluster has not confirmed that nothing is
// left, in the order of their ids.
func (m *Machine) Leaving(id api.ClusterID) []api.InstanceID {
	return step.Keys(m.clusters[id].desired.leaving)
}

// Confirmed returns the instances of which the cluster, holding the generation gen, has
// nothing any more, in the order of their ids.
func (m *Machine) Confirmed(id api.ClusterID, gen api.Generation) (out []api.InstanceID) {
	cl := m.clusters[id]
	for _, in := range m.Leaving(id) {
		if _, still := cl.observed[in]; !still && cl.desired.leaving[in] <= gen {
			out = append(out, in)
		}
	}
	return out
}

// Generation returns the generation and the digest of the cluster's set.
func (m *Machine) Generation(id api.ClusterID) (api.Generation, api.Digest) {
	d := &m.clusters[id].desired
	return d.gen, d.digest
}

// TakeTouched ends the step for desired sets: it returns the clusters whose set has
// changed, in the order of the first change. Update has to be called for each.
func (m *Machine) TakeTouched() []api.ClusterID { return m.known(m.touched.Take()) }

// Update returns the message about what the step changed in the cluster's set, without
// the assignments of the instances in put.
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

// Ahead reports whether the cluster holds a generation that this root never reached: the
// store was restored from an older copy. The root continues above it: the core has to
// call Touch, and the set is sent as a whole.
func (m *Machine) Ahead(id api.ClusterID, since api.Generation) bool {
	d := &m.clusters[id].desired
	if since <= d.gen {
		return false
	}
	d.gen = since
	return true
}

// SendWhole has the set sent as a whole at the end of the step.
func (m *Machine) SendWhole(id api.ClusterID) { m.clusters[id].desired.from = 0 }

// CatchUp returns a message with all that came after a generation, without the
// assignments of the instances in put, or the whole set if the log does not reach back so
// far. It returns false if the cluster has what it should have.
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

// Discard returns a message that has the cluster drop an instance which is not wanted.
func (m *Machine) Discard(id api.ClusterID, in api.InstanceID) wire.Desired {
	d := &m.clusters[id].desired
	d.sentAt = m.now
	return wire.Desired{Gen: d.gen, From: d.gen, Drop: []api.InstanceID{in}, Digest: d.digest}
}
