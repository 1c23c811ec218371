package account_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/identity/account"
	"github.com/treeline-edge/treeline/internal/identity/jwt"
	"github.com/treeline-edge/treeline/internal/identity/revoke"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/mem"
)

var ctx = context.Background()

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func is(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%v, want %v", err, want)
	}
}

type fixture struct {
	*account.Service
	st   store.Store
	ring *jwt.Ring
	now  time.Time
	log  *slog.Logger // discards everything, unless a test reads it
}

const pw = "correct horse battery"

func newFixture() *fixture {
	f := &fixture{st: mem.New(), log: slog.New(slog.DiscardHandler), now: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)}
	f.ring = jwt.NewRing(f.now)
	f.restart()
	return f
}

// restart makes a new service from the store's documents.
func (f *fixture) restart() {
	f.Service = must(account.New(account.Options{
		Store: f.st, Loaded: must(store.Load(ctx, f.st)), Ring: f.ring, Issuer: "root", Audience: "treeline",
		Cost: account.Cost{MemoryKiB: 64, Passes: 1, Lanes: 1}, // tests log in often
		Now:  func() time.Time { return f.now }, Log: f.log,
	}))
}

// alice is an application provider of acme with a password.
func (f *fixture) alice(t *testing.T) account.Session {
	t.Helper()
	must(f.CreateTenant(ctx, "acme", "Acme"))
	must(f.CreateUser(ctx, "acme/alice", "a@acme", []rights.Role{rights.ApplicationProvider, rights.InfrastructureProvider}))
	code := must(f.Invite(ctx, "acme/alice", 0))
	s, err := f.Redeem(ctx, "acme/alice", code.Text, pw)
	ok(t, err)
	return s
}

func TestFirstAdminSignsInOnce(t *testing.T) {
	f := newFixture()
	_, err := f.Login(ctx, "admin", "admin")
	is(t, err, api.ErrUnauthenticated)
	first := must(f.Bootstrap(ctx))
	f.restart()
	code := must(f.Bootstrap(ctx)) // the output of the first start was lost
	if code.User != "admin" || code.Text == "" || code.Text == first.Text {
		t.Fatalf("code %+v", code)
	}
	_, err = f.Redeem(ctx, "admin", first.Text, pw)
	is(t, err, api.ErrUnauthenticated)
	_, err = f.Redeem(ctx, "admin", code.Text, "short")
	is(t, err, api.ErrInvalid)
	s, err := f.Redeem(ctx, "admin", code.Text, pw)
	ok(t, err)
	if p := must(f.Authenticate(s.Access)); !p.Global() {
		t.Errorf("the first admin is %+v, want it global", p)
	}
	_, err = f.Redeem(ctx, "admin", code.Text, pw+"2")
	is(t, err, api.ErrUnauthenticated)
	f.restart()
	if again := must(f.Bootstrap(ctx)); again.Text != "" {
		t.Error("an admin exists and a code was made")
	}
	must(f.Login(ctx, "admin", pw))
}

func TestCodesEnd(t *testing.T) {
	f := newFixture()
	code := must(f.Bootstrap(ctx))
	f.now = code.Expires
	_, err := f.Redeem(ctx, "admin", code.Text, pw)
	is(t, err, api.ErrUnauthenticated)
	_, err = f.Redeem(ctx, "nobody", code.Text, pw)
	is(t, err, api.ErrUnauthenticated)
}

func TestCodeRace(t *testing.T) {
	f := newFixture()
	code := must(f.Bootstrap(ctx))
	var won atomic.Int64
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			if _, err := f.Redeem(ctx, "admin", code.Text, fmt.Sprint(pw, i)); err == nil {
				won.Add(1)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d of 50 redeemed one code", won.Load())
	}
}

func TestLogin(t *testing.T) {
	f := newFixture()
	f.alice(t)
	s := must(f.Login(ctx, "acme/alice", pw))
	p := must(f.Authenticate(s.Access))
	if p.User != "acme/alice" || p.Tenant != "acme" || len(p.Roles) != 2 {
		t.Errorf("the authenticated user is %+v, want acme/alice with two roles", p)
	}
	must(f.CreateUser(ctx, "acme/pending", "", nil))
	for _, c := range [][2]string{{"acme/alice", "wrong"}, {"acme/bob", pw}, {"alice", pw}, {"acme/pending", ""}, {"acme/alice", ""}, {"acme/alice", strings.Repeat("x", 1<<20)}} {
		_, err := f.Login(ctx, account.UserID(c[0]), c[1])
		is(t, err, api.ErrUnauthenticated)
	}
	f.now = s.AccessExpires
	_, err := f.Authenticate(s.Access)
	is(t, err, api.ErrUnauthenticated)
}

func TestRightsAreTodays(t *testing.T) {
	f := newFixture()
	s := f.alice(t)
	must(f.UpdateUser(ctx, "acme/alice", func(u *account.User) error {
		u.Roles = []rights.Role{rights.ApplicationProvider, rights.OrganizationAdmin}
		return nil
	}))
	if p := must(f.Authenticate(s.Access)); len(p.Roles) != 1 || p.Roles[0] != rights.ApplicationProvider {
		t.Errorf("an old token has %v", p.Roles)
	}
	s = must(f.Refresh(ctx, s.Refresh))
	if p := must(f.Authenticate(s.Access)); !p.Has(rights.OrganizationAdmin) {
		t.Errorf("a new token has %v", p.Roles)
	}
	must(f.UpdateUser(ctx, "acme/alice", func(u *account.User) error { u.Disabled = true; return nil }))
	_, err := f.Authenticate(s.Access)
	is(t, err, api.ErrUnauthenticated)
	_, err = f.Refresh(ctx, s.Refresh)
	is(t, err, api.ErrUnauthenticated)
	_, err = f.Login(ctx, "acme/alice", pw)
	is(t, err, api.ErrUnauthenticated)
}

func TestReusedRefreshEndsTheFamily(t *testing.T) {
	f := newFixture()
	first := f.alice(t)
	other := must(f.Login(ctx, "acme/alice", pw))
	second := must(f.Refresh(ctx, first.Refresh))
	f.restart()
	_, err := f.Refresh(ctx, first.Refresh) // used by a thief, before or after the user
	is(t, err, api.ErrUnauthenticated)
	_, err = f.Refresh(ctx, second.Refresh)
	is(t, err, api.ErrUnauthenticated)
	must(f.Refresh(ctx, other.Refresh)) // another session is another family
	for _, s := range []string{"", ".", "x", "a.b", strings.Repeat("a", 1000) + ".b"} {
		_, err := f.Refresh(ctx, s)
		is(t, err, api.ErrUnauthenticated)
	}
}

func TestRefreshRace(t *testing.T) {
	f := newFixture()
	s := f.alice(t)
	var won atomic.Int64
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if _, err := f.Refresh(ctx, s.Refresh); err == nil {
				won.Add(1)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d of 50 used one refresh token", won.Load())
	}
}

func TestSessionsEnd(t *testing.T) {
	f := newFixture()
	s := f.alice(t)
	begin := f.now
	for range 100 {
		f.now = f.now.Add(24 * time.Hour)
		next, err := f.Refresh(ctx, s.Refresh)
		if err != nil {
			break
		}
		s = next
	}
	if days := f.now.Sub(begin) / (24 * time.Hour); days != 30 {
		t.Errorf("a session in daily use lives %d days", days)
	}
	s = must(f.Login(ctx, "acme/alice", pw))
	f.now = s.RefreshExpires
	_, err := f.Refresh(ctx, s.Refresh)
	is(t, err, api.ErrUnauthenticated)
	s = must(f.Login(ctx, "acme/alice", pw))
	is(t, f.End(ctx, s.Refresh[:len(s.Refresh)-1]), api.ErrUnauthenticated)
	ok(t, f.End(ctx, s.Refresh))
	ok(t, f.End(ctx, s.Refresh))
	_, err = f.Refresh(ctx, s.Refresh)
	is(t, err, api.ErrUnauthenticated)
}

func TestNewPasswordEndsSessions(t *testing.T) {
	f := newFixture()
	s := f.alice(t)
	f.now = f.now.Add(2 * time.Second)
	is(t, f.SetPassword(ctx, "acme/alice", "wrong", pw+"2"), api.ErrUnauthenticated)
	ok(t, f.SetPassword(ctx, "acme/alice", pw, pw+"2"))
	_, err := f.Authenticate(s.Access)
	is(t, err, api.ErrUnauthenticated)
	_, err = f.Refresh(ctx, s.Refresh)
	is(t, err, api.ErrUnauthenticated)
	_, err = f.Login(ctx, "acme/alice", pw)
	is(t, err, api.ErrUnauthenticated)
	s = must(f.Login(ctx, "acme/alice", pw+"2"))
	must(f.Authenticate(s.Access))
}

func TestPersonalTokens(t *testing.T) {
	f := newFixture()
	f.alice(t)
	text, pat, err := f.CreatePAT(ctx, "acme/alice", "ci", []rights.Role{rights.ApplicationProvider}, time.Hour)
	ok(t, err)
	p := must(f.Authenticate(text))
	if p.PAT != pat.ID || p.Has(rights.InfrastructureProvider) || !p.Has(rights.ApplicationProvider) {
		t.Errorf("the personal token has %+v, want only the role Application_Provider", p)
	}
	_, _, err = f.CreatePAT(ctx, "acme/alice", "more", []rights.Role{rights.Admin}, time.Hour)
	is(t, err, api.ErrForbidden)
	_, _, err = f.CreatePAT(ctx, "acme/alice", "", nil, time.Hour)
	is(t, err, api.ErrInvalid)
	_, _, err = f.CreatePAT(ctx, "acme/alice", "ever", nil, 2*account.MaxPATLife)
	is(t, err, api.ErrInvalid)
	is(t, f.RevokePAT(ctx, "acme/bob", pat.ID), api.ErrNotFound)
	f.restart()
	must(f.Authenticate(text))
	ok(t, f.RevokePAT(ctx, "acme/alice", pat.ID))
	_, err = f.Authenticate(text)
	is(t, err, api.ErrUnauthenticated)

	text, pat, err = f.CreatePAT(ctx, "acme/alice", "short", nil, time.Minute)
	ok(t, err)
	f.now = pat.Expires
	_, err = f.Authenticate(text)
	is(t, err, api.ErrUnauthenticated)
	ok(t, f.Sweep(ctx))
	if n := len(f.PATs("acme/alice")); n != 0 {
		t.Errorf("%d expired tokens are kept", n)
	}
}

// A personal token may have been made by whoever knew the password.
func TestAChangedPasswordEndsPersonalTokens(t *testing.T) {
	f := newFixture()
	f.alice(t)
	text, _, err := f.CreatePAT(ctx, "acme/alice", "ci", nil, time.Hour)
	ok(t, err)
	f.now = f.now.Add(time.Second)
	ok(t, f.SetPassword(ctx, "acme/alice", pw, pw+"2"))
	for range 2 {
		_, err = f.Authenticate(text)
		is(t, err, api.ErrUnauthenticated)
		if n := len(f.PATs("acme/alice")); n != 0 {
			t.Errorf("%d personal tokens are listed", n)
		}
		f.restart()
	}
	text, _, err = f.CreatePAT(ctx, "acme/alice", "ci", nil, time.Hour)
	ok(t, err)
	must(f.Authenticate(text))
}

func TestDelegatedTokensAreForOneMachine(t *testing.T) {
	f := newFixture()
	s := f.alice(t)
	p := must(f.Authenticate(s.Access))
	text := must(f.Delegate(p, "cluster/munich", "acme/a.b.c.d#0"))
	_, err := f.Authenticate(text)
	is(t, err, api.ErrUnauthenticated)
	at := func(cluster string) *jwt.Verifier {
		return jwt.NewVerifier(jwt.VerifierOptions{
			Keys: f.ring.Public().Key, Issuer: "root", Audience: "cluster/" + cluster, Leeway: jwt.MaxLeeway, Now: func() time.Time { return f.now },
		})
	}
	if c := must(at("munich").VerifyOnce(text, jwt.UseCall)); c.Subject != "acme/alice" || c.Object != "acme/a.b.c.d#0" {
		t.Errorf("claims of the delegated token are %+v, want acme/alice and the instance", c)
	}
	_, err = at("rome").Verify(text, jwt.UseCall)
	is(t, err, api.ErrUnauthenticated)
	_, err = f.Delegate(p, "treeline", "")
	is(t, err, api.ErrInvalid)

	direct, ends, err := f.Exchange(p, "cluster/munich")
	ok(t, err)
	_, err = f.Authenticate(direct)
	is(t, err, api.ErrUnauthenticated)
	if c := must(at("munich").Verify(direct, jwt.UseAccess)); c.Subject != "acme/alice" || !c.Expires.Equal(ends) {
		t.Errorf("claims of the exchanged token are %+v, want acme/alice and the expiry of the session", c)
	}
	_, err = at("munich").VerifyOnce(direct, jwt.UseCall)
	is(t, err, api.ErrForbidden)
	_, err = at("munich").Verify(text, jwt.UseAccess)
	is(t, err, api.ErrForbidden)

	// A delegated token expires no later than the token that it was requested with.
	f.now = p.Expires.Add(-time.Minute)
	if _, ends, err = f.Exchange(p, "cluster/munich"); err != nil || !ends.Equal(p.Expires) {
		t.Errorf("until %s, the token ends at %s: %v", ends, p.Expires, err)
	}
	f.now = p.Expires
	_, _, err = f.Exchange(p, "cluster/munich")
	is(t, err, api.ErrUnauthenticated)
}

// Every loss of rights is in the revocations for clusters.
func TestWhatTakesRightsIsRevoked(t *testing.T) {
	f := newFixture()
	f.alice(t)
	text, pat, err := f.CreatePAT(ctx, "acme/alice", "ci", nil, time.Hour)
	ok(t, err)
	set := func(change func(*account.User)) func() error {
		return func() error {
			_, err := f.UpdateUser(ctx, "acme/alice", func(u *account.User) error { change(u); return nil })
			return err
		}
	}
	robot := must(f.Authenticate(text))
	told := 0
	f.Revocations().Subscribe(func() { told++ })
	for _, c := range []struct {
		what string
		do   func() error
		n    int
	}{
		{"another e-mail address", set(func(u *account.User) { u.Email = "x@acme" }), 0},
		{"one more role", set(func(u *account.User) { u.Roles = append(u.Roles, rights.OrganizationAdmin) }), 0},
		{"one role less", set(func(u *account.User) { u.Roles = u.Roles[1:] }), 1},
		{"disabled", set(func(u *account.User) { u.Disabled = true }), 1},
		{"enabled", set(func(u *account.User) { u.Disabled = false }), 0},
		{"a personal token", func() error { return f.RevokePAT(ctx, "acme/alice", pat.ID) }, 1},
		{"another password", func() error { return f.SetPassword(ctx, "acme/alice", pw, pw+"2") }, 1},
		{"deleted", func() error { return f.DeleteUser(ctx, "acme/alice") }, 1},
	} {
		before := f.Revocations().Since(0)
		told = 0
		ok(t, c.do())
		if got := len(f.Revocations().Since(before.Mark).Entries); got != c.n || told != c.n {
			t.Errorf("%s: %d revocations, told %d times, want %d", c.what, got, told, c.n)
		}
	}
	is(t, f.Recheck(text, robot), api.ErrUnauthenticated)
}

// A token from before a new password is refused, even if both are from the same second.
func TestAnOldTokenOfTheSameSecondIsRefused(t *testing.T) {
	f := newFixture()
	s := f.alice(t)
	ok(t, f.SetPassword(ctx, "acme/alice", pw, pw+"2"))
	_, err := f.Authenticate(s.Access)
	is(t, err, api.ErrUnauthenticated)
	s = must(f.Login(ctx, "acme/alice", pw+"2"))
	must(f.Authenticate(s.Access))
	ok(t, f.DeleteUser(ctx, "acme/alice"))
	must(f.CreateUser(ctx, "acme/alice", "", []rights.Role{rights.ApplicationProvider}))
	_, err = f.Authenticate(s.Access)
	is(t, err, api.ErrUnauthenticated)
}

// A revocation also invalidates tokens that are delegated later for a request that was authenticated
// before the revocation.
func TestARevocationReachesRequestsUnderWay(t *testing.T) {
	f := newFixture()
	who := must(f.Authenticate(f.alice(t).Access))
	f.now = f.now.Add(time.Second)
	ok(t, f.DeleteUser(ctx, "acme/alice"))
	f.now = f.now.Add(time.Second)
	text, _, err := f.Exchange(who, "cluster/munich")
	ok(t, err)
	v := jwt.NewVerifier(jwt.VerifierOptions{
		Keys: f.ring.Public().Key, Issuer: "root", Audience: "cluster/munich", Now: func() time.Time { return f.now },
	})
	c := must(v.Verify(text, jwt.UseAccess))
	var list revoke.List
	list.Apply(f.now, f.Revocations().Since(0))
	is(t, list.Check(c.Subject, c.PAT, c.Mark), api.ErrUnauthenticated)
}

// meddler runs a function within the save of a session's document.
type meddler struct {
	store.Store
	within func()
}

func (m *meddler) Save(ctx context.Context, docs []store.Doc) error {
	if docs[0].Kind == account.KindRefresh && docs[0].Data != nil && m.within != nil {
		within := m.within
		m.within = nil
		within()
	}
	return m.Store.Save(ctx, docs)
}

// A sign-in with the old password during a change of the password leaves no session, whichever is
// first.
func TestASignInWithAnOldPasswordLeavesNoSession(t *testing.T) {
	f := newFixture()
	f.alice(t)
	m := &meddler{Store: f.st}
	f.st = m
	f.restart()
	changed, done := make(chan struct{}, 1), make(chan error, 1)
	f.Revocations().Subscribe(func() { changed <- struct{}{} })
	m.within = func() {
		go func() { done <- f.SetPassword(ctx, "acme/alice", pw, pw+"2") }()
		<-changed // the password has changed; the old sessions are ended next
		for range 1000 {
			runtime.Gosched()
		}
	}
	s, err := f.Login(ctx, "acme/alice", pw)
	ok(t, err) // the password was correct when it was checked
	ok(t, <-done)
	_, err = f.Refresh(ctx, s.Refresh)
	is(t, err, api.ErrUnauthenticated)
	_, err = f.Authenticate(s.Access)
	is(t, err, api.ErrUnauthenticated)
}

func TestSessionsOfOneUserAreBounded(t *testing.T) {
	f := newFixture()
	first := f.alice(t)
	var last account.Session
	for range 150 {
		f.now = f.now.Add(time.Second)
		last = must(f.Login(ctx, "acme/alice", pw))
	}
	n := 0
	for _, d := range must(store.Load(ctx, f.st)) {
		if d.Kind == account.KindRefresh {
			n++
		}
	}
	if n != 100 {
		t.Errorf("one user has %d sessions after 151 sign-ins, want 100", n)
	}
	_, err := f.Refresh(ctx, first.Refresh)
	is(t, err, api.ErrUnauthenticated)
	must(f.Refresh(ctx, last.Refresh))
}

func TestUsersAndTenants(t *testing.T) {
	f := newFixture()
	f.alice(t)
	_, err := f.CreateTenant(ctx, "evil/lab", "")
	is(t, err, api.ErrNotFound)
	_, err = f.CreateTenant(ctx, "acme", "")
	is(t, err, api.ErrConflict)
	_, err = f.CreateTenant(ctx, "../x", "")
	is(t, err, api.ErrInvalid)
	must(f.CreateTenant(ctx, "acme/lab", ""))
	is(t, f.DeleteTenant(ctx, "acme"), api.ErrConflict)
	for id, want := range map[account.UserID]error{
		"acme/alice": api.ErrConflict, "evil/bob": api.ErrNotFound, "acme/": api.ErrInvalid, "/admin": api.ErrInvalid,
		"acme/a b": api.ErrInvalid, "": api.ErrInvalid, "ACME/bob": api.ErrInvalid,
	} {
		_, err := f.CreateUser(ctx, id, "", nil)
		is(t, err, want)
	}
	_, err = f.CreateUser(ctx, "acme/bob", "", []rights.Role{"King"})
	is(t, err, api.ErrInvalid)
	must(f.CreateUser(ctx, "acme/lab/bob", "", nil))
	f.restart()
	if us := f.Users(); len(us) != 2 || us[0].ID != "acme/alice" || us[0].Pending || !us[1].Pending {
		t.Errorf("the users are %+v, want alice and one pending user", us)
	}
	ok(t, f.DeleteUser(ctx, "acme/lab/bob"))
	is(t, f.DeleteUser(ctx, "acme/lab/bob"), api.ErrNotFound)
	ok(t, f.DeleteTenant(ctx, "acme/lab"))
}

// A new user with a deleted user's name inherits nothing.
func TestDeletedUserLeavesNothing(t *testing.T) {
	f := newFixture()
	s := f.alice(t)
	text, _, err := f.CreatePAT(ctx, "acme/alice", "ci", nil, time.Hour)
	ok(t, err)
	ok(t, f.DeleteUser(ctx, "acme/alice"))
	f.now = f.now.Add(2 * time.Second)
	must(f.CreateUser(ctx, "acme/alice", "", []rights.Role{rights.ApplicationProvider}))
	for _, bearer := range []string{s.Access, text} {
		_, err := f.Authenticate(bearer)
		is(t, err, api.ErrUnauthenticated)
	}
	_, err = f.Refresh(ctx, s.Refresh)
	is(t, err, api.ErrUnauthenticated)
}

// flaky is a store that fails to save documents of one kind.
type flaky struct {
	store.Store
	kind string
}

func (f *flaky) Save(ctx context.Context, docs []store.Doc) error {
	if slices.ContainsFunc(docs, func(d store.Doc) bool { return d.Kind == f.kind }) {
		return api.ErrUnavailable
	}
	return f.Store.Save(ctx, docs)
}

// The store fails after the user was deleted and before the credentials are: a new user with the
// name still inherits nothing, and is not created while they cannot be deleted.
func TestHalfDeletedUserLeavesNothing(t *testing.T) {
	for _, kind := range account.Kinds {
		f := newFixture()
		s := f.alice(t)
		text, _, err := f.CreatePAT(ctx, "acme/alice", "ci", nil, time.Hour)
		ok(t, err)
		code := must(f.Invite(ctx, "acme/alice", time.Hour))
		st := &flaky{f.st, kind}
		f.st = st
		f.restart()
		if err := f.DeleteUser(ctx, "acme/alice"); err == nil {
			continue // there is none of the kind
		}
		if _, err := f.User("acme/alice"); err == nil {
			continue // the user itself was not deleted
		}
		if _, err := f.CreateUser(ctx, "acme/alice", "", nil); err == nil {
			t.Errorf("%s: the user was created while old credentials remain, want an error", kind)
		}
		st.kind = ""
		f.now = f.now.Add(2 * time.Second)
		must(f.CreateUser(ctx, "acme/alice", "", []rights.Role{rights.ApplicationProvider}))
		if _, err := f.Authenticate(text); err == nil {
			t.Errorf("%s: the personal token of the deleted user is accepted", kind)
		}
		if _, err := f.Refresh(ctx, s.Refresh); err == nil {
			t.Errorf("%s: the session of the deleted user is renewed", kind)
		}
		if _, err := f.Redeem(ctx, "acme/alice", code.Text, pw); err == nil {
			t.Errorf("%s: the code of the deleted user is accepted", kind)
		}
	}
}

func TestLastAdminStays(t *testing.T) {
	f := newFixture()
	code := must(f.Bootstrap(ctx))
	must(f.Redeem(ctx, "admin", code.Text, pw))
	disable := func(u *account.User) error { u.Disabled = true; return nil }
	_, err := f.UpdateUser(ctx, "admin", disable)
	is(t, err, api.ErrConflict)
	is(t, f.DeleteUser(ctx, "admin"), api.ErrConflict)
	must(f.CreateUser(ctx, "second", "", []rights.Role{rights.Admin}))
	is(t, f.DeleteUser(ctx, "admin"), api.ErrConflict) // the second admin cannot sign in yet
	code = must(f.Invite(ctx, "second", time.Hour))
	must(f.Redeem(ctx, "second", code.Text, pw))
	ok(t, f.DeleteUser(ctx, "admin"))
}

func TestNoSecretIsStored(t *testing.T) {
	f := newFixture()
	s := f.alice(t)
	code := must(f.Invite(ctx, "acme/alice", 0))
	text, _, err := f.CreatePAT(ctx, "acme/alice", "ci", nil, time.Hour)
	ok(t, err)
	kinds := strings.Join(account.Kinds, " ")
	for _, d := range must(store.Load(ctx, f.st)) {
		if !strings.Contains(kinds, d.Kind) {
			t.Errorf("kind %s", d.Kind)
		}
		for _, secret := range []string{pw, code.Text, text, s.Access, s.Refresh, strings.Split(s.Refresh, ".")[1]} {
			if strings.Contains(string(d.Data), secret) {
				t.Errorf("%s %s holds a secret", d.Kind, d.Key)
			}
		}
	}
}

// Any number of wrong passwords does not fill the log.
func TestRefusedSignInsDoNotFillTheLog(t *testing.T) {
	f := newFixture()
	f.alice(t)
	var out bytes.Buffer
	f.log = slog.New(slog.NewTextHandler(&out, nil))
	f.restart()
	login := func(addr, user string) {
		path := fairshare.Address(netip.MustParseAddr(addr))
		_, err := f.Login(account.WithOrigin(ctx, path, true), account.UserID(user), "a wrong password")
		is(t, err, api.ErrUnauthenticated)
	}
	for range 500 {
		login("192.0.2.1", strings.Repeat("x", 10_000))
	}
	if n := strings.Count(out.String(), "sign-in refused"); n == 0 || n > 20 || out.Len() > 20_000 {
		t.Errorf("500 refused sign-ins of one address wrote %d lines and %d bytes, want a few", n, out.Len())
	}
	login("192.0.2.2", "acme/alice")
	if !strings.Contains(out.String(), "user=acme/alice from=192.0.2.2/32") {
		t.Error("the refused sign-in of another address is not in the log")
	}
}
