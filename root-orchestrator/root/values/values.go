// Package values keeps the configs and secrets of tenants: their versions, and which services and
// instances name them. It is a sub-machine of the root's core. It never has a value in the clear:
// an adapter encrypts values before they are inputs, and decrypts them for their receivers.
//
//	m := values.New()
//	m.Use(service, tenant, spec)              // the service's newest SLA
//	refs := m.Refs(tenant, spec)              // for an assignment
//	m.Pin(instance, refs)                     // the instance has these versions
package values

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// The limits of all configs and secrets. A tenant counts with the tenants below it.
const (
	MaxOfTenant      = 500
	MaxBytesOfTenant = 8 << 20 // of the newest versions
	MaxObjects       = 20_000
	maxVersions      = 8 // of one object; older ones are kept while an instance has them
)

// Key names a config or a secret.
type Key struct {
	Kind api.ValueKind
	ID   api.ValuesID
}

func (k Key) String() string { return string(k.Kind) + "/" + string(k.ID) }

// Object is the saved state of a config or a secret.
type Object struct {
	Kind     api.ValueKind `json:"kind"`
	ID       api.ValuesID  `json:"id"`
	Type     string        `json:"type,omitempty"`
	Registry string        `json:"registry,omitempty"`
	Versions []Version     `json:"versions"` // the newest last
	Created  time.Time     `json:"created"`
	By       string        `json:"by,omitempty"`
	Revision api.Revision  `json:"revision"`
}

// Version is one version of an object. Its values are encrypted in Sealed.
type Version struct {
	Number uint64         `json:"number"`
	Digest string         `json:"digest"`
	Keys   []api.ValueKey `json:"keys"`
	Sealed []byte         `json:"sealed"`
	At     time.Time      `json:"at"`
}

// Key returns the object's name.
func (o *Object) Key() Key { return Key{o.Kind, o.ID} }

// Newest returns the newest version.
func (o *Object) Newest() *Version { return &o.Versions[len(o.Versions)-1] }

// Ref returns a reference to the newest version.
func (o *Object) Ref() wire.ValueRef {
	v := o.Newest()
	return wire.ValueRef{Kind: o.Kind, Name: o.ID.Name(), Version: v.Number, Digest: v.Digest, Registry: o.Registry}
}

func (v *Version) bytes() (n int) {
	for _, k := range v.Keys {
		n += len(k.Name) + k.Bytes
	}
	return n
}

func (v *Version) has(key string) bool {
	return slices.ContainsFunc(v.Keys, func(k api.ValueKey) bool { return k.Name == key })
}

// host names a registry for the services of a tenant.
type host struct {
	tenant api.Tenant
	name   string
}

// use is what a service's newest SLA names.
type use struct {
	needs []need
	host  host
}

// need is a value that a file has.
type need struct {
	Key
	name string // of the key in the object; empty: the only one
}

// met reports whether a version has the value.
func (n need) met(v *Version) bool {
	if n.name == "" {
		return len(v.Keys) == 1
	}
	return v.has(n.name)
}

func (n need) text() string {
	if n.name == "" {
		return "a single key"
	}
	return "the key " + n.name
}

// Machine has all configs and secrets. It is not safe for concurrent use.
type Machine struct {
	objects    map[Key]*Object
	registries map[host]Key // secrets of api.TypeRegistry
	uses       map[api.ServiceID]use
	users      map[Key]map[api.ServiceID]bool  // services whose newest SLA names it in a file
	pullers    map[host]map[api.ServiceID]bool // services with an image of the registry
	pins       map[api.InstanceID][]Key
	holders    map[Key]map[api.InstanceID]uint64 // the version that an instance has
	counts     map[api.Tenant]count              // of topmost tenants
	changed    map[Key]bool
}

type count struct{ objects, bytes int }

// New returns a Machine without objects.
func New() *Machine {
	return &Machine{
		objects: map[Key]*Object{}, registries: map[host]Key{}, uses: map[api.ServiceID]use{},
		users: map[Key]map[api.ServiceID]bool{}, pullers: map[host]map[api.ServiceID]bool{},
		pins: map[api.InstanceID][]Key{}, holders: map[Key]map[api.InstanceID]uint64{}, counts: map[api.Tenant]count{}, changed: map[Key]bool{},
	}
}

// Restore adds a saved object.
func (m *Machine) Restore(o Object) {
	if len(o.Versions) > 0 {
		m.enter(&o)
	}
}

func (m *Machine) enter(o *Object) {
	m.objects[o.Key()] = o
	if o.Registry != "" {
		m.registries[host{o.ID.Tenant(), o.Registry}] = o.Key()
	}
	m.count(o, 1)
}

func (m *Machine) count(o *Object, by int) {
	top := o.ID.Tenant().Top()
	c := m.counts[top]
	if c = (count{c.objects + by, c.bytes + by*o.Newest().bytes()}); c == (count{}) {
		delete(m.counts, top)
	} else {
		m.counts[top] = c
	}
}

// Get returns an object, or nil. It is only read.
func (m *Machine) Get(k Key) *Object { return m.objects[k] }

// Keys returns the objects of a kind, sorted by id.
func (m *Machine) Keys(kind api.ValueKind) (out []Key) {
	for k := range m.objects {
		if k.Kind == kind {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, func(a, b Key) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// Request is the request to create or to replace an object. The zero IfMatch sets no condition.
type Request struct {
	Kind     api.ValueKind
	ID       api.ValuesID
	Type     string
	Registry string
	Keys     []api.ValueKey
	Digest   string
	Sealed   []byte
	Create   bool // it must not exist; otherwise it must
	IfMatch  api.Revision
	By       string
}

// Put creates an object, or adds a version to it. Errors: ErrConflict (it exists, another secret has
// the registry, or a service needs a key that the version lacks), ErrNotFound, ErrPrecondition,
// ErrTooMany, ErrUnavailable (the root has too many).
func (m *Machine) Put(now time.Time, r Request) error {
	k := Key{r.Kind, r.ID}
	old := m.objects[k]
	next := Version{Number: 1, Digest: r.Digest, Keys: r.Keys, Sealed: r.Sealed, At: now}
	switch {
	case old == nil && !r.Create:
		return fmt.Errorf("%s %s: %w", r.Kind, r.ID, api.ErrNotFound)
	case old != nil && r.Create:
		return fmt.Errorf("%s %s exists; replace it with its revision: %w", r.Kind, r.ID, api.ErrConflict)
	case old != nil && r.IfMatch != 0 && old.Revision != r.IfMatch:
		return stale(k, old, r.IfMatch)
	case old != nil && (old.Type != r.Type || old.Registry != r.Registry):
		return fmt.Errorf("%s %s is of type %q for registry %q; delete it to change these: %w", r.Kind, r.ID, old.Type, old.Registry, api.ErrConflict)
	}
	if other, ok := m.registries[host{r.ID.Tenant(), r.Registry}]; ok && r.Registry != "" && other != k {
		return fmt.Errorf("secret %s: registry %s has the secret %s: %w", r.ID, r.Registry, other.ID.Name(), api.ErrConflict)
	}
	for _, s := range step.Keys(m.users[k]) {
		for _, n := range m.uses[s].needs {
			if n.Key == k && !n.met(&next) {
				return fmt.Errorf("%s %s: a file of service %s needs %s, which the new version has not; change the service first: %w", r.Kind, r.ID, s.Name(), n.text(), api.ErrConflict)
			}
		}
	}
	has, more := m.counts[r.ID.Tenant().Top()], next.bytes()
	if old != nil {
		more -= old.Newest().bytes()
	}
	switch {
	case old == nil && has.objects >= MaxOfTenant:
		return fmt.Errorf("%s %s: tenant %s has %d configs and secrets, the limit; delete some: %w", r.Kind, r.ID, r.ID.Tenant().Top(), has.objects, api.ErrTooMany)
	case more > 0 && has.bytes+more > MaxBytesOfTenant:
		return fmt.Errorf("%s %s: the configs and secrets of tenant %s have %d bytes, the limit is %d; delete some: %w", r.Kind, r.ID, r.ID.Tenant().Top(), has.bytes, MaxBytesOfTenant, api.ErrTooMany)
	case old == nil && len(m.objects) >= MaxObjects:
		return fmt.Errorf("%s %s: the root has %d configs and secrets, the limit: %w", r.Kind, r.ID, len(m.objects), api.ErrUnavailable)
	}
	o := &Object{Kind: r.Kind, ID: r.ID, Type: r.Type, Registry: r.Registry, Created: now, By: r.By}
	if old != nil {
		next.Number = old.Newest().Number + 1
		o.Created, o.Revision, o.Versions = old.Created, old.Revision, m.held(old)
		m.count(old, -1)
	}
	o.Versions = append(o.Versions, next)
	m.enter(o)
	m.changed[k] = true
	return nil
}

// held returns the versions that some instance has, except the oldest ones.
func (m *Machine) held(o *Object) (out []Version) {
	has := map[uint64]bool{}
	for _, v := range m.holders[o.Key()] {
		has[v] = true
	}
	for _, v := range o.Versions {
		if has[v.Number] {
			out = append(out, v)
		}
	}
	return out[max(0, len(out)-maxVersions+1):]
}

func stale(k Key, o *Object, want api.Revision) error {
	return fmt.Errorf("%s %s is at revision %d, not %d; get it again and repeat: %w", k.Kind, k.ID, o.Revision, want, api.ErrPrecondition)
}

// Delete removes an object. Without force, one that a service or an instance uses is ErrConflict.
// Other errors: ErrNotFound, ErrPrecondition.
func (m *Machine) Delete(k Key, ifMatch api.Revision, force bool) error {
	o := m.objects[k]
	switch {
	case o == nil:
		return fmt.Errorf("%s %s: %w", k.Kind, k.ID, api.ErrNotFound)
	case ifMatch != 0 && o.Revision != ifMatch:
		return stale(k, o, ifMatch)
	}
	if used := m.UsedBy(k); len(used) > 0 && !force {
		return fmt.Errorf("%s %s is used by %s; remove it from its files first, or force the deletion: it then has no value when an instance starts: %w",
			k.Kind, k.ID, name(used), api.ErrConflict)
	}
	m.count(o, -1)
	delete(m.objects, k)
	delete(m.changed, k)
	if o.Registry != "" {
		delete(m.registries, host{o.ID.Tenant(), o.Registry})
	}
	return nil
}

func name(used []api.ServiceID) string {
	if n := len(used) - 1; n > 0 {
		return fmt.Sprintf("%s and %d other services", used[0].Name(), n)
	}
	return "service " + used[0].Name()
}

// UsedBy returns the services whose newest SLA names the object in a file, or whose instances have
// it in one, sorted.
func (m *Machine) UsedBy(k Key) []api.ServiceID {
	all := map[api.ServiceID]bool{}
	for s := range m.users[k] {
		all[s] = true
	}
	if o := m.objects[k]; o == nil || o.Registry == "" {
		for in := range m.holders[k] {
			all[in.Service()] = true
		}
	}
	return step.Keys(all)
}

// Affected returns the services whose instances have the object or are to get it, sorted.
func (m *Machine) Affected(k Key, registry string) []api.ServiceID {
	all := map[api.ServiceID]bool{}
	for s := range m.users[k] {
		all[s] = true
	}
	if registry != "" {
		for s := range m.pullers[host{k.ID.Tenant(), registry}] {
			all[s] = true
		}
	}
	for in := range m.holders[k] {
		all[in.Service()] = true
	}
	return step.Keys(all)
}

// Restarts reports whether a service's instances are to be restarted when the object changes.
func Restarts(k Key, spec *api.Microservice) bool {
	return slices.ContainsFunc(spec.Files, func(f api.File) bool {
		kind, name, _ := f.Source()
		return f.OnChange == api.ChangeRestarts && kind == k.Kind && name == k.ID.Name()
	})
}

// needsOf returns what the files of a service need.
func needsOf(t api.Tenant, spec *api.Microservice) (out []need) {
	for _, f := range spec.Files {
		if kind, name, key := f.Source(); kind != "" {
			out = append(out, need{Key{kind, t.Values(name)}, key})
		}
	}
	return out
}

// keysOf returns the objects that the files of a service name, sorted, each once.
func keysOf(t api.Tenant, spec *api.Microservice) (out []Key) {
	for _, n := range needsOf(t, spec) {
		out = append(out, n.Key)
	}
	slices.SortFunc(out, func(a, b Key) int { return cmp.Compare(a.String(), b.String()) })
	return slices.Compact(out)
}

// Use records the newest SLA of a service; nil if it has none any more.
func (m *Machine) Use(id api.ServiceID, spec *api.Microservice) {
	old := m.uses[id]
	for _, n := range old.needs {
		remove(m.users, n.Key, id)
	}
	remove(m.pullers, old.host, id)
	delete(m.uses, id)
	if spec == nil {
		return
	}
	is := use{needsOf(id.Tenant(), spec), host{id.Tenant(), api.ImageRegistry(spec)}}
	for _, n := range is.needs {
		add(m.users, n.Key, id)
	}
	if is.host.name != "" {
		add(m.pullers, is.host, id)
	}
	m.uses[id] = is
}

func add[K comparable](m map[K]map[api.ServiceID]bool, k K, id api.ServiceID) {
	if m[k] == nil {
		m[k] = map[api.ServiceID]bool{}
	}
	m[k][id] = true
}

func remove[K comparable](m map[K]map[api.ServiceID]bool, k K, id api.ServiceID) {
	if delete(m[k], id); len(m[k]) == 0 {
		delete(m, k)
	}
}

// Check returns ErrInvalid if a file of an SLA names an object or a key that does not exist. It does
// not depend on the objects of other tenants.
func (m *Machine) Check(t api.Tenant, spec *api.Microservice) error {
	for _, f := range spec.Files {
		kind, name, key := f.Source()
		if kind == "" {
			continue
		}
		o := m.objects[Key{kind, t.Values(name)}]
		switch {
		case o == nil:
			return fmt.Errorf("service %s.%s: file %s needs %s %s, which tenant %s does not have; create it first: treeline create %s %s: %w",
				spec.Name, spec.Namespace, f.Path, kind, name, t, kind, name, api.ErrInvalid)
		case o.Type == api.TypeRegistry:
			return fmt.Errorf("service %s.%s: file %s cannot have the values of secret %s: it is of type registry, for pulling images: %w",
				spec.Name, spec.Namespace, f.Path, name, api.ErrInvalid)
		case key != "" && !o.Newest().has(key):
			return fmt.Errorf("service %s.%s: file %s: %s %s has no key %s: %w", spec.Name, spec.Namespace, f.Path, kind, name, key, api.ErrInvalid)
		case key == "" && len(o.Newest().Keys) != 1:
			return fmt.Errorf("service %s.%s: file %s: %s %s has %d keys; name one, %s.KEY: %w",
				spec.Name, spec.Namespace, f.Path, kind, name, len(o.Newest().Keys), name, api.ErrInvalid)
		}
	}
	return nil
}

// Refs returns references to the newest versions of the objects that an SLA's files name and that
// exist, and to the secret of its image's registry.
func (m *Machine) Refs(t api.Tenant, spec *api.Microservice) (out []wire.ValueRef) {
	for _, k := range keysOf(t, spec) {
		if o := m.objects[k]; o != nil {
			out = append(out, o.Ref())
		}
	}
	if name := api.ImageRegistry(spec); name != "" {
		if k, ok := m.registries[host{t, name}]; ok {
			out = append(out, m.objects[k].Ref())
		}
	}
	return out
}

// RefsInPlace returns what Refs returns for an instance that runs with the versions in have: an
// object whose change requires a restart keeps its version.
func (m *Machine) RefsInPlace(t api.Tenant, spec *api.Microservice, have []wire.ValueRef) []wire.ValueRef {
	refs := m.Refs(t, spec)
	for i, r := range refs {
		if h := slices.IndexFunc(have, func(h wire.ValueRef) bool { return h.Kind == r.Kind && h.Name == r.Name }); h >= 0 && Restarts(Key{r.Kind, t.Values(r.Name)}, spec) {
			refs[i] = have[h]
		}
	}
	return refs
}

// Behind reports whether an instance with the versions in have has to be restarted for newer ones.
func (m *Machine) Behind(t api.Tenant, spec *api.Microservice, have []wire.ValueRef) bool {
	for _, h := range have {
		k := Key{h.Kind, t.Values(h.Name)}
		if o := m.objects[k]; o != nil && o.Newest().Number != h.Version && Restarts(k, spec) {
			return true
		}
	}
	return false
}

// Pin records which versions an instance has; none if it is gone.
func (m *Machine) Pin(id api.InstanceID, refs []wire.ValueRef) {
	for _, k := range m.pins[id] {
		if delete(m.holders[k], id); len(m.holders[k]) == 0 {
			delete(m.holders, k)
		}
	}
	delete(m.pins, id)
	for _, r := range refs {
		k := Key{r.Kind, id.Tenant().Values(r.Name)}
		if m.holders[k] == nil {
			m.holders[k] = map[api.InstanceID]uint64{}
		}
		m.holders[k][id] = r.Version
		m.pins[id] = append(m.pins[id], k)
	}
}

// Sealed returns a version's encrypted values if an instance that has it is allowed. The result is
// only read.
func (m *Machine) Sealed(w wire.WantValue, allowed func(api.InstanceID) bool) (Version, bool) {
	k := Key{w.Kind, w.Tenant.Values(w.Name)}
	o := m.objects[k]
	if o == nil {
		return Version{}, false
	}
	for _, v := range o.Versions {
		if v.Number != w.Version {
			continue
		}
		for in, has := range m.holders[k] {
			if has == w.Version && allowed(in) {
				return v, true
			}
		}
	}
	return Version{}, false
}

// View returns the object for the API, without its values.
func (m *Machine) View(k Key) (api.Values, bool) {
	o := m.objects[k]
	if o == nil {
		return api.Values{}, false
	}
	v := o.Newest()
	return api.Values{
		ID: o.ID, Tenant: o.ID.Tenant(), Kind: o.Kind, Type: o.Type, Registry: o.Registry, Version: v.Number, Digest: v.Digest,
		Keys: v.Keys, Services: m.UsedBy(k), Created: o.Created, Changed: v.At, By: o.By, Revision: o.Revision,
	}, true
}

// TakeChanged returns the objects that changed since the last call, sorted by name.
func (m *Machine) TakeChanged() (out []Key) {
	for k := range m.changed {
		out = append(out, k)
	}
	clear(m.changed)
	slices.SortFunc(out, func(a, b Key) int { return cmp.Compare(a.String(), b.String()) })
	return out
}

// Saved sets the revision of an object and returns it to be saved.
func (m *Machine) Saved(k Key, rev api.Revision) Object {
	o := *m.objects[k]
	o.Revision = rev
	m.objects[k] = &o
	return o
}
