package root

import (
	"fmt"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/root-orchestrator/root/applications"
	"github.com/treeline-edge/treeline/root-orchestrator/root/rollouts"
)

// service returns the facts about a service that its roll-out depends on.
func (s *state) service(id api.ServiceID) rollouts.Service {
	app, spec := s.apps.Service(id)
	n := app.Replicas[id]
	out := rollouts.Service{ID: id, Version: app.SpecRevs[id], Replicas: n, Policy: spec.UpdatePolicy(n), Spec: spec, By: app.By}
	for in := range s.apps.EachOf(id) {
		if in.Leaving {
			continue
		}
		known := s.clusters.Known(in.Cluster)
		live := known && s.clusters.Live(in.Cluster)
		out.Instances = append(out.Instances, rollouts.Instance{
			ID: in.ID, Version: in.SpecRev, Epoch: in.Epoch, Running: in.State == api.Running,
			Ready:   in.TakesRequests() && live,
			Unknown: in.State == api.Running && in.Reason == api.ReasonRuntimeDown,
			Placed:  known && in.State != api.Registered && in.State != api.Requested,
			Dormant: in.State == api.Dormant,
			Open:    in.Undecided(),
			Held:    known && !live && (in.Spec.Exclusive || in.Spec.KeepsData() || in.Reason != api.ReasonClusterLost),
			InPlace: in.SpecRev != out.Version && in.FitsInPlace(spec),
			Broken:  imageBroken(in.Reason), Doing: doing(&in),
		})
	}
	slices.SortFunc(out.Instances, func(a, b rollouts.Instance) int { return a.ID.Number() - b.ID.Number() })
	return out
}

// imageBroken reports whether a reason says that a version cannot run because of its image. Then a
// roll-out fails before its deadline.
func imageBroken(r api.Reason) bool {
	return r == api.ReasonImageNotFound || r == api.ReasonImageDenied || r == api.ReasonImageBad
}

func doing(in *applications.Instance) string {
	v := in.View()
	if in.State == api.Running && !in.Ready && in.Reason == api.ReasonNone {
		return "runs and takes no requests yet"
	}
	return "is " + v.Standing()
}

// decide returns the next step of a service's roll-out and publishes it. A dry run takes no steps:
// a plan shows the final state.
func (c *Core) decide(id api.ServiceID) (d rollouts.Decision) {
	app, _ := c.apps.Service(id)
	if app == nil || app.Leaving || c.dry {
		return d
	}
	d = c.rollouts.Decide(c.service(id))
	for _, e := range d.Events {
		c.event(api.Event{Tenant: id.Tenant(), Kind: "service", Object: id.Name(), Reason: e.Reason, Detail: e.Detail})
	}
	if d.RollBack != nil {
		c.failed = append(c.failed, id)
	}
	return d
}

// rollBack applies the last healthy versions of services whose roll-outs failed in this step.
func (c *Core) rollBack() {
	for len(c.failed) > 0 {
		id := c.failed[0]
		c.failed = c.failed[1:]
		v := c.rollouts.Unrestored(id)
		app, _ := c.apps.Service(id)
		if v == nil || app == nil || app.Leaving {
			continue
		}
		failed := app.SpecRevs[id]
		err := c.restoreVersion(id, v.Spec, "automatic rollback")
		if err == nil && app.SpecRevs[id] == failed {
			err = fmt.Errorf("it has the same SLA: %w", api.ErrConflict)
		}
		if err != nil {
			c.rollouts.CannotRollBack(id, err)
			c.event(api.Event{Tenant: id.Tenant(), Kind: "service", Object: id.Name(), Detail: "the last healthy version cannot return: " + err.Error()})
		}
	}
}

// restoreVersion applies an earlier version of a service with its present number of replicas and labels.
func (c *Core) restoreVersion(id api.ServiceID, spec *api.Microservice, by string) error {
	app, _ := c.apps.Service(id)
	doc := app.Written()
	for i := range doc.Services {
		m := &doc.Services[i]
		if app.ID.Service(m.Name, m.Namespace) == id {
			replicas, labels := m.Replicas, m.Labels
			*m = *spec
			m.Replicas, m.Labels = replicas, labels
		}
	}
	return c.applySpec(applications.Request{Tenant: app.Tenant, Spec: doc, By: by})
}

// startRollOuts repairs roll-outs that a crash interrupted between two saves.
func (c *Core) startRollOuts() {
	for _, id := range c.rollouts.Services() {
		if app, _ := c.apps.Service(id); app == nil {
			c.endRollOuts(id)
		} else if c.rollouts.Unrestored(id) != nil {
			c.failed = append(c.failed, id)
		}
	}
}

// endRollOuts deletes the roll-outs of a service that is deleted.
func (c *effects) endRollOuts(id api.ServiceID) {
	if !c.dry && c.rollouts.Remove(id) {
		c.journal.Delete(kindRollOut, string(id))
	}
}

// flushRollOuts saves the roll-outs that the step changed and publishes their services.
func (c *Core) flushRollOuts() {
	for _, id := range c.rollouts.TakeChanged() {
		c.journal.Put(kindRollOut, string(id), c.rollouts.Record(id))
		if v, ok := c.Service(id); ok {
			c.publish(api.Change{Kind: "service", ID: string(id), Tenant: id.Tenant(), Revision: c.nextRev(), Object: v})
		}
	}
}

func (in RollOut) apply(c *Core) error {
	var err error
	detail := ""
	switch in.Action {
	case PauseRollOut:
		err, detail = c.rollouts.Pause(in.Service, in.By), "roll-out paused by "+in.By
	case ResumeRollOut:
		err, detail = c.rollouts.Resume(in.Service), "roll-out resumed by "+in.By
	case PromoteRollOut:
		err, detail = c.rollouts.Promote(in.Service), "canaries promoted by "+in.By
	case UndoRollOut:
		var v rollouts.Version
		if v, err = c.rollouts.Earlier(in.Service, in.To); err == nil {
			return c.restoreVersion(in.Service, v.Spec, in.By)
		}
	}
	if err != nil {
		return err
	}
	c.event(api.Event{Tenant: in.Service.Tenant(), Kind: "service", Object: in.Service.Name(), Detail: detail, By: in.By})
	c.reconcile(in.Service)
	return nil
}

// RollOut returns the newest roll-out of a service, and whether there is one.
func (s *state) RollOut(id api.ServiceID) (api.RollOut, bool) {
	if app, _ := s.apps.Service(id); app == nil {
		return api.RollOut{}, false
	}
	return s.rollouts.View(s.service(id))
}

// RollOutHistory returns the versions of a service, and whether an application has the service.
func (s *state) RollOutHistory(id api.ServiceID) (api.RollOutHistory, bool) {
	app, _ := s.apps.Service(id)
	return api.RollOutHistory{Versions: s.rollouts.History(id)}, app != nil
}
