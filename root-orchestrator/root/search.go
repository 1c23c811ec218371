package root

import (
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// An instance whose links to other services no cluster keeps is searched a place for as
// long as the links say. Then it goes to the cluster where they are broken least, by the
// rule that clusters have for nodes (sched.Request.Relax). That cluster is told not to
// search again (api.Assignment.Searched).

// find returns the best cluster for the instance, and what was asked of it: everything, or,
// where that fits nowhere and the search is over, as little less as there is a place for.
// Where nothing fits, ok is false and the request is the one that request returns.
func (c *Core) find(in *instance) (req sched.Request, best sched.Choice, ok bool) {
	try := func(r *sched.Request) bool {
		best, ok = c.table.Best(r, c.plugin(in), in.seed())
		return ok
	}
	req = c.strict(in)
	c.search(in, req.SearchTime())
	if try(&req) || !c.late(in) {
		return req, best, ok
	}
	req = c.wish(in)
	req.Avoid = c.avoided(in, true)
	req, _ = req.Relax(true, try)
	return req, best, ok
}

// search begins the search for a place that keeps the instance's links; 0 means that it
// has none that bind.
func (c *Core) search(in *instance, d time.Duration) {
	if d > 0 && in.until.IsZero() && in.State == api.Requested {
		in.until = c.now.Add(d)
		c.timers.Set(timerKey{what: timerSearch, instance: in.ID}, in.until)
	}
}

// endSearch forgets the search: the instance has a place, or asks for another one.
func (c *Core) endSearch(in *instance) {
	if !in.until.IsZero() {
		in.until = time.Time{}
		c.timers.Clear(timerKey{what: timerSearch, instance: in.ID})
	}
}

// late reports whether the search for a place of an instance without one is over.
func (c *Core) late(in *instance) bool {
	return in.State == api.Requested && !in.until.IsZero() && !c.now.Before(in.until)
}

// searching reports whether it goes on.
func (c *Core) searching(in *instance) bool {
	return in.State == api.Requested && in.until.After(c.now)
}

// sayingSearch is why the instance waits, after the search, while that goes on.
func (c *Core) sayingSearch(in *instance, why string) string {
	if !c.searching(in) {
		return why
	}
	return sched.Searching(c.clock.Real(in.until)) + "; " + why
}
