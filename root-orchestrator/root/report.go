package root

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/internal/step"
)

// report takes what a cluster says. One that was taken already is only answered.
func (c *Core) report(r api.Report) error {
	cl := c.clusters[r.Cluster]
	if cl == nil {
		return c.noCluster(r.Cluster)
	}
	if r.Boot < cl.boot || r.Boot == cl.boot && r.Seq <= cl.seq {
		c.emit(cl.Info.ID.Addr(), api.ReportAck{Boot: r.Boot, Seq: r.Seq, Gen: cl.gen, Dead: c.cfg.Dead})
		return nil
	}
	others := r.Boot != cl.boot
	cl.boot, cl.seq, cl.ack = r.Boot, r.Seq, max(cl.ack, r.Gen)
	cl.heardNow(c.now)
	before, yields := *c.table.Get(string(r.Cluster)), cl.Agg.Yields
	r.Aggregate = c.limit(cl, r.Aggregate)
	if cl.Agg.Nodes != r.Aggregate.Nodes {
		c.changedCluster(cl) // who watches clusters wants to see nodes come and go; the rest of it changes too often
	}
	if others = others || kindsDiffer(&cl.Agg, &r.Aggregate); others {
		cl.kinds++
	}
	if placesDiffer(&cl.Agg, &r.Aggregate) {
		cl.places++
	}
	cl.Agg = r.Aggregate
	for id, p := range cl.pending {
		if p.gen <= r.Gen {
			cl.free(id)
		}
	}
	cl.net.speaks = cl.net.speaks || r.Net != nil // before what it was asked counts as answered
	c.heardAgain(cl)
	cl.noteHosted(c.now)
	c.observe(cl, r)
	c.notices(cl, r)
	if r.Net != nil {
		c.netReport(cl, r.Net)
	}
	c.refresh(cl)
	c.timeToAge(cl)
	want := cl.known != r.Known
	if !want {
		c.settleLeaving(cl, r.Gen)
	}
	if (r.Gen != cl.gen || r.Desired != cl.wanted) && c.now.Sub(cl.sentAt) >= resend && !c.dirty.seen["desired\x00"+string(r.Cluster)] {
		c.catchUp(cl, r.Gen, r.Desired)
	}
	c.emit(cl.Info.ID.Addr(), api.ReportAck{Boot: r.Boot, Seq: r.Seq, Gen: cl.gen, WantWhole: want, Dead: c.cfg.Dead})
	how := growth(&before, c.table.Get(string(r.Cluster)))
	if how != roomier && cl.out() == "" && (others || yieldsMore(yields, cl.Agg.Yields)) {
		how = roomier
	}
	if how != notGrown {
		c.retryWaiting(cl, how)
		c.areasChanged()
	}
	return nil
}

// observe takes the report's observations. A cluster is believed only about
// what was placed there, and about the newest placement.
func (c *Core) observe(cl *cluster, r api.Report) {
	if r.Whole {
		present := make(map[api.InstanceID]bool, len(r.Observed))
		for _, o := range r.Observed {
			present[o.Instance] = true
		}
		for _, id := range step.Keys(cl.observed) {
			if !present[id] {
				cl.forget(id)
			}
		}
	}
	for _, o := range r.Observed {
		if o.Stopped {
			cl.forget(o.Instance)
		} else if cl.assigned[o.Instance] != nil || len(cl.observed) < len(cl.assigned)+len(cl.leaving)+keptRemovals {
			cl.forget(o.Instance)
			cl.observed[o.Instance] = o.Digest()
			cl.known = cl.known.Toggle(o.Digest())
		}
		o.Detail = step.Clip(o.Detail)
		in := cl.assigned[o.Instance]
		if in != nil && o.Epoch.Root() > in.epochAt(cl).Root() {
			c.overtaken(cl, in, o)
		}
		switch {
		case in != nil && (o.Epoch.Root() != in.epochAt(cl).Root() || o.Epoch < in.epochAt(cl)):
		case in != nil && in.trialAt(cl) != nil:
			c.trialObserved(cl, in, o)
		case in != nil:
			c.observed(cl, in, o)
		case in == nil && o.Local && !o.Stopped && o.State != api.Terminated:
			c.adopt(cl, o)
		case in == nil && o.Ended:
			c.endedLeaving(cl, o.Instance)
		}
	}
}

// endedLeaving notes that nothing of a withdrawn instance runs any more. It is kept
// until its cluster says that nothing is left of it; the event follows then.
func (c *Core) endedLeaving(cl *cluster, id api.InstanceID) {
	in := c.instances[id]
	if in == nil || !in.Leaving || in.Cluster != cl.Info.ID || in.State == api.Terminated {
		return
	}
	in.State, in.Since = api.Terminated, c.wall
	in.Detail = "its processes have ended; what is left of it is being removed"
	c.changed(in)
}

// mostRevision bounds what a cluster may make the root skip to, so that none can
// use the numbers up.
const mostRevision = 1 << 42

// overtaken takes that a cluster holds a placement from beyond all that this
// root remembers: its store was restored from an older copy. It goes on above,
// and believes what runs.
func (c *Core) overtaken(cl *cluster, in *instance, o api.Observed) {
	newest := o.Epoch.Root()
	if newest <= c.Revision() || newest >= mostRevision {
		return
	}
	c.counter.Raise(uint64(newest), &c.journal, kindMeta, metaCounter)
	c.touch(cl)
	cl.wanted = cl.wanted.Toggle(in.assignment(cl).Digest())
	if t := in.trialAt(cl); t != nil {
		t.Epoch = api.EpochOf(newest, 0)
	} else {
		in.Epoch = api.EpochOf(newest, 0)
	}
	cl.wanted = cl.wanted.Toggle(in.assignment(cl).Digest())
	cl.put[in.ID] = true
	in.putAt(cl)
	c.changed(in)
}

func (cl *cluster) forget(id api.InstanceID) {
	if d, ok := cl.observed[id]; ok {
		cl.known = cl.known.Toggle(d)
		delete(cl.observed, id)
	}
}

// settleLeaving forgets withdrawn instances of which the cluster, holding the
// generation that withdrew them, has nothing any more.
func (c *Core) settleLeaving(cl *cluster, gen api.Generation) {
	for _, id := range step.Keys(cl.leaving) {
		if _, still := cl.observed[id]; still || cl.leaving[id] > gen {
			continue
		}
		c.nothingLeft(id, cl)
	}
}

// observed takes what the instance's own cluster says of its present placement.
func (c *Core) observed(cl *cluster, in *instance, o api.Observed) {
	ended := api.Ended(o.State, o.Reason)
	if in.ended() && (!ended || in.State != o.State) {
		return // it is over; a late report does not revive it
	}
	restarts, failures := o.Counts(in.Restarts, in.Failures)
	news := in.Address != o.Address || in.Epoch != o.Epoch || in.Restarts != restarts || in.Failures != failures || !sameCode(in.ExitCode, o.ExitCode) ||
		in.Violated != o.Violated || !slices.Equal(in.Devices, o.Devices)
	in.Epoch, in.Restarts, in.Failures, in.ExitCode, in.Address = o.Epoch, restarts, failures, o.ExitCode, o.Address
	in.Violated, in.Devices, in.Moves = o.Violated, o.Devices, api.MergeMoves(in.Moves, o.Moves, c.wall)
	if o.Position != nil {
		if in.Position = o.Position; c.locate(in) {
			c.linkedMoved(in.ID.Service())
		}
	}
	switch {
	case o.State == api.Terminated && o.Reason == api.ReasonScaledLocally:
		c.withdrawnLocally(in)
		return
	case o.HandedBack && !ended:
		c.handedBack(in, cl, o)
		return
	case in.State != o.State && !lifecycle.Leads(in.State, o.State):
		return // from outside: not ours to panic about
	}
	if takes(o.State) {
		c.endSearch(in)
	}
	if takes(o.State) && !takes(in.State) {
		c.accepted(in, cl)
	}
	if in.Offered {
		in.Offered = false
		c.stopWaiting(in)
		c.endTrial(in) // it is well where it is
	}
	if o.State == api.Running || ended {
		in.forgetRefusals()
	}
	if in.State == o.State && in.Reason == o.Reason && in.Detail == o.Detail {
		if news {
			c.changed(in)
		}
		return
	}
	c.become(in, o.State, o.Reason, o.Detail)
	if in.Next != nil {
		c.endOrPromote(in)
	}
	if o.State == api.Running || ended {
		c.reconcileSoon(in.ID.Service()) // a roll-out may go on
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

func sameCode(a, b *int) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// adopt takes over an instance that a cluster's operator added while the root
// was away. One that nobody wants any more is withdrawn.
func (c *Core) adopt(cl *cluster, o api.Observed) {
	first := cl.Info.LocalNumbers()
	s := c.services[o.Instance.Service()]
	n := o.Instance.Number()
	// An operator scales what its cluster has; whoever has nothing of a service must
	// not learn its SLA by claiming so. Nor is there any number of those that leave,
	// of which a cluster may never say that they are gone.
	if s == nil || s.app == nil || s.app.Leaving || s.instances[o.Instance] != nil || n < first || n >= first+100_000 ||
		s.peers[string(cl.Info.ID)] == 0 || !cl.admits(s.id.Tenant()) || s.app.Replicas[s.id] >= MaxReplicas || len(s.instances) >= 2*MaxReplicas {
		cl.sentAt = c.now
		c.emit(cl.Info.ID.Addr(), api.Desired{Gen: cl.gen, From: cl.gen, Drop: []api.InstanceID{o.Instance}, Digest: cl.wanted})
		return
	}
	in := &instance{
		ID: o.Instance, Cluster: cl.Info.ID, Epoch: o.Epoch, State: o.State, Reason: o.Reason, Detail: o.Detail,
		Spec: *s.spec, SpecRev: s.app.SpecRevs[s.id], Addresses: s.addressesFor(n), Address: o.Address, Created: c.wall, Since: c.wall, Tries: 1,
		Placements: []api.Placement{{Epoch: o.Epoch, Cluster: cl.Info.ID, At: c.wall, Reason: api.ReasonScaledLocally}},
	}
	c.enter(in)
	c.locate(in)
	c.rehosted(in.ID.Service())
	c.linkedMoved(in.ID.Service())
	c.touch(cl)
	cl.put[in.ID] = true
	c.assigned(in, cl)
	s.app.Replicas[s.id]++
	c.changedApp(s.app)
	c.changed(in)
	c.event(c.about(in, in.State, api.ReasonScaledLocally, "added by the operator of cluster "+string(cl.Info.ID)))
}

func (c *Core) withdrawnLocally(in *instance) {
	if s := c.services[in.ID.Service()]; s != nil && s.app != nil && s.app.Replicas[s.id] > 0 {
		s.app.Replicas[s.id]--
		c.changedApp(s.app)
	}
	c.leave(in, api.ReasonScaledLocally)
}
