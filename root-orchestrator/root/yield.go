package root

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// An urgent instance for which there is no room as things are is offered where
// less urgent ones would make way, if an operator allows that: the cluster's
// aggregate says what would be free then. Who makes way is the cluster's to choose.

// yieldTo is what would be free for an instance of some urgency if all that are
// less urgent made way, nil if nobody would.
func yieldTo(yields []api.Yield, urgency int) *api.Yield {
	i := slices.IndexFunc(yields, func(y api.Yield) bool { return y.Urgency == urgency })
	if i < 0 {
		return nil
	}
	return &yields[i]
}

// yielded is the cluster's candidate with what would be free if others made way in
// place of what is, and whether anybody would. What the root reserved stays taken.
func (cl *cluster) yielded(cand sched.Candidate, urgency int) (sched.Candidate, bool) {
	y := yieldTo(cl.Agg.Yields, urgency)
	if y == nil {
		return cand, false
	}
	more := y.Free.Minus(cl.Agg.Free)
	cand.Free = cand.Free.Plus(more)
	cand.Rooms = slices.Clone(cand.Rooms)
	for i := range cand.Rooms {
		// How much of it is of which kind is not told: it may be all of this one.
		r := &cand.Rooms[i]
		r.Free = r.Free.Plus(more)
		r.Largest = y.Largest.Min(r.Free)
	}
	return cand, true
}

// displace offers the instance to the best cluster in which others would make way
// for it, and reports whether there is one. What runs stays where it is instead.
func (c *Core) displace(in *instance, req *sched.Request) bool {
	if c.keepsRunning(in) {
		return false
	}
	best, ok := c.displaces(in, req, c.table.All())
	if ok {
		c.place(in, c.clusters[api.ClusterID(best.ID)], best.Score, true)
	}
	return ok
}

// displaces is the best of the clusters in which others would make way. One that
// refused just now is not asked again before its pause is over, whatever room it
// got: it knows whom it cannot move.
func (c *Core) displaces(in *instance, req *sched.Request, among []sched.Candidate) (sched.Choice, bool) {
	var yielding []sched.Candidate
	for i := range among {
		cl := c.clusters[api.ClusterID(among[i].ID)]
		if c.probed(in, cl) || slices.ContainsFunc(c.refusedBy(in, cl.Info.ID), func(r refusal) bool { return r.soon.After(c.now) }) {
			continue
		}
		if cand, ok := cl.yielded(among[i], req.Urgency); ok {
			yielding = append(yielding, cand)
		}
	}
	if len(yielding) == 0 {
		return sched.Choice{}, false
	}
	return sched.PlaceBest(req, yielding, c.plugin(in), in.seed())
}

// rankYielding ranks the clusters as they would be if others made way.
func (c *Core) rankYielding(in *instance, req *sched.Request, all []sched.Candidate) sched.Result {
	all = slices.Clone(all)
	for i := range all {
		all[i], _ = c.clusters[api.ClusterID(all[i].ID)].yielded(all[i], req.Urgency)
	}
	return sched.Place(req, all, c.plugin(in), in.seed())
}

// yieldsMore reports whether more would be free for anybody than before.
func yieldsMore(was, is []api.Yield) bool {
	return slices.ContainsFunc(is, func(y api.Yield) bool {
		old := yieldTo(was, y.Urgency)
		return old == nil || !y.Free.Fits(old.Free) || !y.Largest.Fits(old.Largest)
	})
}
