// Package custom keeps the custom kinds of tenants and their resources. It is a sub-machine of the root's core. It does
// not read schemas: an adapter checks resources, and names the state that it checked them against.
//
//	m := custom.New()
//	m.PutKind(now, custom.KindRequest{ID: "acme/sensor", Schema: schema, Create: true})
//	m.Put(now, custom.Request{ID: "acme/sensor:roof", Spec: spec, Checked: m.Kind("acme/sensor").Revision, Create: true})
package custom

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// The limits. A tenant counts with the tenants below it.
const (
	MaxKindsOfTenant     = 50
	MaxResourcesOfTenant = 1000
	MaxBytesOfTenant     = 4 << 20 // of schemas and specs
	MaxKinds             = 1000
	MaxResources         = 20_000
	MaxBytes             = 128 << 20
)

// ErrChecked says that the caller checked against a state that is no longer the present one. Check again.
var ErrChecked = errors.New("changed while it was checked")

// Kind is the saved state of a custom kind.
type Kind struct {
	ID          api.KindID      `json:"id"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"schema"`
	Created     time.Time       `json:"created"`
	Changed     time.Time       `json:"changed"`
	By          string          `json:"by,omitempty"`
	Revision    api.Revision    `json:"revision"`
}

// Resource is the saved state of a custom resource.
type Resource struct {
	ID       api.CustomID    `json:"id"`
	Spec     json.RawMessage `json:"spec"`
	Created  time.Time       `json:"created"`
	Changed  time.Time       `json:"changed"`
	By       string          `json:"by,omitempty"`
	Revision api.Revision    `json:"revision"`
}

// kind is a kind with its resources.
type kind struct {
	Kind
	resources map[api.CustomID]*Resource
	changes   uint64 // of its resources, since the root started
}

type count struct{ kinds, resources, bytes int }

func (c count) plus(d count, times int) count {
	return count{c.kinds + times*d.kinds, c.resources + times*d.resources, c.bytes + times*d.bytes}
}

// Machine has all custom kinds and resources. It is not safe for concurrent use. What it returns is only read.
type Machine struct {
	kinds            map[api.KindID]*kind
	counts           map[api.Tenant]count // of topmost tenants
	all              count
	changedKinds     step.Queue[api.KindID]
	changedResources step.Queue[api.CustomID]
}

func New() *Machine {
	return &Machine{kinds: map[api.KindID]*kind{}, counts: map[api.Tenant]count{}}
}

// RestoreKind adds a saved kind, before its resources.
func (m *Machine) RestoreKind(k Kind) {
	m.kinds[k.ID] = &kind{Kind: k, resources: map[api.CustomID]*Resource{}}
	m.count(k.ID.Tenant(), count{kinds: 1, bytes: len(k.Schema)}, 1)
}

// Restore adds a saved resource. It returns false if its kind does not exist: it was deleted.
func (m *Machine) Restore(r Resource) bool {
	k := m.kinds[r.ID.Kind()]
	if k == nil {
		return false
	}
	k.resources[r.ID] = &r
	m.count(r.ID.Tenant(), count{resources: 1, bytes: len(r.Spec)}, 1)
	return true
}

func (m *Machine) count(t api.Tenant, d count, times int) {
	m.all = m.all.plus(d, times)
	if c := m.counts[t.Top()].plus(d, times); c == (count{}) {
		delete(m.counts, t.Top())
	} else {
		m.counts[t.Top()] = c
	}
}

// room returns an error if what is added is beyond a limit.
func (m *Machine) room(t api.Tenant, add count) error {
	top := t.Top()
	now := m.counts[top]
	for _, l := range []struct {
		what              string
		add               int
		own, most         int
		all, mostTogether int
	}{
		{"custom kinds", add.kinds, now.kinds, MaxKindsOfTenant, m.all.kinds, MaxKinds},
		{"custom resources", add.resources, now.resources, MaxResourcesOfTenant, m.all.resources, MaxResources},
		{"bytes of custom kinds and resources", add.bytes, now.bytes, MaxBytesOfTenant, m.all.bytes, MaxBytes},
	} {
		switch {
		case l.add <= 0:
		case l.own+l.add > l.most:
			return fmt.Errorf("tenant %s has %d %s, and %d more are beyond the limit of %d; delete some: %w", top, l.own, l.what, l.add, l.most, api.ErrTooMany)
		case l.all+l.add > l.mostTogether:
			return fmt.Errorf("the root has %d %s, and %d more are beyond the limit of %d: %w", l.all, l.what, l.add, l.mostTogether, api.ErrUnavailable)
		}
	}
	return nil
}

// Kind returns a kind, or nil.
func (m *Machine) Kind(id api.KindID) *Kind {
	if k := m.kinds[id]; k != nil {
		return &k.Kind
	}
	return nil
}

// Kinds returns the ids of the kinds, sorted.
func (m *Machine) Kinds() []api.KindID { return step.Keys(m.kinds) }

// Get returns a resource, or nil.
func (m *Machine) Get(id api.CustomID) *Resource {
	if k := m.kinds[id.Kind()]; k != nil {
		return k.resources[id]
	}
	return nil
}

// Resources returns the ids of a kind's resources, sorted, and the number of their changes, for KindRequest.Checked.
func (m *Machine) Resources(id api.KindID) ([]api.CustomID, uint64) {
	k := m.kinds[id]
	if k == nil {
		return nil, 0
	}
	return step.Keys(k.resources), k.changes
}

// KindRequest is the request to create or to replace a kind. The zero IfMatch sets no condition.
type KindRequest struct {
	ID          api.KindID      `json:"id"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"schema"`
	Create      bool            `json:"-"` // it must not exist; otherwise it must
	Checked     uint64          `json:"-"` // the changes of its resources, all of which the schema allows
	IfMatch     api.Revision    `json:"-"`
	By          string          `json:"by,omitempty"`
}

// Batch is a set of changes that are made together. Kinds and Resources are created or replaced: Create, IfMatch and, for
// Resources, Checked are ignored. Resources are of Kinds.
type Batch struct {
	DeleteKinds []api.KindID   `json:"delete_kinds,omitempty"` // with their resources
	Delete      []api.CustomID `json:"delete,omitempty"`
	Kinds       []KindRequest  `json:"kinds,omitempty"`
	Resources   []Request      `json:"resources,omitempty"`
}

// Check returns an error if Apply cannot make all changes of the batch: ErrChecked, ErrTooMany, ErrUnavailable.
func (m *Machine) Check(b Batch) error {
	adds := map[api.Tenant]count{}
	for _, id := range b.DeleteKinds {
		adds[id.Tenant()] = adds[id.Tenant()].plus(m.size(id), -1)
	}
	for _, id := range b.Delete {
		if old := m.Get(id); old != nil && !slices.Contains(b.DeleteKinds, id.Kind()) {
			adds[id.Tenant()] = adds[id.Tenant()].plus(count{resources: 1, bytes: len(old.Spec)}, -1)
		}
	}
	for _, r := range b.Kinds {
		add := count{kinds: 1, bytes: len(r.Schema)}
		if old := m.kinds[r.ID]; old != nil {
			if old.changes != r.Checked {
				return fmt.Errorf("kind %s: its resources %w", r.ID, ErrChecked)
			}
			add = count{bytes: len(r.Schema) - len(old.Schema)}
		}
		adds[r.ID.Tenant()] = adds[r.ID.Tenant()].plus(add, 1)
	}
	for _, r := range b.Resources {
		add := count{resources: 1, bytes: len(r.Spec)}
		if old := m.Get(r.ID); old != nil {
			add = count{bytes: len(r.Spec) - len(old.Spec)}
		}
		adds[r.ID.Tenant()] = adds[r.ID.Tenant()].plus(add, 1)
	}
	for _, t := range step.Keys(adds) {
		if err := m.room(t, adds[t]); err != nil {
			return err
		}
	}
	return nil
}

// Apply makes the changes of a batch that Check has accepted. Changes that were made already have no effect. It returns
// what it deleted, and what is new or different.
func (m *Machine) Apply(now time.Time, b Batch) (did Applied) {
	for _, id := range b.DeleteKinds {
		if resources, err := m.DeleteKind(id, 0, true); err == nil {
			did.DeletedKinds = append(did.DeletedKinds, id)
			did.Deleted = append(did.Deleted, resources...)
		}
	}
	for _, id := range b.Delete {
		if m.Delete(id, 0) == nil {
			did.Deleted = append(did.Deleted, id)
		}
	}
	for _, r := range b.Kinds {
		old := m.kinds[r.ID]
		if r.Create = old == nil; m.setKind(now, r) {
			did.Kinds = append(did.Kinds, r)
		}
	}
	for _, r := range b.Resources {
		k := m.kinds[r.ID.Kind()]
		if k == nil {
			continue // see Batch
		}
		if r.Create = k.resources[r.ID] == nil; m.set(now, k, r) {
			did.Resources = append(did.Resources, r)
		}
	}
	return did
}

// Applied is what Apply changed. Create of the requests says whether the object is new.
type Applied struct {
	DeletedKinds []api.KindID
	Deleted      []api.CustomID
	Kinds        []KindRequest
	Resources    []Request
}

// size returns what a kind counts with its resources.
func (m *Machine) size(id api.KindID) (c count) {
	k := m.kinds[id]
	if k == nil {
		return c
	}
	c = count{kinds: 1, bytes: len(k.Schema)}
	for _, r := range k.resources {
		c = c.plus(count{resources: 1, bytes: len(r.Spec)}, 1)
	}
	return c
}

// PutKind creates or replaces a kind. It reports whether that changes anything. Errors: ErrConflict (it exists),
// ErrNotFound, ErrPrecondition, ErrChecked, ErrTooMany, ErrUnavailable (the root has too many).
func (m *Machine) PutKind(now time.Time, r KindRequest) (changed bool, err error) {
	old := m.kinds[r.ID]
	switch {
	case old == nil && !r.Create:
		return false, fmt.Errorf("kind %s: %w", r.ID, api.ErrNotFound)
	case old != nil && r.Create:
		return false, fmt.Errorf("kind %s exists; replace it with its revision: %w", r.ID, api.ErrConflict)
	case old != nil && r.IfMatch != 0 && old.Revision != r.IfMatch:
		return false, stale("kind", r.ID, old.Revision, r.IfMatch)
	case old != nil && old.Description == r.Description && bytes.Equal(old.Schema, r.Schema):
		return false, nil
	case old != nil && old.changes != r.Checked:
		return false, fmt.Errorf("kind %s: its resources %w", r.ID, ErrChecked)
	}
	add := count{kinds: 1, bytes: len(r.Schema)}
	if old != nil {
		add = count{bytes: len(r.Schema) - len(old.Schema)}
	}
	if err := m.room(r.ID.Tenant(), add); err != nil {
		return false, fmt.Errorf("kind %s: %w", r.ID, err)
	}
	return m.setKind(now, r), nil
}

// setKind stores a kind, and reports whether that changes anything.
func (m *Machine) setKind(now time.Time, r KindRequest) bool {
	add, old := count{kinds: 1, bytes: len(r.Schema)}, m.kinds[r.ID]
	k := &kind{Kind: Kind{ID: r.ID, Description: r.Description, Schema: r.Schema, Created: now, Changed: now, By: r.By}}
	if old != nil {
		if old.Description == r.Description && bytes.Equal(old.Schema, r.Schema) {
			return false
		}
		add = count{bytes: len(r.Schema) - len(old.Schema)}
		k.Created, k.Revision, k.resources, k.changes = old.Created, old.Revision, old.resources, old.changes
	} else {
		k.resources = map[api.CustomID]*Resource{}
	}
	m.count(r.ID.Tenant(), add, 1)
	m.kinds[r.ID] = k
	m.changedKinds.Add(r.ID)
	return true
}

func stale[ID ~string](what string, id ID, is, want api.Revision) error {
	return fmt.Errorf("%s %s is at revision %d, not %d; get it again and repeat: %w", what, id, is, want, api.ErrPrecondition)
}

// DeleteKind removes a kind and returns its resources, which are removed too. Without force, a kind with resources is
// ErrConflict. Other errors: ErrNotFound, ErrPrecondition.
func (m *Machine) DeleteKind(id api.KindID, ifMatch api.Revision, force bool) ([]api.CustomID, error) {
	k := m.kinds[id]
	switch {
	case k == nil:
		return nil, fmt.Errorf("kind %s: %w", id, api.ErrNotFound)
	case ifMatch != 0 && k.Revision != ifMatch:
		return nil, stale("kind", id, k.Revision, ifMatch)
	}
	resources := step.Keys(k.resources)
	if len(resources) > 0 && !force {
		return nil, fmt.Errorf("kind %s has %d resources, such as %s; delete them first, or force the deletion with its resources: %w", id, len(resources), resources[0].Name(), api.ErrConflict)
	}
	for _, r := range resources {
		m.count(id.Tenant(), count{resources: 1, bytes: len(k.resources[r].Spec)}, -1)
	}
	m.count(id.Tenant(), count{kinds: 1, bytes: len(k.Schema)}, -1)
	delete(m.kinds, id)
	return resources, nil
}

// Request is the request to create or to replace a resource. The zero IfMatch sets no condition.
type Request struct {
	ID      api.CustomID    `json:"id"`
	Spec    json.RawMessage `json:"spec"`
	Create  bool            `json:"-"` // it must not exist; otherwise it must
	Checked api.Revision    `json:"-"` // of the kind, whose schema allows the spec
	IfMatch api.Revision    `json:"-"`
	By      string          `json:"by,omitempty"`
}

// Put creates or replaces a resource. It reports whether that changes anything. Errors: those of PutKind; ErrNotFound
// also if the kind does not exist.
func (m *Machine) Put(now time.Time, r Request) (changed bool, err error) {
	k := m.kinds[r.ID.Kind()]
	if k == nil {
		return false, fmt.Errorf("resource %s: tenant %s has no kind %s; define it first: %w", r.ID, r.ID.Tenant(), r.ID.Kind().Name(), api.ErrNotFound)
	}
	old := k.resources[r.ID]
	switch {
	case old == nil && !r.Create:
		return false, fmt.Errorf("resource %s: %w", r.ID, api.ErrNotFound)
	case old != nil && r.Create:
		return false, fmt.Errorf("resource %s exists; replace it with its revision: %w", r.ID, api.ErrConflict)
	case old != nil && r.IfMatch != 0 && old.Revision != r.IfMatch:
		return false, stale("resource", r.ID, old.Revision, r.IfMatch)
	case k.Revision != r.Checked:
		return false, fmt.Errorf("resource %s: its kind %w", r.ID, ErrChecked)
	case old != nil && bytes.Equal(old.Spec, r.Spec):
		return false, nil
	}
	add := count{resources: 1, bytes: len(r.Spec)}
	if old != nil {
		add = count{bytes: len(r.Spec) - len(old.Spec)}
	}
	if err := m.room(r.ID.Tenant(), add); err != nil {
		return false, fmt.Errorf("resource %s: %w", r.ID, err)
	}
	return m.set(now, k, r), nil
}

// set stores a resource, and reports whether that changes anything.
func (m *Machine) set(now time.Time, k *kind, r Request) bool {
	add, old := count{resources: 1, bytes: len(r.Spec)}, k.resources[r.ID]
	n := &Resource{ID: r.ID, Spec: r.Spec, Created: now, Changed: now, By: r.By}
	if old != nil {
		if bytes.Equal(old.Spec, r.Spec) {
			return false
		}
		add = count{bytes: len(r.Spec) - len(old.Spec)}
		n.Created, n.Revision = old.Created, old.Revision
	}
	m.count(r.ID.Tenant(), add, 1)
	k.resources[r.ID] = n
	k.changes++
	m.changedResources.Add(r.ID)
	return true
}

// Delete removes a resource. Errors: ErrNotFound, ErrPrecondition.
func (m *Machine) Delete(id api.CustomID, ifMatch api.Revision) error {
	old := m.Get(id)
	switch {
	case old == nil:
		return fmt.Errorf("resource %s: %w", id, api.ErrNotFound)
	case ifMatch != 0 && old.Revision != ifMatch:
		return stale("resource", id, old.Revision, ifMatch)
	}
	k := m.kinds[id.Kind()]
	m.count(id.Tenant(), count{resources: 1, bytes: len(old.Spec)}, -1)
	delete(k.resources, id)
	k.changes++
	return nil
}

// ViewKind returns a kind for the API.
func (m *Machine) ViewKind(id api.KindID) (api.CustomKind, bool) {
	k := m.kinds[id]
	if k == nil {
		return api.CustomKind{}, false
	}
	return api.CustomKind{
		ID: id, Tenant: id.Tenant(), Name: id.Name(), Description: k.Description, Schema: k.Schema, Resources: len(k.resources),
		Created: k.Created, Changed: k.Changed, By: k.By, Revision: k.Revision,
	}, true
}

// View returns a resource for the API.
func (m *Machine) View(id api.CustomID) (api.CustomResource, bool) {
	r := m.Get(id)
	if r == nil {
		return api.CustomResource{}, false
	}
	return api.CustomResource{
		ID: id, Tenant: id.Tenant(), Kind: id.Kind().Name(), Name: id.Name(), Spec: r.Spec,
		Created: r.Created, Changed: r.Changed, By: r.By, Revision: r.Revision,
	}, true
}

// TakeChanged returns the kinds and resources that changed since the last call and still exist.
func (m *Machine) TakeChanged() (kinds []api.KindID, resources []api.CustomID) {
	kinds, resources = m.changedKinds.Take(), m.changedResources.Take()
	kinds = slices.DeleteFunc(kinds, func(id api.KindID) bool { return m.kinds[id] == nil })
	resources = slices.DeleteFunc(resources, func(id api.CustomID) bool { return m.Get(id) == nil })
	return kinds, resources
}

// SavedKind sets the revision of a kind and returns it to be saved.
func (m *Machine) SavedKind(id api.KindID, rev api.Revision) Kind {
	m.kinds[id].Revision = rev
	return m.kinds[id].Kind
}

// Saved sets the revision of a resource and returns it to be saved.
func (m *Machine) Saved(id api.CustomID, rev api.Revision) Resource {
	r := m.Get(id)
	r.Revision = rev
	return *r
}
