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
	sched.ConstraintOut, sched.ConstraintCluster, sched.ConstraintNode, sched.ConstraintPrivileged, sched.ConstraintVirtualization,
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

// barred reports whether the cluster is not to be offered the instance now.
func (c *Core) barred(in *instance, cl *cluster) bool {
	for _, r := range c.refusedBy(in, cl.Info.ID) {
		if r.holds(cl, c.now) {
			return true
		}
	}
	return c.probed(in, cl)
}

// probed reports whether another instance asks the cluster for this one.
func (c *Core) probed(in *instance, cl *cluster) bool {
	all := c.common(in)
	if all == nil || c.dry {
		return false
	}
	by, ok := all.probes[cl.Info.ID]
	return ok && by != in.ID
}

// asked are all clusters that refused the instance or are being asked for it, in
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

// offered notes that the instance asks the cluster for the others.
func (c *Core) offered(in *instance, cl *cluster) {
	all := c.common(in)
	if all == nil || len(all.by) == 0 || all.taken[cl.Info.ID] {
		return
	}
	if _, ok := all.probes[cl.Info.ID]; !ok {
		all.probes[cl.Info.ID] = in.ID
	}
}

// unasked notes that the instance, which may have asked the cluster for others,
// has no answer.
func (c *Core) unasked(in *instance, cl *cluster) {
	if all := c.common(in); all != nil && all.probes[cl.Info.ID] == in.ID {
		delete(all.probes, cl.Info.ID)
		c.roomier[cl.Info.ID] = true
	}
}

// accepted notes that the cluster has a place for the instance, and so perhaps for
// the others.
func (c *Core) accepted(in *instance, cl *cluster) {
	all, id := c.common(in), cl.Info.ID
	if all == nil {
		return
	}
	by, probed := all.probes[id]
	if r, refused := all.by[id]; refused && by != in.ID {
		if in.Offered { // it was refused there as well; anything else was offered before
			r.soon, r.until, r.tries = c.now, c.now, 0
			all.by[id] = r
			c.roomier[id] = true
		}
		return
	}
	all.taken[id] = true
	delete(all.by, id)
	delete(all.probes, id)
	if probed {
		c.stuck = stuck{}
		c.roomier[id] = true
	}
}

// takes reports whether an instance in such a state has a place in its cluster.
func takes(s api.State) bool {
	switch s {
	case api.NodeScheduled, api.Created, api.Running, api.Failed, api.Completed:
		return true
	}
	return false
}

// probe has one of the service's waiting instances ask the cluster again.
func (c *Core) probe(s *service, cl *cluster) {
	r, ok := s.refused.by[cl.Info.ID]
	if !ok {
		return
	}
	key := timerKey{what: timerProbe, service: s.id, cluster: cl.Info.ID}
	if r.holds(cl, c.now) {
		c.timers.Set(key, earlier(r.until, c.now.Add(c.cfg.RetryMax)))
		return
	}
	for {
		in, all := c.nextWaiting(s, cl)
		switch {
		case all: // nobody will ask
			delete(s.refused.by, cl.Info.ID)
			return
		case in == nil: // somebody is asked elsewhere, and comes by again
			c.timers.Set(key, c.now.Add(longestPause))
			return
		case !c.fits(in, cl):
			return // it is tried when the cluster has more
		}
		c.tryPlace(in)
		if c.waiting.has(in.ID) || in.asked != "" {
			c.timers.Set(key, c.now.Add(c.cfg.RetryMax))
			return
		}
		if in.Cluster == cl.Info.ID || in.trialAt(cl) != nil {
			return
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// nextWaiting is the first of the service's instances that waits and may be offered
// to the cluster, and whether all of them have what they need.
func (c *Core) nextWaiting(s *service, cl *cluster) (next *instance, all bool) {
	all = true
	for id, in := range s.instances {
		all = all && (in.Leaving || in.State == api.Running || in.State == api.Completed) && !c.waiting.has(id)
		if c.waiting.has(id) && in.Cluster != cl.Info.ID && !in.notUntil.After(c.now) && in.Vacating == "" &&
			!c.barred(in, cl) && (next == nil || id < next.ID) {
			next = in
		}
	}
	return next, all
}

// fits reports whether the instance could be offered to the cluster as it is now.
func (c *Core) fits(in *instance, cl *cluster) bool {
	req := c.request(in)
	cand := []sched.Candidate{*c.table.Get(string(cl.Info.ID))}
	_, fits := sched.PlaceBest(&req, cand, c.cfg.Plugin, 0)
	if !fits && !c.keepsRunning(in) {
		_, fits = c.displaces(in, &req, cand)
	}
	return fits
}

// stuck is what was found out in this step: that no cluster takes an instance of
// the service, and why. The next of them has no need to look.
type stuck struct {
	service api.ServiceID
	rev     api.Revision
	detail  string
}

// noteStuck notes that the instance fits nowhere, if that is true of its siblings.
func (c *Core) noteStuck(in *instance, detail string) {
	own := in.Cluster != "" && !slices.ContainsFunc(c.refusedBy(in, in.Cluster), func(r refusal) bool { return r.holds(c.clusters[in.Cluster], c.now) })
	if c.common(in) != nil && len(in.refusals) == 0 && !own && in.Reason != api.ReasonViolated && !c.dry {
		c.stuck = stuck{in.ID.Service(), in.SpecRev, detail}
	}
}

func (c *Core) isStuck(in *instance) bool {
	return c.stuck.service == in.ID.Service() && c.stuck.rev == in.SpecRev
}

// kindsDiffer reports whether a cluster's nodes are others than they were, whatever
// is free on them.
func kindsDiffer(was, is *api.Aggregate) bool {
	return was.Nodes != is.Nodes || was.Capacity != is.Capacity || !slices.EqualFunc(was.Slots, is.Slots, func(a, b api.Slot) bool {
		return a.Runtime == b.Runtime && a.Arch == b.Arch && a.Privileged == b.Privileged && a.Network == b.Network &&
			a.Nodes == b.Nodes && slices.Equal(a.Areas, b.Areas) && slices.Equal(a.Addons, b.Addons)
	})
}

// placesDiffer reports whether a cluster's nodes may be elsewhere than they were.
func placesDiffer(was, is *api.Aggregate) bool {
	a, b := was.Latency, is.Latency
	switch {
	case was.Unplaced != is.Unplaced, !slices.Equal(was.Hull, is.Hull), (a == nil) != (b == nil):
		return true
	case a == nil:
		return false
	}
	return farther(&a.Center, &b.Center, b.Radius-a.Radius)
}
