package placement

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// A cluster can refuse an instance for reasons that the root cannot check: labels, names of nodes,
// fragmented resources. Its refusal holds for all instances of the service with the same SLA. They
// share it, and one of them, the probe, asks the cluster again on behalf of all.

// refusal prevents the offer of an instance to a cluster until a pause is over or the cluster has
// changed.
type refusal struct {
	earliest      time.Time // end of the pause if the cluster's free resources have changed
	until         time.Time // end of the pause
	tries         int       // refusals in a row
	violated      bool      // the instance ran there and its SLA was violated: free resources do not help
	capacityHelps bool      // freed resources may change the answer
	positionsHelp bool      // other positions of nodes may change the answer
	late          bool      // the cluster was allowed to violate the instance's links

	// The cluster's Facts when it refused.
	free, largest api.Resources
	kinds, places uint64

	why api.ClusterWhy
}

// violatedPause is how long an instance is not offered to a cluster where its SLA was violated, so
// that it does not alternate between two clusters. longestPause is the pause between two offers to
// a cluster that does not change.
const (
	violatedPause = 15 * time.Minute
	longestPause  = 30 * time.Minute
)

// failPause is the pause after a cluster gave up an instance because it fails. It doubles with each
// such cluster up to failPauseMax.
const (
	failPause    = 30 * time.Second
	failPauseMax = 10 * time.Minute
)

// mayAcceptNow reports whether the cluster has changed so that it may accept the instance now.
func (r *refusal) mayAcceptNow(f Facts) bool {
	switch {
	case r.violated:
		return false
	case r.kinds != f.Kinds, r.positionsHelp && r.places != f.Places:
		return true
	}
	return r.capacityHelps && !f.Largest.Fits(r.largest)
}

// retryAt returns when the cluster is asked again if it does not change any more.
func (r *refusal) retryAt(f Facts) time.Time {
	if r.capacityHelps && (f.Free != r.free || f.Largest != r.largest) {
		return r.earliest
	}
	return r.until
}

func (r *refusal) holds(f Facts, now time.Time) bool {
	return !r.mayAcceptNow(f) && r.retryAt(f).After(now)
}

// staticConstraints do not depend on other instances.
var staticConstraints = []string{
	"workload", sched.ConstraintTrust, sched.ConstraintOut, sched.ConstraintCluster, sched.ConstraintNode, sched.ConstraintPrivileged, sched.ConstraintVirtualization,
	sched.ConstraintArch, sched.ConstraintNetwork, sched.ConstraintFeatures, sched.ConstraintAddons, sched.ConstraintLabels,
	sched.ConstraintArea, sched.ConstraintGeo, sched.ConstraintLatency,
}

// refusalCauses returns what may change a refusal: freed resources, or other positions of nodes. For
// a refusal without causes, both may.
func refusalCauses(why *api.Explanation) (capacity, positions bool) {
	if why == nil || len(why.Causes) == 0 {
		return true, true
	}
	for _, c := range why.Causes {
		capacity = capacity || !slices.Contains(staticConstraints, c.Constraint)
		positions = positions || slices.Contains([]string{sched.ConstraintArea, sched.ConstraintGeo, sched.ConstraintLatency}, c.Constraint)
	}
	return capacity, positions
}

// refusals are shared by all instances of a service with its newest SLA. After the first refusal by
// any cluster, each cluster gets one offer at a time until it accepts an instance.
type refusals struct {
	rev      api.Revision // of the SLA
	by       map[api.ClusterID]refusal
	accepted map[api.ClusterID]bool           // it accepted an instance, and has refused none since
	probes   map[api.ClusterID]api.InstanceID // the instance that asks on behalf of all
}

// sharedRefusals returns the refusals that the instance shares, nil if its SLA is not the newest or if its
// place depends on its own volumes.
func (m *Machine) sharedRefusals(in Instance) *refusals {
	s := m.services[in.ID.Service()]
	if s == nil || s.spec == nil || s.rev != in.SpecRev || in.Spec.KeepsData() {
		return nil
	}
	if s.refusals.rev != in.SpecRev {
		s.refusals = refusals{
			rev: in.SpecRev, by: map[api.ClusterID]refusal{}, accepted: map[api.ClusterID]bool{}, probes: map[api.ClusterID]api.InstanceID{},
		}
	}
	return &s.refusals
}

// refusedBy returns the cluster's refusals that apply to the instance, its own first.
func (m *Machine) refusedBy(in Instance, id api.ClusterID) (out []refusal) {
	if r, ok := m.instances[in.ID].refusals[id]; ok {
		out = append(out, r)
	}
	if all := m.sharedRefusals(in); all != nil {
		if r, ok := all.by[id]; ok {
			out = append(out, r)
		}
	}
	return out
}

// refusalHolds reports whether the instance must not be offered to the cluster now. late says that the
// cluster may violate the instance's links.
func (m *Machine) refusalHolds(in Instance, id api.ClusterID, late bool) bool {
	for _, r := range m.refusedBy(in, id) {
		if r.holds(m.facts[id], m.now) && (r.late || r.violated || !late) {
			return true
		}
	}
	return m.probedByOther(in, id)
}

// refusingOrProbed returns the clusters that refused the instance or that a probe asks, sorted by id.
func (m *Machine) refusingOrProbed(in Instance) []api.ClusterID {
	ids := map[api.ClusterID]bool{}
	for id := range m.instances[in.ID].refusals {
		ids[id] = true
	}
	if all := m.sharedRefusals(in); all != nil {
		for id := range all.by {
			ids[id] = true
		}
		for id := range all.probes {
			ids[id] = true
		}
	}
	maps.DeleteFunc(ids, func(id api.ClusterID, _ bool) bool { return m.Candidate(id) == nil })
	return step.Keys(ids)
}

// Refused records that a cluster cannot place the instance, or wants it placed elsewhere.
func (m *Machine) Refused(in Instance, cl api.ClusterID, o api.Observed) {
	it := m.instances[in.ID]
	trial := in.Trial == cl
	if trial || !in.HandedBack {
		it.refused++
	}
	m.refuse(in, cl, o)
	if o.Reason == api.ReasonTooManyFails && !trial && !in.HandedBack && in.Fails > 0 {
		it.pausedUntil = m.now.Add(min(failPause<<min(in.Fails-1, 10), failPauseMax))
	}
}

func (m *Machine) refuse(in Instance, id api.ClusterID, o api.Observed) {
	it, f := m.instances[in.ID], m.facts[id]
	r := refusal{
		violated: o.Reason == api.ReasonViolated, why: api.ClusterWhy{Cluster: id, At: m.wall},
		free: f.Free, largest: f.Largest, kinds: f.Kinds, places: f.Places,
		late: in.Searched && in.Trial != id,
	}
	r.capacityHelps, r.positionsHelp = refusalCauses(o.Why)
	longest := m.cfg.RetryMax
	if o.Why != nil {
		r.why.Answer, longest = *o.Why, max(longest, longestPause)
	}
	all := m.sharedRefusals(in)
	if r.violated || o.Reason == api.ReasonTooManyFails || all == nil {
		r.tries = it.refused
		m.pause(&r, m.cfg.RetryMax)
		if it.refusals == nil {
			it.refusals = map[api.ClusterID]refusal{}
		}
		it.refusals[id] = r
		return
	}
	old, again := all.by[id]
	if again && all.probes[id] != in.ID && old.holds(f, m.now) {
		return // this offer was made before the earlier refusal
	}
	if r.tries = 1; again && !old.mayAcceptNow(f) {
		r.tries += old.tries
	}
	m.pause(&r, longest)
	all.by[id] = r
	delete(all.accepted, id)
	delete(all.probes, id)
	m.timers.Set(Due{Kind: DueProbe, Service: in.ID.Service(), Cluster: id}, r.earliest)
}

// pause sets how long the refusal holds. The pause doubles with each try up to longest.
func (m *Machine) pause(r *refusal, longest time.Duration) {
	p := min(m.cfg.RetryMin<<min(max(r.tries-1, 0), 10), longest)
	if r.violated {
		p = violatedPause
	}
	r.earliest, r.until = m.now.Add(p), m.now.Add(p)
	if r.capacityHelps && !r.violated {
		r.earliest = m.now.Add(min(p, m.cfg.RetryMax))
	}
}

// startProbe makes the instance the cluster's probe, if the cluster needs one.
func (m *Machine) startProbe(in Instance, cl api.ClusterID) {
	all := m.sharedRefusals(in)
	if all == nil || len(all.by) == 0 || all.accepted[cl] {
		return
	}
	if _, ok := all.probes[cl]; !ok {
		all.probes[cl] = in.ID
	}
}

// Accepted records that the cluster has a place for the instance, and may have places for its
// siblings.
func (m *Machine) Accepted(in Instance, cl api.ClusterID) {
	all := m.sharedRefusals(in)
	if all == nil {
		return
	}
	by, probed := all.probes[cl]
	if r, refused := all.by[cl]; refused && by != in.ID {
		if in.HandedBack { // it was refused too; other instances were offered before the refusal
			r.earliest, r.until, r.tries = m.now, m.now, 0
			all.by[cl] = r
			m.retry[cl] = true
		}
		return
	}
	all.accepted[cl] = true
	delete(all.by, cl)
	delete(all.probes, cl)
	if probed {
		m.noFit = noFit{}
		m.retry[cl] = true
	}
}

// Sleeps records that the cluster keeps the instance dormant. That takes no capacity and says nothing about its refusals;
// an instance that wakes without room would otherwise go to and fro between clusters that are full.
func (m *Machine) Sleeps(in Instance, cl api.ClusterID) { m.endProbe(in, cl) }

// endProbe records that the instance, possibly the cluster's probe, was withdrawn.
func (m *Machine) endProbe(in Instance, cl api.ClusterID) {
	if all := m.sharedRefusals(in); all != nil && all.probes[cl] == in.ID {
		delete(all.probes, cl)
		m.retry[cl] = true
	}
}

// probedByOther reports whether another instance is the cluster's probe.
func (m *Machine) probedByOther(in Instance, cl api.ClusterID) bool {
	all := m.sharedRefusals(in)
	if all == nil || m.dryRun {
		return false
	}
	by, ok := all.probes[cl]
	return ok && by != in.ID
}

// ProbeDue reports whether a cluster's refusal is over, so that the instances of NextProbe may ask
// it. If not, it sets the timer again.
func (m *Machine) ProbeDue(service api.ServiceID, cl api.ClusterID) bool {
	s, f := m.services[service], m.facts[cl]
	if s == nil || m.Candidate(cl) == nil {
		return false
	}
	r, ok := s.refusals.by[cl]
	if ok && r.holds(f, m.now) {
		at := m.now.Add(m.cfg.RetryMax)
		if r.until.Before(at) {
			at = r.until
		}
		m.timers.Set(Due{Kind: DueProbe, Service: service, Cluster: cl}, at)
		return false
	}
	return ok
}

// NextProbe returns the service's next instance to ask the cluster, among siblings. It returns
// false if there is none.
func (m *Machine) NextProbe(service api.ServiceID, cl api.ClusterID, siblings iter.Seq[Instance]) (Instance, bool) {
	var next Instance
	found, settled := false, true
	for in := range siblings {
		waits := m.Waits(in.ID)
		settled = settled && (in.Leaving || in.State == api.Running || in.ended()) && !waits
		if waits && in.Cluster != cl && !m.instances[in.ID].pausedUntil.After(m.now) && in.Vacating == "" &&
			!m.refusalHolds(in, cl, m.Late(in)) && (!found || in.ID < next.ID) {
			next, found = in, true
		}
	}
	switch {
	case settled:
		delete(m.services[service].refusals.by, cl)
		return next, false
	case !found: // an instance offered to another cluster may be handed back
		m.timers.Set(Due{Kind: DueProbe, Service: service, Cluster: cl}, m.now.Add(longestPause))
		return next, false
	}
	return next, m.fits(next, cl) // if it does not fit, it is offered when the cluster's free resources grow
}

// Probed handles the result for the instance of NextProbe, and reports whether the round is over.
func (m *Machine) Probed(in Instance, cl api.ClusterID) bool {
	if m.Waits(in.ID) || m.exchange.Open(in.ID) {
		m.timers.Set(Due{Kind: DueProbe, Service: in.ID.Service(), Cluster: cl}, m.now.Add(m.cfg.RetryMax))
		return true
	}
	return in.Cluster == cl || in.Trial == cl
}
