package httpapi_test

import (
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/eventlog"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/httpapi"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// changing returns the operations with a changing method, by id.
func changing(doc *huma.OpenAPI) map[string]string {
	all := map[string]string{}
	for path, item := range doc.Paths {
		for _, op := range []*huma.Operation{item.Put, item.Post, item.Patch, item.Delete} {
			if op != nil {
				all[op.OperationID] = op.Method + " " + path
			}
		}
	}
	return all
}

// elsewhere are the operations that are not requested here, because they need a state that takes long to make.
var elsewhere = map[string]string{
	"promoteRollout":        "needs canaries; the core writes \"canaries promoted by\"",
	"undoRollout":           "needs a healthy version; it applies an earlier SLA, as applySLA",
	"createSnapshot":        "needs a driver; the core writes \"snapshot … taken by\"",
	"deleteSnapshot":        "needs a driver; the core writes \"snapshot … deleted by\"",
	"acceptRestore":         "needs a restored root",
	"rotateSigningKey":      "TestSigningKeysAreRotatedByAdminsOfTheSystem",
	"rotateRootAuthority":   "TestTheRootAuthorityIsRotatedByAdminsOfTheSystem",
	"takeScheduledSnapshot": "needs a schedule: TestScheduledSnapshotsAreForAdminsOfTheSystem",
	"installAddon":          "needs a package; the core writes \"created by\"",
	"upgradeAddon":          "needs a package; the core writes \"changed by\"",
	"removeAddon":           "needs a package; the core writes \"removed by\"",
	"deleteVolume":          "needs a volume; the core writes \"deleted by\"",
	"moveInstance":          "TestMovesAreRequestedByThoseWhoMay",
}

// TestEveryChangeLeavesARecord makes one successful request of each operation that changes something, and expects an
// event that names the user, in the tenant of the object, and has neither a secret nor a token of the answer.
func TestEveryChangeLeavesARecord(t *testing.T) {
	r := newRig(t, func(o *httpapi.Options) { o.WebhookNetworks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} })
	r.join("munich", "acme")
	boss := r.user("acme/boss", rights.Admin)
	r.user("acme/kim", rights.ApplicationProvider)
	node := httpAnswer(200, api.Node{NodeInfo: api.NodeInfo{ID: "n1"}})
	for _, verb := range []string{"cordon", "uncordon", "drain", "force-drain", "purge"} {
		r.clusters.answers["POST /v1/nodes/n1/"+verb] = node
	}
	r.clusters.answers["PUT /v1/nodes/n1/caps"] = node
	r.clusters.answers["DELETE /v1/nodes/n1"] = "HTTP/1.1 204 No Content\r\n\r\n"
	r.clusters.answers["DELETE /v1/tokens/0123456789ab"] = "HTTP/1.1 204 No Content\r\n\r\n"
	code, err := r.accounts.Invite(t.Context(), "acme/kim", 0)
	check(t, err)
	kim := "correct horse battery"

	var answer struct{ ID, Code, Token, Secret, Access, Refresh string } // of the last request
	seen := api.Revision(0)
	done := map[string]bool{}
	ops := changing(r.web.OpenAPI())
	do := func(op, who, path, body string, about ...string) {
		t.Helper()
		done[op] = true
		method, template, _ := strings.Cut(ops[op], " ")
		if path == "" {
			path = template
		}
		status, _, text := r.raw(method, path, who, body, "If-Match", "*")
		if status/100 != 2 {
			t.Errorf("%s: %d %s, want success", op, status, text)
			return
		}
		answer.Code, answer.Token, answer.Secret, answer.Access, answer.Refresh = "", "", "", "", ""
		_ = json.Unmarshal([]byte(text), &answer)
		var events []api.Event
		check(t, r.loop.Read(t.Context(), func() { events = r.core.Events(eventlog.Filter{Since: seen}) }))
		found := false
		for _, e := range events {
			seen = e.Seq
			text := e.Kind + " " + string(e.Tenant) + "/" + e.Object + " " + e.Detail
			named := slices.ContainsFunc([]string{"acme/boss", "acme/kim", "admin"}, func(u string) bool { return strings.Contains(e.Detail, u) })
			all := !slices.ContainsFunc(about, func(want string) bool { return !strings.Contains(text, want) })
			found = found || named && all && slices.Contains([]string{"acme/boss", "acme/kim", "admin"}, e.By) && (e.Reason == api.ReasonAccess || httpapi.Unrecorded[op] != "")
			for _, secret := range []string{answer.Code, answer.Token, answer.Secret, answer.Access, answer.Refresh, code.Text, kim, "YQ=="} {
				if secret != "" && strings.Contains(text, secret) {
					t.Errorf("%s: the event %q has the secret %q", op, text, secret)
				}
			}
		}
		if !found {
			t.Errorf("%s: events %+v, want one that names the user and %q", op, events, about)
		}
	}

	do("redeemCode", "", "", `{"user":"acme/kim","code":"`+code.Text+`","password":"`+kim+`"}`, "user acme/kim", "redeem code by acme/kim")
	do("logIn", "", "", `{"user":"acme/kim","password":"`+kim+`"}`, "user acme/kim", "log in by acme/kim")
	session := answer.Access
	do("createPersonalToken", session, "", `{"name":"ci","ttl_seconds":3600}`, "user acme/kim", `"ci" until`)
	do("revokePersonalToken", session, "/v1/auth/tokens/"+answer.ID, "", "user acme/kim", answer.ID)
	do("changePassword", session, "", `{"old":"`+kim+`","password":"another horse battery"}`, "user acme/kim")
	do("createTenant", boss, "", `{"path":"acme/lab"}`, "tenant acme/lab")
	do("deleteTenant", boss, "/v1/tenants/acme~lab", "", "tenant acme/lab")
	do("createUser", boss, "", `{"id":"acme/bob","roles":["Application_Provider"]}`, "user acme/bob", "by acme/boss: roles Application_Provider")
	do("inviteUser", boss, "/v1/users/acme~bob/invite", "", "user acme/bob")
	do("changeUser", boss, "/v1/users/acme~bob", `{"roles":["Organization_Admin"],"disabled":true}`, "user acme/bob", "roles Organization_Admin, disabled")
	do("deleteUser", boss, "/v1/users/acme~bob", "", "user acme/bob")
	do("createJoinToken", boss, "", `{"kind":"cluster"}`, "token acme/", "1 uses until")
	do("revokeJoinToken", boss, "/v1/tokens/"+answer.ID, "", "token acme/"+answer.ID)
	do("revokeJoinTokenForNodes", boss, "/v1/clusters/munich/tokens/0123456789ab", "", "token acme/munich/0123456789ab")
	do("createWebhook", boss, "", `{"url":"http://127.0.0.1:9/"}`, "webhook acme/")
	hook := answer.ID
	do("retryWebhook", boss, "/v1/webhooks/"+hook+"/retry", "", "webhook acme/"+hook)
	do("deleteWebhook", boss, "/v1/webhooks/"+hook, "", "webhook acme/"+hook)
	for _, verb := range []string{"cordon", "uncordon", "drain", "force-drain", "purge"} {
		do(strings.ReplaceAll(verb, "-", "")+"Node", boss, "/v1/clusters/munich/nodes/n1/"+verb, "", "node acme/munich/n1", verb+" a node by acme/boss")
	}
	do("capNode", boss, "/v1/clusters/munich/nodes/n1/caps", `{"memory_mb":64}`, "node acme/munich/n1")
	do("forgetNode", boss, "/v1/clusters/munich/nodes/n1", "", "node acme/munich/n1")
	do("setGrant", boss, "/v1/clusters/munich/grant", `{"open":false}`, "cluster ")
	for kind, put := range map[string]string{"Config": "configs", "Secret": "secrets"} {
		do("create"+kind, boss, "", `{"name":"db","data":{"a":"YQ=="}}`, "acme/db")
		do("replace"+kind, boss, "/v1/"+put+"/acme~db", `{"data":{"a":"Yg=="}}`, "acme/db")
		do("delete"+kind, boss, "/v1/"+put+"/acme~db", "", "acme/db")
	}
	do("createKind", boss, "", `{"name":"sensor","schema":{}}`, "kind acme/sensor")
	do("replaceKind", boss, "/v1/kinds/acme~sensor", `{"schema":{"type":"object"}}`, "kind acme/sensor")
	do("createResource", boss, "", `{"kind":"sensor","name":"roof","spec":{}}`, "resource acme/")
	do("replaceResource", boss, "/v1/resources/acme~sensor:roof", `{"spec":{"a":1}}`, "resource acme/")
	do("deleteResource", boss, "/v1/resources/acme~sensor:roof", "", "resource acme/")
	do("deleteKind", boss, "/v1/kinds/acme~sensor", "", "kind acme/sensor")
	do("postSLA", boss, "", slaOf("shop", 1), "app acme/shop.prod", "created by acme/boss")
	do("applySLA", boss, "", strings.Replace(slaOf("shop", 1), "web:1", "web:2", 1), "app acme/shop.prod", "changed by acme/boss")
	do("pauseRollout", boss, "/v1/services/acme~shop.prod.web.v1/rollout/pause", "", "service acme/shop")
	do("resumeRollout", boss, "/v1/services/acme~shop.prod.web.v1/rollout/resume", "", "service acme/shop")
	do("setScale", boss, "/v1/services/acme~shop.prod.web.v1/scale", `{"replicas":2}`, "service acme/shop")
	do("scale", boss, "/v1/services/acme~shop.prod.web.v1/scale", `{"replicas":3}`, "service acme/shop")
	do("forgetCluster", boss, "/v1/clusters/munich", "", "cluster acme/munich")
	do("deleteApp", boss, "/v1/apps/acme~shop.prod", "", "app acme/shop.prod")

	for op, route := range ops {
		reason := httpapi.Unrecorded[op]
		if !done[op] && elsewhere[op] == "" && (reason == "" || strings.HasPrefix(reason, "the core")) {
			t.Errorf("%s (%s) changes something, and no record of it is tested here: add a request", op, route)
		}
	}
	for op := range maps.Keys(httpapi.Unrecorded) {
		if ops[op] == "" {
			t.Errorf("unrecorded has %s, which is no operation", op)
		}
	}
}

// Records of people are for those who may list them, and those of another tenant's people for nobody else. A person
// without the right to an operation leaves a few records in its own tenant, whatever it names.
func TestRecordsAreReadByThoseWhoMay(t *testing.T) {
	now := time.Unix(2e9, 0)
	r := newRig(t, func(o *httpapi.Options) { o.Now = func() time.Time { return now } })
	ctx := t.Context()
	boss, dora, eve := r.user("acme/boss", rights.OrganizationAdmin), r.user("acme/dora", rights.ApplicationProvider), r.user("rival/eve", rights.Admin)
	admin := r.user("admin", rights.Admin)
	records := func(token string) (texts []string) {
		t.Helper()
		all, _, err := r.client(token).Events(ctx, client.ListOptions{})
		check(t, err)
		for _, e := range all {
			if e.Reason == api.ReasonAccess {
				texts = append(texts, e.Kind+" "+string(e.Tenant)+"/"+e.Object+" "+e.Detail)
			}
		}
		return texts
	}
	watched, end := r.watchRaw("/v1/events?watch=1", dora)
	defer end()
	if status, _, text := r.raw("POST", "/v1/users", boss, `{"id":"acme/bob","roles":[]}`); status != http.StatusCreated {
		t.Fatalf("create user: %d %s", status, text)
	}
	for range 20 {
		if status, _, _ := r.raw("DELETE", "/v1/users/rival~%1B%5B2J", dora, ""); status != http.StatusForbidden {
			t.Fatalf("a developer deletes a user: %d, want 403", status)
		}
	}
	r.apply("acme", "shop", 0)
	if e := <-watched; !strings.Contains(e, "shop.prod") {
		t.Errorf("the developer's watch has %s, want the application's event first", e)
	}
	const created, refused = "user acme/bob create user by acme/boss: no roles", `user acme/dora refused: delete user "rival/\x1b[2J" by acme/dora`
	for name, token := range map[string]string{"the tenant's administrator": boss, "the administrator": admin} {
		got := records(token)
		n := len(slices.DeleteFunc(slices.Clone(got), func(s string) bool { return s != refused }))
		if !slices.Contains(got, created) || n != 5 {
			t.Errorf("records for %s: %q, want %q and 5 of %q", name, got, created, refused)
		}
	}
	for name, token := range map[string]string{"a developer of the tenant": dora, "another tenant's administrator": eve} {
		if got := records(token); len(got) != 0 {
			t.Errorf("records for %s: %q, want none", name, got)
		}
	}
}

// TestUserOfRecordsIsNotForged: the text of a record may name anyone, because the user or a cluster chooses a part of
// it. Only By names the user.
func TestUserOfRecordsIsNotForged(t *testing.T) {
	r := newRig(t)
	r.runs()
	dora, eve, admin := r.user("acme/dora", rights.ApplicationProvider), r.user("rival/eve", rights.Admin), r.user("admin", rights.Admin)
	node, far := net.Pipe()
	r.clusters.connected = node
	conn, _, err := r.dial(r.client(dora), "exec", "?arg=sh+by+acme/boss&arg=by+acme/boss")
	check(t, err)
	_ = far.Close()
	_ = conn.Close()
	check(t, r.loop.Do(t.Context(), root.Report{Report: wire.Report{
		Cluster: "munich", Boot: 1, Seq: 3, Notices: []wire.Notice{{No: 1, Reason: api.ReasonAccess, Text: "exec sh by acme/boss"}},
	}}, nil))
	of := func(token, path string) (all []api.Event) {
		t.Helper()
		status, _, text := r.raw("GET", path, token, "")
		var page api.Page[api.Event]
		if err := json.Unmarshal([]byte(text), &page); status != http.StatusOK || err != nil {
			t.Fatalf("GET %s: %d %s, %v", path, status, text, err)
		}
		return page.Items
	}
	var texts []string
	for _, e := range of(admin, "/v1/events") {
		texts = append(texts, e.By+": "+e.Detail)
		if e.By == "acme/boss" {
			t.Errorf("event %+v names a user who did nothing", e)
		}
	}
	for _, want := range []string{`acme/dora: exec "sh by acme/boss" "by acme/boss" by acme/dora`, ": exec sh by acme/boss"} {
		if !slices.Contains(texts, want) {
			t.Errorf("events %q, want %q", texts, want)
		}
	}
	if all := of(dora, "/v1/events?users=true"); len(all) == 0 || slices.ContainsFunc(all, func(e api.Event) bool { return e.By == "" || e.Tenant != "acme" }) {
		t.Errorf("records of a tenant: %+v, want its own, each with its user", all)
	}
	if all := of(eve, "/v1/events?users=true"); slices.ContainsFunc(all, func(e api.Event) bool { return e.By != "rival/eve" }) {
		t.Errorf("records of another tenant: %+v, want none of others", all)
	}
	// What a cluster answers is the cluster's statement about itself, whatever it says.
	r.clusters.answers["GET /v1/events"] = httpAnswer(200, api.Page[api.Event]{Items: []api.Event{{Tier: "root", Cluster: "berlin", Kind: "instance", Object: "shop", By: "acme/boss"}}})
	if all := of(admin, "/v1/clusters/munich/events"); len(all) != 1 || all[0].Tier != "cluster munich" || all[0].Cluster != "munich" {
		t.Errorf("records of a cluster: %+v, want those of the cluster itself", all)
	}
}
