package values_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root/values"
)

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func secret(id api.ValuesID, keys ...string) values.Request {
	r := values.Request{Kind: api.KindSecret, ID: id, Digest: "d", Sealed: []byte("sealed"), Create: true, By: "alice"}
	for _, k := range keys {
		r.Keys = append(r.Keys, api.ValueKey{Name: k, Bytes: 10})
	}
	return r
}

func next(r values.Request) values.Request {
	r.Create = false
	return r
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var db = values.Key{Kind: api.KindSecret, ID: "acme/db"}

func using(source string, change api.OnChange) *api.Microservice {
	return &api.Microservice{
		Name: "web", Namespace: "prod", Virtualization: "container", Code: "registry.example/web:1",
		Files: []api.File{{Path: "/etc/db", Secret: source, OnChange: change}},
	}
}

const web = api.ServiceID("acme/shop.prod.web.prod")

func TestVersionsAreKeptWhileInstancesHaveThem(t *testing.T) {
	m := values.New()
	must(t, m.Put(now, secret("acme/db", "password")))
	first := m.Refs("acme", using("db", ""))
	m.Pin(web.Instance(0), first)
	anyone := func(api.InstanceID) bool { return true }
	for i := range 20 {
		must(t, m.Put(now, next(secret("acme/db", "password"))))
		m.Pin(web.Instance(1), m.Refs("acme", using("db", "")))
		if want := uint64(i + 2); m.Get(db).Newest().Number != want {
			t.Fatalf("the newest version is %d, want %d", m.Get(db).Newest().Number, want)
		}
	}
	if n := len(m.Get(db).Versions); n > 3 {
		t.Errorf("%d versions are kept, want those of two instances and the newest", n)
	}
	old := wire.ValueKey{Tenant: "acme", ValueRef: first[0]}
	if v, ok := m.Sealed(old.Want(), anyone); !ok || v.Number != 1 {
		t.Errorf("version 1, which an instance has: %v %v", v.Number, ok)
	}
	if _, ok := m.Sealed(old.Want(), func(api.InstanceID) bool { return false }); ok {
		t.Error("a version is given to a cluster without such an instance")
	}
	w := old.Want()
	w.Version = 2
	if _, ok := m.Sealed(w, anyone); ok {
		t.Error("a version that no instance has is given away")
	}
	m.Pin(web.Instance(0), nil)
	must(t, m.Put(now, next(secret("acme/db", "password"))))
	if _, ok := m.Sealed(old.Want(), anyone); ok {
		t.Error("a version is kept after its last instance is gone")
	}
}

func TestObjectsInUseAreDeletedWithForceOnly(t *testing.T) {
	m := values.New()
	must(t, m.Put(now, secret("acme/db", "password")))
	m.Use(web, using("db.password", ""))
	if err := m.Delete(db, 0, false); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "shop.prod.web.prod") {
		t.Errorf("delete a secret that an SLA names: %v, want ErrConflict with the service", err)
	}
	m.Use(web, nil)
	m.Pin(web.Instance(0), m.Refs("acme", using("db", "")))
	if err := m.Delete(db, 0, false); !errors.Is(err, api.ErrConflict) {
		t.Errorf("delete a secret that an instance has: %v, want ErrConflict", err)
	}
	must(t, m.Delete(db, 0, true))
	if refs := m.Refs("acme", using("db", "")); len(refs) > 0 {
		t.Errorf("a deleted secret has the references %v", refs)
	}
	if err := m.Delete(db, 0, true); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("delete it again: %v, want ErrNotFound", err)
	}
}

func TestRevisionsAreChecked(t *testing.T) {
	m := values.New()
	must(t, m.Put(now, secret("acme/db", "password")))
	m.Saved(db, 7)
	if err := m.Put(now, secret("acme/db", "password")); !errors.Is(err, api.ErrConflict) {
		t.Errorf("create it again: %v, want ErrConflict", err)
	}
	r := next(secret("acme/db", "password"))
	r.IfMatch = 6
	if err := m.Put(now, r); !errors.Is(err, api.ErrPrecondition) {
		t.Errorf("replace another revision: %v, want ErrPrecondition", err)
	}
	r.IfMatch = 7
	must(t, m.Put(now, r))
	if err := m.Delete(db, 6, false); !errors.Is(err, api.ErrPrecondition) {
		t.Errorf("delete another revision: %v, want ErrPrecondition", err)
	}
	if err := m.Put(now, next(secret("acme/other", "a"))); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("replace what does not exist: %v, want ErrNotFound", err)
	}
}

// The error about a secret of another tenant is the same as that about one that nobody has.
func TestAnSLAIsCheckedAgainstItsTenantsObjectsOnly(t *testing.T) {
	m := values.New()
	must(t, m.Put(now, secret("evil/db", "password")))
	foreign, unknown := m.Check("acme", using("db", "")), m.Check("acme", using("no", ""))
	if !errors.Is(foreign, api.ErrInvalid) || strings.ReplaceAll(foreign.Error(), " db", " no") != unknown.Error() {
		t.Errorf("another tenant's secret: %v; an unknown one: %v; want the same", foreign, unknown)
	}
	must(t, m.Put(now, secret("acme/db", "password", "user")))
	for source, want := range map[string]string{"db": "has 2 keys", "db.root": "no key root", "db.user": ""} {
		err := m.Check("acme", using(source, ""))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("secret: %s: %v, want %q", source, err, want)
		}
	}
}

func TestAKeyInUseCannotBeLeftOut(t *testing.T) {
	m := values.New()
	must(t, m.Put(now, secret("acme/db", "password", "user")))
	m.Use(web, using("db.user", ""))
	if err := m.Put(now, next(secret("acme/db", "password"))); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "the key user") {
		t.Errorf("leave out a key in use: %v, want ErrConflict", err)
	}
	must(t, m.Put(now, next(secret("acme/db", "user"))))
}

func TestConfigsOfOneTenantLeaveRoomForOthers(t *testing.T) {
	m := values.New()
	for i := range values.MaxOfTenant {
		must(t, m.Put(now, secret(api.Tenant("evil/sub").Values(fmt.Sprint("s", i)), "a")))
	}
	if err := m.Put(now, secret("evil/more", "a")); !errors.Is(err, api.ErrTooMany) {
		t.Errorf("one more than %d: %v, want ErrTooMany", values.MaxOfTenant, err)
	}
	must(t, m.Put(now, secret("acme/db", "a")))
	must(t, m.Delete(values.Key{Kind: api.KindSecret, ID: "evil/sub/s0"}, 0, false))
	must(t, m.Put(now, secret("evil/more", "a")))

	m = values.New()
	large := secret("evil/x", "a")
	large.Keys[0].Bytes = values.MaxBytesOfTenant - 1
	must(t, m.Put(now, large))
	if err := m.Put(now, secret("evil/y", "a")); !errors.Is(err, api.ErrTooMany) {
		t.Errorf("more than %d bytes: %v, want ErrTooMany", values.MaxBytesOfTenant, err)
	}
	must(t, m.Put(now, next(secret("evil/x", "a")))) // smaller
	must(t, m.Put(now, secret("evil/y", "a")))
}

func TestAccountsOfRegistriesFollowTheImage(t *testing.T) {
	m := values.New()
	account := secret("acme/pull", api.UsernameKey, api.PasswordKey)
	account.Type, account.Registry = api.TypeRegistry, "registry.example"
	spec := &api.Microservice{Name: "web", Namespace: "prod", Virtualization: "container", Code: "registry.example/web:1"}
	m.Use(web, spec)
	must(t, m.Put(now, account))
	key := values.Key{Kind: api.KindSecret, ID: "acme/pull"}
	if got := m.Affected(key, "registry.example"); !slices.Equal(got, []api.ServiceID{web}) {
		t.Errorf("services with an image of the registry are %v, want %s", got, web)
	}
	refs := m.Refs("acme", spec)
	if len(refs) != 1 || refs[0].Registry != "registry.example" {
		t.Errorf("references are %v, want the account", refs)
	}
	if other := m.Refs("evil", spec); len(other) > 0 {
		t.Errorf("another tenant's service has %v, want nothing", other)
	}
	second := account
	second.ID = "acme/second"
	if err := m.Put(now, second); !errors.Is(err, api.ErrConflict) {
		t.Errorf("a second account of the registry: %v, want ErrConflict", err)
	}
	if err := m.Check("acme", using("pull.password", "")); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("a file with an account: %v, want ErrInvalid", err)
	}
	a := wire.Assignment{Instance: web.Instance(0), Epoch: 1, SpecRev: 1}
	b := a
	b.Values = refs
	if a.Digest() != b.Digest() {
		t.Error("an account changes the digest, which nodes of earlier releases compute without it")
	}
	m.Pin(web.Instance(0), refs)
	must(t, m.Delete(key, 0, false)) // accounts may be deleted: an image that is there needs none
}

func TestOnlyRestartsKeepAnOldVersionInPlace(t *testing.T) {
	m := values.New()
	must(t, m.Put(now, secret("acme/db", "password")))
	restart, none := using("db", api.ChangeRestarts), using("db", "")
	have := m.Refs("acme", none)
	must(t, m.Put(now, next(secret("acme/db", "password"))))
	if got := m.RefsInPlace("acme", none, have); got[0].Version != 2 {
		t.Errorf("a file that is only rewritten has version %d, want 2", got[0].Version)
	}
	if got := m.RefsInPlace("acme", restart, have); got[0].Version != 1 || !m.Behind("acme", restart, have) || m.Behind("acme", none, have) {
		t.Errorf("a file that needs a restart has version %d in place, want 1", got[0].Version)
	}
}
