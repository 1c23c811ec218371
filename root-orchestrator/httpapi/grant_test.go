package httpapi_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/rights"
)

// No user can attract the services of other tenants to a cluster of the user's own tenant.
func TestRightsToOpenAClusterToTenants(t *testing.T) {
	r := newRig(t)
	above := r.user("acme/boss", rights.OrganizationAdmin)
	admin, op := r.user("admin", rights.Admin), r.user("acme/lab/op", rights.InfrastructureProvider)
	r.join("oslo", "acme/lab")
	dev := r.user("acme/dora", rights.ApplicationProvider)
	r.user("rival/boss", rights.Admin)
	for _, c := range []struct {
		who, what, token, body string
		want                   int
	}{
		{"the owner", "opens it to all", op, `{"open":true}`, http.StatusForbidden},
		{"the owner", "opens it to the tenant above", op, `{"open":false,"tenants":["acme"]}`, http.StatusNotFound},
		{"the owner", "opens it to another tenant", op, `{"open":false,"tenants":["rival"]}`, http.StatusNotFound},
		{"the owner", "raises its caps", op, `{"open":false,"caps":{"nodes":9}}`, http.StatusForbidden},
		{"the tenant above", "opens it to another tenant", above, `{"open":false,"tenants":["rival"]}`, http.StatusNotFound},
		{"the tenant above", "opens it to itself", above, `{"open":false,"tenants":["acme"]}`, http.StatusOK},
		{"a developer", "closes it", dev, `{"open":false}`, http.StatusForbidden},
		{"the owner", "closes it to the tenant above", op, `{"open":false}`, http.StatusOK},
		{"an admin", "names a tenant that does not exist", admin, `{"open":false,"tenants":["nobody"]}`, http.StatusNotFound},
		{"an admin", "says what cannot be", admin, `{"open":false,"caps":{"nodes":-1}}`, http.StatusUnprocessableEntity},
		{"an admin", "opens it to all, capped", admin, `{"open":true,"caps":{"nodes":9}}`, http.StatusOK},
		{"the owner", "lifts the caps", op, `{"open":true}`, http.StatusForbidden},
		{"the owner", "closes it to all", op, `{"open":false,"caps":{"nodes":9}}`, http.StatusOK},
	} {
		if status, _, text := r.raw("PUT", "/v1/clusters/oslo/grant", c.token, c.body); status != c.want {
			t.Errorf("%s %s: %d %s, want %d", c.who, c.what, status, text, c.want)
		}
	}
	for token, want := range map[string]int{op: http.StatusForbidden, admin: http.StatusCreated} {
		if status, _, text := r.raw("POST", "/v1/tokens", token, `{"kind":"cluster","tenant":"acme/lab","open":true}`); status != want {
			t.Errorf("a token for an open cluster: %d %s, want %d", status, text, want)
		}
	}
}

// A user who may not see a cluster sees that the grant excluded a cluster, but neither its name nor
// its owner.
func TestClustersOfOthersAreNotNamedWhereTheyAreClosed(t *testing.T) {
	r := newRig(t)
	r.join("oslo", "rival")
	app := r.apply("acme", "shop", 1)
	path := "/v1/instances/" + api.PathOf(app.Services[0].Instance(0)) + "/why"
	dev, admin := r.user("acme/dora", rights.ApplicationProvider), r.user("admin", rights.Admin)
	status, _, text := r.raw("GET", path, dev, "")
	if status != http.StatusOK || strings.Contains(text, "oslo") || strings.Contains(text, "rival") || !strings.Contains(text, "not open to tenant acme") {
		t.Errorf("a developer is told %d %s", status, text)
	}
	status, _, text = r.raw("GET", path, admin, "")
	if status != http.StatusOK || !strings.Contains(text, "oslo") || !strings.Contains(text, "owner rival") {
		t.Errorf("an admin is told %d %s, want status 200, a text with 'oslo', a text with 'owner rival'", status, text)
	}
}
