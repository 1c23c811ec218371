package httpapi_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/identity/account"
	"github.com/treeline-edge/treeline/internal/identity/jwt"
	"github.com/treeline-edge/treeline/internal/identity/rights"
)

// Every kind of stream that the root serves.
var endlessPaths = []string{
	"/v1/apps?watch=1", "/v1/services?watch=1", "/v1/instances?watch=1", "/v1/clusters?watch=1", "/v1/events?watch=1",
	"/v1/instances/acme~shop.prod.web.v1~0/logs?follow=true", "/v1/instances/acme~shop.prod.web.v1~0/capture",
}

// open opens a stream and waits for its first bytes.
func (r *rig) open(path, token string) *http.Response {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), "GET", r.server.URL+path, nil)
	check(r.t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := r.server.Client().Do(req)
	check(r.t, err)
	r.t.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		r.t.Fatalf("%s: %s %s", path, resp.Status, text)
	}
	if _, err := resp.Body.Read(make([]byte, 1)); err != nil {
		r.t.Fatalf("%s: %v", path, err)
	}
	return resp
}

func TestStreamsEndWithTheRightThatOpenedThem(t *testing.T) {
	const id account.UserID = "acme/alice"
	ctx := t.Context()
	change := func(fn func(*account.User)) func(*rig, string) {
		return func(r *rig, _ string) {
			_, err := r.accounts.UpdateUser(ctx, id, func(u *account.User) error { fn(u); return nil })
			check(r.t, err)
		}
	}
	for what, end := range map[string]func(r *rig, pat string){
		"the user is deleted":  func(r *rig, _ string) { check(r.t, r.accounts.DeleteUser(ctx, id)) },
		"the user is disabled": change(func(u *account.User) { u.Disabled = true }),
		"a role is taken away": change(func(u *account.User) { u.Roles = u.Roles[:1] }),
		"the password is new": func(r *rig, _ string) {
			check(r.t, r.accounts.SetPassword(ctx, id, "correct horse battery", "correct horse battery 2"))
		},
		"the personal token is revoked": func(r *rig, pat string) { check(r.t, r.accounts.RevokePAT(ctx, id, pat)) },
		"the token expires":             nil,
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			r.join("munich", "acme")
			r.apply("acme", "shop", 1)
			r.clusters.endless = true
			token := r.user(id, rights.OrganizationAdmin, rights.ApplicationProvider)
			bob := r.user("acme/bob", rights.OrganizationAdmin)
			pat := ""
			switch {
			case strings.HasPrefix(what, "the personal token"):
				text, p, err := r.accounts.CreatePAT(ctx, id, "ci", nil, time.Hour)
				check(t, err)
				token, pat = text, p.ID
			case end == nil:
				text, _, err := jwt.Signer{Ring: r.ring, Issuer: api.TokenIssuer}.Sign(jwt.Claims{
					Subject: string(id), Tenant: "acme", Roles: []rights.Role{rights.OrganizationAdmin}, Mark: r.accounts.Revocations().Mark(),
				}, []string{api.TokenAudience}, 3*time.Second)
				check(t, err)
				token = text
			}
			var hers, his []*http.Response
			for _, path := range endlessPaths {
				hers, his = append(hers, r.open(path, token)), append(his, r.open(path, bob))
			}
			if end != nil {
				end(r, pat)
			}
			for i, resp := range hers {
				_, err := io.ReadAll(resp.Body)
				// A watch resumes by its position; anything else must not be taken for whole.
				if watch := strings.Contains(endlessPaths[i], "watch"); (err == nil) != watch {
					t.Errorf("%s ended with %v", endlessPaths[i], err)
				}
			}
			if status, _, _ := r.raw("GET", "/v1/apps", token, ""); (status == http.StatusUnauthorized) == (what == "a role is taken away") {
				t.Errorf("the token is answered with %d", status)
			}
			// Nobody else's streams have ended.
			r.apply("acme", "more", 1)
			for i, resp := range his {
				if !strings.Contains(endlessPaths[i], "/apps?") {
					continue
				}
				if _, err := resp.Body.Read(make([]byte, 1)); err != nil {
					t.Errorf("another user's stream ended, too: %v", err)
				}
			}
		})
	}
}

// A log that is followed goes on when a fresh token is shown in time, of the same
// user and with the same rights.
func TestAFollowedLogIsRenewed(t *testing.T) {
	r := newRig(t)
	r.join("munich", "acme")
	r.apply("acme", "shop", 1)
	r.clusters.endless = true
	fresh := r.user("acme/alice", rights.ApplicationProvider)
	less, _, err := r.accounts.CreatePAT(t.Context(), "acme/alice", "less", nil, time.Hour)
	check(t, err)
	bob := r.user("acme/bob", rights.ApplicationProvider)
	sign := func(life time.Duration, roles ...rights.Role) string {
		text, _, err := jwt.Signer{Ring: r.ring, Issuer: api.TokenIssuer}.Sign(jwt.Claims{
			Subject: "acme/alice", Tenant: "acme", Roles: roles, Mark: r.accounts.Revocations().Mark(),
		}, []string{api.TokenAudience}, life)
		check(t, err)
		return text
	}
	// The client shows what Tokens gives: first a token for seconds, then a fresh one.
	short := sign(4*time.Second, rights.ApplicationProvider)
	var shown atomic.Int32
	c, err := client.New(client.Options{URL: r.server.URL, HTTP: r.server.Client(), Tokens: tokens(func() string {
		if shown.Add(1) == 1 {
			return short
		}
		return fresh
	})})
	check(t, err)
	kept, err := c.Logs(t.Context(), "acme/shop.prod.web.v1#0", true, -1)
	check(t, err)
	defer kept.Close()
	ends := r.open(endlessPaths[5], short)
	name := ends.Header.Get("Treeline-Stream")
	for what, v := range map[string]struct {
		token string
		want  int
	}{
		"another user": {bob, 404}, "nobody": {"", 401}, "fewer rights": {sign(time.Minute), 401}, "a delegated token": {"x", 401},
	} {
		if status, _, text := r.raw("POST", "/v1/auth/streams/"+name, v.token, ""); status != v.want {
			t.Errorf("renewed by %s: %d %s, want %d", what, status, text, v.want)
		}
	}
	if _, err := io.ReadAll(ends.Body); err == nil {
		t.Error("the stream that nobody renewed ended as if it were whole")
	}
	if status, _, _ := r.raw("POST", "/v1/auth/streams/"+name, less, ""); status != 404 {
		t.Errorf("a stream that is over is renewed: %d", status)
	}
	// It has outlived its first token, and ends by the fresh one's user.
	check(t, r.accounts.DeleteUser(t.Context(), "acme/alice"))
	line := make([]byte, len("line 1\n"))
	if _, err := io.ReadFull(kept, line); err != nil || shown.Load() != 2 {
		t.Errorf("read %q, %v, after %d tokens", line, err, shown.Load())
	}
	if _, err := io.ReadAll(kept); err == nil {
		t.Error("ended as if it were whole")
	}
}

type tokens func() string

// Token is client.Tokens'.
func (f tokens) Token(context.Context, string) (string, error) { return f(), nil }

// Nobody exchanges a token for a cluster that is not theirs to see.
func TestWhoMayExchangeATokenForACluster(t *testing.T) {
	r := newRig(t)
	r.join("munich", "acme")
	alice := r.user("acme/alice", rights.ApplicationProvider)
	eve := r.user("rival/eve", rights.OrganizationAdmin)
	for _, c := range []struct {
		token, path string
		want        int
	}{
		{alice, "/v1/clusters/munich/access", 200},
		{alice, "/v1/clusters/rome/access", 404},
		{eve, "/v1/clusters/munich/access", 404},
		{"", "/v1/clusters/munich/access", 401},
	} {
		status, header, text := r.raw("POST", c.path, c.token, "")
		if status != c.want || status == 200 && header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d %s, want %d", c.path, status, text, c.want)
		}
	}
}
