package api_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func TestIDsTakeApartWhatTheyWereMadeOf(t *testing.T) {
	app := api.Tenant("acme/lab").App("shop", "prod")
	svc := app.Service("web", "v1")
	inst := svc.Instance(12)
	if inst != "acme/lab/shop.prod.web.v1#12" {
		t.Fatalf("instance id is %s, want acme/lab/shop.prod.web.v1#12", inst)
	}
	if inst.Service() != svc || svc.App() != app || inst.Number() != 12 {
		t.Fatalf("parts of the instance id are %s, %s and %d", inst.Service(), svc.App(), inst.Number())
	}
	for _, tenant := range []api.Tenant{app.Tenant(), svc.Tenant(), inst.Tenant()} {
		if tenant != "acme/lab" {
			t.Errorf("tenant %q", tenant)
		}
	}
	if app.Name() != "shop.prod" || svc.Name() != "shop.prod.web.v1" || inst.Name() != "shop.prod.web.v1#12" {
		t.Errorf("names are %s, %s and %s", app.Name(), svc.Name(), inst.Name())
	}
	if in := svc.NameInApp(); in != "web.v1" {
		t.Errorf("within its application %q", in)
	}
	if got, err := api.ParseInstanceID(string(inst)); err != nil || got != inst {
		t.Errorf("ParseInstanceID returned %s, %v, want the same id", got, err)
	}
}

func TestForeignInstanceIDsAreChecked(t *testing.T) {
	for _, id := range []string{
		"", "#0", "acme/a.b.c.d", "acme/a.b.c.d#", "acme/a.b.c.d#-1", "acme/a.b.c.d#x", "a.b.c.d#0", "acme/a.b.c#0", "acme/a.b.c.d.e#0",
		"Acme/a.b.c.d#0", "acme//a.b.c.d#0", "acme/a.b.-c.d#0", "acme/a.b.c-.d#0", "acme/a.b.c.of-tenant#0", "acme/a.b..d#0", "../a.b.c.d#0", "acme/a.b.c.d\n#0",
	} {
		if _, err := api.ParseInstanceID(id); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%q passes: %v", id, err)
		}
	}
}

func TestNames(t *testing.T) {
	long := strings.Repeat("a", 63)
	for _, tt := range []struct {
		name string
		ok   bool
		got  bool
	}{
		{"30 letters", true, api.ValidName(long[:30])},
		{"31 letters", false, api.ValidName(long[:31])},
		{"no letters", false, api.ValidName("")},
		{"hyphens in a name", true, api.ValidName("a--b-c")},
		{"hyphen before a name", false, api.ValidName("-a")},
		{"hyphen after a name", false, api.ValidName("a-")},
		{"hyphen alone", false, api.ValidName("-")},
		{"30 letters and hyphens", true, api.ValidName("a" + strings.Repeat("-", 28) + "b")},
		{"31 letters and hyphens", false, api.ValidName("a" + strings.Repeat("-", 29) + "b")},
		{"the label of tenants", false, api.ValidName("Of-Tenant")},
		{"newline after a name", false, api.ValidName("a\n")},
		{"machine of 63", true, api.ValidMachineName(long)},
		{"machine of 64", false, api.ValidMachineName(long + "a")},
		{"machine with an edge", false, api.ValidMachineName("a-")},
		{"machine in capitals", false, api.ValidMachineName("A")},
		{"tenant of 8 parts", true, api.ValidTenant("a/b/c/d/e/f/g/h")},
		{"tenant of 9 parts", false, api.ValidTenant("a/b/c/d/e/f/g/h/i")},
		{"tenant that climbs", false, api.ValidTenant("a/../b")},
		{"tenant with an empty part", false, api.ValidTenant("a//b")},
	} {
		if tt.got != tt.ok {
			t.Errorf("%s: valid is %v, want the opposite", tt.name, tt.got)
		}
	}
}

func TestEpochsOrderRootBeforeLocal(t *testing.T) {
	older, newer := api.EpochOf(17, 1<<20-1), api.EpochOf(18, 0)
	if older >= newer {
		t.Fatalf("%s is not older than %s", older, newer)
	}
	if older.Root() != 17 || older.Local() != 1<<20-1 || api.EpochOf(17, 2).String() != "17.2" {
		t.Fatalf("the epoch is %s, want 17.1048575", older)
	}
	// A count above 20 bits must not change the root's part.
	if e := api.EpochOf(17, 1<<20); e.Root() != 17 {
		t.Fatalf("an overflow of the lower part changed the upper part: %s", e)
	}
}
