package httpapi_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/account"
	"github.com/treeline-edge/treeline/internal/identity/jwt"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/identity/signing"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/httpapi"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// standby has a copy of a rig's store.
type standby struct {
	*httpapi.Copy
	r     *rig
	keys  *signing.Keys
	known map[string]store.Doc
	ages  bool // the copy is not made current before each request
}

func (r *rig) standby() *standby {
	t := r.t
	t.Helper()
	loaded, err := store.Load(t.Context(), r.store)
	check(t, err)
	s := &standby{r: r, known: map[string]store.Doc{}}
	s.keys, err = signing.Open(signing.Options{
		Store: r.store, Loaded: loaded, Ring: r.ring, Sealer: r.sealer, Share: true, Log: slog.New(slog.DiscardHandler), Now: time.Now,
		File: func([]byte) error { return nil },
	})
	check(t, err)
	s.Copy, err = httpapi.NewCopy(httpapi.CopyOptions{
		Ring: func() (*jwt.Ring, error) { return jwt.NewRing(time.Now()), nil }, Sealer: r.sealer, Log: slog.New(slog.DiscardHandler), Rate: 10_000,
	})
	check(t, err)
	s.follow()
	return s
}

// follow adopts what was saved since the last call, and makes the copy current.
func (s *standby) follow() {
	s.r.t.Helper()
	asOf := time.Now()
	docs, err := store.Load(context.Background(), s.r.store)
	check(s.r.t, err)
	var changed []store.Doc
	now := map[string]store.Doc{}
	for _, d := range docs {
		k := d.Kind + "\x00" + d.Key
		if now[k] = d; s.known[k].Version != d.Version || !bytes.Equal(s.known[k].Data, d.Data) {
			changed = append(changed, d)
		}
	}
	for k, d := range s.known {
		if now[k].Data == nil {
			changed = append(changed, store.Doc{Kind: d.Kind, Key: d.Key, Version: d.Version + 1})
		}
	}
	s.known = now
	check(s.r.t, s.Adopt(changed))
	s.Current(asOf)
}

// ask asks the standby. It returns nil if the request is forwarded.
func (s *standby) ask(method, path, token string, change ...func(*http.Request)) *httptest.ResponseRecorder {
	req := httptest.NewRequestWithContext(s.r.t.Context(), method, "https://standby"+path, http.NoBody)
	req.TLS = &tls.ConnectionState{}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for _, f := range change {
		f(req)
	}
	w := httptest.NewRecorder()
	if !s.Reads(req) {
		return nil
	}
	for {
		began := time.Now()
		if !s.ages {
			s.Current(began)
		}
		if s.Answer(w, req) {
			return w
		}
		if w.Body.Len() > 0 || len(w.Header()) > 0 {
			s.r.t.Errorf("%s %s: the standby forwards a request to which it has written %v %s", method, path, w.Header(), w.Body)
		}
		if s.ages || time.Since(began) < httpapi.MaxAge { // otherwise the machine stalled
			return nil
		}
	}
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// pages are the operations that a standby answers.
var pages = []string{
	"/v1/apps", "/v1/services", "/v1/instances", "/v1/apps/acme~shop.prod", "/v1/apps/acme~shop.prod/sla", "/v1/services/acme~shop.prod.web.v1",
	"/v1/services/acme~shop.prod.web.v1/rollout/history", "/v1/instances/acme~shop.prod.web.v1~0", "/v1/instances?cluster=munich&state=running",
	"/v1/apps?tenant=acme&limit=1", "/v1/services?under=acme/shop.prod",
}

// standbyRig has two tenants with applications, and a cluster of one of them that runs them.
func standbyRig(t *testing.T) (r *rig, s *standby, ann, bob, admin string) {
	r = newRig(t)
	ann, bob, admin = r.user("acme/ann", rights.ApplicationProvider), r.user("umbra/bob", rights.ApplicationProvider, rights.InfrastructureProvider), r.user("root", rights.Admin)
	r.join("munich", "umbra")
	check(t, r.loop.Do(t.Context(), root.SetGrant{ID: "munich", Grant: api.Grant{Open: true}}, nil))
	r.apply("acme", "shop", 2)
	r.apply("umbra", "mall", 1)
	report := wire.Report{Cluster: "munich", Boot: 1, Seq: 2}
	var instances []api.Instance
	check(t, r.loop.Read(t.Context(), func() { instances = r.core.Instances("") }))
	for _, i := range instances {
		report.Observed = append(report.Observed, api.Observed{Instance: i.ID, Epoch: i.Epoch, State: api.Running, Devices: []string{"gpu-of-munich"}})
	}
	check(t, r.loop.Do(t.Context(), root.Report{Report: report}, nil))
	return r, r.standby(), ann, bob, admin
}

var revision = regexp.MustCompile(`,"revision":\d+}\s*$`) // of a list

func TestAStandbyAnswersLikeTheActiveReplica(t *testing.T) {
	r, s, ann, bob, admin := standbyRig(t)
	compare := func(when string) {
		t.Helper()
		for who, token := range map[string]string{"ann": ann, "bob": bob, "admin": admin} {
			for _, path := range pages {
				status, h, text := r.raw("GET", path, token, "")
				got := s.ask("GET", path, token)
				if status != 200 {
					if got != nil {
						t.Errorf("%s: %s of %s is answered %d %s, and the active replica refuses it", when, path, who, got.Code, got.Body)
					}
					continue
				}
				if got == nil {
					t.Fatalf("%s: %s of %s is forwarded", when, path, who)
				}
				if a, b := revision.ReplaceAllString(got.Body.String(), ""), revision.ReplaceAllString(text, ""); a != b {
					t.Errorf("%s: %s of %s is answered\n%s\nand by the active replica\n%s", when, path, who, a, b)
				}
				if got.Header().Get("Age") != "1" || got.Header().Get("ETag") != h.Get("ETag") || got.Header().Get("Content-Type") != h.Get("Content-Type") || got.Header().Get("Link") != h.Get("Link") {
					t.Errorf("%s: %s of %s has the header %v, want an age of 1 and otherwise %v", when, path, who, got.Header(), h)
				}
			}
		}
	}
	compare("at first")
	if _, _, text := r.raw("GET", "/v1/instances", ann, ""); strings.Contains(text, "gpu-of-munich") || !strings.Contains(text, `"running"`) {
		t.Errorf("the rig shows ann %s, want running instances without the devices of another tenant's cluster", text)
	}
	r.apply("acme", "shop", 1)
	r.apply("umbra", "cinema", 1)
	s.follow()
	compare("after changes")
	check(t, r.loop.Do(t.Context(), root.DeleteApp{App: "umbra/mall.prod"}, nil))
	check(t, r.loop.Do(t.Context(), root.Report{Report: wire.Report{Cluster: "munich", Boot: 1, Seq: 3, Whole: true}}, nil))
	s.follow()
	compare("after a deletion")
	docs, err := store.Load(t.Context(), r.store)
	check(t, err)
	check(t, s.Reset(docs))
	s.ages = true
	if s.ask("GET", "/v1/apps", ann) != nil {
		t.Error("a copy that was replaced answers before its time is known")
	}
	s.ages = false
	compare("after a reset")
}

// TestATenantsListAtAStandbyHasItsObjectsOnly also with the filters of other tenants.
func TestATenantsListAtAStandbyHasItsObjectsOnly(t *testing.T) {
	_, s, ann, _, admin := standbyRig(t)
	for _, path := range []string{"/v1/apps", "/v1/services", "/v1/instances"} {
		if all := s.ask("GET", path, admin).Body.String(); !strings.Contains(all, "umbra/") || !strings.Contains(all, "acme/") {
			t.Errorf("%s of an admin has %s, want both tenants", path, all)
		}
		for _, query := range []string{"", "?limit=5000", "?under=umbra/mall.prod", "?tenant=acme", "?cursor=a3VtYnJh"} {
			got := s.ask("GET", path+query, ann)
			if got == nil || strings.Contains(got.Body.String(), "umbra") {
				t.Errorf("%s%s of acme has %v", path, query, got)
			}
		}
		for _, query := range []string{"?tenant=umbra", "?tenant=umbra/x"} {
			if got := s.ask("GET", path+query, ann); got != nil {
				t.Errorf("%s%s of acme is answered %d %s", path, query, got.Code, got.Body)
			}
		}
	}
	for _, path := range []string{
		"/v1/apps/umbra~mall.prod", "/v1/apps/umbra~mall.prod/sla", "/v1/services/umbra~mall.prod.web.v1", "/v1/services/umbra~mall.prod.web.v1/rollout/history", "/v1/instances/umbra~mall.prod.web.v1~0",
	} {
		if got := s.ask("GET", path, ann); got != nil {
			t.Errorf("%s of acme is answered %d %s", path, got.Code, got.Body)
		}
		if s.ask("GET", path, admin) == nil {
			t.Errorf("%s of an admin is forwarded", path)
		}
	}
}

func TestWhatAStandbyMustNotAnswerIsForwarded(t *testing.T) {
	r, s, ann, bob, admin := standbyRig(t)
	certificate := func(r *http.Request) { r.TLS.PeerCertificates = []*x509.Certificate{{}} }
	body := func(r *http.Request) { r.ContentLength, r.Body = 1, http.NoBody }
	for what, got := range map[string]*httptest.ResponseRecorder{
		"a watch":                     s.ask("GET", "/v1/apps?watch=1", ann),
		"a watch that is off":         s.ask("GET", "/v1/apps?watch=0", ann),
		"no-cache":                    s.ask("GET", "/v1/apps", ann, header("Cache-Control", "no-cache")),
		"max-age":                     s.ask("GET", "/v1/apps", ann, header("Cache-Control", "max-age=0")),
		"pragma":                      s.ask("GET", "/v1/apps", ann, header("Pragma", "no-cache")),
		"an upgrade":                  s.ask("GET", "/v1/apps", ann, header("Upgrade", "websocket")),
		"a body":                      s.ask("GET", "/v1/apps", ann, body),
		"a certificate":               s.ask("GET", "/v1/apps", ann, certificate),
		"HEAD":                        s.ask("HEAD", "/v1/apps", ann),
		"PUT":                         s.ask("PUT", "/v1/apps", ann),
		"POST":                        s.ask("POST", "/v1/services/acme~shop.prod.web.v1/scale", ann),
		"DELETE":                      s.ask("DELETE", "/v1/apps/acme~shop.prod", ann),
		"no token":                    s.ask("GET", "/v1/apps", ""),
		"a wrong token":               s.ask("GET", "/v1/apps", "x"),
		"a token without the right":   s.ask("GET", "/v1/apps", r.user("acme/zoe")),
		"a token of an unknown user":  s.ask("GET", "/v1/apps", r.user("acme/new", rights.ApplicationProvider)),
		"another scheme":              s.ask("GET", "/v1/apps", "", header("Authorization", "Basic YTpi")),
		"an object that is not there": s.ask("GET", "/v1/apps/acme~new.prod", ann),
		"an object of another tenant": s.ask("GET", "/v1/apps/umbra~mall.prod", ann),
		"a wrong limit":               s.ask("GET", "/v1/apps?limit=0", ann),
		"a cluster":                   s.ask("GET", "/v1/clusters/munich", bob),
		"OpenAPI":                     s.ask("GET", "/v1/openapi.json", ann),
		"OpenAPI below":               s.ask("GET", "/v1/apps/../openapi.json", ann),
		"a slash more":                s.ask("GET", "/v1/apps/", ann),
	} {
		if got != nil {
			t.Errorf("%s is answered %d %.200s", what, got.Code, got.Body)
		}
	}
	var answered []string
	for _, route := range r.web.Routes() {
		path := strings.NewReplacer("{id}", "x", "{name}", "x").Replace(route.Path)
		req := httptest.NewRequestWithContext(t.Context(), route.Method, path, http.NoBody)
		req.Header.Set("Authorization", "Bearer "+admin)
		if s.Reads(req) {
			answered = append(answered, route.Method+" "+route.Path)
		}
	}
	slices.Sort(answered)
	if got := fmt.Sprint(answered); got != "[GET /v1/apps GET /v1/apps/{id} GET /v1/apps/{id}/sla GET /v1/instances GET /v1/instances/{id} GET /v1/services GET /v1/services/{id} GET /v1/services/{id}/rollout/history]" {
		t.Errorf("a standby may answer %s", got)
	}
}

// A process that was stopped for a while wakes with an old copy, before it can ask the store.
func TestAnOldCopyAnswersNothing(t *testing.T) {
	_, s, ann, _, _ := standbyRig(t)
	s.ages = true
	for _, old := range []time.Duration{0, 500 * time.Millisecond} {
		var got *httptest.ResponseRecorder
		for end := time.Now().Add(time.Minute); got == nil && time.Now().Before(end); { // the machine may be slow
			s.Current(time.Now().Add(-old))
			got = s.ask("GET", "/v1/apps", ann)
		}
		if got == nil || got.Header().Get("Age") != "1" {
			t.Errorf("a copy that is %s old: %v, want an answer with age 1", old, got)
		}
	}
	for _, old := range []time.Duration{httpapi.MaxAge + time.Millisecond, time.Hour} {
		if s.Current(time.Now().Add(-old)); s.ask("GET", "/v1/apps", ann) != nil {
			t.Errorf("a copy that is %s old answers", old)
		}
	}
	if s.Current(time.Time{}); s.ask("GET", "/v1/apps", ann) != nil {
		t.Error("a copy whose time is not known answers")
	}
	s.Current(time.Now())
	time.Sleep(httpapi.MaxAge + time.Millisecond) // as if it were stopped
	if s.ask("GET", "/v1/apps", ann) != nil {
		t.Error("the copy answers when nothing was read for longer than it may be old")
	}
}

// TestARevokedRightReadsForASecond at most: the copy has the revocation, or is too old.
func TestARevokedRightReadsForASecond(t *testing.T) {
	ctx := context.Background()
	for what, revoke := range map[string]func(r *rig, s *standby, pat string) error{
		"the user is disabled": func(r *rig, _ *standby, _ string) error {
			_, err := r.accounts.UpdateUser(ctx, "acme/ann", func(u *account.User) error { u.Disabled = true; return nil })
			return err
		},
		"the user loses the role": func(r *rig, _ *standby, _ string) error {
			_, err := r.accounts.UpdateUser(ctx, "acme/ann", func(u *account.User) error { u.Roles = nil; return nil })
			return err
		},
		"the user is deleted": func(r *rig, _ *standby, _ string) error { return r.accounts.DeleteUser(ctx, "acme/ann") },
		"the password is changed": func(r *rig, _ *standby, _ string) error {
			return r.accounts.SetPassword(ctx, "acme/ann", "correct horse battery", "another horse battery")
		},
		"the keys are revoked": func(_ *rig, s *standby, _ string) error { return s.keys.Rotate(ctx, true) },
		"the personal token is revoked": func(r *rig, _ *standby, pat string) error {
			return r.accounts.RevokePAT(ctx, "acme/ann", pat)
		},
	} {
		r, s, ann, bob, _ := standbyRig(t)
		text, pat, err := r.accounts.CreatePAT(ctx, "acme/ann", "ci", nil, time.Hour)
		check(t, err)
		s.follow()
		tokens := map[string]string{"session": ann, "personal token": text}
		if strings.HasPrefix(what, "the personal") {
			delete(tokens, "session")
		}
		if strings.HasPrefix(what, "the password") {
			delete(tokens, "personal token") // it has a life of its own
		}
		check(t, revoke(r, s, pat.ID))
		for name, token := range tokens {
			if s.ask("GET", "/v1/apps", token) == nil {
				t.Errorf("%s: the %s is refused by a copy that is current as of before", what, name)
			}
		}
		s.follow()
		for name, token := range tokens {
			if got := s.ask("GET", "/v1/apps", token); got != nil {
				t.Errorf("%s: the %s reads %s", what, name, got.Body)
			}
		}
		if s.ask("GET", "/v1/apps", bob) == nil && what != "the keys are revoked" {
			t.Errorf("%s: another user is forwarded", what)
		}
	}
}

// A client that writes through a standby reads what it wrote.
func TestAfterAWriteOnlyANewerCopyAnswers(t *testing.T) {
	_, s, ann, _, _ := standbyRig(t)
	s.ages = true
	for method, changes := range map[string]bool{"GET": false, "POST": true, "PUT": true, "DELETE": true} {
		before := time.Now()
		s.Forwarded(method)
		if s.Current(before); changes && s.ask("GET", "/v1/apps", ann) != nil {
			t.Errorf("after a %s: the copy of before answers", method)
		}
		if s.ages = false; s.ask("GET", "/v1/apps", ann) == nil {
			t.Errorf("after a %s and a newer copy: forwarded", method)
		}
		s.ages = true
		before = time.Now()
		s.Forwarded(http.MethodGet)
		if s.Current(before); time.Since(before) < httpapi.MaxAge/2 && s.ask("GET", "/v1/apps", ann) == nil && time.Since(before) < httpapi.MaxAge {
			t.Errorf("after a GET, which changes nothing: forwarded")
		}
	}
}

// Without the keys in the store, a standby cannot know that those in its file are still valid.
func TestACopyWithoutTheKeysAnswersNothing(t *testing.T) {
	r, s, ann, _, _ := standbyRig(t)
	docs, err := store.Load(t.Context(), r.store)
	check(t, err)
	keyless := slices.DeleteFunc(slices.Clone(docs), func(d store.Doc) bool { return d.Kind == signing.Kind })
	text, err := r.ring.Marshal()
	check(t, err)
	s.Copy, err = httpapi.NewCopy(httpapi.CopyOptions{
		Ring: func() (*jwt.Ring, error) { return jwt.ParseRing(text) }, Sealer: r.sealer, Log: slog.New(slog.DiscardHandler),
	})
	check(t, err)
	check(t, s.Reset(keyless))
	if s.Current(time.Now()); s.ask("GET", "/v1/apps", ann) != nil {
		t.Error("a copy without the keys answers")
	}
	other, err := httpapi.NewCopy(httpapi.CopyOptions{
		Ring: func() (*jwt.Ring, error) { return jwt.ParseRing(text) }, Sealer: newSealer(t), Log: slog.New(slog.DiscardHandler),
	})
	check(t, err)
	if err := other.Reset(docs); err == nil {
		t.Error("a copy accepts keys that it cannot decrypt")
	}
}

// A list at a standby has a revision from which a watch at the active replica misses nothing.
func TestTheRevisionOfAListIsNotAheadOfTheCopy(t *testing.T) {
	r, s, ann, _, _ := standbyRig(t)
	r.apply("acme", "late", 1) // not in the copy
	var page api.Page[api.App]
	check(t, json.Unmarshal(s.ask("GET", "/v1/apps", ann).Body.Bytes(), &page))
	var late api.App
	check(t, r.loop.Read(t.Context(), func() { late, _ = r.core.App("acme/late.prod") }))
	if len(page.Items) != 1 || page.Revision == 0 || page.Revision >= late.Revision {
		t.Errorf("%d applications at revision %d, and the one that is missing has %d", len(page.Items), page.Revision, late.Revision)
	}
}
