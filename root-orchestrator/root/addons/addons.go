// Package addons keeps which addons tenants have installed, and which objects belong to them. It is a sub-machine of
// the root's core. It does not know the objects themselves: the core changes them.
//
//	m := addons.New()
//	r := addons.Request{Record: addons.Record{ID: "acme/mqtt", Owned: addons.Owned{App: "acme/mqtt.default"}}, Create: true}
//	before, err := m.Check(r)
//	m.Put(now, r)
//	m.OwnerOfApp("acme/mqtt.default") // acme/mqtt
package addons

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// The limits. A tenant counts with the tenants below it.
const (
	MaxOfTenant = 20
	Max         = 1000
)

// Owned are the objects that belong to an addon. Nothing else changes or deletes them, and a name stays the addon's
// while the object does not exist, for example after the end of an application's time to live.
type Owned struct {
	App       api.AppID      `json:"app,omitempty"`
	Kinds     []api.KindID   `json:"kinds,omitempty"`
	Resources []api.CustomID `json:"resources,omitempty"` // of Kinds
	Webhooks  []string       `json:"webhooks,omitempty"`
}

// Record is the saved state of an addon.
type Record struct {
	ID          api.AddonID `json:"id"`
	Version     string      `json:"version"`
	Description string      `json:"description,omitempty"`
	Source      string      `json:"source,omitempty"`
	Digest      string      `json:"digest,omitempty"`
	Owned
	Values   map[string]json.RawMessage `json:"values,omitempty"`
	Created  time.Time                  `json:"created"`
	Changed  time.Time                  `json:"changed"`
	By       string                     `json:"by,omitempty"`
	Revision api.Revision               `json:"revision"`
}

// Request is the request to install an addon or to replace it by another version. Its Created, Changed and Revision
// are ignored.
type Request struct {
	Record
	Create  bool         // it must not exist; otherwise it must
	IfMatch api.Revision // 0 sets no condition
}

// Machine has the addons of all tenants. It is not safe for concurrent use. What it returns is only read.
type Machine struct {
	addons    map[api.AddonID]*Record
	counts    map[api.Tenant]int // of topmost tenants
	apps      map[api.AppID]api.AddonID
	kinds     map[api.KindID]api.AddonID
	resources map[api.CustomID]api.AddonID
	changed   step.Queue[api.AddonID]
}

func New() *Machine {
	return &Machine{
		addons: map[api.AddonID]*Record{}, counts: map[api.Tenant]int{},
		apps: map[api.AppID]api.AddonID{}, kinds: map[api.KindID]api.AddonID{}, resources: map[api.CustomID]api.AddonID{},
	}
}

// Restore adds a saved addon.
func (m *Machine) Restore(r Record) { m.set(&r) }

func (m *Machine) set(r *Record) {
	m.unset(r.ID)
	m.addons[r.ID] = r
	m.counts[r.ID.Tenant().Top()]++
	if r.App != "" {
		m.apps[r.App] = r.ID
	}
	for _, k := range r.Kinds {
		m.kinds[k] = r.ID
	}
	for _, o := range r.Resources {
		m.resources[o] = r.ID
	}
}

func (m *Machine) unset(id api.AddonID) {
	old := m.addons[id]
	if old == nil {
		return
	}
	delete(m.addons, id)
	top := id.Tenant().Top()
	if m.counts[top]--; m.counts[top] == 0 {
		delete(m.counts, top)
	}
	delete(m.apps, old.App)
	for _, k := range old.Kinds {
		delete(m.kinds, k)
	}
	for _, o := range old.Resources {
		delete(m.resources, o)
	}
}

// Get returns an addon, or nil.
func (m *Machine) Get(id api.AddonID) *Record { return m.addons[id] }

// IDs returns the ids of the addons, sorted.
func (m *Machine) IDs() []api.AddonID { return step.Keys(m.addons) }

// OwnerOfApp, OwnerOfKind and OwnerOfResource return the addon that an object belongs to, or "".
func (m *Machine) OwnerOfApp(id api.AppID) api.AddonID         { return m.apps[id] }
func (m *Machine) OwnerOfKind(id api.KindID) api.AddonID       { return m.kinds[id] }
func (m *Machine) OwnerOfResource(id api.CustomID) api.AddonID { return m.resources[id] }

// Belongs returns ErrConflict if an object has an owner. what and id name the object.
func Belongs(what, id string, owner api.AddonID) error {
	if owner == "" {
		return nil
	}
	return fmt.Errorf("%s %s belongs to addon %s; change it with treeline addon upgrade, or delete it with treeline addon remove: %w", what, id, owner, api.ErrConflict)
}

// Check returns the present record, nil if the addon is new. Errors: ErrConflict (it exists, or another addon has one
// of the names), ErrNotFound, ErrPrecondition, ErrTooMany, ErrUnavailable (the root has too many).
func (m *Machine) Check(r Request) (*Record, error) {
	old := m.addons[r.ID]
	top := r.ID.Tenant().Top()
	switch {
	case old == nil && !r.Create:
		return nil, fmt.Errorf("addon %s: %w", r.ID, api.ErrNotFound)
	case old != nil && r.Create:
		return nil, fmt.Errorf("addon %s is installed in version %s; upgrade it (treeline addon upgrade): %w", r.ID, old.Version, api.ErrConflict)
	case old != nil && r.IfMatch != 0 && old.Revision != r.IfMatch:
		return nil, fmt.Errorf("addon %s is at revision %d, not %d; get it again and repeat: %w", r.ID, old.Revision, r.IfMatch, api.ErrPrecondition)
	case old == nil && m.counts[top] >= MaxOfTenant:
		return nil, fmt.Errorf("tenant %s has %d addons, the limit; remove some: %w", top, MaxOfTenant, api.ErrTooMany)
	case old == nil && len(m.addons) >= Max:
		return nil, fmt.Errorf("the root has %d addons, the limit: %w", Max, api.ErrUnavailable)
	}
	if o := m.apps[r.App]; o != r.ID {
		if err := Belongs("application", string(r.App), o); err != nil {
			return nil, err
		}
	}
	for _, k := range r.Kinds {
		if o := m.kinds[k]; o != r.ID {
			if err := Belongs("kind", string(k), o); err != nil {
				return nil, err
			}
		}
	}
	return old, nil // resources are of its kinds
}

// Put stores what Check has accepted.
func (m *Machine) Put(now time.Time, r Request) {
	n := r.Record
	n.Created, n.Changed, n.Revision = now, now, 0
	if old := m.addons[r.ID]; old != nil {
		n.Created, n.Revision = old.Created, old.Revision
	}
	m.set(&n)
	m.changed.Add(r.ID)
}

// Delete removes an addon.
func (m *Machine) Delete(id api.AddonID) { m.unset(id) }

// Lost are the objects of a that are not in b.
func (a Owned) Lost(b Owned) Owned {
	lost := Owned{
		Kinds: without(a.Kinds, b.Kinds), Resources: without(a.Resources, b.Resources), Webhooks: without(a.Webhooks, b.Webhooks),
	}
	if a.App != b.App {
		lost.App = a.App
	}
	return lost
}

func without[T comparable](a, b []T) []T {
	return slices.DeleteFunc(slices.Clone(a), func(x T) bool { return slices.Contains(b, x) })
}

// View returns an addon for the API.
func (m *Machine) View(id api.AddonID) (api.Addon, bool) {
	r := m.addons[id]
	if r == nil {
		return api.Addon{}, false
	}
	return api.Addon{
		ID: id, Tenant: id.Tenant(), Name: id.Name(), Version: r.Version, Description: r.Description, Source: r.Source, Digest: r.Digest,
		Values: maps.Clone(r.Values), App: r.App, Kinds: slices.Clone(r.Kinds), Resources: slices.Clone(r.Resources), Webhooks: slices.Clone(r.Webhooks),
		Created: r.Created, Changed: r.Changed, By: r.By, Revision: r.Revision,
	}, true
}

// TakeChanged returns the addons that changed since the last call and still exist.
func (m *Machine) TakeChanged() []api.AddonID {
	return slices.DeleteFunc(m.changed.Take(), func(id api.AddonID) bool { return m.addons[id] == nil })
}

// Saved sets the revision of an addon and returns it to be saved.
func (m *Machine) Saved(id api.AddonID, rev api.Revision) Record {
	m.addons[id].Revision = rev
	return *m.addons[id]
}
