package root

import (
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// longestBeat bounds how slowly a cluster may report and be waited for.
const longestBeat = 30 * time.Second

// heardNow notes a report. Clusters report more rarely when nothing changes; by
// the pauses between a cluster's reports the root sees how long it may be quiet.
func (cl *cluster) heardNow(now time.Time) {
	if cl.heard && !cl.silent {
		cl.beat = min(max(now.Sub(cl.lastHeard), cl.beat*3/4), longestBeat)
	}
	cl.lastHeard = now
}

// deadAfter is the silence after which the cluster counts as lost: three of its
// pauses where these are long.
func (c *Core) deadAfter(cl *cluster) time.Duration { return max(c.cfg.Dead, 3*cl.beat) }

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
	if due := cl.lastHeard.Add(c.deadAfter(cl)); due.After(c.now) {
		c.timers.Set(timerKey{what: timerDead, cluster: cl.Info.ID}, due)
		return
	}
	if cl.silent {
		return
	}
	after := c.deadAfter(cl)
	cl.silent = true
	c.refresh(cl)
	c.netSilence(cl)
	c.changedCluster(cl)
	c.event(api.Event{
		Kind: "cluster", Object: string(cl.Info.ID), Cluster: cl.Info.ID, Reason: api.ReasonClusterLost,
		Detail: "has not been heard for " + after.Round(time.Millisecond).String(),
	})
	for _, id := range c.byUrgency(cl.assigned) {
		in := cl.assigned[id]
		if in == nil || in.ended() {
			continue
		}
		if in.trialAt(cl) != nil {
			c.endTrial(in)
			c.tryPlace(in)
			continue
		}
		c.become(in, in.State, api.ReasonClusterLost, "cluster "+string(cl.Info.ID)+" has not been heard")
		if in.Spec.Exclusive {
			// It may run on there, cut off from here; only its operator or its return can tell.
			continue
		}
		in.Offered = true
		if in.Next != nil {
			c.promote(in, api.ClusterScheduled)
			continue
		}
		c.tryPlace(in)
	}
}
