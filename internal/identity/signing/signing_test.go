package signing_test

import (
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/jwt"
	"github.com/treeline-edge/treeline/internal/identity/signing"
	"github.com/treeline-edge/treeline/internal/seal"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/mem"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// replica is a process with its copy of the key files.
type replica struct {
	t    *testing.T
	st   store.Store
	wrap seal.KeyWrapper
	file []byte
	now  time.Time
	ring *jwt.Ring

	share bool
}

func newReplica(t *testing.T, st store.Store) *replica {
	t.Helper()
	file, err := jwt.NewRing(start).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return &replica{t: t, st: st, wrap: newWrapper(t), file: file, now: start}
}

func newWrapper(t *testing.T) seal.KeyWrapper {
	t.Helper()
	dir, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	w, err := seal.KeyFile(dir, "secrets.key", false)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (r *replica) open() *signing.Keys {
	r.t.Helper()
	loaded, err := store.Load(r.t.Context(), r.st)
	if err != nil {
		r.t.Fatal(err)
	}
	if r.ring, err = jwt.ParseRing(r.file); err != nil {
		r.t.Fatal(err)
	}
	k, err := signing.Open(signing.Options{
		Store: r.st, Loaded: loaded, Ring: r.ring, Sealer: seal.New(r.wrap), Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return r.now }, Share: r.share,
		File: func(text []byte) error { r.file = text; return nil },
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return k
}

func (r *replica) sign() string {
	r.t.Helper()
	text, _, err := jwt.Signer{Ring: r.ring, Issuer: "root", Now: func() time.Time { return r.now }}.Sign(jwt.Claims{Subject: "ann"}, []string{"treeline"}, jwt.AccessLife)
	if err != nil {
		r.t.Fatal(err)
	}
	return text
}

// verifies reports whether who has fetched keys accepts the token.
func verifies(keys jwt.PublicKeys, text string, now time.Time) bool {
	v := jwt.NewVerifier(jwt.VerifierOptions{Keys: keys.Key, Issuer: "root", Audience: "treeline", Now: func() time.Time { return now }})
	_, err := v.Verify(text, jwt.UseAccess)
	return err == nil
}

// TestAllReplicasHaveTheKeys also those whose key file is from before the rotation, and clusters that fetched the keys an
// hour ago accept every token.
func TestAllReplicasHaveTheKeys(t *testing.T) {
	st := mem.New()
	a := newReplica(t, st)
	k := a.open()
	b := &replica{t: t, st: st, wrap: a.wrap, file: a.file, now: start}
	if err := k.Rotate(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if err := k.Rotate(t.Context(), false); !errors.Is(err, api.ErrConflict) {
		t.Errorf("while the new key does not sign: got %v, want ErrConflict", err)
	}
	fetched := k.Public()
	for range 40 {
		if a.now = a.now.Add(5 * time.Minute); !verifies(fetched, a.sign(), a.now) {
			t.Fatalf("a token of %s is not valid where the keys were fetched after the rotation", a.now)
		}
	}
	b.now = a.now
	other := b.open()
	if text := a.sign(); !verifies(other.Public(), text, a.now) || !verifies(k.Public(), b.sign(), a.now) {
		t.Error("the replicas do not verify the tokens of one another")
	}
	if all := other.Status(); len(all) != 2 || all[1].Ends.IsZero() {
		t.Errorf("the keys are %+v, want two, of which the earlier one ends", all)
	}
}

// TestAStandbyHasTheKeysOfTheStore also if they were never rotated, and none of others.
func TestAStandbyHasTheKeysOfTheStore(t *testing.T) {
	a := newReplica(t, mem.New())
	a.share = true
	k := a.open()
	ring := jwt.NewRing(start)
	adopt := func() error {
		loaded, err := store.Load(t.Context(), a.st)
		if err != nil || len(loaded) != 1 {
			t.Fatalf("the store has %d documents, %v, want the keys", len(loaded), err)
		}
		return signing.Adopt(ring, seal.New(a.wrap), loaded[0], a.now)
	}
	for _, rotated := range []bool{false, true} {
		before := a.sign()
		if rotated {
			if err := k.Rotate(t.Context(), true); err != nil {
				t.Fatal(err)
			}
		}
		if err := adopt(); err != nil {
			t.Fatal(err)
		}
		if !verifies(ring.Public(), a.sign(), a.now) || verifies(ring.Public(), before, a.now) == rotated {
			t.Errorf("rotated %t: the standby does not have the keys of the active replica", rotated)
		}
	}
	a.wrap = newWrapper(t)
	if err := adopt(); err == nil {
		t.Error("keys that cannot be decrypted are accepted")
	}
	if err := signing.Adopt(ring, seal.New(a.wrap), store.Doc{Kind: signing.Kind, Key: "keys", Version: 3}, a.now); err == nil {
		t.Error("deleted keys are accepted")
	}
}

// TestRevokedKeysDoNotReturn with a key file of before, or after the store's key was lost.
func TestRevokedKeysDoNotReturn(t *testing.T) {
	a := newReplica(t, mem.New())
	k := a.open()
	stolen, before := a.sign(), a.file
	if err := k.Rotate(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(){
		"at once": func() {}, "an old key file": func() { a.file = before }, "another secrets.key": func() { a.file, a.wrap = before, newWrapper(t) },
	} {
		if change(); what != "at once" {
			k = a.open()
		}
		if verifies(k.Public(), stolen, a.now) || !verifies(k.Public(), a.sign(), a.now) {
			t.Errorf("%s: the stolen key verifies, or the new one does not", what)
		}
	}
}

// TestNewKeysAreKept: the next start with the same secrets.key verifies tokens of the keys that replaced unreadable ones.
func TestNewKeysAreKept(t *testing.T) {
	a := newReplica(t, mem.New())
	if err := a.open().Rotate(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	b := &replica{t: t, st: a.st, wrap: newWrapper(t), file: a.file, now: start}
	b.open()
	text, written := b.sign(), b.file
	b.file = a.file // a replica with a key file of before
	if k := b.open(); !verifies(k.Public(), text, b.now) {
		t.Error("the second start does not verify a token of the first")
	}
	if ring, err := jwt.ParseRing(written); err != nil || !verifies(ring.Public(), text, b.now) {
		t.Errorf("the key file has other keys, or is not readable: %v", err)
	}
}

func TestKeysAreBounded(t *testing.T) {
	a := newReplica(t, mem.New())
	k := a.open()
	for n := 1; ; n++ {
		a.now = a.now.Add(2 * time.Hour)
		err := k.Rotate(t.Context(), false)
		if errors.Is(err, api.ErrConflict) {
			if n != 32 || len(k.Public()) != 32 {
				t.Errorf("%d rotations and %d keys, want 31 and 32", n-1, len(k.Public()))
			}
			break
		}
		if err != nil || n > 100 {
			t.Fatal(n, err)
		}
	}
	if a.now = a.now.AddDate(2, 0, 0); len(k.Public()) != 1 {
		t.Errorf("%d keys verify after two years, want 1", len(k.Public()))
	}
	if err := k.Rotate(t.Context(), true); err != nil || len(k.Public()) != 1 {
		t.Errorf("revoke: %v, %d keys", err, len(k.Public()))
	}
}
