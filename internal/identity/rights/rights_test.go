package rights

import (
	"errors"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func who(t api.Tenant, roles ...Role) Principal { return Principal{User: "u", Tenant: t, Roles: roles} }

func TestAllowed(t *testing.T) {
	for _, c := range []struct {
		p    Principal
		a    Action
		on   api.Tenant
		want error
	}{
		{Principal{}, AppsRead, "acme", api.ErrUnauthenticated},
		{Principal{Roles: []Role{Admin}}, AppsRead, "acme", api.ErrUnauthenticated},
		{who("acme", ApplicationProvider), AppsWrite, "acme", nil},
		{who("acme", ApplicationProvider), AppsWrite, "acme/lab", nil},
		{who("acme", ApplicationProvider), AppsWrite, "acme/lab/x", nil},
		{who("acme/lab", ApplicationProvider), AppsWrite, "acme", api.ErrNotFound},
		{who("acme", ApplicationProvider), AppsWrite, "acmelab", api.ErrNotFound},
		{who("acme", ApplicationProvider), AppsWrite, "evil", api.ErrNotFound},
		{who("acme", ApplicationProvider), AppsWrite, "", api.ErrNotFound},
		{who("acme", ApplicationProvider), NodesWrite, "acme", api.ErrForbidden},
		{who("acme", ApplicationProvider), NodesWrite, "evil", api.ErrNotFound},
		{who("acme", InfrastructureProvider), ClustersJoin, "acme", nil},
		{who("acme", InfrastructureProvider), AppsRead, "acme", api.ErrForbidden},
		{who("acme", OrganizationAdmin), UsersWrite, "acme", nil},
		{who("acme", OrganizationAdmin), SystemRead, "acme", api.ErrForbidden},
		{who("acme", Admin), UsersWrite, "acme/lab", nil},
		{who("acme", Admin), UsersWrite, "evil", api.ErrNotFound},
		{who("acme", Admin), SystemWrite, "acme", api.ErrForbidden},
		{who("acme", Admin), SystemWrite, "", api.ErrForbidden},
		{who("", Admin), SystemWrite, "", nil},
		{who("", Admin), AppsWrite, "acme/lab", nil},
		{who("", ApplicationProvider), AppsWrite, "acme", api.ErrNotFound},
		{who("", ApplicationProvider), SystemRead, "", api.ErrForbidden},
		{who("acme"), AppsRead, "acme", api.ErrForbidden},
		{who("acme", "Root"), AppsRead, "acme", api.ErrForbidden},
		{who("", Admin), "apps:destroy", "acme", api.ErrForbidden},
	} {
		if err := Allowed(c.p, c.a, c.on); !errors.Is(err, c.want) {
			t.Errorf("%v of %q: %s on %q: %v, want %v", c.p.Roles, c.p.Tenant, c.a, c.on, err, c.want)
		}
	}
}

// The kind of the error must not reveal whether another tenant exists.
func TestForeignTenantsAreUniform(t *testing.T) {
	for _, a := range Actions() {
		for _, r := range Roles {
			err := Allowed(who("acme", r), a, "evil")
			if want := api.ErrNotFound; !errors.Is(err, want) && a != SystemRead && a != SystemWrite {
				t.Errorf("%s %s: %v", r, a, err)
			}
		}
	}
}

func TestMayGrant(t *testing.T) {
	for _, c := range []struct {
		p    Principal
		r    Role
		on   api.Tenant
		want error
	}{
		{who("acme", OrganizationAdmin), OrganizationAdmin, "acme", nil},
		{who("acme", OrganizationAdmin), Admin, "acme", api.ErrForbidden},
		{who("acme", Admin), Admin, "acme/lab", nil},
		{who("acme", Admin), Admin, "", api.ErrNotFound},
		{who("", OrganizationAdmin), ApplicationProvider, "", api.ErrForbidden},
		{who("", Admin), Admin, "", nil},
		{who("acme", ApplicationProvider), ApplicationProvider, "acme", api.ErrForbidden},
	} {
		if err := MayGrant(c.p, []Role{c.r}, c.on); !errors.Is(err, c.want) {
			t.Errorf("%v of %q gives %s in %q: %v, want %v", c.p.Roles, c.p.Tenant, c.r, c.on, err, c.want)
		}
	}
}
