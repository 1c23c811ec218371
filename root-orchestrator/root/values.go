package root

import (
	"fmt"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root/values"
)

// KindValues is the kind of the documents of configs and secrets, whose values are encrypted.
const KindValues = "values"

type (
	// PutValues creates or replaces a config or a secret, whose values are encrypted. Errors: those
	// of values.Machine.Put.
	PutValues values.Request
	// DeleteValues deletes a config or a secret. Errors: those of values.Machine.Delete.
	DeleteValues struct {
		Key     values.Key
		IfMatch api.Revision
		Force   bool
		By      string
	}
)

func (in PutValues) apply(c *Core) error {
	k := values.Key{Kind: in.Kind, ID: in.ID}
	if err := c.values.Put(c.wall, values.Request(in)); err != nil {
		return err
	}
	c.event(valuesEvent(k, fmt.Sprintf("version %d by %s", c.values.Get(k).Newest().Number, in.By), in.By))
	c.distribute(k, in.Registry)
	return nil
}

func (in DeleteValues) apply(c *Core) error {
	registry := ""
	if o := c.values.Get(in.Key); o != nil {
		registry = o.Registry
	}
	if err := c.values.Delete(in.Key, in.IfMatch, in.Force); err != nil {
		return err
	}
	c.journal.Delete(KindValues, in.Key.String())
	c.event(valuesEvent(in.Key, "deleted by "+in.By, in.By))
	c.publish(api.Change{Kind: string(in.Key.Kind), ID: string(in.Key.ID), Tenant: in.Key.ID.Tenant(), Revision: c.nextRev()})
	c.distribute(in.Key, registry)
	return nil
}

func valuesEvent(k values.Key, detail, by string) api.Event {
	return api.Event{Tenant: k.ID.Tenant(), Kind: string(k.Kind), Object: k.ID.Name(), Detail: detail, By: by}
}

// distribute passes a change of an object to the instances that use it: by a new revision of the
// service's SLA if that says restart, so that its instances are replaced as after any new SLA, and
// otherwise in their running placements.
func (c *Core) distribute(k values.Key, registry string) {
	for _, s := range c.values.Affected(k, registry) {
		if _, spec := c.apps.Service(s); spec != nil && c.values.Get(k) != nil && values.Restarts(k, spec) {
			c.apps.Revise(s, c.nextRev)
			c.setApp(s.App(), nil)
			c.event(api.Event{Tenant: s.Tenant(), Kind: "service", Object: s.Name(), Reason: api.ReasonUpdated, Detail: fmt.Sprintf("%s %s has changed, so its instances restart", k.Kind, k.ID.Name())})
			c.reconcile(s)
			continue
		}
		for _, id := range c.apps.InstancesOf(s) {
			c.pinInPlace(id)
		}
	}
}

// repairValues completes changes of configs and secrets that a crash interrupted.
func (c *Core) repairValues() {
	lost := map[api.ServiceID]bool{}
	for _, id := range c.apps.Instances() {
		in := c.apps.Get(id)
		app, _ := c.apps.Service(id.Service())
		if app != nil && !in.Leaving && in.SpecRev == app.SpecRevs[id.Service()] && c.values.Behind(id.Tenant(), in.Spec, in.Values) {
			lost[id.Service()] = true
		}
		c.pinInPlace(id)
	}
	for _, s := range step.Keys(lost) {
		c.apps.Revise(s, c.nextRev)
		c.setApp(s.App(), nil)
	}
}

// pin gives an instance that begins a placement the newest versions of the configs and secrets of
// its SLA.
func (c *instances) pin(id api.InstanceID) {
	in := c.apps.Get(id)
	c.setValues(id, c.values.Refs(id.Tenant(), in.Spec))
}

// pinInPlace gives an instance the newest versions, except of those objects whose change requires a
// restart.
func (c *instances) pinInPlace(id api.InstanceID) {
	if in := c.apps.Get(id); !in.Leaving && in.Cluster != "" {
		c.setValues(id, c.values.RefsInPlace(id.Tenant(), in.Spec, in.Values))
	}
}

// setValues sets the versions that an instance has, and sends them to the clusters that have it.
func (c *instances) setValues(id api.InstanceID, refs []wire.ValueRef) {
	if !c.apps.SetValues(id, refs) {
		return
	}
	c.values.Pin(id, refs)
	in := c.apps.Get(id)
	for _, at := range in.Clusters() {
		if c.clusters.Has(at, id) {
			c.touch(at)
			c.clusters.Put(at, id, in.Digest(at))
		}
	}
}

// checkFiles returns ErrInvalid if a file of an application names what its tenant does not have.
func (s *state) checkFiles(t api.Tenant, spec *api.Application) error {
	for i := range spec.Services {
		if err := s.values.Check(t, &spec.Services[i]); err != nil {
			return err
		}
	}
	return nil
}

// Values returns a config or secret without its values, and whether it exists.
func (s *state) Values(k values.Key) (api.Values, bool) { return s.values.View(k) }

// AllValues returns the configs or secrets of a tenant and the tenants below it, sorted by id.
func (s *state) AllValues(kind api.ValueKind, tenant api.Tenant) []api.Values {
	var ids []api.ValuesID
	for _, k := range s.values.Keys(kind) {
		ids = append(ids, k.ID)
	}
	return list(ids, tenant, func(id api.ValuesID) (api.Values, bool) { return s.values.View(values.Key{Kind: kind, ID: id}) })
}

// SealedValues returns the newest encrypted values of a config or secret.
func (s *state) SealedValues(k values.Key) ([]byte, bool) {
	if o := s.values.Get(k); o != nil {
		return o.Newest().Sealed, true
	}
	return nil, false
}

// ValueFor returns the encrypted values that a cluster requests, if an instance in its desired set
// has this version. It does not reveal whether others exist.
func (s *state) ValueFor(at api.ClusterID, w wire.WantValue) ([]byte, bool) {
	v, ok := s.values.Sealed(w, func(id api.InstanceID) bool { return s.clusters.Has(at, id) })
	return v.Sealed, ok
}
