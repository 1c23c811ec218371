package root

import (
	"fmt"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/root-orchestrator/root/addons"
	"github.com/treeline-edge/treeline/root-orchestrator/root/applications"
	"github.com/treeline-edge/treeline/root-orchestrator/root/placement"
)

func (in Apply) apply(c *Core) error {
	id := in.Tenant.App(in.Spec.Name, in.Spec.Namespace)
	if err := addons.Belongs("application", string(id), c.addons.OwnerOfApp(id)); err != nil {
		return err
	}
	return c.applySpec(applications.Request(in))
}

func (c *Core) applySpec(r applications.Request) error {
	commit, err := c.prepare(&r)
	if err != nil {
		return err
	}
	commit()
	return nil
}

// prepare checks a request and reserves its addresses. commit, which has to follow at once, cannot fail.
func (c *Core) prepare(r *applications.Request) (commit func(), err error) {
	if err := c.checkSpec(r); err != nil {
		return nil, err
	}
	c.sweepAddresses()
	plans, err := c.planAddresses(c.wall, r.Tenant.App(r.Spec.Name, r.Spec.Namespace), r.Spec)
	if err != nil {
		return nil, err
	}
	return func() { c.commit(r, plans) }, nil
}

// checkSpec returns an error if an application cannot have an SLA, whatever its addresses.
func (c *Core) checkSpec(r *applications.Request) error {
	if err := c.apps.CheckApply(r); err != nil {
		return err
	}
	if err := c.checkFiles(r.Tenant, &r.Spec); err != nil {
		return err
	}
	return c.checkVolumes(r.Tenant, r.Spec)
}

// commit applies a request that was checked. Without plans, addresses stay as they are.
func (c *Core) commit(r *applications.Request, plans addressPlans) {
	id := r.Tenant.App(r.Spec.Name, r.Spec.Namespace)
	var before []api.ServiceID
	created := c.apps.App(id) == nil
	if created {
		c.apps.Create(id, r.Tenant)
		c.event(api.Event{Tenant: r.Tenant, Kind: "app", Object: id.Name(), Detail: "created by " + r.By, By: r.By})
	} else {
		before = c.apps.Indexed(id)
	}
	if c.rewrite(id, r) && !created {
		c.event(api.Event{Tenant: r.Tenant, Kind: "app", Object: id.Name(), Detail: "changed by " + r.By, By: r.By})
	}
	if plans != nil {
		c.commitAddresses(c.apps.App(id), plans)
	}
	c.namesChanged(before, c.apps.Indexed(id))
	for _, s := range c.apps.ByUrgency(id) {
		c.reconcile(s)
	}
}

// rewrite replaces an application's SLA and withdraws the services that it no longer has. It reports whether
// the new SLA differs.
func (c *Core) rewrite(id api.AppID, r *applications.Request) bool {
	gone, differs := c.apps.Apply(r, c.nextRev)
	c.setApp(id, gone)
	for _, s := range gone {
		c.endRollOuts(s)
		c.reconcile(s)
	}
	return differs
}

// setApp passes the services of an application to placement.
func (c *Core) setApp(id api.AppID, gone []api.ServiceID) {
	a := c.apps.App(id)
	var services []placement.Service
	for _, s := range c.apps.Indexed(id) {
		_, spec := c.apps.Service(s)
		services = append(services, placement.Service{ID: s, Spec: spec, Rev: a.SpecRevs[s]})
		c.values.Use(s, spec)
	}
	for _, s := range gone {
		c.values.Use(s, nil)
	}
	c.placement.SetApp(services, gone)
}

func (in Scale) apply(c *Core) error {
	if err := c.checkScale(in.Service, in.Replicas); err != nil {
		return err
	}
	was, err := c.apps.Scale(in.Service, in.Replicas, in.IfMatch)
	if err != nil {
		return err
	}
	if was != in.Replicas {
		c.event(api.Event{
			Tenant: in.Service.Tenant(), Kind: "service", Object: in.Service.Name(),
			Detail: fmt.Sprintf("scaled from %d to %d by %s", was, in.Replicas, in.By), By: in.By,
		})
	}
	c.reconcile(in.Service)
	return nil
}

func (in DeleteApp) apply(c *Core) error {
	if err := addons.Belongs("application", string(in.App), c.addons.OwnerOfApp(in.App)); err != nil {
		return err
	}
	return c.deleteApp(in)
}

func (c *Core) deleteApp(in DeleteApp) error {
	first, err := c.apps.Delete(in.App, in.IfMatch)
	if err != nil {
		return err
	}
	if first {
		c.event(api.Event{Tenant: in.App.Tenant(), Kind: "app", Object: in.App.Name(), Detail: "deletion asked for by " + in.By, By: in.By})
	}
	for _, s := range c.apps.Written(in.App) {
		c.reconcile(s)
	}
	c.finishApp(in.App)
	return nil
}

// reconcile brings a service to its number of instances and takes the next step of its roll-out.
func (c *Core) reconcile(id api.ServiceID) {
	if !c.apps.Known(id) {
		return
	}
	d := c.decide(id)
	c.apps.SetExtra(id, d.Extra)
	surplus, reason := c.apps.Surplus(id)
	for _, in := range surplus {
		c.leave(in, reason)
	}
	for _, in := range c.apps.Missing(id) {
		c.apps.Add(in)
		c.findVolumes(in)
		c.eventLimit.AddInstance(in)
		c.placement.Add(in)
		c.become(in, api.Requested, api.ReasonNone, "")
		c.place(in)
	}
	if len(surplus) == 0 { // otherwise the decision counts instances that are leaving now; the next one does not
		for _, i := range d.Replace {
			c.update(i)
		}
	}
	c.setExpiry(id)
	c.apps.Collect(id)
}

// setExpiry sets the timer for the end of a service's time to live.
func (c *Core) setExpiry(id api.ServiceID) {
	if at := c.apps.Expires(id); at.IsZero() {
		c.expiry.Clear(id)
	} else {
		c.expiry.Set(id, c.now.Add(max(0, at.Sub(c.wall))))
	}
}

// expired removes the instances of a service whose time to live is over, and the application if
// nothing else is left of it.
func (c *Core) expired(id api.ServiceID) {
	if at := c.apps.Expires(id); at.IsZero() || at.After(c.wall) {
		c.setExpiry(id)
		return
	}
	if _, err := c.apps.Scale(id, 0, 0); err != nil {
		return // its application is being deleted
	}
	c.event(api.Event{
		Tenant: id.Tenant(), Kind: "service", Object: id.Name(), Reason: api.ReasonExpired,
		Detail: "its instances have ended and are removed, because their time to live is over",
	})
	app, _ := c.apps.Service(id)
	if c.apps.Expired(app.ID) {
		_, _ = c.apps.Delete(app.ID, 0) // it exists
	}
	c.reconcile(id)
	c.finishApp(app.ID)
}

// held reports whether the instance cannot be updated: it is exclusive or has local volumes, and its
// cluster is silent, so that it may still run there. The roll-out continues when the cluster reports
// again.
func (c *Core) held(in *applications.Instance) bool {
	return c.clusters.Known(in.Cluster) && !c.clusters.Live(in.Cluster) && (in.Spec.Exclusive || in.Spec.KeepsData())
}

// update gives the instance the newest SLA under a new placement, on its cluster if possible.
func (c *Core) update(id api.InstanceID) {
	in := c.apps.Get(id)
	_, spec := c.apps.Service(id.Service())
	at, placed := in.Cluster, c.clusters.Known(in.Cluster)
	if c.held(&in) {
		return
	}
	c.endTrial(id)
	c.placement.StopWaiting(id) // an open question to the external scheduler is about the old SLA
	if placed {
		c.withdrawFromCluster(id)
		if in.Spec.Exclusive || spec.Exclusive {
			// Even if only one of the SLAs is exclusive, the earlier placement must not overlap the
			// new one.
			c.awaitStop(id, at)
		}
	}
	c.apps.Update(id)
	c.findVolumes(id)
	c.placement.Updated(c.facts(id), hasPlace(in.State))
	c.become(id, api.Requested, api.ReasonUpdated, "gets a new SLA")
	now := c.apps.Get(id)
	if placed && c.clusters.Out(at) == "" && c.placement.Admits(facts(&now), at) && (!now.Spec.Exclusive || !now.StopsElsewhere(at)) {
		c.assign(id, placement.Decision{Cluster: at})
	} else {
		c.place(id)
	}
}

// hasPlace reports whether an instance in state s has a node in its cluster, or needs none.
func hasPlace(s api.State) bool {
	switch s {
	case api.NodeScheduled, api.Created, api.Running, api.Failed, api.Completed, api.Dormant:
		return true
	}
	return false
}
