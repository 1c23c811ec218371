package jwt

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gojwt "github.com/golang-jwt/jwt/v5"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/rights"
)

var start = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

type fixture struct {
	now  time.Time
	ring *Ring
	s    Signer
	v    *Verifier
}

func newFixture(t *testing.T, leeway time.Duration) *fixture {
	t.Helper()
	f := &fixture{now: start, ring: NewRing(start)}
	clock := func() time.Time { return f.now }
	f.s = Signer{Ring: f.ring, Issuer: "root", Now: clock}
	f.v = NewVerifier(VerifierOptions{Keys: f.ring.Key, Issuer: "root", Audience: "treeline", Leeway: leeway, Now: clock})
	return f
}

func (f *fixture) sign(t *testing.T, c Claims) string {
	t.Helper()
	if c.Subject == "" {
		c.Subject = "acme/alice"
	}
	text, _, err := f.s.Sign(c, []string{"treeline"}, AccessLife)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestClaimsComeThrough(t *testing.T) {
	f := newFixture(t, 0)
	text := f.sign(t, Claims{Tenant: "acme", Roles: []rights.Role{rights.ApplicationProvider}, PAT: "p1"})
	for range 2 { // the second time from the cache
		c, err := f.v.Verify(text, UseAccess)
		if err != nil {
			t.Fatal(err)
		}
		p := c.Principal()
		if p.User != "acme/alice" || p.Tenant != "acme" || !p.Has(rights.ApplicationProvider) || p.PAT != "p1" || c.ID == "" ||
			!c.Expires.Equal(start.Add(AccessLife)) {
			t.Errorf("%+v", c)
		}
	}
}

// forge signs any header and claims with any method and key.
func forge(t *testing.T, m gojwt.SigningMethod, key any, header map[string]any, claims gojwt.MapClaims) string {
	t.Helper()
	tok := gojwt.NewWithClaims(m, claims)
	for k, v := range header {
		tok.Header[k] = v
	}
	text, err := tok.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestRefusedTokens(t *testing.T) {
	f := newFixture(t, 0)
	priv := f.ring.signing(f.now)
	pub := priv.Public().(ed25519.PublicKey)
	kid := KeyID(pub)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, other, _ := ed25519.GenerateKey(nil)

	good := func() gojwt.MapClaims {
		return gojwt.MapClaims{
			"iss": "root", "aud": "treeline", "sub": "acme/alice", "jti": "1", "use": "access",
			"iat": start.Unix(), "nbf": start.Unix(), "exp": start.Add(time.Minute).Unix(),
		}
	}
	without := func(k string) gojwt.MapClaims { c := good(); delete(c, k); return c }
	with := func(k string, v any) gojwt.MapClaims { c := good(); c[k] = v; return c }
	h := map[string]any{"kid": kid}
	ed := gojwt.SigningMethodEdDSA
	signed := forge(t, ed, priv, h, good())
	if _, err := f.v.Verify(signed, UseAccess); err != nil {
		t.Fatalf("the good one: %v", err)
	}
	parts := strings.Split(signed, ".")
	swapped := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","kid":"` + kid + `"}`))

	for name, text := range map[string]string{
		"alg none":                     forge(t, gojwt.SigningMethodNone, gojwt.UnsafeAllowNoneSignatureType, h, good()),
		"alg none, signature cut":      swapped + "." + parts[1] + ".",
		"alg none, signature kept":     swapped + "." + parts[1] + "." + parts[2],
		"HS256 with the public key":    forge(t, gojwt.SigningMethodHS256, []byte(pub), h, good()),
		"RS256":                        forge(t, gojwt.SigningMethodRS256, rsaKey, h, good()),
		"another key, our kid":         forge(t, ed, other, h, good()),
		"another key, its kid":         forge(t, ed, other, map[string]any{"kid": KeyID(other.Public().(ed25519.PublicKey))}, good()),
		"no kid":                       forge(t, ed, priv, nil, good()),
		"empty kid":                    forge(t, ed, priv, map[string]any{"kid": ""}, good()),
		"kid traversal":                forge(t, ed, priv, map[string]any{"kid": "../../../../dev/null"}, good()),
		"kid of a wrong type":          forge(t, ed, priv, map[string]any{"kid": 7}, good()),
		"jwk in the header":            forge(t, ed, other, map[string]any{"kid": kid, "jwk": map[string]any{"kty": "OKP"}}, good()),
		"jku in the header":            forge(t, ed, priv, map[string]any{"kid": kid, "jku": "https://evil"}, good()),
		"crit in the header":           forge(t, ed, priv, map[string]any{"kid": kid, "crit": []string{"x"}}, good()),
		"expired":                      forge(t, ed, priv, h, with("exp", start.Add(-time.Second).Unix())),
		"from the future":              forge(t, ed, priv, h, with("nbf", start.Add(time.Minute).Unix())),
		"issued in the future":         forge(t, ed, priv, h, with("iat", start.Add(time.Minute).Unix())),
		"wrong audience":               forge(t, ed, priv, h, with("aud", "other")),
		"wrong issuer":                 forge(t, ed, priv, h, with("iss", "other")),
		"no exp":                       forge(t, ed, priv, h, without("exp")),
		"no nbf":                       forge(t, ed, priv, h, without("nbf")),
		"no iat":                       forge(t, ed, priv, h, without("iat")),
		"no aud":                       forge(t, ed, priv, h, without("aud")),
		"no iss":                       forge(t, ed, priv, h, without("iss")),
		"no sub":                       forge(t, ed, priv, h, without("sub")),
		"no jti":                       forge(t, ed, priv, h, without("jti")),
		"no use":                       forge(t, ed, priv, h, without("use")),
		"claims of another":            parts[0] + "." + strings.Split(f.sign(t, Claims{Subject: "admin"}), ".")[1] + "." + parts[2],
		"empty":                        "",
		"giant":                        signed + strings.Repeat("A", maxToken),
		"no token":                     "a.b.c",
		"a second copy of a signature": signed + "." + parts[2],
	} {
		if c, err := f.v.Verify(text, UseAccess); !errors.Is(err, api.ErrUnauthenticated) {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
	if _, err := f.v.Verify(signed, UseCall); !errors.Is(err, api.ErrForbidden) {
		t.Errorf("wrong scope: %v", err)
	}
}

func TestRememberedTokensExpireToo(t *testing.T) {
	for _, leeway := range []time.Duration{0, MaxLeeway} {
		f := newFixture(t, leeway)
		text := f.sign(t, Claims{})
		if _, err := f.v.Verify(text, UseAccess); err != nil {
			t.Fatal(err)
		}
		f.now = start.Add(AccessLife - time.Second)
		if _, err := f.v.Verify(text, UseAccess); err != nil {
			t.Errorf("leeway %s: %v", leeway, err)
		}
		f.now = start.Add(AccessLife)
		if _, err := f.v.Verify(text, UseAccess); !errors.Is(err, api.ErrUnauthenticated) {
			t.Errorf("leeway %s: expired and remembered: %v", leeway, err)
		}
		f.v.cached = map[[32]byte]entry{}
		if _, err := f.v.Verify(text, UseAccess); !errors.Is(err, api.ErrUnauthenticated) {
			t.Errorf("leeway %s: expired: %v", leeway, err)
		}
	}
}

func TestReplayedOnceTokenIsRefused(t *testing.T) {
	f := newFixture(t, 0)
	text := f.sign(t, Claims{Use: UseCall, Object: "acme/a.b.c.d#0"})
	if _, err := f.v.VerifyOnce(text, UseAccess); !errors.Is(err, api.ErrForbidden) {
		t.Errorf("wrong scope: %v", err)
	}
	var won atomic.Int64
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			c, err := f.v.VerifyOnce(text, UseCall)
			if err == nil && c.Object == "acme/a.b.c.d#0" {
				won.Add(1)
			} else if !errors.Is(err, api.ErrUnauthenticated) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d of 100 won", won.Load())
	}
}

func TestRotation(t *testing.T) {
	f := newFixture(t, 0)
	old := f.sign(t, Claims{})
	f.now = start.Add(5 * time.Minute)
	f.ring.Rotate(f.now, 0, AccessLife)
	fresh := f.sign(t, Claims{})
	data, err := f.ring.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	ring, err := ParseRing(data)
	if err != nil {
		t.Fatal(err)
	}
	// Clusters get the public keys as JSON.
	js, err := json.Marshal(ring.Public())
	if err != nil || strings.Contains(string(js), "seed") {
		t.Fatal(err, string(js))
	}
	var keys PublicKeys
	if err := json.Unmarshal(js, &keys); err != nil {
		t.Fatal(err)
	}
	cluster := NewVerifier(VerifierOptions{Keys: keys.Key, Issuer: "root", Audience: "treeline", Now: func() time.Time { return f.now }})
	for _, v := range []*Verifier{f.v, cluster} {
		for _, text := range []string{old, fresh} {
			if _, err := v.Verify(text, UseAccess); err != nil {
				t.Error(err)
			}
		}
	}
	f.ring.Rotate(f.now, 0, 0) // after a theft: invalidates all tokens
	if _, err := f.v.Verify(old, UseAccess); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("remembered token of a dropped key: %v", err)
	}
}

// TestANewKeyIsAnnounced: whoever has fetched the keys within Announce verifies all tokens, and a key leaves when the
// last token that it has signed has ended.
func TestANewKeyIsAnnounced(t *testing.T) {
	f := newFixture(t, 0)
	const life = 24 * time.Hour
	f.ring.Rotate(f.now, Announce, life)
	fetched := f.ring.Public()
	kid := func() string {
		text := f.sign(t, Claims{})
		head, _, err := gojwt.NewParser().ParseUnverified(text, gojwt.MapClaims{})
		if err != nil {
			t.Fatal(err)
		}
		return head.Header["kid"].(string)
	}
	old := kid()
	if f.now = f.now.Add(Announce - time.Second); kid() != old {
		t.Error("the new key signs before it was announced for long enough")
	}
	f.now = f.now.Add(time.Second)
	fresh := kid()
	if _, ok := fetched.Key(fresh); fresh == old || !ok {
		t.Errorf("the key %s signs, want one that was fetched before, and not %s", fresh, old)
	}
	f.ring.Expire(f.now.Add(life-time.Second), life)
	if _, ok := f.ring.Key(old); !ok {
		t.Error("the old key is gone before its last token has ended")
	}
	f.ring.Expire(f.now.Add(life), life)
	if _, ok := f.ring.Key(old); ok || len(f.ring.Status(life)) != 1 {
		t.Error("the old key is there after its last token has ended")
	}
	f.ring.Rotate(f.now, Announce, 0)
	if _, ok := f.ring.Key(fresh); ok || kid() == fresh {
		t.Error("after a theft, the old key still verifies or signs")
	}
}

func TestParseRingRefuses(t *testing.T) {
	for _, s := range []string{"", "[]", "{}", `[{"seed":"AAAA"}]`} {
		if _, err := ParseRing([]byte(s)); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func TestMemoryIsBounded(t *testing.T) {
	f := newFixture(t, 0)
	for i := range maxCached + 50 {
		f.v.cached[[32]byte{byte(i), byte(i >> 8), 1}] = entry{}
	}
	for i := range 3 {
		if _, err := f.v.Verify(f.sign(t, Claims{ID: fmt.Sprint(i)}), UseAccess); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(f.v.cached); n > maxCached+50 {
		t.Errorf("%d remembered", n)
	}
}

// At the total, the error does not blame the tenant whose token comes next.
func TestTheTotalOfUsedTokensBlamesNoTenant(t *testing.T) {
	f := newFixture(t, 0)
	for i := range usedTokens.Total {
		f.v.used[fmt.Sprint(i)] = usedToken{f.now.Add(time.Minute), api.Tenant(fmt.Sprint("t", i%8))}
	}
	_, err := f.v.VerifyOnce(f.sign(t, Claims{Use: UseCall, Tenant: "acme"}), UseCall)
	if !errors.Is(err, api.ErrUnavailable) || strings.Contains(err.Error(), "acme") {
		t.Errorf("a token beyond the total: %v, want ErrUnavailable without the tenant", err)
	}
}

// The used tokens of one tenant leave capacity for others, and expired ones free capacity.
func TestOneTenantDoesNotFillTheUsedTokens(t *testing.T) {
	f := newFixture(t, 0)
	spend := func(tenant api.Tenant, id string) error {
		_, err := f.v.VerifyOnce(f.sign(t, Claims{Use: UseCall, Tenant: tenant, ID: id}), UseCall)
		return err
	}
	own := usedTokens.Share[0]
	for i := range own {
		f.v.used[fmt.Sprint("old", i)] = usedToken{f.now.Add(time.Minute), "acme"}
	}
	f.v.count["acme"] = own
	for _, tenant := range []api.Tenant{"acme", "acme/lab", "acme/lab/x"} {
		if err := spend(tenant, "1 of "+string(tenant)); !errors.Is(err, api.ErrTooMany) || !strings.Contains(err.Error(), "for acme ") {
			t.Errorf("beyond a tenant's share, as %s: %v, want ErrTooMany for acme", tenant, err)
		}
	}
	if err := spend("rival", "2"); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	f.now = f.now.Add(2 * time.Minute)
	if err := spend("acme", "3"); err != nil || len(f.v.used) != 2 {
		t.Errorf("after the others expired: %v, %d remembered", err, len(f.v.used))
	}
}

func BenchmarkVerifyRemembered(b *testing.B) {
	ring := NewRing(time.Now())
	text, _, _ := Signer{Ring: ring, Issuer: "root"}.Sign(Claims{Subject: "a"}, []string{"t"}, time.Hour)
	v := NewVerifier(VerifierOptions{Keys: ring.Key, Issuer: "root", Audience: "t"})
	for b.Loop() {
		if _, err := v.Verify(text, UseAccess); err != nil {
			b.Fatal(err)
		}
	}
}
