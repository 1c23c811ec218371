package root

import (
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// heardAgain takes a cluster as alive.
func (c *Core) heardAgain(cl *cluster) {
	if cl.heard && !cl.silent {
		return
	}
	was := cl.silent
	cl.heard, cl.silent = true, false
	c.changedCluster(cl)
	if was {
		c.backFromSilence(cl)
	}
	c.netSilence(cl)
	for _, id := range step.Keys(cl.assigned) {
		c.changed(cl.assigned[id])    // what is shown of it is no longer stale
		c.reconcileSoon(id.Service()) // roll-outs that waited for the cluster go on
	}
}

// checkSilence looks whether the cluster was heard since the timer was set.
func (c *Core) checkSilence(cl *cluster) {
	if due := cl.lastHeard.Add(c.cfg.Dead); due.After(c.now) {
		c.timers.Set(timerKey{what: timerDead, cluster: cl.Info.ID}, due)
		return
	}
	if cl.silent {
		return
	}
	cl.silent = true
	c.refresh(cl)
	c.netSilence(cl)
	c.changedCluster(cl)
	c.event(api.Event{
		Kind: "cluster", Object: string(cl.Info.ID), Cluster: cl.Info.ID, Reason: api.ReasonClusterLost,
		Detail: "has not been heard for " + c.cfg.Dead.String(),
	})
	for _, id := range step.Keys(cl.assigned) {
		in := cl.assigned[id]
		if in.State == api.Completed {
			continue
		}
		c.become(in, in.State, api.ReasonClusterLost, "cluster "+string(cl.Info.ID)+" has not been heard")
		if in.Spec.Exclusive {
			// It may run on there, cut off from here; only its operator or its return can tell.
			continue
		}
		in.Offered = true
		c.tryPlace(in)
	}
}
