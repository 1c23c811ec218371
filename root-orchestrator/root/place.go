package root

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// request is what the instance asks of a cluster now, at least: once its search is over,
// it does without what may be broken.
func (c *Core) request(in *instance) sched.Request {
	if !c.late(in) {
		return c.strict(in)
	}
	req := c.wish(in)
	req.Avoid = c.avoided(in, true)
	return req.Loosest(true)
}

// strict is all that the instance asks of a cluster.
func (c *Core) strict(in *instance) sched.Request {
	req := c.wish(in)
	req.Avoid = c.avoided(in, false)
	if in.Reason == api.ReasonViolated {
		spare(req.Bounds)
	}
	return req
}

// avoided are the clusters that the instance is not offered to: those that just handed it
// back, and the one that would be rid of it. What they refused while its links bound does
// not count once it may break them (late).
func (c *Core) avoided(in *instance, late bool) (out []string) {
	for _, id := range c.askedOf(in) {
		if c.barred(in, c.clusters[id], late) {
			out = append(out, string(id))
		}
	}
	for _, d := range c.doubts[in.ID] {
		if d.Searched || !late {
			out = append(out, string(d.Cluster))
		}
	}
	if in.Cluster != "" && (!late || in.Searched) {
		out = append(out, string(in.Cluster))
	}
	return out
}

// wish is what the instance asks of any cluster, whatever became of it so far.
func (c *Core) wish(in *instance) sched.Request {
	s := c.service(in.ID.Service())
	req := sched.RequestFor(in.ID, &in.Spec)
	req.Peers = s.peers
	c.bind(&req, in, s)
	return req
}

// spare asks for a tenth less than an SLA bears: what just moved because it was
// too far must not be at the brink again.
func spare(bounds []sched.Bound) {
	for i := range bounds {
		bounds[i].RTT -= bounds[i].RTT / 10
		bounds[i].Km -= bounds[i].Km / 10
	}
}

func (in *instance) seed() uint64 { return sched.SeedOf(in.ID, in.Epoch, in.Tries) }

// tryPlace offers the instance to the best cluster, or lets it wait.
func (c *Core) tryPlace(in *instance) {
	if in.Spec.Exclusive && in.Cluster == "" && in.Vacating == "" && !in.Leaving && len(in.Stopping) > 0 {
		in.Vacating = in.Stopping[0]
		c.changed(in)
	}
	switch {
	case in.Leaving || in.ended():
		c.stopWaiting(in)
		return
	case in.Next != nil || in.asked != "":
		return // it is on its way
	case in.Vacating != "" || in.notUntil.After(c.now):
		c.wait(in)
		return
	}
	if at := c.mayMove(in); at.After(c.now) {
		c.waiting.add(in)
		c.timers.Set(timerKey{what: timerRetry, instance: in.ID}, at)
		return
	}
	switch {
	case c.isStuck(in):
		c.search(in, c.stuck.search)
		c.waitFor(in, c.sayingSearch(in, c.stuck.detail))
	case c.cfg.Asks != "":
		c.askOutside(in)
	default:
		c.decide(in)
	}
}

// decide is tryPlace by the core's own plugin.
func (c *Core) decide(in *instance) {
	req, best, ok := c.find(in)
	if !ok {
		c.nowhere(in, &req)
		return
	}
	c.place(in, c.clusters[api.ClusterID(best.ID)], best.Score, false)
}

// place gives the instance to a cluster: at once where it is nowhere, and as a
// second place where it runs. displaces says that others have to make way there.
func (c *Core) place(in *instance, cl *cluster, score float64, displaces bool) {
	if !cl.admits(in.ID.Tenant()) { // the filters rule it out; nothing goes there by mistake
		c.waitFor(in, fmt.Sprintf("cluster %s is not open to tenant %s", cl.Info.ID, in.ID.Tenant()))
		return
	}
	c.countMove(in)
	if c.keepsRunning(in) {
		c.try(in, cl, score)
		return
	}
	if old := c.clusters[in.Cluster]; old != nil {
		c.takeBack(in, old)
		in.State = api.Requested
	}
	c.assign(in, cl, score, displaces)
}

// nowhere has others make way for an instance that fits nowhere, or lets it wait.
func (c *Core) nowhere(in *instance, req *sched.Request) {
	if !c.displace(in, req) {
		c.waitWhy(in, req)
	}
}

func (c *Core) waitWhy(in *instance, req *sched.Request) {
	detail := noCluster(sched.Explain(c.table.Place(req, c.plugin(in), in.seed())))
	c.noteStuck(in, detail, req.SearchTime())
	c.waitFor(in, c.sayingSearch(in, detail))
}

func (c *Core) waitFor(in *instance, detail string) {
	c.wait(in)
	if in.Cluster == "" {
		c.explain(in, api.ReasonNoCluster, detail)
	}
}

// mayMove is when an instance whose place breaks its SLA may move: the zero time,
// or when the hour is over in which it has moved too often.
func (c *Core) mayMove(in *instance) time.Time {
	if in.Cluster == "" || in.Reason != api.ReasonViolated {
		return time.Time{}
	}
	if c.cfg.MovesPerHour < 0 {
		return c.now.Add(time.Hour)
	}
	in.Moves = api.MergeMoves(in.Moves, nil, c.wall)
	over := len(in.Moves) - c.cfg.MovesPerHour
	if over < 0 {
		return time.Time{}
	}
	return c.now.Add(in.Moves[over].Add(api.MovesWindow).Sub(c.wall))
}

func (c *Core) countMove(in *instance) {
	if in.Cluster != "" && in.Reason == api.ReasonViolated {
		in.Moves = append(slices.Clip(in.Moves), c.wall)
	}
}

func noCluster(why api.Explanation) string {
	if why.Considered == 0 {
		return "no cluster has joined"
	}
	s := fmt.Sprintf("no cluster can host it (0 of %d)", why.Considered)
	for _, cause := range why.Causes {
		if cause.Constraint == sched.Fits {
			continue
		}
		s += fmt.Sprintf(" · %d %s", cause.Count, cause.Constraint)
		if cause.Detail != "" {
			s += " (" + cause.Detail + ")"
		}
	}
	return s
}

func (c *Core) explain(in *instance, r api.Reason, detail string) {
	if in.Reason != r || in.Detail != detail {
		c.become(in, in.State, r, detail)
	}
}

// wait keeps the instance in the queue until a cluster has more room, or until
// one that refused it may be asked again: for what is refused to all of its service
// see probe.
func (c *Core) wait(in *instance) {
	c.waiting.add(in)
	next := in.notUntil
	for _, r := range in.refusals {
		if r.until.After(c.now) && (next.IsZero() || !next.After(c.now) || r.until.Before(next)) {
			next = r.until
		}
	}
	if next.After(c.now) {
		c.timers.Set(timerKey{what: timerRetry, instance: in.ID}, next)
	}
}

// assign places the instance on a cluster under a new epoch. The room counts as
// taken at once, not when the cluster says so.
func (c *Core) assign(in *instance, cl *cluster, score float64, displaces bool) {
	in.Cluster, in.Epoch = cl.Info.ID, api.EpochOf(c.nextRev(), 0)
	in.Tries++
	in.Offered, in.ExitCode, in.Address, in.Searched = false, nil, noAddr, c.late(in)
	in.Violated, in.Devices, in.Position = "", nil, nil
	c.locate(in)
	in.placed(c.wall, score)
	c.stopWaiting(in)
	if in.Vacating == cl.Info.ID {
		in.Vacating = "" // it ends the old placement before it begins the new one
	}
	c.enlist(in, cl)
	if in.State != api.Requested {
		in.State = api.Requested // a new placement begins anew
	}
	detail := "offered to cluster " + string(cl.Info.ID)
	if in.displaces = displaces; displaces {
		detail += ", where less urgent instances have to make way"
	}
	c.become(in, lifecycle.Must(in.State, lifecycle.ClusterChosen), api.ReasonNone, detail)
}

var noAddr netip.Addr

// placed notes the instance's place in its history.
func (in *instance) placed(at time.Time, score float64) {
	in.Placements = append(in.Placements, api.Placement{Epoch: in.Epoch, Cluster: in.Cluster, At: at, Score: score})
	if n := len(in.Placements); n > keptPlacements {
		in.Placements = slices.Clone(in.Placements[n-keptPlacements:])
	}
}

// enlist puts the instance into the cluster's desired set.
func (c *Core) enlist(in *instance, cl *cluster) {
	c.touch(cl)
	if in.Spec.Exclusive { // else what was exclusive before may end there after this one begins
		c.stopped(in, cl)
	}
	delete(cl.drop, in.ID)
	cl.put[in.ID] = true
	c.assigned(in, cl)
	c.offered(in, cl)
	cl.reserve(in)
	c.rehosted(in.ID.Service())
	c.linkedMoved(in.ID.Service())
	c.refresh(cl)
}

// unassign takes the instance out of the cluster's desired set. in.Cluster stays.
func (c *Core) unassign(in *instance, cl *cluster) {
	c.touch(cl)
	c.rehosted(in.ID.Service())
	c.linkedMoved(in.ID.Service())
	c.unasked(in, cl)
	delete(cl.assigned, in.ID)
	cl.hosts(in.ID.Tenant(), -1, c.now)
	delete(cl.put, in.ID)
	cl.drop[in.ID] = true
	cl.wanted = cl.wanted.Toggle(in.assignment(cl).Digest())
	if cl.free(in.ID) || c.service(in.ID.Service()).link.parted {
		// No report will ever show this room as new, or that a domain takes one more.
		c.roomier[cl.Info.ID] = true
	}
	peers := c.service(in.ID.Service()).peers
	if peers[string(cl.Info.ID)]--; peers[string(cl.Info.ID)] <= 0 {
		delete(peers, string(cl.Info.ID))
	}
	c.refresh(cl)
}

// takeBack takes the instance off its cluster for good.
func (c *Core) takeBack(in *instance, cl *cluster) {
	c.unassign(in, cl)
	if n := len(in.Placements); n > 0 {
		in.Placements[n-1].Reason = in.Reason
	}
	in.Cluster, in.Offered = "", false
	c.locate(in)
}

// admits reports whether the cluster's kind of nodes could take the instance at
// all, whatever is free now.
func (c *Core) admits(cl *cluster, in *instance) bool {
	if slices.ContainsFunc(c.doubts[in.ID], func(d Doubt) bool { return d.Cluster == cl.Info.ID }) {
		return false
	}
	req := c.wish(in)
	req.Needs, req.Devices = api.Resources{}, nil
	cand := *c.table.Get(string(cl.Info.ID))
	cand.Out = ""
	_, ok := sched.PlaceBest(&req, []sched.Candidate{cand}, c.cfg.Plugin, 0)
	return ok
}

// failPause is how long an instance that a cluster gave up because it fails waits
// before the next cluster tries, doubling up to failPauseMax.
const (
	failPause    = 30 * time.Second
	failPauseMax = 10 * time.Minute
)

// handedBack takes that a cluster cannot place the instance, or would rather see
// it elsewhere. An exclusive one is free at once: the cluster has promised that
// nothing of it runs. Any other stays until a better place is found.
func (c *Core) handedBack(in *instance, cl *cluster, o api.Observed) {
	if !in.Offered {
		in.refused++
	}
	c.refuse(in, cl, o)
	if o.Reason == api.ReasonTooManyFails && !in.Offered {
		if in.Fails > 0 {
			in.notUntil = c.now.Add(min(failPause<<min(in.Fails-1, 10), failPauseMax))
		}
		in.Fails++
	}
	if in.Spec.Exclusive {
		c.stopped(in, cl)
		c.takeBack(in, cl)
		c.become(in, api.Requested, o.Reason, o.Detail)
		c.tryPlace(in)
		return
	}
	state := o.State
	if state == api.ClusterScheduled {
		state = api.Requested
	}
	in.Offered = true
	c.become(in, state, o.Reason, o.Detail)
	if in.Next != nil && state != api.Running {
		c.promote(in, api.ClusterScheduled)
		return
	}
	c.tryPlace(in)
}

// retryWaiting offers what waits to a cluster that may take more than before, the
// most urgent first. Of a service that the cluster has no place for, one instance
// is tried: the others ask for the same.
func (c *Core) retryWaiting(cl *cluster, how grown) {
	type kind struct {
		service api.ServiceID
		spec    api.Revision
		late    bool
	}
	full := map[kind]bool{}
	for _, id := range c.waiting.list() {
		in := c.instances[id]
		if in == nil {
			c.waiting.remove(id)
			continue
		}
		k := kind{id.Service(), in.SpecRev, c.late(in)}
		if full[k] || in.Cluster == cl.Info.ID || how == moved && !boundToPlaces(&in.Spec) {
			continue
		}
		if c.barred(in, cl, c.late(in)) {
			continue
		}
		if c.fits(in, cl) {
			c.stuck = stuck{}
			c.tryPlace(in)
			continue
		}
		full[k] = in.Reason != api.ReasonViolated // which asks for more than the others
		if in.Cluster == "" && in.Reason == api.ReasonNoCluster && len(full) <= mostExplained {
			req := c.request(in)
			c.waitWhy(in, &req)
		}
	}
}

// mostExplained bounds how many kinds of instances learn anew, when a cluster has
// changed and still does not fit, why they are nowhere. Who asks is told what is
// so at that moment (Core.Why).
const mostExplained = 16

// boundToPlaces reports whether it matters to a service where clusters are.
func boundToPlaces(m *api.Microservice) bool {
	return len(m.Connectivity) > 0 || slices.ContainsFunc(m.Constraints, func(k api.Constraint) bool {
		return k.Type == api.ConstrainGeo || k.Type == api.ConstrainLatency
	})
}
