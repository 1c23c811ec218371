package root

import (
	"fmt"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/root-orchestrator/root/addons"
	"github.com/treeline-edge/treeline/root-orchestrator/root/custom"
)

// The kinds of the documents of custom kinds and resources. The keys are the ids.
const (
	kindCustomKind = "customkind"
	kindCustom     = "custom"
)

// Inputs about custom kinds and resources. Their errors are those of custom.Machine.
type (
	PutCustomKind    custom.KindRequest
	DeleteCustomKind struct {
		ID      api.KindID
		IfMatch api.Revision
		Force   bool // with its resources
		By      string
	}
	PutCustom    custom.Request
	DeleteCustom struct {
		ID      api.CustomID
		IfMatch api.Revision
		By      string
	}
)

func (in PutCustomKind) apply(c *Core) error {
	if err := addons.Belongs("kind", string(in.ID), c.addons.OwnerOfKind(in.ID)); err != nil {
		return err
	}
	changed, err := c.custom.PutKind(c.wall, custom.KindRequest(in))
	if err != nil || !changed {
		return err
	}
	c.event(changeEvent(in.ID.Tenant(), "kind", in.ID.Name(), in.Create, in.By))
	return nil
}

func (in DeleteCustomKind) apply(c *Core) error {
	if err := addons.Belongs("kind", string(in.ID), c.addons.OwnerOfKind(in.ID)); err != nil {
		return err
	}
	resources, err := c.custom.DeleteKind(in.ID, in.IfMatch, in.Force)
	if err != nil {
		return err
	}
	for _, id := range resources {
		c.deleted(kindCustom, "resource", string(id), id.Tenant())
	}
	c.deleted(kindCustomKind, "kind", string(in.ID), in.ID.Tenant())
	detail := "deleted by " + in.By
	if len(resources) > 0 {
		detail = fmt.Sprintf("deleted with %d resources by %s", len(resources), in.By)
	}
	c.event(api.Event{Tenant: in.ID.Tenant(), Kind: "kind", Object: in.ID.Name(), Reason: api.ReasonDeleted, Detail: detail, By: in.By})
	return nil
}

func (in PutCustom) apply(c *Core) error {
	if err := addons.Belongs("resource", string(in.ID), c.addons.OwnerOfResource(in.ID)); err != nil {
		return err
	}
	changed, err := c.custom.Put(c.wall, custom.Request(in))
	if err != nil || !changed {
		return err
	}
	c.event(changeEvent(in.ID.Tenant(), "resource", in.ID.Local(), in.Create, in.By))
	return nil
}

func (in DeleteCustom) apply(c *Core) error {
	if err := addons.Belongs("resource", string(in.ID), c.addons.OwnerOfResource(in.ID)); err != nil {
		return err
	}
	if err := c.custom.Delete(in.ID, in.IfMatch); err != nil {
		return err
	}
	c.deleted(kindCustom, "resource", string(in.ID), in.ID.Tenant())
	c.event(api.Event{Tenant: in.ID.Tenant(), Kind: "resource", Object: in.ID.Local(), Reason: api.ReasonDeleted, Detail: "deleted by " + in.By, By: in.By})
	return nil
}

func changeEvent(t api.Tenant, kind, object string, created bool, by string) api.Event {
	e := api.Event{Tenant: t, Kind: kind, Object: object, Reason: api.ReasonUpdated, Detail: "changed by " + by, By: by}
	if created {
		e.Reason, e.Detail = api.ReasonCreated, "created by "+by
	}
	return e
}

// deleted deletes a document and tells watchers of the object.
func (c *effects) deleted(document, kind, id string, t api.Tenant) {
	c.journal.Delete(document, id)
	c.publish(api.Change{Kind: kind, ID: id, Tenant: t, Revision: c.nextRev()})
}

// flushCustom saves and publishes the kinds and resources that the step changed.
func (c *effects) flushCustom() {
	kinds, resources := c.custom.TakeChanged()
	for _, id := range kinds {
		k := c.custom.SavedKind(id, c.nextRev())
		c.journal.Put(kindCustomKind, string(id), k)
		v, _ := c.custom.ViewKind(id)
		c.publish(api.Change{Kind: "kind", ID: string(id), Tenant: v.Tenant, Revision: v.Revision, Object: v})
	}
	for _, id := range resources {
		r := c.custom.Saved(id, c.nextRev())
		c.journal.Put(kindCustom, string(id), r)
		v, _ := c.custom.View(id)
		c.publish(api.Change{Kind: "resource", ID: string(id), Tenant: v.Tenant, Revision: v.Revision, Object: v})
	}
}

// restoreCustom restores a resource. It deletes one whose kind was deleted when the root crashed.
func (c *effects) restoreCustom(d store.Doc) error {
	kept := true
	err := restoreAs(d, func(r custom.Resource) { kept = c.custom.Restore(r) })
	if !kept {
		c.orphans = append(c.orphans, d.Key)
	}
	return err
}

func (c *effects) deleteOrphans() {
	for _, key := range c.orphans {
		c.journal.Delete(kindCustom, key)
	}
	c.orphans = nil
}

func (s *state) CustomKind(id api.KindID) (api.CustomKind, bool) { return s.custom.ViewKind(id) }

// CustomKinds returns the custom kinds of a tenant and the tenants below it, sorted by id.
func (s *state) CustomKinds(tenant api.Tenant) []api.CustomKind {
	return list(s.custom.Kinds(), tenant, s.custom.ViewKind)
}

func (s *state) Custom(id api.CustomID) (api.CustomResource, bool) { return s.custom.View(id) }

// CustomOf returns the resources of a kind, sorted by id, and the number of their changes.
func (s *state) CustomOf(id api.KindID) ([]api.CustomResource, uint64) {
	ids, changes := s.custom.Resources(id)
	return list(ids, "", s.custom.View), changes
}

// AllCustom returns the custom resources of a tenant and the tenants below it.
func (s *state) AllCustom(tenant api.Tenant) (out []api.CustomResource) {
	for _, k := range s.custom.Kinds() {
		if Within(k.Tenant(), tenant) {
			of, _ := s.CustomOf(k)
			out = append(out, of...)
		}
	}
	return out
}
