package root

import (
	"maps"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// A cluster refuses for what the root cannot know: labels, names of nodes, room
// that is there in pieces. What it says to one instance of a service it says to all
// that have the same SLA, so they share it, and one of them asks again for all.

// refusal keeps the root from offering an instance to a cluster that handed it
// back, until a pause is over or the cluster is another than it was.
type refusal struct {
	soon     time.Time // the pause is over, unless nothing has changed there
	until    time.Time // it is over anyway
	tries    int       // how often in a row it refused
	violated bool      // it ran there, and its place broke its SLA: more room does not help
	room     bool      // other instances that go may change the answer
	place    bool      // nodes elsewhere may change it
	late     bool      // it might have broken its links there

	// What the cluster was.
	free, largest api.Resources
	kinds, places uint64

	why api.ClusterWhy
}

// violatedPause is for how long an instance does not go back to a cluster where
// its SLA was violated, so that it does not swing between two. longestPause is how
// rarely a cluster in which nothing changes is asked again.
const (
	violatedPause = 15 * time.Minute
	longestPause  = 30 * time.Minute
)

// eased reports whether the cluster has become what may well take the instance:
// it may be asked if the instance fits.
func (r *refusal) eased(cl *cluster) bool {
	switch {
	case r.violated:
		return false
	case r.kinds != cl.kinds, r.place && r.places != cl.places:
		return true
	}
	return r.room && !cl.Agg.Largest.Fits(r.largest)
}

// end is when the cluster is asked again, if it stays as it is now.
func (r *refusal) end(cl *cluster) time.Time {
	if r.room && (cl.Agg.Free != r.free || cl.Agg.Largest != r.largest) {
		return r.soon // what is free there changes all the time
	}
	return r.until
}

func (r *refusal) holds(cl *cluster, now time.Time) bool {
	return !r.eased(cl) && r.end(cl).After(now)
}

// roomless are the constraints about which no other instance can do anything.
var roomless = []string{
	"workload", sched.ConstraintTrust, sched.ConstraintOut, sched.ConstraintCluster, sched.ConstraintNode, sched.ConstraintPrivileged, sched.ConstraintVirtualization,
	sched.ConstraintArch, sched.ConstraintNetwork, sched.ConstraintAddons, sched.ConstraintLabels,
	sched.ConstraintArea, sched.ConstraintGeo, sched.ConstraintLatency,
}

// causes says what may change an answer: other instances, or where nodes are. One
// that says nothing may be changed by anything.
func causes(why *api.Explanation) (room, place bool) {
	if why == nil || len(why.Causes) == 0 {
		return true, true
	}
	for _, c := range why.Causes {
		room = room || !slices.Contains(roomless, c.Constraint)
		place = place || slices.Contains([]string{sched.ConstraintArea, sched.ConstraintGeo, sched.ConstraintLatency}, c.Constraint)
	}
	return room, place
}

// refusals are what clusters said to the instances of a service that have its
// newest SLA. As soon as one has refused, a cluster that has taken none of them yet
// is offered one at a time.
type refusals struct {
	rev    api.Revision // of the SLA
	by     map[api.ClusterID]refusal
	taken  map[api.ClusterID]bool           // they took one, and have refused none since
	probes map[api.ClusterID]api.InstanceID // who asks for all
}

// common are the refusals that the instance shares with others, nil if there are
// none that it could.
func (c *Core) common(in *instance) *refusals {
	s := c.services[in.ID.Service()]
	if s == nil || s.app == nil || s.app.SpecRevs[s.id] != in.SpecRev {
		return nil
	}
	if s.refused.rev != in.SpecRev {
		s.refused = refusals{
			rev: in.SpecRev, by: map[api.ClusterID]refusal{}, taken: map[api.ClusterID]bool{}, probes: map[api.ClusterID]api.InstanceID{},
		}
	}
	return &s.refused
}

func (r *refusals) sketch() refusals {
	n := *r
	n.by, n.taken, n.probes = maps.Clone(r.by), map[api.ClusterID]bool{}, map[api.ClusterID]api.InstanceID{}
	return n
}

// refusedBy are the cluster's refusals that are about the instance: its own first.
func (c *Core) refusedBy(in *instance, id api.ClusterID) (out []refusal) {
	if r, ok := in.refusals[id]; ok {
		out = append(out, r)
	}
	if all := c.common(in); all != nil {
		if r, ok := all.by[id]; ok {
			out = append(out, r)
		}
	}
	return out
}

// barred reports whether the cluster is not to be offered the instance now; late says that
// the instance may break its links there.
func (c *Core) barred(in *instance, cl *cluster, late bool) bool {
	for _, r := range c.refusedBy(in, cl.Info.ID) {
		if r.holds(cl, c.now) && (r.late || r.violated || !late) {
			return true
		}
	}
	return c.probed(in, cl)
}

// askedOf are all clusters that refused the instance or are being asked for it, in
// the order of their names.
func (c *Core) askedOf(in *instance) []api.ClusterID {
	ids := map[api.ClusterID]bool{}
	for id := range in.refusals {
		ids[id] = true
	}
	if all := c.common(in); all != nil {
		for id := range all.by {
			ids[id] = true
		}
		for id := range all.probes {
			ids[id] = true
		}
	}
	maps.DeleteFunc(ids, func(id api.ClusterID, _ bool) bool { return c.clusters[id] == nil })
	return step.Keys(ids)
}

// refuse notes that a cluster cannot place the instance, or would rather see it
// elsewhere, and why.
func (c *Core) refuse(in *instance, cl *cluster, o api.Observed) {
	id := cl.Info.ID
	r := refusal{
		violated: o.Reason == api.ReasonViolated, why: api.ClusterWhy{Cluster: id, At: c.wall},
		free: cl.Agg.Free, largest: cl.Agg.Largest, kinds: cl.kinds, places: cl.places,
		late: in.Searched && in.trialAt(cl) == nil,
	}
	r.room, r.place = causes(o.Why)
	longest := c.cfg.RetryMax
	if o.Why != nil {
		r.why.Answer, longest = *o.Why, max(longest, longestPause)
	}
	all := c.common(in)
	if r.violated || o.Reason == api.ReasonTooManyFails || all == nil {
		r.tries = in.refused
		c.pause(&r, c.cfg.RetryMax)
		if in.refusals == nil {
			in.refusals = map[api.ClusterID]refusal{}
		}
		in.refusals[id] = r
		return
	}
	old, again := all.by[id]
	if again && all.probes[id] != in.ID && old.holds(cl, c.now) {
		return // it was on its way there when another was refused
	}
	if r.tries = 1; again && !old.eased(cl) {
		r.tries += old.tries
	}
	c.pause(&r, longest)
	all.by[id] = r
	delete(all.taken, id)
	delete(all.probes, id)
	c.timers.Set(timerKey{what: timerProbe, service: in.ID.Service(), cluster: id}, r.soon)
}

// pause sets how long the refusal holds: twice as long as the one before.
func (c *Core) pause(r *refusal, longest time.Duration) {
	p := min(c.cfg.RetryMin<<min(max(r.tries-1, 0), 10), longest)
	if r.violated {
		p = violatedPause
	}
	r.soon, r.until = c.now.Add(p), c.now.Add(p)
	if r.room && !r.violated {
		r.soon = c.now.Add(min(p, c.cfg.RetryMax))
	}
}
