package jointoken_test

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
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

type fixture struct {
	tokens *jointoken.Store
	st     store.Store
	now    time.Time
}

const url = "https://munich.example:7443"

func newFixture() *fixture {
	f := &fixture{st: mem.New(), now: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)}
	f.reload()
	return f
}

func (f *fixture) reload() {
	loaded := must(store.Load(ctx, f.st))
	f.tokens = must(jointoken.NewStore(f.st, loaded, url, func() [32]byte { return sha256.Sum256([]byte("ca")) }, func() time.Time { return f.now }))
}

func (f *fixture) token(o jointoken.Order) (jointoken.Token, jointoken.Record) {
	t, r, err := f.tokens.Create(ctx, o)
	if err != nil {
		panic(err)
	}
	return t, r
}

func claim(t jointoken.Token, key string) jointoken.Claim {
	return jointoken.Claim{Secret: t.Secret, Scope: t.Scope, Cluster: t.Cluster, Key: key, Name: "n-" + key}
}

var nodeOrder = jointoken.Order{Scope: jointoken.ForNode, Cluster: "munich"}

func TestLineIsParseBackwards(t *testing.T) {
	f := newFixture()
	for _, o := range []jointoken.Order{nodeOrder, {Scope: jointoken.ForCluster}, {Scope: jointoken.ForCluster, Cluster: "rome"}} {
		tok, _ := f.token(o)
		line := tok.Line()
		got, err := jointoken.Parse(" " + line + "\n")
		if err != nil || fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", tok) || got.Line() != line || !got.Expires.Equal(tok.Expires) {
			t.Errorf("%v: %v, %v", tok, got, err)
		}
		if len(line) > 140 {
			t.Errorf("a line of %d characters: %s", len(line), line)
		}
		for i := range len(line) {
			if _, err := jointoken.Parse(line[:i]); !errors.Is(err, api.ErrInvalid) {
				t.Fatalf("cut off at %d: %v", i, err)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	fx := newFixture()
	tok, _ := fx.token(nodeOrder)
	f.Add(tok.Line())
	f.Add("TL1..")
	f.Fuzz(func(t *testing.T, line string) {
		tok, err := jointoken.Parse(line)
		if err != nil {
			if !errors.Is(err, api.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		again, err := jointoken.Parse(tok.Line())
		if err != nil || again.Line() != tok.Line() {
			t.Fatalf("%q: %v", tok.Line(), err)
		}
	})
}

func TestSecretStaysSecret(t *testing.T) {
	f := newFixture()
	tok, rec := f.token(nodeOrder)
	secret := tok.Line()[strings.LastIndexByte(tok.Line(), '.')+1:]
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "token", tok)
	js := must(json.Marshal(map[string]any{"t": tok, "r": rec}))
	seen := log.String() + string(js) + fmt.Sprint(tok) + fmt.Sprintf("%+v %s", tok, tok)
	for _, d := range must(store.Load(ctx, f.st)) {
		seen += string(d.Data) + d.Key
	}
	if strings.Contains(seen, secret) || strings.Contains(seen, string(tok.Secret)) {
		t.Error(seen)
	}
}

// Of 100 concurrent claims of a token with n uses, exactly n succeed.
func TestRace(t *testing.T) {
	for _, uses := range []int{1, 7} {
		f := newFixture()
		o := nodeOrder
		o.Uses = uses
		tok, rec := f.token(o)
		var won, lost atomic.Int64
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				switch _, _, err := f.tokens.Redeem(ctx, claim(tok, fmt.Sprint(i))); {
				case err == nil:
					won.Add(1)
				case errors.Is(err, api.ErrUnauthenticated):
					lost.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if int(won.Load()) != uses || int(lost.Load()) != 100-uses {
			t.Errorf("%d won, %d lost, of %d uses", won.Load(), lost.Load(), uses)
		}
		f.reload()
		if r := must(f.tokens.Get(rec.ID)); r.Left() != 0 {
			t.Errorf("%d uses left after a restart", r.Left())
		}
		if _, _, err := f.tokens.Redeem(ctx, claim(tok, "late")); !errors.Is(err, api.ErrUnauthenticated) {
			t.Errorf("after a restart: %v", err)
		}
	}
}

func TestLostAnswerMayBeAskedForAgain(t *testing.T) {
	f := newFixture()
	tok, _ := f.token(nodeOrder)
	c := claim(tok, "k")
	c.Name = ""
	for i := range 3 {
		c.Default = fmt.Sprint("try-", i)
		name, _, err := f.tokens.Redeem(ctx, c)
		if err != nil || name != "try-0" {
			t.Errorf("try %d: %q, %v", i, name, err)
		}
		f.reload()
	}
}

// A use of a token is bound to the name and the key of its claim.
func TestAUseIsBoundToOneNameAndOneKey(t *testing.T) {
	for _, scope := range []jointoken.Scope{jointoken.ForNode, jointoken.ForCluster} {
		for _, uses := range []int{1, 3} {
			f := newFixture()
			o := jointoken.Order{Scope: scope, Uses: uses}
			if scope == jointoken.ForNode {
				o.Cluster = "munich"
			}
			tok, rec := f.token(o)
			c := jointoken.Claim{Secret: tok.Secret, Scope: scope, Cluster: tok.Cluster, Key: "k", Name: "first"}
			for _, v := range []struct {
				what, key, name string
				want            error
			}{
				{"the first use", "k", "first", nil},
				{"again, after a lost answer", "k", "first", nil},
				{"another name of the key", "k", "second", api.ErrForbidden},
				{"another key of the name", "other", "first", api.ErrUnauthenticated},
			} {
				if v.key == "other" && uses > 1 {
					continue // another use of the token; the caller checks the name
				}
				c.Key, c.Name = v.key, v.name
				if _, _, err := f.tokens.Redeem(ctx, c); !errors.Is(err, v.want) {
					t.Errorf("%s token of %d uses: %s: %v, want %v", scope, uses, v.what, err, v.want)
				}
				f.reload()
			}
			if r := must(f.tokens.Get(rec.ID)); r.Left() != uses-1 {
				t.Errorf("%s token of %d uses: %d are left", scope, uses, r.Left())
			}
			// A removed machine cannot join again by an earlier use.
			if err := f.tokens.RevokeUses(ctx, scope, "first"); err != nil {
				t.Fatal(err)
			}
			f.reload()
			c.Key, c.Name = "k", "first"
			if _, _, err := f.tokens.Redeem(ctx, c); !errors.Is(err, api.ErrUnauthenticated) {
				t.Errorf("%s token of %d uses: removed and again: %v", scope, uses, err)
			}
			if c.Name, c.Default = "", "x"; scope == jointoken.ForCluster {
				continue // a cluster always requests a name
			}
			if _, _, err := f.tokens.Redeem(ctx, c); !errors.Is(err, api.ErrUnauthenticated) {
				t.Errorf("%s token of %d uses: removed and by any name: %v", scope, uses, err)
			}
		}
	}
}

func TestRefusedClaims(t *testing.T) {
	f := newFixture()
	node, rec := f.token(nodeOrder)
	named, _ := f.token(jointoken.Order{Scope: jointoken.ForCluster, Cluster: "rome"})
	anyone, _ := f.token(jointoken.Order{Scope: jointoken.ForCluster})
	with := func(c jointoken.Claim, change func(*jointoken.Claim)) jointoken.Claim { change(&c); return c }
	for name, c := range map[string]struct {
		claim jointoken.Claim
		want  error
	}{
		"a cluster by a node's token": {with(claim(node, "k"), func(c *jointoken.Claim) { c.Scope = jointoken.ForCluster }), api.ErrForbidden},
		"a node by a cluster's token": {with(claim(anyone, "k"), func(c *jointoken.Claim) { c.Scope = jointoken.ForNode }), api.ErrForbidden},
		"another cluster's node":      {with(claim(node, "k"), func(c *jointoken.Claim) { c.Cluster = "rome" }), api.ErrForbidden},
		"another name":                {with(claim(named, "k"), func(c *jointoken.Claim) { c.Cluster = "oslo" }), api.ErrForbidden},
		"unknown":                     {with(claim(node, "k"), func(c *jointoken.Claim) { c.Secret = make([]byte, 16) }), api.ErrUnauthenticated},
		"no secret":                   {with(claim(node, "k"), func(c *jointoken.Claim) { c.Secret = nil }), api.ErrInvalid},
		"no key":                      {claim(node, ""), api.ErrInvalid},
	} {
		if _, _, err := f.tokens.Redeem(ctx, c.claim); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if r := must(f.tokens.Get(rec.ID)); r.Left() != 1 {
		t.Error("a refused claim counted")
	}
	if name, _, err := f.tokens.Redeem(ctx, with(claim(anyone, "k"), func(c *jointoken.Claim) { c.Cluster = "oslo" })); err != nil || name == "" {
		t.Error(err)
	}
}

func TestExpiredAndRevoked(t *testing.T) {
	f := newFixture()
	old, _ := f.token(nodeOrder)
	gone, rec := f.token(jointoken.Order{Scope: jointoken.ForNode, Cluster: "munich", TTL: 2 * time.Hour})
	if got := len(f.tokens.List()); got != 2 {
		t.Errorf("%d tokens listed", got)
	}
	if err := f.tokens.Revoke(ctx, rec.ID); err != nil {
		t.Fatal(err)
	}
	if err := f.tokens.Revoke(ctx, rec.ID); !errors.Is(err, api.ErrNotFound) {
		t.Error(err)
	}
	f.now = old.Expires
	for _, tok := range []jointoken.Token{old, gone} {
		if _, _, err := f.tokens.Redeem(ctx, claim(tok, "k")); !errors.Is(err, api.ErrUnauthenticated) {
			t.Error(err)
		}
	}
	if err := f.tokens.Sweep(ctx); err != nil || len(must(store.Load(ctx, f.st))) != 0 {
		t.Error("expired tokens are kept", err)
	}
}

func TestBadOrders(t *testing.T) {
	f := newFixture()
	for _, o := range []jointoken.Order{
		{},
		{Scope: "x"},
		{Scope: jointoken.ForNode},
		{Scope: jointoken.ForNode, Cluster: "../x"},
		{Scope: jointoken.ForCluster, Cluster: "A"},
		{Scope: jointoken.ForCluster, Uses: -1},
		{Scope: jointoken.ForCluster, Uses: jointoken.MaxUses + 1},
		{Scope: jointoken.ForCluster, TTL: -1},
		{Scope: jointoken.ForCluster, TTL: jointoken.MaxTTL + 1},
	} {
		if _, _, err := f.tokens.Create(ctx, o); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestDialsOnlyThePinnedServer(t *testing.T) {
	now := time.Now()
	root, evil := must(ca.NewRoot(now)), must(ca.NewRoot(now))
	cluster := func(root *ca.Authority, id api.ClusterID) *ca.Authority {
		key, csr, err := ca.NewRequest()
		if err != nil {
			t.Fatal(err)
		}
		return must(ca.New(ca.Pair{Chain: must(root.SignCluster(now, csr, id)), Key: key}))
	}
	own := func(a *ca.Authority) ca.Pair {
		key, csr, err := ca.NewRequest()
		if err != nil {
			t.Fatal(err)
		}
		return ca.Pair{Chain: must(a.SignOwn(now, csr)), Key: key}
	}
	munich := own(cluster(root, "munich"))
	// grafted has the right CA after a chain that does not lead to it.
	grafted := own(evil)
	grafted.Chain = append(grafted.Chain, root.Root())

	for name, c := range map[string]struct {
		server ca.Pair
		scope  jointoken.Scope
		ok     bool
	}{
		"the cluster":        {munich, jointoken.ForNode, true},
		"the root":           {own(root), jointoken.ForCluster, true},
		"another cluster":    {own(cluster(root, "rome")), jointoken.ForNode, false},
		"cluster for root":   {munich, jointoken.ForCluster, false},
		"another root":       {own(evil), jointoken.ForCluster, false},
		"another's cluster":  {own(cluster(evil, "munich")), jointoken.ForNode, false},
		"a grafted CA":       {grafted, jointoken.ForCluster, false},
		"chain without root": {ca.Pair{Chain: munich.Chain[:2], Key: munich.Key}, jointoken.ForNode, false},
	} {
		var asked atomic.Bool
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			asked.Store(true)
			_, _ = io.WriteString(w, "welcome")
		}))
		s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
		s.TLS = &tls.Config{Certificates: []tls.Certificate{*c.server.TLS(true)}}
		s.StartTLS()
		tok := jointoken.Token{URL: s.URL, CA: root.Hash(), Scope: c.scope, Cluster: "munich", Expires: now, Secret: make([]byte, 16)}
		resp, err := tok.HTTPClient().Get(s.URL)
		if err == nil {
			pin, perr := tok.Root(resp)
			if perr != nil || !pin.Equal(root.Root()) {
				t.Errorf("%s: pinned %v, %v", name, pin, perr)
			}
			_ = resp.Body.Close()
		}
		if (err == nil) != c.ok || asked.Load() != c.ok {
			t.Errorf("%s: %v, asked %v", name, err, asked.Load())
		}
		s.Close()
	}
}
