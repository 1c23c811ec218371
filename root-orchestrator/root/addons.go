package root

import (
	"fmt"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/root-orchestrator/root/addons"
	"github.com/treeline-edge/treeline/root-orchestrator/root/applications"
	"github.com/treeline-edge/treeline/root-orchestrator/root/custom"
)

// The kinds of the documents of addons. The keys are the ids.
const (
	kindAddon       = "addon"
	kindAddonChange = "addonchange"
)

// Inputs about addons. An addon and its objects change together: all of it, or nothing.
type (
	// PutAddon installs an addon, or replaces it by another version. Errors: those of addons.Machine.Check, of
	// custom.Machine.Check and of Apply; ErrConflict (an object exists and is not the addon's, or a kind that the new
	// version does not have has resources of others).
	PutAddon struct {
		addons.Request
		App       *api.Application // nil: it has none
		Kinds     []custom.KindRequest
		Resources []custom.Request // of Kinds
		// KeepResources lets kinds that the new version does not have stay if others have resources of them.
		KeepResources bool
	}
	// DeleteAddon removes an addon with its objects. Errors: ErrNotFound, ErrPrecondition, ErrConflict (others have
	// resources of its kinds).
	DeleteAddon struct {
		ID            api.AddonID
		IfMatch       api.Revision
		KeepResources bool
		By            string
	}
)

// addonChange is what is done to the objects of an addon. It is saved before the first and deleted after the last of
// them, so that a change that a crash interrupts is completed at the next start.
type addonChange struct {
	ID      api.AddonID      `json:"id"`
	Record  *addons.Record   `json:"record,omitempty"` // nil: the addon is removed
	App     *api.Application `json:"app,omitempty"`
	DropApp api.AppID        `json:"drop_app,omitempty"`
	Custom  custom.Batch     `json:"custom"`
	By      string           `json:"by,omitempty"`
}

func (in PutAddon) apply(c *Core) error {
	old, err := c.addons.Check(in.Request)
	if err != nil {
		return err
	}
	var had addons.Owned
	if old != nil {
		had = old.Owned
	}
	if err := c.foreign(in.Owned.Lost(had)); err != nil {
		return err
	}
	record := in.Record
	ch := addonChange{ID: in.ID, Record: &record, App: in.App, By: in.By}
	if err := c.drop(&ch, had.Lost(in.Owned), in.KeepResources); err != nil {
		return err
	}
	ch.Custom.Kinds, ch.Custom.Resources = in.Kinds, in.Resources
	if err := c.custom.Check(ch.Custom); err != nil {
		return fmt.Errorf("addon %s: %w", in.ID, err)
	}
	var commit func()
	if in.App != nil { // the last check: it reserves addresses
		if commit, err = c.prepare(&applications.Request{Tenant: in.ID.Tenant(), Spec: *in.App, By: in.By}); err != nil {
			return fmt.Errorf("addon %s: %w", in.ID, err)
		}
	}
	c.beginAddon(ch)
	c.addons.Put(c.wall, in.Request)
	c.event(changeEvent(in.ID.Tenant(), "addon", in.ID.Name(), old == nil, in.By))
	c.carryOut(ch, commit)
	return nil
}

// foreign returns ErrConflict if one of the objects exists. They are new to an addon.
func (c *Core) foreign(o addons.Owned) error {
	exists := func(what, id string) error {
		return fmt.Errorf("%s %s exists and does not belong to the addon; delete it, or rename it in the package: %w", what, id, api.ErrConflict)
	}
	if o.App != "" && c.apps.App(o.App) != nil {
		if c.apps.App(o.App).Leaving {
			return fmt.Errorf("application %s is being deleted; wait until it is gone (treeline wait --for=deleted): %w", o.App, api.ErrConflict)
		}
		return exists("application", string(o.App))
	}
	for _, k := range o.Kinds {
		if c.custom.Kind(k) != nil {
			return exists("kind", string(k))
		}
	}
	for _, r := range o.Resources {
		if c.custom.Get(r) != nil {
			return exists("resource", string(r))
		}
	}
	return nil
}

// drop adds to a change that the addon loses objects. Kinds of which others have resources are ErrConflict, or stay.
func (c *Core) drop(ch *addonChange, lost addons.Owned, keep bool) error {
	ch.DropApp, ch.Custom.Delete = lost.App, lost.Resources
	for _, k := range lost.Kinds {
		all, _ := c.custom.Resources(k)
		others := slices.DeleteFunc(all, func(r api.CustomID) bool { return c.addons.OwnerOfResource(r) == ch.ID })
		switch {
		case len(others) == 0:
			ch.Custom.DeleteKinds = append(ch.Custom.DeleteKinds, k)
		case !keep:
			return fmt.Errorf("addon %s: kind %s has %d resources that do not belong to the addon, such as %s; delete them, or keep the kind with them (--keep-resources): %w",
				ch.ID, k, len(others), others[0].Name(), api.ErrConflict)
		}
	}
	return nil
}

func (in DeleteAddon) apply(c *Core) error {
	old := c.addons.Get(in.ID)
	switch {
	case old == nil:
		return fmt.Errorf("addon %s: %w", in.ID, api.ErrNotFound)
	case in.IfMatch != 0 && old.Revision != in.IfMatch:
		return fmt.Errorf("addon %s is at revision %d, not %d; get it again and repeat: %w", in.ID, old.Revision, in.IfMatch, api.ErrPrecondition)
	}
	ch := addonChange{ID: in.ID, By: in.By}
	if err := c.drop(&ch, old.Owned, in.KeepResources); err != nil {
		return err
	}
	c.beginAddon(ch)
	c.carryOut(ch, nil)
	c.removeAddon(in.ID, in.By)
	return nil
}

func (c *Core) removeAddon(id api.AddonID, by string) {
	c.addons.Delete(id)
	c.journal.Delete(kindAddon, string(id))
	c.event(api.Event{Tenant: id.Tenant(), Kind: "addon", Object: id.Name(), Reason: api.ReasonDeleted, Detail: "removed by " + by, By: by})
}

// beginAddon saves a change before all that it changes.
func (c *Core) beginAddon(ch addonChange) {
	c.journal.Put(kindAddonChange, string(ch.ID), ch)
	c.journal.Pin(kindAddonChange, string(ch.ID))
	c.ending = append(c.ending, ch.ID)
}

// endAddons forgets the changes of the step, after all that they changed.
func (c *Core) endAddons() {
	for _, id := range c.ending {
		c.journal.Delete(kindAddonChange, string(id))
	}
	c.ending = nil
}

// carryOut makes a change. What was done before a crash has no effect again. commit applies the application.
func (c *Core) carryOut(ch addonChange, commit func()) {
	did := c.custom.Apply(c.wall, ch.Custom)
	c.customDeleted(did, ch.By)
	for _, r := range did.Kinds {
		c.event(changeEvent(r.ID.Tenant(), "kind", r.ID.Name(), r.Create, ch.By))
	}
	for _, r := range did.Resources {
		c.event(changeEvent(r.ID.Tenant(), "resource", r.ID.Local(), r.Create, ch.By))
	}
	if ch.DropApp != "" {
		_ = c.deleteApp(DeleteApp{App: ch.DropApp, By: ch.By}) // it may have ended by itself
	}
	if commit != nil {
		commit()
	}
}

func (c *Core) customDeleted(did custom.Applied, by string) {
	for _, id := range did.Deleted {
		c.deleted(kindCustom, "resource", string(id), id.Tenant())
		c.event(api.Event{Tenant: id.Tenant(), Kind: "resource", Object: id.Local(), Reason: api.ReasonDeleted, Detail: "deleted by " + by, By: by})
	}
	for _, id := range did.DeletedKinds {
		c.deleted(kindCustomKind, "kind", string(id), id.Tenant())
		c.event(api.Event{Tenant: id.Tenant(), Kind: "kind", Object: id.Name(), Reason: api.ReasonDeleted, Detail: "deleted by " + by, By: by})
	}
}

// finishAddons completes the changes that a crash interrupted between two saves.
func (c *Core) finishAddons() {
	for _, ch := range c.unfinished {
		if ch.Record == nil {
			if c.addons.Get(ch.ID) != nil {
				c.removeAddon(ch.ID, ch.By)
			}
		} else {
			isNew := c.addons.Get(ch.ID) == nil
			c.addons.Put(c.wall, addons.Request{Record: *ch.Record})
			c.event(changeEvent(ch.ID.Tenant(), "addon", ch.ID.Name(), isNew, ch.By))
		}
		var commit func()
		if ch.App != nil {
			r := applications.Request{Tenant: ch.ID.Tenant(), Spec: *ch.App, By: ch.By}
			if err := c.apps.CheckApply(&r); err == nil { // addresses follow: see startNetwork
				commit = func() { c.commit(&r, nil) }
			} else {
				c.event(api.Event{Tenant: ch.ID.Tenant(), Kind: "addon", Object: ch.ID.Name(), Detail: "its application is not as in the package: " + err.Error()})
			}
		}
		c.carryOut(ch, commit)
		c.ending = append(c.ending, ch.ID)
	}
	c.unfinished = nil
}

func (c *Core) flushAddons() {
	for _, id := range c.addons.TakeChanged() {
		c.journal.Put(kindAddon, string(id), c.addons.Saved(id, c.nextRev()))
	}
}

func (s *state) Addon(id api.AddonID) (api.Addon, bool) { return s.addons.View(id) }

// Addons returns the addons of a tenant and the tenants below it, sorted by id.
func (s *state) Addons(tenant api.Tenant) []api.Addon {
	return list(s.addons.IDs(), tenant, s.addons.View)
}
