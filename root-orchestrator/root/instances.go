package root

import (
	"iter"
	"strconv"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root/applications"
	"github.com/treeline-edge/treeline/root-orchestrator/root/placement"
)

// instances passes changes of instances between applications, clusters, placement and the network.
type instances struct{ network }

// facts returns the values of an instance that placement decides by.
func facts(in *applications.Instance) placement.Instance {
	f := placement.Instance{
		ID: in.ID, Spec: in.Spec, SpecRev: in.SpecRev, State: in.State, Reason: in.Reason,
		Cluster: in.Cluster, Epoch: in.Epoch, Tries: in.Tries, Fails: in.Fails,
		Leaving: in.Leaving, HandedBack: in.HandedBack, Searched: in.Searched, Vacating: in.Vacating, Stopping: in.Stopping,
		Moves: in.Moves, Position: in.Position, VolumeAt: in.VolumeAt, VolumesMB: in.VolumesMB,
	}
	if in.Next != nil {
		f.Trial = in.Next.Cluster
	}
	return f
}

func allFacts(all iter.Seq[applications.Instance]) iter.Seq[placement.Instance] {
	return func(yield func(placement.Instance) bool) {
		for in := range all {
			if !yield(facts(&in)) {
				return
			}
		}
	}
}

func (c *instances) facts(id api.InstanceID) placement.Instance {
	in := c.apps.Get(id)
	return facts(&in)
}

// become sets an instance's state and writes an event if state or reason changed.
func (c *instances) become(id api.InstanceID, s api.State, r api.Reason, detail string) {
	if e, tell := c.apps.Become(id, s, r, detail); tell {
		c.event(e)
		c.paceSoon(id)
	}
}

// paceSoon continues the roll-out of an instance's service in the next step, after a change of the
// instance.
func (c *instances) paceSoon(id api.InstanceID) {
	c.rollouts.Soon(id.Service(), c.apps.Count(id.Service()))
}

// place offers an instance to the best cluster, or queues it.
func (c *instances) place(id api.InstanceID) {
	if c.apps.Has(id) {
		c.carryOut(id, c.placement.Decide(c.facts(id)))
	}
}

func (c *instances) carryOut(id api.InstanceID, d placement.Decision) {
	if d.Await != "" {
		c.apps.AwaitStop(id, d.Await)
	}
	in := c.apps.Get(id)
	switch {
	case d.Ask != nil:
		d.Ask.Key = strconv.FormatUint(c.next(), 10)
		c.placement.Asked(id, d.Ask)
		c.emit(wire.ToScheduler, *d.Ask)
	case d.Cluster == "":
		if d.Why != "" && (in.Reason != api.ReasonNoCluster || in.Detail != d.Why) {
			c.become(id, in.State, api.ReasonNoCluster, d.Why)
		}
	case c.placement.KeepsRunning(facts(&in)):
		c.apps.CountMove(id)
		c.startTrial(id, d)
	default:
		c.apps.CountMove(id)
		if c.clusters.Known(in.Cluster) {
			c.withdrawFromCluster(id)
		}
		c.assign(id, d)
	}
}

// answered carries out the decision after a question to the external scheduler. fault says why the
// answer is not used, "" if it is used.
func (c *instances) answered(id api.InstanceID, d placement.Decision, fault string) {
	if fault != "" {
		in := c.apps.Get(id)
		c.event(in.Event(api.ReasonNoScheduler, step.Clip("scheduler "+c.cfg.Asks+": "+fault)+"; "+c.cfg.Plugin.Name()+" decides"))
	}
	c.carryOut(id, d)
}

// assign places an instance on a cluster under a new epoch and reserves its resources there.
func (c *instances) assign(id api.InstanceID, d placement.Decision) {
	f := c.facts(id)
	f.State = api.Requested
	c.apps.Assign(id, d.Cluster, api.EpochOf(c.nextRev(), 0), d.Score, c.placement.Late(f), d.Preempts)
	c.placement.Locate(c.facts(id))
	c.placement.StopWaiting(id)
	c.pin(id)
	c.addToCluster(id, d.Cluster)
	detail := "offered to cluster " + string(d.Cluster)
	if d.Preempts {
		detail += ", which preempts less urgent instances for it"
	}
	c.become(id, lifecycle.Must(api.Requested, lifecycle.ClusterChosen), api.ReasonNone, detail)
}

// startTrial gives a running instance a second placement, which replaces the first once it runs.
func (c *instances) startTrial(id api.InstanceID, d placement.Decision) {
	c.apps.StartTrial(id, d.Cluster, api.EpochOf(c.nextRev(), 0), d.Score)
	c.placement.StopWaiting(id)
	c.addToCluster(id, d.Cluster)
	in := c.apps.Get(id)
	e := in.Event(in.Reason, "starts on cluster "+string(d.Cluster)+" too, and stops on the present cluster once it runs there")
	e.Cluster, e.Epoch = d.Cluster, in.Next.Epoch
	c.event(e)
}

// endTrial withdraws an instance's second placement, if it has one.
func (c *instances) endTrial(id api.InstanceID) {
	if in := c.apps.Get(id); in.Next != nil {
		c.withdraw(id, in.Next.Cluster)
		c.apps.EndTrial(id)
	}
}

// promote makes the second placement the only one, and withdraws the first.
func (c *instances) promote(id api.InstanceID, s api.State) {
	in := c.apps.Get(id)
	c.withdrawFromCluster(id)
	c.apps.Promote(id, *in.Next)
	c.placement.Locate(c.facts(id))
	c.net.SetRehosted(id.Service())
	c.placement.PlacesChanged(id.Service())
	c.become(id, s, api.ReasonNone, "moved from cluster "+string(in.Cluster))
}

func (c *instances) addToCluster(id api.InstanceID, at api.ClusterID) {
	in := c.apps.Get(id)
	c.touch(at)
	if in.Spec.Exclusive { // the cluster ends an earlier placement before it starts this one
		c.stopped(id, at)
	}
	c.clusters.Put(at, id, in.Digest(at))
	c.eventLimit.Assigned(c.now, at, id.Tenant(), 1)
	if in.Spec.Dormant(id.Number()) == api.ReasonNone {
		c.clusters.Reserve(at, id, in.Spec)
	}
	c.net.SetRehosted(id.Service())
	c.placement.Enlisted(facts(&in), at)
	c.refresh(at)
}

func (c *instances) withdraw(id api.InstanceID, at api.ClusterID) {
	c.touch(at)
	c.net.SetRehosted(id.Service())
	freed := c.clusters.Drop(at, id)
	c.eventLimit.Assigned(c.now, at, id.Tenant(), -1)
	c.placement.Withdrawn(c.facts(id), at, freed)
	c.refresh(at)
}

func (c *instances) withdrawFromCluster(id api.InstanceID) {
	in := c.apps.Get(id)
	c.withdraw(id, in.Cluster)
	c.apps.SetWithdrawn(id)
	c.placement.Locate(c.facts(id))
}

// handedBack handles a report that a cluster cannot place the instance or wants it elsewhere. An
// exclusive instance is withdrawn at once: the cluster guarantees that nothing of it runs. Any
// other instance stays until another cluster takes it.
func (c *instances) handedBack(id api.InstanceID, at api.ClusterID, o *api.Observed) {
	in := c.apps.Get(id)
	c.placement.Refused(facts(&in), at, *o)
	if o.Reason == api.ReasonTooManyFails && !in.HandedBack {
		c.apps.AddFail(id)
	}
	state := o.State
	switch {
	case in.Spec.Exclusive:
		c.stopped(id, at)
		c.withdrawFromCluster(id)
		state = api.Requested
	default:
		c.apps.SetHandedBack(id, true)
		if state == api.ClusterScheduled {
			state = api.Requested
		}
	}
	c.become(id, state, o.Reason, o.Detail)
	if in.Next != nil && state != api.Running {
		c.promote(id, api.ClusterScheduled)
		return
	}
	c.place(id)
}

// awaitStop prevents the placement of an exclusive instance until the cluster that it was withdrawn
// from has confirmed that nothing of it is left.
func (c *instances) awaitStop(id api.InstanceID, at api.ClusterID) {
	c.apps.AwaitStop(id, at)
	c.net.SetRehosted(id.Service())
	c.clusters.Leave(at, id)
}

// stopped records that no earlier exclusive placement in the cluster can still run beside a later
// one.
func (c *instances) stopped(id api.InstanceID, at api.ClusterID) {
	c.clusters.Left(at, id)
	c.apps.Stopped(id, at)
}

// confirmStopped records that the cluster has nothing left of a withdrawn instance, or was removed.
// The instance is placed if it waited for that. It is removed if it is leaving and no other cluster
// has to confirm.
func (c *instances) confirmStopped(id api.InstanceID, at api.ClusterID) {
	c.clusters.Left(at, id)
	if !c.apps.Has(id) {
		return
	}
	c.stopped(id, at)
	waited := c.apps.Vacated(id, at)
	if waited {
		c.net.SetRehosted(id.Service())
	}
	switch in := c.apps.Get(id); {
	case in.Leaving && in.Cluster != at:
	case in.Leaving && len(in.Stopping) > 0:
		next := in.Stopping[0]
		c.apps.LeaveAt(id, next, in.Reason, "an exclusive placement in cluster "+string(next)+" has not been confirmed to have ended")
		c.net.SetRehosted(id.Service())
	case in.Leaving:
		c.remove(id)
		c.apps.ReconcileSoon(id.Service())
	case waited:
		c.place(id)
	}
}

// leave withdraws an instance. It is removed when its cluster, and each cluster with an unconfirmed
// exclusive placement, has confirmed that nothing of it is left.
func (c *instances) leave(id api.InstanceID, r api.Reason) {
	if !c.apps.Leave(id) {
		return
	}
	c.paceSoon(id)
	c.placement.Locate(c.facts(id))
	c.placement.StopWaiting(id)
	c.endTrial(id)
	in := c.apps.Get(id)
	switch {
	case c.clusters.Known(in.Cluster):
		c.withdraw(id, in.Cluster)
		c.clusters.Leave(in.Cluster, id)
	case len(in.Stopping) > 0:
		in.Cluster = in.Stopping[0] // it was withdrawn there before
	default:
		c.remove(id)
		return
	}
	c.event(in.Event(r, "is being stopped"))
	c.apps.LeaveAt(id, in.Cluster, r, "")
}

func (c *instances) remove(id api.InstanceID) {
	in := c.apps.Get(id)
	c.placement.Remove(id)
	c.values.Pin(id, nil)
	c.net.SetRehosted(id.Service())
	c.apps.Remove(id)
	c.eventLimit.RemoveInstance(id)
	c.journal.Delete(kindInstance, string(id))
	in.State = api.Terminated
	c.event(in.Event(in.Reason, ""))
	c.publish(api.Change{Kind: "instance", ID: string(id), Tenant: id.Tenant(), Revision: c.nextRev()})
	if app, _ := c.apps.Service(id.Service()); app != nil {
		c.finishApp(app.ID)
	} else {
		c.apps.Collect(id.Service())
	}
}

// retry offers the waiting instances to a cluster that may take more than before, the most urgent
// first.
func (c *instances) retry(at api.ClusterID, how placement.Growth) {
	round, waiting := c.placement.Retry(at, how)
	for _, id := range waiting {
		if !c.apps.Has(id) {
			c.placement.StopWaiting(id)
		} else if d, ok := c.placement.Offer(round, c.facts(id)); ok {
			c.carryOut(id, d)
		}
	}
}

// probe offers a service's waiting instances to a cluster again after its refusal has expired.
func (c *instances) probe(id api.ServiceID, at api.ClusterID) {
	if !c.placement.ProbeDue(id, at) {
		return
	}
	for {
		next, ok := c.placement.NextProbe(id, at, allFacts(c.apps.EachOf(id)))
		if !ok {
			return
		}
		c.place(next.ID)
		if c.placement.Probed(c.facts(next.ID), at) {
			return
		}
	}
}

// resendTargets sends assignments again to clusters whose targets of links have changed, and
// retries waiting instances that these links affect.
func (c *instances) resendTargets() {
	for _, id := range c.placement.Outdated() {
		changed, ok := c.placement.Resend(id)
		if !ok {
			continue
		}
		tried := map[api.Revision]bool{}
		for _, i := range c.apps.InstancesOf(id) {
			in := c.apps.Get(i)
			for _, at := range in.Clusters() {
				if changed[at] {
					c.repeat(i, at)
				}
			}
			if c.placement.Waits(i) && in.Cluster == "" && !tried[in.SpecRev] {
				c.place(i)
				tried[in.SpecRev] = c.placement.StillWaits(i)
			}
		}
	}
}

// permitDisruptions has clusters carry out the voluntary disruptions that the budgets of their services permit
// now, and tells them of changed budgets.
func (c *instances) permitDisruptions() {
	for _, id := range c.apps.TakeBudgets() {
		rebudgeted := c.apps.TakeRebudgeted(id)
		if !c.apps.Known(id) {
			continue
		}
		for _, i := range c.apps.Disruptable(id, c.clusters.Live) {
			c.apps.Permit(i)
			c.repeat(i, c.apps.Get(i).Cluster)
		}
		if !rebudgeted {
			continue
		}
		for _, i := range c.apps.InstancesOf(id) {
			in := c.apps.Get(i)
			for _, at := range in.Clusters() {
				c.repeat(i, at)
			}
		}
	}
}

// repeat sends the assignment of an instance again, if the cluster has it.
func (c *instances) repeat(id api.InstanceID, at api.ClusterID) {
	if c.clusters.Has(at, id) {
		c.touch(at)
		c.clusters.Repeat(at, id)
	}
}

// touch begins a new generation of the cluster's desired set, at most once in a step.
func (c *instances) touch(at api.ClusterID) {
	c.clusters.Touch(at, func() api.Generation { return api.Generation(c.next()) })
}

// refresh passes a cluster's facts and candidate to placement.
func (c *instances) refresh(id api.ClusterID) {
	c.placement.SetFacts(id, placement.Facts(c.clusters.Facts(id)))
	c.placement.SetCandidate(c.clusters.Candidate(id))
}

// finishApp removes an application that is being deleted and has no instance left.
func (c *instances) finishApp(id api.AppID) {
	a := c.apps.Finish(id)
	if a == nil {
		return
	}
	had := step.Keys(a.Replicas)
	for _, s := range had {
		c.placement.RemoveService(s)
		c.values.Use(s, nil)
		c.endRollOuts(s)
	}
	c.commitAddresses(a, nil)
	c.namesChanged(had, nil)
	c.journal.Delete(kindApp, string(id))
	c.event(api.Event{Tenant: a.Tenant, Kind: "app", Object: id.Name(), Detail: "deleted"})
	c.publish(api.Change{Kind: "app", ID: string(id), Tenant: a.Tenant, Revision: c.nextRev()})
}
