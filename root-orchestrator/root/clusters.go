package root

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bounds"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root/applications"
	"github.com/treeline-edge/treeline/root-orchestrator/root/placement"
)

func clusterEvent(id api.ClusterID, r api.Reason, detail string) api.Event {
	return api.Event{Kind: "cluster", Object: string(id), Cluster: id, Reason: r, Detail: detail}
}

// refuseValues counts values of a cluster's messages that are out of bounds, and writes an event.
func (c *Core) refuseValues(id api.ClusterID, v bounds.Violations) {
	if text := c.clusters.RefuseValues(id, v); text != "" {
		c.event(clusterEvent(id, api.ReasonOutOfBounds, text))
	}
}

// noteCapped writes an event about values above a cluster's caps, if there are any.
func (c *Core) noteCapped(id api.ClusterID, above string) {
	if above != "" {
		c.event(clusterEvent(id, api.ReasonCapped, step.Clip("reports more than its caps allow, so the caps are used instead: "+above)))
	}
}

// addCluster adds a cluster to the other sub-machines.
func (c *Core) addCluster(id api.ClusterID, shares []netip.Prefix) {
	c.eventLimit.AddCluster(id)
	c.net.AddCluster(id, shares)
	c.refresh(id)
}

func (c *Core) joinCluster(info api.ClusterInfo, open *bool) error {
	id := info.ID
	added, err := c.clusters.Join(info, open)
	if added {
		c.journal.Put(kindMeta, metaBlocks, c.clusters.Blocks())
		c.addCluster(id, nil)
		c.touch(id)
		c.event(clusterEvent(id, api.ReasonNone, "joined"))
	}
	return err
}

func (in SetGrant) apply(c *Core) error {
	audience, above, err := c.clusters.SetGrant(in.ID, in.Grant, in.IfMatch)
	if err != nil {
		return err
	}
	c.noteCapped(in.ID, above)
	c.clusters.Change(in.ID)
	e := clusterEvent(in.ID, api.ReasonNone, step.Clip(in.By+" set the grant: "+audience))
	e.By = in.By
	c.event(e)
	c.refresh(in.ID)
	c.evictTenants(in.ID)
	c.retry(in.ID, placement.MoreCapacity)
	return nil
}

// evictTenants withdraws from a cluster the instances of tenants that it no longer admits, and
// places them elsewhere. They stop first, because the cluster is no longer trusted to run them. An
// exclusive instance is placed only after the cluster has confirmed its end.
func (c *Core) evictTenants(at api.ClusterID) {
	var out []api.InstanceID
	for _, id := range c.byUrgency(at) {
		if c.clusters.Admits(at, id.Tenant()) {
			continue
		}
		switch in := c.apps.Get(id); {
		case in.TrialAt(at):
			c.endTrial(id)
		case in.Ended():
			continue // it does not run and is not placed again
		case in.Next != nil:
			c.promote(id, api.ClusterScheduled)
		default:
			c.placement.StopWaiting(id)
			c.apps.SetReason(id, api.ReasonNotAdmitted)
			c.withdrawFromCluster(id)
			if in.Spec.Exclusive {
				c.awaitStop(id, at)
			}
			c.become(id, api.Requested, api.ReasonNotAdmitted, fmt.Sprintf("cluster %s was closed to tenant %s", at, id.Tenant()))
		}
		out = append(out, id)
	}
	for _, id := range out {
		if in := c.apps.Get(id); in.Cluster == "" || in.HandedBack {
			c.place(id)
		}
		c.apps.ReconcileSoon(id.Service())
	}
}

// byUrgency returns the instances in a cluster's desired set, the most urgent first.
func (c *Core) byUrgency(at api.ClusterID) []api.InstanceID {
	ids := c.clusters.Assigned(at)
	c.apps.SortByUrgency(ids)
	return ids
}

func (in RemoveCluster) apply(c *Core) error {
	at := in.ID
	if err := c.clusters.Check(at); err != nil {
		return err
	}
	lost, leaving := c.byUrgency(at), c.clusters.Leaving(at)
	for _, id := range lost {
		switch in := c.apps.Get(id); {
		case in.TrialAt(at):
			c.endTrial(id)
		case in.Next != nil:
			c.promote(id, api.ClusterScheduled)
		default:
			if !in.Ended() { // keep the reason why it ended
				c.apps.SetReason(id, api.ReasonClusterLost)
			}
			c.withdrawFromCluster(id)
		}
	}
	c.clusters.Remove(at)
	c.eventLimit.RemoveCluster(at)
	c.placement.RemoveCluster(at)
	if c.addresses != nil {
		c.addresses.RemoveCluster(at)
	}
	for _, id := range c.volumes.At(at) {
		c.dropVolume(id, "lost: cluster "+string(at)+" was removed", "")
	}
	for _, id := range c.volumes.SnapshotIDs() {
		if s, _ := c.volumes.Snapshot(id); s.Cluster == at {
			c.dropSnapshot(id, "lost: cluster "+string(at)+" was removed", "")
		}
	}
	c.applyNet(c.net.RemoveCluster(c.netNow(), netView{&c.state}, at))
	c.journal.Delete(kindCluster, string(at))
	c.event(clusterEvent(at, api.ReasonNone, "removed"))
	c.publish(api.Change{Kind: "cluster", ID: string(at), Revision: c.nextRev()})
	for _, id := range leaving {
		c.confirmStopped(id, at)
	}
	for _, id := range lost {
		switch in := c.apps.Get(id); {
		case in.Ended():
			c.apps.Change(id)
			continue
		case in.Cluster == "":
			c.become(id, api.Requested, api.ReasonClusterLost, "cluster "+string(at)+" was removed")
		case !in.HandedBack:
			continue // it runs elsewhere, or did not run here yet
		}
		c.place(id)
	}
	for _, id := range lost {
		c.reconcile(id.Service()) // a roll-out may have waited for this cluster
	}
	return nil
}

// clusterSilent handles a cluster that has been silent for too long.
func (c *Core) clusterSilent(at api.ClusterID) {
	c.refresh(at)
	c.setLiveness(at)
	c.clusters.Change(at)
	c.event(clusterEvent(at, api.ReasonClusterLost, "has not reported for "+c.clusters.DeadAfter(at).Round(time.Millisecond).String()))
	for _, id := range c.byUrgency(at) {
		if !c.clusters.Has(at, id) {
			continue
		}
		in := c.apps.Get(id)
		if in.Ended() {
			continue
		}
		if in.TrialAt(at) {
			c.endTrial(id)
			c.lost.Add(c.now, id)
			continue
		}
		c.become(id, in.State, api.ReasonClusterLost, "cluster "+string(at)+" does not report")
		if in.Spec.Exclusive || in.Spec.KeepsData() {
			// It may still run there, cut off from the root. Only the cluster or its operator can
			// end it.
			continue
		}
		if in.Next != nil {
			c.promote(id, api.ClusterScheduled)
		} else {
			c.lost.Add(c.now, id)
		}
	}
}

// placeLost places an instance elsewhere whose turn has come, if its cluster is still silent. One that
// was to move before, and has lost its second placement, moves in any case.
func (c *Core) placeLost(id api.InstanceID) {
	if !c.apps.Has(id) {
		return
	}
	in := c.apps.Get(id)
	if in.Leaving || in.Ended() || in.Next != nil {
		return
	}
	if c.clusters.Has(in.Cluster, id) && in.Reason == api.ReasonClusterLost {
		c.apps.SetHandedBack(id, true)
		in.HandedBack = true
	}
	if in.Cluster == "" || in.HandedBack {
		c.place(id)
	}
}

// clusterReported records that a cluster reports.
func (c *Core) clusterReported(at api.ClusterID) {
	live, silent := c.clusters.SetLive(at)
	if live {
		return
	}
	c.placement.SetFacts(at, placement.Facts(c.clusters.Facts(at)))
	c.clusters.Change(at)
	if silent {
		detail := "reports again"
		if held := c.clusters.Distrusted(at); held > 0 {
			detail += fmt.Sprintf("; it was lost repeatedly and takes no new instances for %s", held)
		}
		c.event(clusterEvent(at, api.ReasonNone, detail))
		for _, id := range c.clusters.Assigned(at) {
			if in := c.apps.Get(id); !in.TrialAt(at) && in.Reason == api.ReasonClusterLost {
				c.apps.SetHandedBack(id, false)
				c.placement.StopWaiting(id)
				c.become(id, in.State, api.ReasonNone, "")
				c.clusters.Forget(at, id) // its last observation was overwritten; request it again
			}
		}
	}
	c.setLiveness(at)
	for _, id := range c.clusters.Assigned(at) {
		c.apps.Change(id)                  // its view is no longer stale
		c.apps.ReconcileSoon(id.Service()) // a roll-out may have waited for the cluster
	}
}

// report handles a cluster's report. A repeated report is only acknowledged.
func (c *Core) report(r *wire.Report) error {
	at := r.Cluster
	if err := c.clusters.Check(at); err != nil {
		return err
	}
	before := c.placement.Snapshot(at)
	is := c.clusters.Report(r)
	if is.Repeated {
		ack := c.clusters.Answer(r)
		ack.Runs = c.runMarks(at, r)
		c.toCluster(at, ack)
		return nil
	}
	c.noteCapped(at, is.Above)
	if is.Nodes {
		c.clusters.Change(at) // other values of the aggregate change too often to publish each change
	}
	c.placement.SetFacts(at, placement.Facts(c.clusters.Facts(at)))
	if r.Net != nil {
		c.net.SetNetworked(at) // before netReport handles its answers
	}
	c.clusterReported(at)
	c.eventLimit.Hosted(c.now, at, c.clusters.Instances(at))
	if r.Whole {
		c.clusters.ObserveWhole(r)
	}
	for i := range r.Observed {
		c.observe(at, &r.Observed[i], r.Readiness)
	}
	for _, e := range c.eventLimit.Notices(c.now, at, r.Boot, r.Notices) {
		c.event(e)
	}
	if r.Net != nil {
		c.netReport(at, r.Net)
	}
	c.refresh(at)
	known := c.clusters.KnowsAll(r)
	if known {
		for _, id := range c.clusters.Confirmed(at, r.Gen) {
			c.confirmStopped(id, at)
		}
	}
	if c.clusters.Behind(r) {
		c.catchUp(at, r.Gen, r.Desired)
	}
	ack := c.clusters.Answer(r)
	ack.RequestWhole, ack.Runs = !known, c.runMarks(at, r)
	c.toCluster(at, ack)
	if how := c.placement.Grown(at, before, is.Replaced); how != placement.NoGrowth {
		c.retry(at, how)
		c.placement.AreasChanged()
	}
	return nil
}

// runMarks returns the scheduled instances of a report whose cluster had decided more before.
func (c *Core) runMarks(at api.ClusterID, r *wire.Report) (out []wire.RunMark) {
	for i := range r.Observed {
		o := &r.Observed[i]
		if in, ok := c.apps.Instance(o.Instance); ok && in.Cluster == at && in.Spec.Schedule != nil && o.Decided.Before(in.Decided) {
			out = append(out, wire.RunMark{Instance: o.Instance, Decided: in.Decided})
		}
	}
	return out
}

// maxRevision is the limit up to which a cluster can raise the root's revision, so that no cluster
// can use up the numbers.
const maxRevision = 1 << 42

// observe handles a cluster's observation of an instance. It ignores observations of placements
// other than the newest one in the cluster. readiness is Report.Readiness.
func (c *Core) observe(at api.ClusterID, o *api.Observed, readiness bool) {
	id := o.Instance
	c.clusters.Observe(at, o) // before any change: it computes the digest
	if !readiness {
		o.Ready = o.State == api.Running
	}
	o.Detail = step.Clip(o.Detail)
	if !c.clusters.Has(at, id) {
		switch {
		case o.Local && !o.Stopped && o.State != api.Terminated:
			c.adopt(at, o)
		case o.Ended:
			c.apps.EndLeaving(id, at)
		}
		return
	}
	in := c.apps.Get(id)
	if newest := o.Epoch.Root(); newest > in.EpochAt(at).Root() && (newest > c.Revision() || c.restored != nil) && newest < maxRevision {
		// The cluster has a placement that this root has no record of: the store was restored from
		// an older copy. Continue above that revision and accept the placement.
		c.counter.Raise(uint64(newest), &c.journal, kindMeta, metaCounter)
		c.touch(at)
		c.apps.SetEpoch(id, at, api.EpochOf(newest, 0))
		in = c.apps.Get(id)
		c.clusters.Put(at, id, in.Digest(at))
	}
	switch have := in.EpochAt(at); {
	case o.Epoch.Root() != have.Root() || o.Epoch < have: // of an earlier placement
	case in.TrialAt(at):
		c.observeTrial(at, o)
	default:
		c.observePlacement(at, o)
	}
}

// scaleFault tells people that what a service scales by is not known, or is known again.
func (c *Core) scaleFault(in *applications.Instance) {
	e := api.Event{
		Tenant: in.ID.Tenant(), Kind: "service", Object: in.ID.Service().Name(), Cluster: in.Cluster, Reason: api.ReasonNoMetrics,
		Detail: "it keeps its number of instances: " + in.ScaleFault,
	}
	if in.ScaleFault == "" {
		e.Reason, e.Detail = api.ReasonNone, "all that it scales by is known again"
	}
	c.event(e)
}

// observePlacement handles an observation of an instance's placement by its cluster.
func (c *Core) observePlacement(at api.ClusterID, o *api.Observed) {
	id := o.Instance
	ended := api.Ended(o.State, o.Reason)
	fault := c.apps.Get(id).ScaleFault
	changed, ok := c.apps.Observe(id, o)
	if !ok {
		return
	}
	in := c.apps.Get(id)
	if in.ScaleFault != fault {
		c.scaleFault(&in)
	}
	// A workload that has run has written to its volumes. The node's list of volumes follows later and may be
	// lost with the instance, when the application is deleted.
	if started := o.State == api.Running || o.State == api.Completed; (o.Volumes || started) && in.Cluster == at && in.Spec.KeepsData() {
		c.noteVolumes(id, at)
	}
	if o.Position != nil && c.placement.Locate(facts(&in)) {
		c.placement.PlacesChanged(id.Service())
	}
	switch {
	case o.State == api.Terminated && o.Reason == api.ReasonScaledLocally:
		c.apps.AddReplicas(id.Service(), -1)
		c.leave(id, api.ReasonScaledLocally)
		return
	case o.HandedBack && !ended:
		c.handedBack(id, at, o)
		return
	case in.State != o.State && !lifecycle.Leads(in.State, o.State):
		return // the lifecycle does not allow the transition
	case o.State == api.Dormant && in.Spec.Dormant(id.Number()) == api.ReasonNone:
		return // its SLA does not allow it
	}
	if hasPlace(o.State) {
		c.placement.EndSearch(id)
		switch {
		case o.State == api.Dormant: // whether there is room for it shows when it wakes
			c.placement.Sleeps(facts(&in), at)
		case !hasPlace(in.State), in.State == api.Dormant:
			c.placement.Accepted(facts(&in), at)
		}
	}
	if in.HandedBack {
		c.apps.SetHandedBack(id, false)
		c.placement.StopWaiting(id)
		c.endTrial(id) // it can stay where it is
	}
	if o.State == api.Running || o.State == api.Dormant || ended {
		c.placement.ForgetRefusals(id)
	}
	if in.State == o.State && in.Reason == o.Reason && in.Detail == o.Detail {
		if changed {
			c.apps.Change(id)
			c.paceSoon(id)
		}
		return
	}
	c.become(id, o.State, o.Reason, o.Detail)
	if in = c.apps.Get(id); in.Next != nil && in.State != api.Running {
		if in.Ended() {
			c.endTrial(id)
		} else {
			c.promote(id, api.ClusterScheduled)
		}
	}
	if o.State == api.Running || o.State == api.Dormant || ended {
		c.apps.ReconcileSoon(id.Service()) // a roll-out may continue
	}
}

// observeTrial handles an observation of an instance's second placement by that cluster.
func (c *Core) observeTrial(at api.ClusterID, o *api.Observed) {
	id := o.Instance
	in := c.apps.Get(id)
	switch {
	case o.HandedBack, o.State == api.Terminated:
		c.placement.Refused(facts(&in), at, *o)
		c.endTrial(id)
		c.place(id)
	case o.State == api.Running, o.State == api.Dormant, api.Ended(o.State, o.Reason):
		c.apps.SetEpoch(id, at, o.Epoch)
		if o.State == api.Dormant {
			c.placement.Sleeps(facts(&in), at)
		} else {
			c.placement.Accepted(facts(&in), at)
		}
		c.promote(id, api.Running)
		c.observePlacement(at, o)
	case in.Next.Epoch != o.Epoch:
		c.apps.SetEpoch(id, at, o.Epoch)
	}
}

// adopt adds an instance that a cluster's operator started, or has the cluster drop it if it is not
// allowed. The cluster must already have instances of the service: otherwise it could get the
// service's SLA by claiming one.
func (c *Core) adopt(at api.ClusterID, o *api.Observed) {
	id := o.Instance
	if !c.apps.MayAdopt(id, c.clusters.Info(at).LocalNumbers()) ||
		c.placement.Peers(id.Service())[string(at)] == 0 || !c.clusters.Admits(at, id.Tenant()) {
		c.toCluster(at, c.clusters.Discard(at, id))
		return
	}
	c.apps.Adopt(at, o)
	in := c.apps.Get(id)
	c.eventLimit.AddInstance(id)
	c.placement.Add(id)
	c.placement.Locate(facts(&in))
	c.net.SetRehosted(id.Service())
	c.placement.PlacesChanged(id.Service())
	c.placement.Count(id, at, 1)
	c.touch(at)
	c.pin(id)
	in = c.apps.Get(id)
	c.clusters.Put(at, id, in.Digest(at))
	c.eventLimit.Assigned(c.now, at, id.Tenant(), 1)
	c.event(in.Event(api.ReasonScaledLocally, "added by the operator of cluster "+string(at)))
}

// sendDesired adds the assignments of some instances to a message about a desired set and sends it.
func (c *Core) sendDesired(at api.ClusterID, msg wire.Desired, put []api.InstanceID) {
	if c.restored != nil {
		return // it would stop what was made since the snapshot
	}
	for _, id := range put {
		in := c.apps.Get(id)
		msg.Put = append(msg.Put, c.assignment(&in, at))
	}
	c.toCluster(at, msg)
}

// catchUp sends a cluster the changes of its desired set after a generation.
func (c *Core) catchUp(at api.ClusterID, since api.Generation, has api.Digest) {
	if c.clusters.Ahead(at, since) {
		c.touch(at)
		c.clusters.SendWhole(at)
	} else if msg, put, ok := c.clusters.CatchUp(at, since, has); ok {
		c.sendDesired(at, msg, put)
	}
}
