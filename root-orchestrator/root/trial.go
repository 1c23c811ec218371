package root

import (
	"time"

	"github.com/treeline-edge/treeline/api"
)

// trial is a second place of an instance that runs and would be better elsewhere:
// made before the first is broken. It counts in its cluster like any other, and
// becomes the instance's place when it runs there, or when the first is lost. An
// instance that must never run twice has none.
type trial struct {
	Cluster api.ClusterID `json:"cluster"`
	Epoch   api.Epoch     `json:"epoch"`
	At      time.Time     `json:"at"`
	Score   float64       `json:"score,omitempty"`

	gen api.Generation // of the cluster's desired set, when it was put there
}

// trialAt is the instance's trial, if it is at the cluster.
func (in *instance) trialAt(cl *cluster) *trial {
	if in.Next != nil && in.Next.Cluster == cl.Info.ID {
		return in.Next
	}
	return nil
}

func (in *instance) epochAt(cl *cluster) api.Epoch {
	if t := in.trialAt(cl); t != nil {
		return t.Epoch
	}
	return in.Epoch
}

func (in *instance) genAt(cl *cluster) api.Generation {
	if t := in.trialAt(cl); t != nil {
		return t.gen
	}
	return in.gen
}

// putAt notes that the instance is in the cluster's desired set as of now.
func (in *instance) putAt(cl *cluster) {
	if t := in.trialAt(cl); t != nil {
		t.gen = cl.gen
	} else {
		in.gen = cl.gen
	}
}

// keepsRunning reports whether the instance goes on where it is until it runs
// elsewhere.
func (c *Core) keepsRunning(in *instance) bool {
	cl := c.clusters[in.Cluster]
	return cl != nil && !cl.silent && cl.heard && in.State == api.Running && !in.Spec.Exclusive
}

// try gives the instance a second place.
func (c *Core) try(in *instance, cl *cluster, score float64) {
	in.Next = &trial{Cluster: cl.Info.ID, Epoch: api.EpochOf(c.nextRev(), 0), At: c.wall, Score: score}
	in.Tries++
	c.stopWaiting(in)
	c.enlist(in, cl)
	e := c.about(in, in.State, in.Reason, "begins on cluster "+string(cl.Info.ID)+" as well, and goes on there once it runs")
	e.Cluster, e.Epoch = cl.Info.ID, in.Next.Epoch
	c.event(e)
	c.changed(in)
}

// endTrial gives the second place up, if there is one.
func (c *Core) endTrial(in *instance) {
	if in.Next == nil {
		return
	}
	c.unassign(in, c.clusters[in.Next.Cluster])
	in.Next = nil
	c.changed(in)
}

// promote makes the second place the first; the cluster that had it stops it.
func (c *Core) promote(in *instance, s api.State) {
	from, t := in.Cluster, in.Next
	c.takeBack(in, c.clusters[from])
	in.Next = nil
	in.Cluster, in.Epoch, in.gen, in.Searched = t.Cluster, t.Epoch, t.gen, false
	in.ExitCode, in.Address, in.Violated, in.Devices, in.Position = nil, noAddr, "", nil, nil
	c.locate(in)
	in.placed(t.At, t.Score)
	c.rehosted(in.ID.Service())
	c.linkedMoved(in.ID.Service())
	c.become(in, s, api.ReasonNone, "moved from cluster "+string(from))
}

// trialObserved takes what a second place's cluster says of it.
func (c *Core) trialObserved(cl *cluster, in *instance, o api.Observed) {
	switch {
	case o.HandedBack, o.State == api.Terminated:
		in.refused++
		c.refuse(in, cl, o)
		c.endTrial(in)
		c.tryPlace(in)
	case o.State == api.Running, api.Ended(o.State, o.Reason):
		in.Next.Epoch = o.Epoch
		c.accepted(in, cl)
		c.promote(in, api.Running)
		c.observed(cl, in, o)
	case in.Next.Epoch != o.Epoch:
		in.Next.Epoch = o.Epoch
		c.changed(in)
	}
}

// endOrPromote follows what became of the first place.
func (c *Core) endOrPromote(in *instance) {
	switch {
	case in.State == api.Running:
	case in.ended():
		c.endTrial(in)
	default:
		c.promote(in, api.ClusterScheduled)
	}
}

// tryPlaceOffered goes on looking for a place for what its cluster would be rid of.
func (c *Core) tryPlaceOffered(in *instance) {
	if in.Offered {
		c.tryPlace(in)
	}
}
