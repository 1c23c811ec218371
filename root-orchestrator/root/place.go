package root

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// request is what the instance asks of a cluster now: clusters that just handed
// it back, and the one that would be rid of it, are left out.
func (c *Core) request(in *instance) sched.Request {
	req := sched.RequestFor(in.ID, &in.Spec)
	req.Peers = c.service(in.ID.Service()).peers
	for _, id := range step.Keys(in.refusals) {
		if in.refusals[id].until.After(c.now) {
			req.Avoid = append(req.Avoid, string(id))
		}
	}
	if in.Cluster != "" {
		req.Avoid = append(req.Avoid, string(in.Cluster))
	}
	return req
}

func (in *instance) seed() uint64 { return sched.SeedOf(in.ID, in.Epoch, in.Tries) }

// tryPlace offers the instance to the best cluster, or lets it wait.
func (c *Core) tryPlace(in *instance) {
	if in.Leaving || in.State == api.Completed {
		c.stopWaiting(in)
		return
	}
	if in.Vacating != "" || in.notUntil.After(c.now) {
		c.wait(in)
		return
	}
	req := c.request(in)
	best, ok := sched.PlaceBest(&req, c.cands, c.cfg.Plugin, in.seed())
	if !ok {
		c.wait(in)
		if in.Cluster == "" {
			why := sched.Explain(sched.Place(&req, c.cands, c.cfg.Plugin, in.seed()))
			c.explain(in, api.ReasonNoCluster, noCluster(why))
		}
		return
	}
	if cl := c.clusters[in.Cluster]; cl != nil {
		c.takeBack(in, cl)
		in.State = api.Requested
	}
	c.assign(in, c.clusters[api.ClusterID(best.ID)], best.Score)
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
// one that refused it may be asked again.
func (c *Core) wait(in *instance) {
	c.waiting.Add(in.ID)
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
func (c *Core) assign(in *instance, cl *cluster, score float64) {
	in.Cluster, in.Epoch = cl.Info.ID, api.EpochOf(c.nextRev(), 0)
	in.Tries++
	in.Offered, in.Restarts, in.ExitCode, in.Address = false, 0, nil, netip.Addr{}
	c.rehosted(in.ID.Service())
	in.Placements = append(in.Placements, api.Placement{Epoch: in.Epoch, Cluster: cl.Info.ID, At: c.wall, Score: score})
	if n := len(in.Placements); n > keptPlacements {
		in.Placements = in.Placements[n-keptPlacements:]
	}
	c.stopWaiting(in)
	c.touch(cl)
	cl.assigned[in.ID] = in
	delete(cl.leaving, in.ID)
	delete(cl.drop, in.ID)
	cl.put[in.ID] = true
	if in.Vacating == cl.Info.ID {
		in.Vacating = "" // it ends the old placement before it begins the new one
	}
	cl.wanted = cl.wanted.Toggle(in.assignment().Digest())
	in.gen = cl.gen
	cl.reserve(in)
	c.service(in.ID.Service()).peers[string(cl.Info.ID)]++
	if in.State != api.Requested {
		in.State = api.Requested // a new placement begins anew
	}
	c.become(in, lifecycle.Must(in.State, lifecycle.ClusterChosen), api.ReasonNone, "offered to cluster "+string(cl.Info.ID))
	c.refresh(cl)
}

// unassign takes the instance out of the cluster's desired set. in.Cluster stays.
func (c *Core) unassign(in *instance, cl *cluster) {
	c.touch(cl)
	c.rehosted(in.ID.Service())
	delete(cl.assigned, in.ID)
	delete(cl.put, in.ID)
	cl.drop[in.ID] = true
	cl.wanted = cl.wanted.Toggle(in.assignment().Digest())
	if cl.free(in.ID) {
		// No report will ever show this room as new.
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
}

// awaitStop keeps an exclusive instance from running elsewhere until the cluster
// that it was taken off has confirmed that nothing of it is left.
func (c *Core) awaitStop(in *instance, cl *cluster) {
	in.Vacating = cl.Info.ID
	c.rehosted(in.ID.Service())
	cl.leaving[in.ID] = cl.gen
}

// admits reports whether the cluster's kind of nodes could take the instance at
// all, whatever is free now.
func (c *Core) admits(cl *cluster, in *instance) bool {
	req := sched.RequestFor(in.ID, &in.Spec)
	req.Needs = api.Resources{}
	cand := c.cands[cl.at]
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
	why := api.ClusterWhy{Cluster: cl.Info.ID, At: c.wall}
	if o.Why != nil {
		why.Answer = *o.Why
	}
	if in.refusals == nil {
		in.refusals = map[api.ClusterID]refusal{}
	}
	if !in.Offered {
		in.refused++
	}
	pause := min(c.cfg.RetryMin<<min(max(in.refused-1, 0), 10), c.cfg.RetryMax)
	in.refusals[cl.Info.ID] = refusal{until: c.now.Add(pause), largest: cl.Agg.Largest, why: why}
	if o.Reason == api.ReasonTooManyFails && !in.Offered {
		if in.Fails > 0 {
			in.notUntil = c.now.Add(min(failPause<<min(in.Fails-1, 10), failPauseMax))
		}
		in.Fails++
	}
	if in.Spec.Exclusive {
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
	c.tryPlace(in)
}

// retryWaiting offers what waits to a cluster that has more room than before.
func (c *Core) retryWaiting(cl *cluster) {
	for _, id := range c.waiting.List() {
		in := c.instances[id]
		if in == nil {
			c.waiting.Remove(id)
			continue
		}
		r, refused := in.refusals[cl.Info.ID]
		if refused && (cl.Agg.Largest.MilliCPU > r.largest.MilliCPU || cl.Agg.Largest.MemoryMB > r.largest.MemoryMB) {
			delete(in.refusals, cl.Info.ID)
			refused = false
		}
		if refused && r.until.After(c.now) || in.Cluster == cl.Info.ID {
			continue
		}
		c.tryPlace(in)
	}
}
