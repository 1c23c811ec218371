package root

import (
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// A cluster that refused an instance is asked again by one of its service, the probe,
// while the others wait for what it hears.

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

// unasked notes that the instance, which may have asked the cluster for others,
// has no answer.
func (c *Core) unasked(in *instance, cl *cluster) {
	if all := c.common(in); all != nil && all.probes[cl.Info.ID] == in.ID {
		delete(all.probes, cl.Info.ID)
		c.roomier[cl.Info.ID] = true
	}
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
		all = all && (in.Leaving || in.State == api.Running || in.ended()) && !c.waiting.has(id)
		if c.waiting.has(id) && in.Cluster != cl.Info.ID && !in.notUntil.After(c.now) && in.Vacating == "" &&
			!c.barred(in, cl, c.late(in)) && (next == nil || id < next.ID) {
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
