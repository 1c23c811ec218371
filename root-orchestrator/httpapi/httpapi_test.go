package httpapi_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/identity/account"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/store/mem"
	"github.com/treeline-edge/treeline/internal/watch"
	"github.com/treeline-edge/treeline/root-orchestrator/httpapi"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

type userID = account.UserID

var listAll = client.ListOptions{}

func statusOf(err error) int {
	var p *api.Problem
	if errors.As(err, &p) {
		return p.Status
	}
	return 0
}

// watchRaw opens a watch and returns the data of its changes, or nil if the watch is refused.
func (r *rig) watchRaw(path, token string, header ...string) (<-chan string, func()) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, r.server.URL+path, nil)
	check(r.t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := r.server.Client().Do(req)
	check(r.t, err)
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, func() {}
	}
	out := make(chan string, 100)
	lines := bufio.NewScanner(resp.Body)
	lines.Scan() // the first bookmark: the watch is open
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(out)
		for event := ""; lines.Scan(); {
			if e, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				event = e
			}
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && event == "change" {
				out <- data
			}
		}
	}()
	return out, func() {
		resp.Body.Close()
		<-done
	}
}

// maxWatch is longer than the life of an access token.
func TestAWatchEndsWithItsToken(t *testing.T) {
	r := &rig{t: t, store: mem.New(), life: 2 * time.Second}
	r.start()
	changes, end := r.watchRaw("/v1/apps?watch=1", r.user("acme/dora", rights.ApplicationProvider))
	if changes == nil {
		t.Fatal("the watch is refused")
	}
	defer end()
	select {
	case c, ok := <-changes:
		if ok {
			t.Errorf("change %s, want the end", c)
		}
	case <-time.After(30 * time.Second):
		t.Error("the watch continues after its token has expired")
	}
}

func TestApplyThenReadThenDelete(t *testing.T) {
	r := newRig(t)
	c := r.client(r.user("acme/dora", rights.ApplicationProvider))
	ctx := t.Context()
	apps, err := c.Apply(ctx, []byte(slaOf("shop", 3)), client.ApplyOptions{})
	check(t, err)
	if len(apps) != 1 || apps[0].ID != "acme/shop.prod" || apps[0].Wanted != 3 || apps[0].By != "acme/dora" {
		t.Errorf("applied %+v", apps)
	}
	yaml := "sla_version: v2.0\napplications:\n- application_name: shop\n  application_namespace: prod\n  microservices:\n" +
		"  - {microservice_name: web, microservice_namespace: v1, virtualization: container, code: 'example.org/web:2'}\n"
	apps, err = c.Apply(ctx, []byte(yaml), client.ApplyOptions{ContentType: "application/yaml"})
	check(t, err)
	if apps[0].Wanted != 3 || apps[0].Spec.Services[0].Code != "example.org/web:2" {
		t.Errorf("applied again: %+v", apps[0])
	}
	s, err := c.Scale(ctx, "acme/shop.prod.web.v1", 1, 0)
	check(t, err)
	if s.Replicas != 1 {
		t.Errorf("scaled %+v", s)
	}
	i, err := c.Instance(ctx, "acme/shop.prod.web.v1#0")
	check(t, err)
	if i.State != api.Requested {
		t.Errorf("instance %+v", i)
	}
	w, err := c.Why(ctx, i.ID)
	check(t, err)
	if w.Summary == "" || len(w.WouldHelp) == 0 {
		t.Errorf("why %+v", w)
	}
	if _, err := c.Logs(ctx, i.ID, false, -1); !errors.Is(err, api.ErrConflict) {
		t.Errorf("logs of what is nowhere: %v", err)
	}
	if _, err := c.DeleteApp(ctx, "acme/shop.prod", apps[0].Revision-1); !errors.Is(err, api.ErrPrecondition) {
		t.Errorf("stale delete: %v", err)
	}
	_, err = c.DeleteApp(ctx, "acme/shop.prod", 0)
	check(t, err)
	if _, err := c.App(ctx, "acme/shop.prod"); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("after the delete: %v", err)
	}
	events, _, err := c.Events(ctx, client.ListOptions{Under: "acme/shop.prod"})
	check(t, err)
	if len(events) == 0 || events[len(events)-1].Detail != "deleted" {
		t.Errorf("events %+v", events)
	}
}

func TestLogsAreSpliced(t *testing.T) {
	r := newRig(t)
	c := r.client(r.user("acme/dora", rights.ApplicationProvider))
	r.join("munich", "")
	r.apply("acme", "shop", 1)
	body, err := c.Logs(t.Context(), "acme/shop.prod.web.v1#0", false, 2)
	check(t, err)
	defer body.Close()
	var lines []string
	for s := bufio.NewScanner(body); s.Scan(); {
		lines = append(lines, s.Text())
	}
	if strings.Join(lines, "|") != "line 1|line 2" || r.clusters.asked[0] != "munich logs" {
		t.Errorf("read %v, asked %v", lines, r.clusters.asked)
	}
}

func TestConditions(t *testing.T) {
	r := newRig(t)
	token := r.user("acme/dora", rights.ApplicationProvider)
	app := r.apply("acme", "shop", 1)
	tests := []struct {
		name, method, path, body string
		header                   []string
		want                     int
	}{
		{"fresh", "GET", "/v1/apps/acme~shop.prod", "", []string{"If-None-Match", `"1"`}, 200},
		{"the same", "GET", "/v1/apps/acme~shop.prod", "", []string{"If-None-Match", etagOf(app.Revision)}, 304},
		{"escaped like elsewhere", "GET", "/v1/apps/acme%2Fshop.prod", "", nil, 200},
		{"an instance with its sharp", "GET", "/v1/instances/acme%2Fshop.prod.web.v1%230", "", nil, 200},
		{"no condition", "DELETE", "/v1/apps/acme~shop.prod", "", nil, 428},
		{"stale", "DELETE", "/v1/apps/acme~shop.prod", "", []string{"If-Match", `"1"`}, 412},
		{"none of ours", "DELETE", "/v1/apps/acme~shop.prod", "", []string{"If-Match", `W/"abc"`}, 412},
		{"scale without", "PUT", "/v1/services/acme~shop.prod.web.v1/scale", `{"replicas":2}`, nil, 428},
		{"scale by post", "POST", "/v1/services/acme~shop.prod.web.v1/scale", `{"replicas":2}`, nil, 200},
		{"too many", "POST", "/v1/services/acme~shop.prod.web.v1/scale", `{"replicas":10001}`, nil, 422},
		{"roll-out", "GET", "/v1/services/acme~shop.prod.web.v1/rollout", "", nil, 200},
		{"its history", "GET", "/v1/services/acme~shop.prod.web.v1/rollout/history", "", nil, 200},
		{"roll-out of no service", "GET", "/v1/services/acme~none.prod.web.v1/rollout", "", nil, 404},
		{"pause", "POST", "/v1/services/acme~shop.prod.web.v1/rollout/pause", "", nil, 200},
		{"resume", "POST", "/v1/services/acme~shop.prod.web.v1/rollout/resume", "", nil, 200},
		{"resume again", "POST", "/v1/services/acme~shop.prod.web.v1/rollout/resume", "", nil, 409},
		{"promote without canaries", "POST", "/v1/services/acme~shop.prod.web.v1/rollout/promote", "", nil, 409},
		{"undo the first version", "POST", "/v1/services/acme~shop.prod.web.v1/rollout/undo", "{}", nil, 409},
		{"undo to no version", "POST", "/v1/services/acme~shop.prod.web.v1/rollout/undo", `{"to":1}`, nil, 404},
		{"pause in another tenant", "POST", "/v1/services/bolt~shop.prod.web.v1/rollout/pause", "", nil, 404},
		{"create what exists", "PUT", "/v1/apps", slaOf("shop", 1), []string{"If-None-Match", "*"}, 412},
		{"apply on stale", "PUT", "/v1/apps", slaOf("shop", 1), []string{"If-Match", `"1"`}, 412},
		{"no such type", "PUT", "/v1/apps", slaOf("shop", 1), []string{"Content-Type", "text/html"}, 415},
		{"no such path", "GET", "/v1/nothing", "", nil, 404},
		{"no such method", "PATCH", "/v1/apps", "", nil, 405},
		{"no such app", "GET", "/v1/apps/acme~none.prod", "", nil, 404},
		{"bad cursor", "GET", "/v1/apps?cursor=zz", "", nil, 422},
		{"bad limit", "GET", "/v1/apps?limit=0", "", nil, 422},
	}
	for _, tt := range tests {
		status, header, text := r.raw(tt.method, tt.path, token, tt.body, tt.header...)
		if status != tt.want {
			t.Errorf("%s: %d, want %d: %s", tt.name, status, tt.want, text)
		}
		if status >= 400 {
			if ct := header.Get("Content-Type"); ct != "application/problem+json" {
				t.Errorf("%s: Content-Type is %s, want application/problem+json", tt.name, ct)
			}
			if p := problemIn(t, text); p.Status != status || p.Code == "" || !strings.HasSuffix(p.Type, p.Code) || p.Detail == "" {
				t.Errorf("%s: the problem is %+v, want the status, a code, its type and a detail", tt.name, p)
			}
		}
	}
}

func etagOf(r api.Revision) string { return `"` + watch.Position{Revision: r}.String() + `"` }

func TestAllFaultsAreReturnedAtOnceWithPointers(t *testing.T) {
	r := newRig(t)
	token := r.user("acme/dora", rights.ApplicationProvider)
	doc := strings.NewReplacer(`"vcpus"`, `"cpus"`, `"container"`, `"toaster oven"`).Replace(slaOf("shop", 1))
	status, _, text := r.raw("PUT", "/v1/apps", token, doc)
	p := problemIn(t, text)
	if status != 422 || len(p.Errors) < 2 || !strings.HasPrefix(p.Errors[0].Pointer, "/applications/0/microservices/0/") || !strings.Contains(text, "vcpus") {
		t.Errorf("document with two faults: status %d, body %s, want 422 with both faults", status, text)
	}
	if _, err := r.client(token).Apply(t.Context(), []byte(doc), client.ApplyOptions{}); !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), "vcpus") {
		t.Errorf("to a client: %v", err)
	}
	// A document with a fault changes nothing.
	two := strings.Replace(slaOf("good", 1), `]}`, `]},{"application_name":"not good!"}`, 1)
	if status, _, text := r.raw("PUT", "/v1/apps", token, two); status != 422 {
		t.Errorf("document with two applications, one invalid: status %d, body %s, want 422", status, text)
	}
	if apps, _, err := r.client(token).Apps(t.Context(), listAll); err != nil || len(apps) > 0 {
		t.Errorf("after a refused document the applications are %v (%v), want none", apps, err)
	}
}

func TestGiantBodiesAreRefused(t *testing.T) {
	r := newRig(t)
	token := r.user("acme/dora", rights.ApplicationProvider)
	big := strings.Repeat("x", 1<<20+1)
	status, _, text := r.raw("PUT", "/v1/apps", token, big)
	if status != 413 || problemIn(t, text).Code != "too_large" {
		t.Errorf("large document: status %d, body %s, want 413 too_large", status, text)
	}
	req, err := http.NewRequestWithContext(t.Context(), "PUT", r.server.URL+"/v1/apps", struct{ *strings.Reader }{strings.NewReader(big)})
	check(t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := r.server.Client().Do(req) // without Content-Length
	check(t, err)
	resp.Body.Close()
	if resp.StatusCode != 413 {
		t.Errorf("of unknown length: %s", resp.Status)
	}
}

func TestPagesNeitherRepeatNorHide(t *testing.T) {
	r := newRig(t)
	c := r.client(r.user("acme/dora", rights.ApplicationProvider))
	r.apply("acme", "shop", 25)
	all, rev, err := c.Instances(t.Context(), client.ListOptions{Limit: 7, Under: "acme/shop.prod"})
	check(t, err)
	if len(all) != 25 || rev == 0 {
		t.Fatalf("%d instances at %d", len(all), rev)
	}
	for n, i := range all {
		if i.Number != n {
			t.Errorf("place %d has %s", n, i.ID)
		}
	}
	if none, _, err := c.Instances(t.Context(), client.ListOptions{Under: "acme/sho"}); err != nil || len(none) > 0 {
		t.Errorf("under half a name: %v %v", none, err)
	}
}

func TestListThenWatchHasNoGap(t *testing.T) {
	r := newRig(t)
	c := r.client(r.user("acme/dora", rights.ApplicationProvider))
	r.apply("acme", "one", 0)
	_, rev, err := c.Apps(t.Context(), listAll)
	check(t, err)
	r.apply("acme", "two", 0) // between the list and the watch
	var got []string
	for change, err := range client.Watch[api.App](t.Context(), c, client.Apps, client.WatchOptions{Since: rev}) {
		check(t, err)
		name := change.ID + " gone"
		if change.Object != nil {
			name = string(change.Object.ID)
		}
		got = append(got, name)
		switch len(got) {
		case 1:
			r.apply("acme", "three", 0)
		case 2:
			check(t, r.loop.Do(t.Context(), root.DeleteApp{App: "acme/one.prod"}, nil))
		}
		if strings.HasSuffix(name, "gone") {
			break
		}
	}
	if s := strings.Join(got, ","); s != "acme/two.prod,acme/three.prod,acme/one.prod gone" &&
		s != "acme/two.prod,acme/three.prod,acme/one.prod,acme/one.prod gone" {
		t.Errorf("watched %s", s)
	}
}

// A watch of a tenant includes the tenants below it, as a list does.
func TestAWatchIncludesTenantsBelow(t *testing.T) {
	r := newRig(t)
	admin := r.user("admin", rights.Admin)
	events, end := r.watchRaw("/v1/apps?watch=1&tenant=acme", admin)
	defer end()
	r.apply("acmeter", "other", 0)
	r.apply("acme/lab", "shop", 0)
	select {
	case e := <-events:
		if !strings.Contains(e, "acme/lab/shop") {
			t.Errorf("the first change is %s, want the one of acme/lab/shop", e)
		}
	case <-time.After(30 * time.Second):
		t.Error("no change within 30 s, want the one of acme/lab/shop")
	}
}

func TestAWatchResumesOrReportsGone(t *testing.T) {
	r := newRig(t, func(o *httpapi.Options) { o.FeedSize = 4 })
	token := r.user("acme/dora", rights.ApplicationProvider)
	r.apply("acme", "one", 0)
	var rev api.Revision
	check(t, r.loop.Read(t.Context(), func() { rev = r.core.Revision() }))
	r.apply("acme", "two", 0)
	events, end := r.watchRaw("/v1/apps?watch=1", token, "Last-Event-ID", watch.Position{Revision: rev}.String())
	if e := <-events; !strings.Contains(e, "two") {
		t.Errorf("resumed with %s", e)
	}
	end()
	for _, app := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		r.apply("acme", app, 0)
	}
	status, _, text := r.raw("GET", "/v1/apps?watch=1&since="+watch.Position{Revision: rev}.String(), token, "")
	if status != 410 || problemIn(t, text).Code != "gone" {
		t.Errorf("what is not kept: %d %s", status, text)
	}
	if status, _, _ := r.raw("GET", "/v1/apps?watch=1&since=99999999", token, ""); status != 410 {
		t.Errorf("another root's position: %d", status)
	}
	c := r.client(token)
	for _, err := range client.Watch[api.App](t.Context(), c, client.Apps, client.WatchOptions{Since: rev}) {
		if !errors.Is(err, api.ErrGone) {
			t.Errorf("the client's watch: %v", err)
		}
		break
	}
}

func TestServicesAndCountsAreWatched(t *testing.T) {
	r := newRig(t)
	token := r.user("acme/dora", rights.ApplicationProvider)
	events, end := r.watchRaw("/v1/services?watch=1", token)
	defer end()
	r.apply("acme", "shop", 1)
	if e := <-events; !strings.Contains(e, "acme/shop.prod.web.v1") {
		t.Errorf("first %s", e)
	}
	check(t, r.loop.Do(t.Context(), root.DeleteApp{App: "acme/shop.prod"}, nil))
	for e := range events {
		if !strings.Contains(e, `"object"`) {
			return // gone
		}
	}
}

func TestARepeatedPostTakesEffectOnce(t *testing.T) {
	r := newRig(t)
	token := r.user("op/carl", rights.InfrastructureProvider)
	other := r.user("op/dora", rights.InfrastructureProvider)
	post := func(token, body string) (int, string) {
		status, _, text := r.raw("POST", "/v1/tokens", token, body, "Idempotency-Key", "k1")
		return status, text
	}
	status, first := post(token, `{"kind":"cluster"}`)
	status2, again := post(token, `{"kind":"cluster"}`)
	if status != 201 || status2 != 201 || first != again {
		t.Errorf("%d %s, then %d %s", status, first, status2, again)
	}
	if status, text := post(token, `{"kind":"cluster","uses":2}`); status != 422 {
		t.Errorf("another body: %d %s", status, text)
	}
	if status, text := post(other, `{"kind":"cluster"}`); status != 201 || text == first {
		t.Errorf("another's key is another key: %d %s", status, text)
	}
	if n := len(r.tokens.List()); n != 2 {
		t.Errorf("%d tokens were made", n)
	}
}

func TestSignIn(t *testing.T) {
	r := newRig(t)
	r.user("acme/dora", rights.ApplicationProvider)
	c := r.client("")
	ctx := t.Context()
	if _, err := c.Login(ctx, api.Login{User: "acme/dora", Password: "wrong password"}); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("wrong password: %v", err)
	}
	s, err := c.Login(ctx, api.Login{User: "acme/dora", Password: "correct horse battery"})
	check(t, err)
	if s.Tenant != "acme" || len(s.Roles) != 1 || s.Access == "" {
		t.Errorf("session %+v", s)
	}
	next, err := c.Refresh(ctx, s.Refresh)
	check(t, err)
	if _, err := c.Refresh(ctx, s.Refresh); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("a refresh token twice: %v", err)
	}
	if _, err := c.Refresh(ctx, next.Refresh); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("a session whose token was used twice goes on: %v", err)
	}
	for _, token := range []string{"", "nonsense", s.Access + "x", strings.Repeat("a", 20_000)} {
		header := []string{}
		if token != "" {
			header = []string{"Authorization", "Bearer " + token}
		}
		status, h, text := r.raw("GET", "/v1/apps", "", "", header...)
		if status != 401 || h.Get("WWW-Authenticate") == "" || problemIn(t, text).Code != "unauthenticated" {
			t.Errorf("token %.20q: %d %s", token, status, text)
		}
	}
	if status, _, _ := r.raw("GET", "/v1/apps", "", "", "Authorization", "Basic YTpi"); status != 401 {
		t.Errorf("basic: %d", status)
	}
}

func TestGuessersAreSlowedDown(t *testing.T) {
	r := newRig(t)
	last := 0
	for range 30 {
		last, _, _ = r.raw("POST", "/v1/auth/login", "", `{"user":"acme/dora","password":"guess"}`)
	}
	if last != http.StatusTooManyRequests {
		t.Errorf("the thirtieth guess: %d", last)
	}
}

func TestWildLoopsAreSlowedDown(t *testing.T) {
	r := newRig(t, func(o *httpapi.Options) {
		o.Rate = 1
		now := time.Now()
		o.Now = func() time.Time { return now }
	})
	token := r.user("acme/dora", rights.ApplicationProvider)
	for range 4 {
		if status, _, text := r.raw("GET", "/v1/apps", token, ""); status != 200 {
			t.Fatalf("list applications: status %d, body %s, want 200", status, text)
		}
	}
	status, h, _ := r.raw("GET", "/v1/apps", token, "")
	if status != 429 || h.Get("Retry-After") != "1" {
		t.Errorf("%d, wait %q", status, h.Get("Retry-After"))
	}
}

func TestJoinTokens(t *testing.T) {
	r := newRig(t)
	op := r.client(r.user("op/carl", rights.InfrastructureProvider))
	r.join("munich", "op")
	tok, err := op.CreateJoinToken(t.Context(), api.TokenRequest{Kind: "cluster", Uses: 2, TTL: 60})
	check(t, err)
	if !strings.HasPrefix(tok.Token, "TL1.") || tok.Uses != 2 || tok.Tenant != "op" {
		t.Errorf("token %+v", tok)
	}
	r.clusters.answers["POST /v1/tokens"] = httpAnswer(201, api.JoinToken{ID: "x", Kind: "node", Cluster: "munich", Token: "TL1.a.b"})
	node, err := op.CreateJoinToken(t.Context(), api.TokenRequest{Kind: "node", Cluster: "munich"})
	if err != nil || node.Token != "TL1.a.b" {
		t.Errorf("node token %+v %v", node, err)
	}
	r.clusters.answers["POST /v1/tokens"] = httpAnswer(403, api.Problem{Status: 403, Code: "forbidden", Detail: "no"})
	if _, err := op.CreateJoinToken(t.Context(), api.TokenRequest{Kind: "node", Cluster: "munich"}); !errors.Is(err, api.ErrForbidden) || !strings.Contains(err.Error(), "munich") {
		t.Errorf("what the cluster refuses: %v", err)
	}
	dev := r.client(r.user("op/dora", rights.ApplicationProvider))
	for _, req := range []api.TokenRequest{{Kind: "cluster"}, {Kind: "node", Cluster: "munich"}} {
		if _, err := dev.CreateJoinToken(t.Context(), req); !errors.Is(err, api.ErrForbidden) {
			t.Errorf("a developer's %s token: %v", req.Kind, err)
		}
	}
}

func TestRemovingACluster(t *testing.T) {
	r := newRig(t)
	op := r.client(r.user("op/carl", rights.InfrastructureProvider))
	r.join("munich", "op")
	check(t, op.RemoveCluster(t.Context(), "munich", 0))
	if _, err := op.Cluster(t.Context(), "munich"); !errors.Is(err, api.ErrNotFound) || len(r.clusters.revoked) != 1 {
		t.Errorf("%v, revoked %v", err, r.clusters.revoked)
	}
}

func TestPeople(t *testing.T) {
	r := newRig(t)
	admin := r.client(r.user("admin", rights.Admin))
	ctx := t.Context()
	check(t, admin.CreateTenant(ctx, "acme", "Acme"))
	if err := admin.CreateTenant(ctx, "acme", ""); !errors.Is(err, api.ErrConflict) {
		t.Errorf("twice: %v", err)
	}
	inv, err := admin.CreateUser(ctx, "acme/boss", "Organization_Admin")
	check(t, err)
	s, err := r.client("").Redeem(ctx, api.Redeem{User: inv.User, Code: inv.Code, Password: "a long password"})
	check(t, err)
	boss := r.client(s.Access)
	if _, err := boss.CreateUser(ctx, "acme/king", "Admin"); !errors.Is(err, api.ErrForbidden) {
		t.Errorf("gives a mightier role: %v", err)
	}
	if _, err := boss.CreateUser(ctx, "acme/dora", "Application_Provider"); err != nil {
		t.Error(err)
	}
	check(t, boss.CreateTenant(ctx, "acme/lab", ""))
	if err := boss.CreateTenant(ctx, "other", ""); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("a tenant beside the own: %v", err)
	}
	if _, err := admin.Apply(ctx, []byte(slaOf("shop", 0)), client.ApplyOptions{}); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("an application of the system's: %v", err)
	}
	if _, err := admin.Apply(ctx, []byte(slaOf("shop", 0)), client.ApplyOptions{Tenant: "nobody"}); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("an application of a tenant that is none: %v", err)
	}
	status, _, text := r.raw("DELETE", "/v1/tenants/acme", s.Access, "")
	if status != 403 {
		t.Errorf("removes the own tenant: %d %s", status, text)
	}
}

func TestARepeatOfAPostInProgressIsAConflict(t *testing.T) {
	r := newRig(t)
	token := r.user("op/carl", rights.InfrastructureProvider)
	r.join("munich", "op")
	r.clusters.answers["POST /v1/tokens"] = httpAnswer(201, api.JoinToken{ID: "x", Kind: "node", Cluster: "munich", Token: "TL1.a.b"})
	r.clusters.hold = make(chan struct{})
	r.clusters.held = make(chan struct{})
	body := `{"kind":"node","cluster":"munich"}`
	first := make(chan int, 1)
	go func() {
		status, _, _ := r.raw("POST", "/v1/tokens", token, body, "Idempotency-Key", "k1")
		first <- status
	}()
	<-r.clusters.held
	if status, _, text := r.raw("POST", "/v1/tokens", token, body, "Idempotency-Key", "k1"); status != 409 {
		t.Errorf("while the first is under way: %d %s", status, text)
	}
	close(r.clusters.hold)
	if status := <-first; status != 201 {
		t.Errorf("the first: %d", status)
	}
	status, h, _ := r.raw("POST", "/v1/tokens", token, body, "Idempotency-Key", "k1")
	if status != 201 || h.Get("Idempotency-Replayed") == "" {
		t.Errorf("afterwards: %d %v", status, h)
	}
}

func TestAPostThatFailedMayBeRepeated(t *testing.T) {
	r := newRig(t)
	token := r.user("op/carl", rights.InfrastructureProvider)
	r.join("munich", "op")
	body := `{"kind":"node","cluster":"munich"}`
	status, h, text := r.raw("POST", "/v1/tokens", token, body, "Idempotency-Key", "k1")
	if p := problemIn(t, text); status != 503 || !p.Retryable || h.Get("Retry-After") == "" {
		t.Errorf("a cluster that is away: %d %s", status, text)
	}
	r.clusters.answers["POST /v1/tokens"] = httpAnswer(201, api.JoinToken{ID: "x", Kind: "node", Cluster: "munich", Token: "TL1.a.b"})
	if status, _, text := r.raw("POST", "/v1/tokens", token, body, "Idempotency-Key", "k1"); status != 201 {
		t.Errorf("again: %d %s", status, text)
	}
}

func TestTheClusterExplainsToThoseWhoSeeNodes(t *testing.T) {
	r := newRig(t)
	boss := r.user("acme/boss", rights.Admin)
	dev := r.user("rival/dora", rights.ApplicationProvider)
	r.join("munich", "acme")
	r.apply("acme", "shop", 1)
	r.apply("rival", "shop", 1)
	for _, tenant := range []string{"acme", "rival"} {
		r.clusters.answers["GET /v1/instances/"+tenant+"~shop.prod.web.v1~0/why"] = httpAnswer(200, api.Explanation{
			Considered: 1, Candidates: []api.Rejection{{Candidate: "secretnode", Constraint: "memory"}},
		})
	}
	if _, _, text := r.raw("GET", "/v1/instances/acme~shop.prod.web.v1~0/why", boss, ""); !strings.Contains(text, "secretnode") {
		t.Errorf("the operator reads %s", text)
	}
	if status, _, text := r.raw("GET", "/v1/instances/rival~shop.prod.web.v1~0/why", dev, ""); status != 200 || strings.Contains(text, "secretnode") {
		t.Errorf("another tenant's developer reads %d %s", status, text)
	}
}

func TestMetricsAreForThisMachineAndItsAdmins(t *testing.T) {
	r := newRig(t)
	guarded := r.web.Guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	for _, tt := range []struct {
		from, token string
		want        int
	}{
		{"127.0.0.1:5", "", 418},
		{"[::1]:5", "", 418},
		{"10.0.0.9:5", "", 401},
		{"10.0.0.9:5", r.user("acme/boss", rights.Admin), 403},
		{"10.0.0.9:5", r.user("root2", rights.Admin), 418},
	} {
		req := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		req.RemoteAddr = tt.from
		if tt.token != "" {
			req.Header.Set("Authorization", "Bearer "+tt.token)
		}
		w := httptest.NewRecorder()
		guarded.ServeHTTP(w, req)
		if w.Code != tt.want {
			t.Errorf("from %s with a token of %d bytes: %d, want %d", tt.from, len(tt.token), w.Code, tt.want)
		}
	}
}

func TestNothingIsMissedBetweenAnEmptyListAndItsWatch(t *testing.T) {
	r := newRig(t)
	c := r.client(r.user("acme/dora", rights.ApplicationProvider))
	apps, rev, err := c.Apps(t.Context(), client.ListOptions{})
	if err != nil || len(apps) != 0 || rev != 0 {
		t.Fatalf("a new root lists %v at %d: %v", apps, rev, err)
	}
	r.apply("acme", "shop", 1) // before the watch begins
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for change, err := range client.Watch[api.App](ctx, c, client.Apps, client.WatchOptions{Since: rev}) {
		if err != nil || change.ID != "acme/shop.prod" {
			t.Errorf("the first change is %+v (%v), want that of acme/shop.prod", change, err)
		}
		return
	}
	t.Error("the application was missed")
}

// Requests about join tokens for nodes go to the cluster.
func TestNodeTokenRequestsGoToTheCluster(t *testing.T) {
	r := newRig(t)
	op := r.client(r.user("op/carl", rights.InfrastructureProvider))
	r.join("munich", "op")
	r.clusters.answers["GET /v1/tokens"] = httpAnswer(200, api.Page[api.JoinToken]{Items: []api.JoinToken{{ID: "0123456789ab", Kind: "node"}}})
	r.clusters.answers["DELETE /v1/tokens/0123456789ab"] = "HTTP/1.1 204 No Content\r\n\r\n"
	if all, err := op.JoinTokens(t.Context(), "munich"); err != nil || len(all) != 1 || all[0].ID != "0123456789ab" {
		t.Errorf("join tokens of munich are %v (%v), want one", all, err)
	}
	check(t, op.RevokeJoinToken(t.Context(), "munich", "0123456789ab"))
	asked := len(r.clusters.asked)
	for _, id := range []string{"../nodes/n1", "a b", "A", "x?y"} {
		if err := op.RevokeJoinToken(t.Context(), "munich", id); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("token %q: %v", id, err)
		}
	}
	rival := r.client(r.user("rival/rob", rights.InfrastructureProvider))
	if _, err := rival.JoinTokens(t.Context(), "munich"); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("another operator: %v", err)
	}
	dev := r.client(r.user("op/dora", rights.ApplicationProvider))
	if err := dev.RevokeJoinToken(t.Context(), "munich", "0123456789ab"); !errors.Is(err, api.ErrForbidden) {
		t.Errorf("a developer: %v", err)
	}
	if len(r.clusters.asked) != asked {
		t.Errorf("the cluster was asked %q", r.clusters.asked[asked:])
	}
}

// Services without an application, as Oakestra's dashboard takes them, are added to the application that the request names.
func TestServicesAreAddedToTheApplicationOfTheRequest(t *testing.T) {
	r := newRig(t)
	c := r.client(r.user("acme/dora", rights.ApplicationProvider))
	ctx := t.Context()
	service := func(name, more string) string {
		return `{"microservices":[{"microservice_name":"` + name + `","microservice_namespace":"v1","virtualization":"container","code":"x:1"` + more + `}]}`
	}
	into := client.ApplyOptions{Application: "shop.prod"}
	for range 2 { // created, then as it is
		apps, err := c.Apply(ctx, []byte(service("Demo", "")), into)
		check(t, err)
		if apps[0].ID != "acme/shop.prod" || apps[0].Wanted != 1 || len(apps[0].Services) != 1 {
			t.Fatalf("applied %+v, want the application with the service", apps)
		}
	}
	_, err := c.Scale(ctx, "acme/shop.prod.Demo.v1", 3, 0)
	check(t, err)
	plan, err := c.Plan(ctx, []byte(service("db", "")), into)
	check(t, err)
	if p := plan.Apps[0]; len(p.Changes) != 1 || p.Changes[0].Path != "db.v1" || p.Action != "update" {
		t.Errorf("the plan is %+v, want the new service alone", p)
	}
	into.IfMatch = plan.Apps[0].Revision
	apps, err := c.Apply(ctx, []byte(service("db", "")), into)
	check(t, err)
	if apps[0].Wanted != 4 || len(apps[0].Services) != 2 {
		t.Errorf("applied %+v, want 3 instances of one service and 1 of the other", apps)
	}
	if _, err := c.Apply(ctx, []byte(service("web", "")), into); !errors.Is(err, api.ErrPrecondition) {
		t.Errorf("for an earlier revision: %v, want a failed precondition", err)
	}
	into.IfMatch, into.MustNotExist = 0, true
	if _, err := c.Apply(ctx, []byte(service("web", "")), into); !errors.Is(err, api.ErrPrecondition) {
		t.Errorf("only if it does not exist: %v, want a failed precondition", err)
	}

	into.MustNotExist = false
	_, err = c.Apply(ctx, []byte(service("web", `,"memory":-1`)), into)
	var p *api.Problem
	if !errors.As(err, &p) || len(p.Errors) != 1 || p.Errors[0].Pointer != "/microservices/0/memory" {
		t.Errorf("a fault: %v, want one at /microservices/0/memory", err)
	}
	if _, err := c.Apply(ctx, []byte(service("web", "")), client.ApplyOptions{}); !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), "?application=NAME.NAMESPACE") {
		t.Errorf("without an application: %v, want how to name it", err)
	}
	for _, name := range []string{"shop", "shop.", ".prod", "evil/shop.prod", "shop.prod.web", "shop.of-tenant", "a b.c", strings.Repeat("a", 31) + ".b", "~.b"} {
		into.Application = name
		if _, err := c.Apply(ctx, []byte(service("web", "")), into); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("application %q: %v, want invalid", name, err)
		}
	}

	// Another tenant's application is neither changed nor seen.
	other := r.client(r.user("evil/mallory", rights.ApplicationProvider))
	into = client.ApplyOptions{Application: "shop.prod", Tenant: "acme"}
	if _, err := other.Apply(ctx, []byte(service("web", "")), into); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("into another tenant's application: %v, want not found", err)
	}
	if _, err := other.Plan(ctx, []byte(service("web", "")), into); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("a plan of another tenant's application: %v, want not found", err)
	}
	into.Tenant = ""
	apps, err = other.Apply(ctx, []byte(service("web", "")), into)
	check(t, err)
	if apps[0].ID != "evil/shop.prod" || len(apps[0].Services) != 1 {
		t.Errorf("of the same name: %+v, want an application of the other tenant with one service", apps)
	}
}

// People who add services to one application at the same time lose none of them.
func TestServicesThatAreAddedAtTheSameTimeAreAllThere(t *testing.T) {
	r := newRig(t)
	c := r.client(r.user("acme/dora", rights.ApplicationProvider))
	const adders = 4
	errs := make(chan error, adders)
	for i := range adders {
		go func() {
			doc := fmt.Sprintf(`{"microservices":[{"microservice_name":"s%d","microservice_namespace":"v1","virtualization":"container","code":"x:1"}]}`, i)
			_, err := c.Apply(context.Background(), []byte(doc), client.ApplyOptions{Application: "shop.prod"})
			errs <- err
		}()
	}
	for range adders {
		check(t, <-errs)
	}
	app, err := c.App(t.Context(), "acme/shop.prod")
	check(t, err)
	if len(app.Services) != adders {
		t.Errorf("the services are %v, want %d", app.Services, adders)
	}
}
