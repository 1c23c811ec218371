package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/httpapi"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// bodies are valid bodies by route, so that a request reaches the check of rights.
var bodies = map[string]string{
	"POST /v1/volumes/{id}/snapshots": `{"name":"monday"}`,
	"POST /v1/instances/{id}/move":    `{}`,
	"PUT /v1/apps":                    slaOf("shop", 1),
	"POST /v1/apps":                   slaOf("shop", 1),
	"PUT /v1/services/{id}/scale":     `{"replicas":9}`,
	"POST /v1/services/{id}/scale":    `{"replicas":9}`,
	"POST /v1/tenants":                `{"path":"rival/part"}`,
	"POST /v1/users":                  `{"id":"rival/mole","roles":["Application_Provider"]}`,
	"PUT /v1/users/{id}":              `{"roles":["Admin"]}`,
	"POST /v1/auth/tokens":            `{"name":"mine","ttl_seconds":3600}`,
	"POST /v1/tokens":                 `{"kind":"node","cluster":"munich"}`,
	"POST /v1/auth/login":             `{"user":"rival/boss","password":"not this one"}`,
	"POST /v1/auth/redeem":            `{"user":"rival/boss","code":"guess","password":"long enough here"}`,
	"PUT /v1/clusters/{id}/grant":     `{"open":true}`,
	"POST /v1/configs":                `{"name":"db","data":{"a":"YQ=="}}`,
	"POST /v1/secrets":                `{"name":"db","data":{"a":"YQ=="}}`,
	"PUT /v1/configs/{id}":            `{"data":{"a":"Yg=="}}`,
	"PUT /v1/secrets/{id}":            `{"data":{"a":"Yg=="}}`,
	"POST /v1/addons":                 `{"package":{"name":"mqtt","version":"1.0.0","kinds":[{"name":"topic","schema":{}}]}}`,
	"PUT /v1/addons/{id}":             `{"package":{"name":"mqtt","version":"1.1.0","kinds":[{"name":"topic","schema":{}}]}}`,
	"POST /v1/kinds":                  `{"name":"sensor","schema":{}}`,
	"PUT /v1/kinds/{id}":              `{"schema":{"type":"array"}}`,
	"POST /v1/resources":              `{"kind":"sensor","name":"roof","spec":{}}`,
	"PUT /v1/resources/{id}":          `{"spec":[]}`,

	"POST /v1/services/{id}/rollout/undo": `{}`,

	"PUT /v1/clusters/{id}/nodes/{node}/caps": `{"memory_mb":64}`,
	"POST /v1/auth/refresh":                   `{"refresh":"a.b"}`,
	"POST /v1/auth/password":                  `{"old":"not this one","password":"long enough here"}`,
	"POST /v1/auth/logout":                    `{"refresh":"a.b"}`,
}

// own reports whether a route concerns only the user who requests it.
func own(path string) bool { return strings.HasPrefix(path, "/v1/auth/") }

// TestNothingCrossesTenants requests every route for objects of another tenant, with every role.
// The answer must be that for an object that does not exist, must not contain the other tenant's
// names, and nothing may change.
func TestNothingCrossesTenants(t *testing.T) {
	r := newRig(t)
	rival := r.user("rival/boss", rights.Admin)
	r.apply("rival", "shop", 2)
	r.join("munich", "rival")
	_, rec, err := r.tokens.Create(t.Context(), jointoken.Order{Scope: jointoken.ForCluster, Tenant: "rival"})
	check(t, err)
	status, _, text := r.raw("POST", "/v1/auth/tokens", rival, `{"name":"theirs","ttl_seconds":3600}`)
	if status != http.StatusCreated {
		t.Fatalf("personal token: %d %s, want status 201", status, text)
	}
	var pat struct{ ID string }
	check(t, json.Unmarshal([]byte(text), &pat))
	for _, kind := range []string{"configs", "secrets"} {
		if status, _, text := r.raw("POST", "/v1/"+kind, rival, `{"name":"db","data":{"a":"YQ=="}}`); status != http.StatusCreated {
			t.Fatalf("create one of %s: %d %s, want status 201", kind, status, text)
		}
	}
	for _, path := range []string{"/v1/kinds", "/v1/resources", "/v1/addons"} {
		if status, _, text := r.raw("POST", path, rival, bodies["POST "+path]); status != http.StatusCreated {
			t.Fatalf("POST %s: %d %s, want status 201", path, status, text)
		}
	}
	before := r.snapshot("rival")

	theirs := map[string]string{
		"/v1/apps/{id}": "rival~shop.prod", "/v1/services/{id}": "rival~shop.prod.web.v1", "/v1/instances/{id}": "rival~shop.prod.web.v1~0", "/v1/volumes/{id}": "rival~shop.prod.web.v1~0:data",
		"/v1/snapshots/{id}": "rival~shop.prod.web.v1~0:data@monday",
		"/v1/clusters/{id}":  "munich", "/v1/tokens/{id}": rec.ID, "/v1/tenants/{id}": "rival", "/v1/users/{id}": "rival~boss",
		"/v1/auth/tokens/{id}": pat.ID, "/v1/configs/{id}": "rival~db", "/v1/kinds/{id}": "rival~sensor", "/v1/addons/{id}": "rival~mqtt", "/v1/resources/{id}": "rival~sensor:roof", "/v1/secrets/{id}": "rival~db",
	}
	nobodys := map[string]string{
		"/v1/apps/{id}": "nobody~shop.prod", "/v1/services/{id}": "nobody~shop.prod.web.v1", "/v1/instances/{id}": "nobody~shop.prod.web.v1~0", "/v1/volumes/{id}": "nobody~shop.prod.web.v1~0:data",
		"/v1/snapshots/{id}": "nobody~shop.prod.web.v1~0:data@monday",
		"/v1/clusters/{id}":  "nobodycluster", "/v1/tokens/{id}": "0123456789ab", "/v1/tenants/{id}": "nobody", "/v1/users/{id}": "nobody~boss",
		"/v1/auth/tokens/{id}": "NOSUCHTOKEN", "/v1/configs/{id}": "nobody~db", "/v1/kinds/{id}": "nobody~sensor", "/v1/addons/{id}": "nobody~mqtt", "/v1/resources/{id}": "nobody~sensor:roof", "/v1/secrets/{id}": "nobody~db",
	}
	fill := func(path string, ids map[string]string) string {
		for prefix, id := range ids {
			if strings.HasPrefix(path, prefix) {
				path = strings.Replace(path, "{id}", id, 1)
			}
		}
		return strings.ReplaceAll(path, "{node}", "n1")
	}
	asNobody := strings.NewReplacer("munich", "nobodycluster", "rival", "nobody", rec.ID, "0123456789ab", pat.ID, "NOSUCHTOKEN")

	asked := 0
	for i, role := range rights.Roles {
		token := r.user(accountID("acme/user", i), role)
		for _, route := range r.web.Routes() {
			name := route.Method + " " + route.Path
			for _, query := range []string{"", "?tenant=rival", "?under=rival/shop.prod", "?watch=true", "?watch=true&tenant=rival"} {
				watched := strings.Contains(query, "watch") || route.Path == "/v1/changes"
				applies := name == "PUT /v1/apps" || name == "POST /v1/apps"
				switch {
				case applies && query != "?tenant=rival": // allowed for the user's own tenant
					continue
				case query != "" && !applies && route.Method != http.MethodGet, watched && !watches(route.Path):
					continue
				case watched && strings.Contains(query, "under"): // has no change of the user's own
					continue
				}
				if watched {
					asked++
					r.watchedOwn(t, route.Path+query, token, asked)
					continue
				}
				asked++
				path := fill(route.Path, theirs) + query
				status, _, text := r.raw(route.Method, path, token, bodies[name], "If-Match", "*")
				if strings.Contains(path, "rival") || strings.Contains(bodies[name], "rival") {
					// The answer may repeat the request.
				} else if strings.Contains(text, "rival") {
					t.Errorf("%s as %s says a word of another tenant: %s", path, role, text)
				}
				if strings.Contains(route.Path, "{id}") && !own(route.Path) || strings.Contains(query, "tenant=") && watches(route.Path) {
					_, _, other := r.raw(route.Method, strings.ReplaceAll(fill(route.Path, nobodys)+query, "rival", "nobody"), token, bodies[name], "If-Match", "*")
					if got, want := asNobody.Replace(text), asNobody.Replace(other); got != want {
						t.Errorf("%s %s as %s tells that it exists:\n %s\n %s", route.Method, path, role, text, other)
					}
					if status != http.StatusNotFound && status != http.StatusForbidden {
						t.Errorf("%s %s as %s: %d %s", route.Method, path, role, status, text)
					}
				}
			}
		}
	}
	if asked < 150 {
		t.Errorf("only %d requests were made, of %d routes", asked, len(r.web.Routes()))
	}
	if after := r.snapshot("rival"); after != before {
		t.Errorf("another tenant's things changed:\n%s\n%s", before, after)
	}
	if len(r.clusters.asked) > 0 || len(r.clusters.revoked) > 0 {
		t.Errorf("another tenant's cluster was asked %v, revoked %v", r.clusters.asked, r.clusters.revoked)
	}
	if pats := r.accounts.PATs("rival/boss"); len(pats) != 1 {
		t.Errorf("another's personal tokens: %v, want 1 of pats", pats)
	}
	if _, err := r.tokens.Get(rec.ID); err != nil {
		t.Errorf("another tenant's join token: %v", err)
	}
}

func watches(path string) bool {
	switch path {
	case "/v1/apps", "/v1/services", "/v1/instances", "/v1/clusters", "/v1/events", "/v1/changes":
		return true
	}
	return false
}

// watchedOwn opens a watch. It must be refused, or must not show changes of another tenant before a
// later change of the user's own.
func (r *rig) watchedOwn(t *testing.T, path, token string, n int) {
	t.Helper()
	events, end := r.watchRaw(path, token)
	defer end()
	if events == nil {
		return
	}
	if strings.Contains(path, "tenant=rival") {
		t.Errorf("watch %s is not refused", path)
		return
	}
	r.apply("rival", fmt.Sprintf("seen%d", n), 1)
	r.join(api.ClusterID(fmt.Sprintf("seen%d", n)), "rival")
	// The first change must be the user's own, so that all earlier ones were filtered.
	r.apply("acme", fmt.Sprintf("mine%d", n), 1)
	r.join(api.ClusterID(fmt.Sprintf("mine%d", n)), "acme")
	if e := <-events; !strings.Contains(e, "mine") {
		t.Errorf("watch %s: %s, want a text with 'mine'", path, e)
	}
}

// snapshot returns all objects of the tenant as text, without times and without counts that depend
// on other tenants.
func (r *rig) snapshot(tenant api.Tenant) string {
	var out any
	check(r.t, r.loop.Read(r.t.Context(), func() {
		clusters := []api.Cluster{}
		for _, c := range r.core.Clusters() {
			if c.Tenant == tenant && !seen(string(c.ID)) {
				c.Instances, c.Revision, c.Reserved = 0, 0, api.Resources{}
				clusters = append(clusters, c)
			}
		}
		apps := slices.DeleteFunc(r.core.Apps(tenant), func(a api.App) bool { return seen(string(a.ID)) })
		services := slices.DeleteFunc(r.core.Services(tenant), func(s api.Service) bool { return seen(string(s.ID)) })
		out = []any{apps, services, clusters, r.core.AllValues(api.KindConfig, tenant), r.core.AllValues(api.KindSecret, tenant), r.core.CustomKinds(tenant), r.core.AllCustom(tenant)}
	}))
	users := []any{}
	for _, u := range r.accounts.Users() {
		if u.ID.Tenant() == tenant {
			users = append(users, u)
		}
	}
	parts := 0
	for _, t := range r.accounts.Tenants() {
		if root.Within(t.Path, tenant) {
			parts++
		}
	}
	b, err := json.Marshal([]any{out, users, parts})
	check(r.t, err)
	return string(b)
}

// seen reports whether an object was created for the watch.
func seen(id string) bool { return strings.Contains(id, "seen") }

func TestObjectsOfTenantsBelowAreVisible(t *testing.T) {
	r := newRig(t)
	r.user("acme/boss", rights.Admin)
	token := r.user("acme/lab/tech", rights.ApplicationProvider)
	boss := r.user("acme/second", rights.Admin)
	r.apply("acme", "shop", 0)
	r.apply("acme/lab", "shop", 0)
	for who, want := range map[string]string{token: "acme/lab/shop.prod", boss: "acme/lab/shop.prod acme/shop.prod"} {
		apps, _, err := r.client(who).Apps(t.Context(), listAll)
		check(t, err)
		var ids []string
		for _, a := range apps {
			ids = append(ids, string(a.ID))
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("sees %q, want %q", got, want)
		}
	}
}

func TestNodesAreNamedToTheirOperatorsAlone(t *testing.T) {
	r := newRig(t)
	op := r.user("op/carl", rights.InfrastructureProvider)
	dev := r.user("acme/dora", rights.ApplicationProvider)
	r.join("munich", "op")
	check(t, r.loop.Do(t.Context(), root.SetGrant{ID: "munich", Grant: api.Grant{Open: true}}, nil))
	app := r.apply("acme", "shop", 1)
	id := app.Services[0].Instance(0)
	var epoch api.Epoch
	check(t, r.loop.Read(t.Context(), func() {
		i, _ := r.core.Instance(id)
		epoch = i.Epoch
	}))
	check(t, r.loop.Do(t.Context(), root.Report{Report: wire.Report{
		Cluster: "munich", Boot: 1, Seq: 2,
		Observed: []api.Observed{{
			Instance: id, Epoch: epoch, State: api.ClusterScheduled, HandedBack: true, Reason: api.ReasonNoCapacity,
			Why: &api.Explanation{Considered: 1, Causes: []api.Cause{{Constraint: "memory", Count: 1}}, Nearest: &api.Rejection{Candidate: "secretnode", Constraint: "memory"}},
		}},
	}}, nil))
	status, _, text := r.raw("GET", "/v1/instances/acme~shop.prod.web.v1~0/why", dev, "")
	if status != http.StatusOK || strings.Contains(text, "secretnode") {
		t.Errorf("the developer sees %d %s", status, text)
	}
	if !strings.Contains(text, "a node") {
		t.Errorf("the nearest miss is missing: %s, want a text with 'a node'", text)
	}
	r.clusters.answers["GET /v1/nodes"] = httpAnswer(200, api.Page[api.Node]{Items: []api.Node{{NodeInfo: api.NodeInfo{ID: "secretnode"}}}})
	nodes, err := r.client(op).NodesOf("munich").List(t.Context())
	if err != nil || len(nodes) != 1 {
		t.Errorf("the operator sees %v %v, want no error, 1 of nodes", nodes, err)
	}
	if _, err := r.client(dev).NodesOf("munich").List(t.Context()); api.KindOf(statusOf(err)) == nil {
		t.Errorf("the developer may list nodes: %v", err)
	}
}

func accountID(prefix string, i int) (id userID) { return userID(fmt.Sprintf("%s%d", prefix, i)) }

// slowOwner calls afterRead once, after the next Read.
type slowOwner struct {
	httpapi.Owner
	afterRead func()
}

func (o *slowOwner) Read(ctx context.Context, fn func()) error {
	err := o.Owner.Read(ctx, fn)
	if after := o.afterRead; after != nil {
		o.afterRead = nil
		after()
	}
	return err
}

// An application that is applied while its tenant is being deleted is refused, or prevents the
// deletion.
func TestNoApplicationOutlivesItsTenant(t *testing.T) {
	var owner slowOwner
	r := newRig(t, func(o *httpapi.Options) {
		owner.Owner = o.Owner
		o.Owner = &owner
	})
	admin := r.user("admin", rights.Admin)
	_, err := r.accounts.CreateTenant(t.Context(), "acme", "")
	check(t, err)
	applied := make(chan int, 1)
	owner.afterRead = func() { // the deletion has found no application
		done := make(chan struct{})
		go func() {
			defer close(done)
			status, _, _ := r.raw("PUT", "/v1/apps?tenant=acme", admin, slaOf("shop", 1))
			applied <- status
		}()
		select {
		case <-done:
		case <-time.After(100 * time.Millisecond): // it waits for the deletion
		}
	}
	deleted, _, _ := r.raw("DELETE", "/v1/tenants/acme", admin, "")
	status := <-applied
	var left []api.App
	check(t, r.loop.Read(t.Context(), func() { left = r.core.Apps("acme") }))
	_, err = r.accounts.Tenant("acme")
	if err != nil && len(left) > 0 {
		t.Errorf("deletion answered %d, apply %d: the tenant is gone (%v), and %d of its applications are left", deleted, status, err, len(left))
	}
	if deleted != http.StatusNoContent || status != http.StatusNotFound {
		t.Errorf("deletion answered %d, apply %d; want %d and %d", deleted, status, http.StatusNoContent, http.StatusNotFound)
	}
}
