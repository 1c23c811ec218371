package httpapi_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/identity/signing"
	"github.com/treeline-edge/treeline/internal/snapshot"
	"github.com/treeline-edge/treeline/internal/snapshot/schedule"
	"github.com/treeline-edge/treeline/internal/store/view"
	"github.com/treeline-edge/treeline/root-orchestrator/httpapi"
)

// TestSnapshotsAreForAdminsOfTheSystem: a stolen personal token gets no keys, which would outlive it.
func TestSnapshotsAreForAdminsOfTheSystem(t *testing.T) {
	dir, err := os.OpenRoot(t.TempDir())
	check(t, err)
	defer dir.Close()
	authority, err := ca.NewRoot(time.Now())
	check(t, err)
	check(t, ca.SavePair(dir, "root-ca.pem", authority.Pair()))
	identity, mine, err := snapshot.NewIdentity()
	check(t, err)
	_, other, err := snapshot.NewIdentity()
	check(t, err)
	var configured []string
	r := newRig(t)
	with := func(o *httpapi.Options) {
		o.Recipients = configured
		o.Snapshots = snapshot.NewTaker(snapshot.Options{Dir: dir, Tier: snapshot.Root, Authority: func() *x509.Certificate { return authority.Pair().Chain[0] }, All: view.New(r.store).All})
	}
	r.restart(with)
	admin, tenant := r.user("root", rights.Admin), r.user("acme/ann", rights.Admin)
	pat, _, err := r.accounts.CreatePAT(t.Context(), "root", "ci", nil, time.Hour)
	check(t, err)
	ask := func(what, token string, want int, recipients ...string) string {
		t.Helper()
		status, _, body := r.raw("POST", "/v1/system/snapshot", token, `{"recipients":["`+strings.Join(recipients, `","`)+`"]}`)
		if status != want {
			t.Errorf("%s: got %d %.300s, want %d", what, status, body, want)
		}
		return body
	}
	text := ask("an admin of the system", admin, 200, mine)
	ids, err := snapshot.Identities(strings.NewReader(identity))
	check(t, err)
	s, err := snapshot.Open(strings.NewReader(text))
	check(t, err)
	kinds := map[string]int{}
	check(t, s.Content(ids, func(_ string, key []byte) error {
		if !bytes.Contains(key, []byte("PRIVATE KEY")) {
			t.Errorf("the key file has %q", key)
		}
		return nil
	}, func(d snapshot.Doc) error { kinds[d.Kind]++; return nil }))
	if kinds["user"] != 2 || s.Header().Tier != snapshot.Root {
		t.Errorf("the snapshot has %v, %+v, want two users of a root", kinds, s.Header())
	}
	if _, _, events := r.raw("GET", "/v1/events", admin, ""); !strings.Contains(events, "snapshot with keys by root for "+mine) {
		t.Errorf("the events have no record of it: %s", events)
	}
	ask("an admin of a tenant", tenant, 403, mine)
	ask("nobody", "", 401, mine)
	ask("a personal token", pat, 403, mine)
	ask("an identity in place of a recipient", admin, 422, identity)

	configured = []string{other}
	r.restart(with)
	ask("an admin, for a recipient that is not configured", admin, 403, mine)
	ask("a personal token, for one that is not configured", pat, 403, mine)
	ask("a personal token, for the configured one", pat, 200, other)
	if status, _, body := r.raw("POST", "/v1/system/snapshot", pat, `{}`); status != 200 {
		t.Errorf("a personal token, for no recipient: got %d %.300s, want 200", status, body)
	}
}

// TestReplicasAreForAdminsOfTheSystem: nobody else learns on how many machines the root runs, and which.
func TestReplicasAreForAdminsOfTheSystem(t *testing.T) {
	const path = "/v1/replicas"
	r := newRig(t)
	admin, tenant, provider := r.user("root", rights.Admin), r.user("acme/ann", rights.Admin), r.user("pia", rights.InfrastructureProvider)
	if status, _, body := r.raw("GET", path, admin, ""); status != 200 || !strings.Contains(body, `"items":[]`) {
		t.Errorf("without replicas: got %d %s, want an empty list", status, body)
	}
	r.restart(func(o *httpapi.Options) {
		o.Members = func() []api.Replica {
			return []api.Replica{{Name: "10.0.0.5:7443", URL: "https://10.0.0.5:7443", Role: api.ReplicaActive, State: api.ReplicaAlive}}
		}
	})
	for who, want := range map[string]int{admin: 200, tenant: 403, provider: 403, "": 401} {
		if status, _, body := r.raw("GET", path, who, ""); status != want || strings.Contains(body, "10.0.0.5") != (want == 200) {
			t.Errorf("got %d %s, want %d", status, body, want)
		}
	}
}

// TestScheduledSnapshotsAreForAdminsOfTheSystem: nobody else learns where they are, or makes the root take one.
func TestScheduledSnapshotsAreForAdminsOfTheSystem(t *testing.T) {
	const path = "/v1/system/snapshot/schedule"
	dir, err := os.OpenRoot(t.TempDir())
	check(t, err)
	defer dir.Close()
	authority, err := ca.NewRoot(time.Now())
	check(t, err)
	check(t, ca.SavePair(dir, "root-ca.pem", authority.Pair()))
	_, mine, err := snapshot.NewIdentity()
	check(t, err)
	to := t.TempDir()
	r := newRig(t)
	admin, tenant, provider := r.user("root", rights.Admin), r.user("acme/ann", rights.Admin), r.user("pia", rights.InfrastructureProvider)
	if status, _, body := r.raw("POST", path, admin, ""); status != 409 || !strings.Contains(body, "snapshot.schedule") {
		t.Errorf("without a schedule: got %d %s, want 409", status, body)
	}
	r.restart(func(o *httpapi.Options) {
		st := view.New(r.store)
		o.Scheduled, err = schedule.New(schedule.Options{
			Config: snapshot.Config{Recipients: []string{mine}, Schedule: "@yearly", To: to}, Store: st, Log: slog.New(slog.DiscardHandler),
			Taker:  snapshot.NewTaker(snapshot.Options{Dir: dir, Tier: snapshot.Root, Authority: func() *x509.Certificate { return authority.Pair().Chain[0] }, All: st.All}),
			Record: func(context.Context, string) error { return nil },
		})
		check(t, err)
	})
	for who, want := range map[string]int{admin: 204, tenant: 403, provider: 403, "": 401} {
		if status, _, body := r.raw("POST", path, who, ""); status != want {
			t.Errorf("take one: got %d %s, want %d", status, body, want)
		}
		if want == 204 {
			want = 200
		}
		status, _, body := r.raw("GET", path, who, "")
		if status != want || strings.Contains(body, to) != (want == 200) {
			t.Errorf("read the schedule: got %d %s, want %d", status, body, want)
		}
	}
	if _, _, events := r.raw("GET", "/v1/events", admin, ""); !strings.Contains(events, "take a scheduled snapshot now by root") {
		t.Errorf("the events have no record of who asked: %s", events)
	}
	if found, err := os.ReadDir(to); err != nil || len(found) != 1 {
		t.Errorf("the directory has %v, %v, want one snapshot", found, err)
	}
}

// TestSigningKeysAreRotatedByAdminsOfTheSystem: a rotation ends no session. A revocation ends all, and a stolen personal
// token cannot request it.
func TestSigningKeysAreRotatedByAdminsOfTheSystem(t *testing.T) {
	const path = "/v1/system/keys"
	r := newRig(t)
	admin, tenant := r.user("root", rights.Admin), r.user("acme/ann", rights.Admin)
	pat, _, err := r.accounts.CreatePAT(t.Context(), "root", "ci", nil, time.Hour)
	check(t, err)
	r.restart(func(o *httpapi.Options) {
		o.Signing, err = signing.Open(signing.Options{
			Store: r.store, Loaded: o.Loaded, Ring: r.ring, Sealer: r.sealer, Log: slog.New(slog.DiscardHandler), Now: time.Now, File: func([]byte) error { return nil },
		})
		check(t, err)
	})
	ask := func(what, method, token, body string, want int) string {
		t.Helper()
		status, _, text := r.raw(method, path, token, body)
		if status != want {
			t.Errorf("%s: got %d %.300s, want %d", what, status, text, want)
		}
		return text
	}
	ask("a tenant's admin rotates", "POST", tenant, `{}`, 403)
	ask("nobody rotates", "POST", "", `{}`, 401)
	ask("a tenant's admin lists", "GET", tenant, "", 403)
	ask("a personal token revokes", "POST", pat, `{"revoke_tokens":true}`, 403)
	ask("an admin rotates", "POST", admin, `{}`, 204)
	ask("an admin rotates again", "POST", admin, `{}`, 409)
	if text := ask("a personal token lists", "GET", pat, "", 200); strings.Count(text, `"id"`) != 2 || strings.Contains(text, "seed") {
		t.Errorf("the keys are %s, want two, without their secrets", text)
	}
	var page api.Page[api.Event]
	_, _, events := r.raw("GET", "/v1/events?users=true", admin, "")
	check(t, json.Unmarshal([]byte(events), &page))
	if !slices.ContainsFunc(page.Items, func(e api.Event) bool {
		return e.By == "root" && strings.Contains(e.Detail, "rotate the key that signs tokens")
	}) {
		t.Errorf("the events have no record of it: %s", events)
	}
	ask("an admin revokes", "POST", admin, `{"revoke_tokens":true}`, 204)
	ask("the session before", "GET", admin, "", 401)
	ask("the personal token before", "GET", pat, "", 401)
}
