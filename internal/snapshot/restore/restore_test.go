//go:build unix

package restore_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/storemark"
	"github.com/treeline-edge/treeline/internal/snapshot"
	"github.com/treeline-edge/treeline/internal/snapshot/restore"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/embedded"
	"github.com/treeline-edge/treeline/internal/store/mem"
	"github.com/treeline-edge/treeline/internal/store/mongo"
	"github.com/treeline-edge/treeline/internal/store/mongo/mongotest"
	"github.com/treeline-edge/treeline/internal/store/view"
)

const secret = "the key that signs tokens"

// installation is a root's data directory and store.
type installation struct {
	t         *testing.T
	dir       *os.Root
	store     *view.Store
	identity  *age.X25519Identity
	taker     *snapshot.Taker
	authority *ca.Authority
}

func newInstallation(t *testing.T) *installation {
	t.Helper()
	dir, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	i := &installation{t: t, dir: dir, store: view.New(mem.New())}
	if i.identity, err = age.GenerateX25519Identity(); err != nil {
		t.Fatal(err)
	}
	if i.authority, err = ca.NewRoot(time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(ca.SavePair(dir, "root-ca.pem", i.authority.Pair()), ca.WriteFile(dir, "token-keys.json", []byte(secret), 0o600)); err != nil {
		t.Fatal(err)
	}
	mark, err := storemark.Of(i.authority.Pair().Chain[0])
	if err != nil {
		t.Fatal(err)
	}
	i.save(mark, store.Doc{Kind: "app", Key: "shop", Version: 1, Data: []byte("one")}, store.Doc{Kind: "app", Key: "shop", Version: 2, Data: []byte("two")},
		store.Doc{Kind: "empty", Key: "é", Version: 1, Data: []byte{}})
	i.use(i.store)
	return i
}

// use makes the installation keep its documents in s from now on.
func (i *installation) use(s store.Store) {
	i.store = view.New(s)
	i.taker = snapshot.NewTaker(snapshot.Options{Dir: i.dir, Tier: snapshot.Root, Version: "v1", Authority: func() *x509.Certificate { return i.authority.Pair().Chain[0] }, All: i.store.All})
}

func (i *installation) save(docs ...store.Doc) {
	i.t.Helper()
	if err := i.store.Save(i.t.Context(), docs); err != nil {
		i.t.Fatal(err)
	}
}

// take returns a snapshot.
func (i *installation) take() []byte {
	i.t.Helper()
	f, err := i.taker.Take(i.t.Context(), []string{i.identity.Recipient().String()})
	if err != nil {
		i.t.Fatal(err)
	}
	text, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil || int64(len(text)) != f.Size() {
		i.t.Fatalf("read %d bytes, %v, want %d", len(text), err, f.Size())
	}
	return text
}

func content(t *testing.T, s store.Store) map[string]string {
	t.Helper()
	docs, err := store.Load(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, d := range docs {
		if d.Kind != store.KindRestored {
			all[d.Kind+"/"+d.Key] = string(d.Data)
		}
	}
	return all
}

func (i *installation) restore(text []byte, t restore.Target) error {
	if t.Identities == nil {
		t.Identities = []age.Identity{i.identity}
	}
	_, err := restore.Run(i.t.Context(), bytes.NewReader(text), t)
	return err
}

func TestARestoredInstallationIsTheSame(t *testing.T) {
	i := newInstallation(t)
	text := i.take()
	dir := filepath.Join(t.TempDir(), "new", "root")
	if err := i.restore(text, restore.Target{Dir: dir, Tier: snapshot.Root}); err != nil {
		t.Fatal(err)
	}
	s, err := embedded.Open(filepath.Join(dir, "root.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got, want := content(t, s), content(t, i.store); !maps.Equal(got, want) {
		t.Errorf("restored %v, want %v", got, want)
	}
	if key, err := os.ReadFile(filepath.Join(dir, "token-keys.json")); err != nil || string(key) != secret {
		t.Errorf("the key file has %q, %v", key, err)
	}
	for _, of := range []string{dir, filepath.Dir(dir)} {
		all, err := os.ReadDir(of)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			if info, err := e.Info(); err != nil || info.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s has mode %v, %v, want none for others", e.Name(), info.Mode(), err)
			}
		}
	}
	err = i.restore(text, restore.Target{Dir: dir})
	if !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("into the same directory: got %v, want ErrConflict", err)
	}
}

func TestDocumentsThatChangeMeanwhileAreRestored(t *testing.T) {
	i := newInstallation(t)
	i.save(store.Doc{Kind: "app", Key: "gone", Version: 1, Data: []byte("x")})
	changed := false
	i.taker = snapshot.NewTaker(snapshot.Options{
		Dir: i.dir, Tier: snapshot.Root, Authority: func() *x509.Certificate { return i.authority.Pair().Chain[0] },
		All: func(ctx context.Context, fn func(store.Doc, bool) error) error {
			return i.store.All(ctx, func(d store.Doc, again bool) error {
				if !changed {
					changed = true
					i.save(store.Doc{Kind: "app", Key: "shop", Version: 3, Data: []byte("three")}, store.Doc{Kind: "new", Key: "new", Version: 1, Data: []byte("n")},
						store.Doc{Kind: "app", Key: "gone", Version: 2}, store.Doc{Kind: "short", Key: "s", Version: 1, Data: []byte("s")}, store.Doc{Kind: "short", Key: "s", Version: 2})
				}
				return fn(d, again)
			})
		},
	})
	dir := filepath.Join(t.TempDir(), "root")
	if err := i.restore(i.take(), restore.Target{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	s, err := embedded.Open(filepath.Join(dir, "root.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got, want := content(t, s), content(t, i.store); !maps.Equal(got, want) || want["app/shop"] != "three" {
		t.Errorf("restored %v, want %v", got, want)
	}
}

// TestAnInstallationMovesToMongoDBAndBack: it is restored from the embedded store into MongoDB, changes there, and is
// restored from there into an embedded store.
func TestAnInstallationMovesToMongoDBAndBack(t *testing.T) {
	i := newInstallation(t)
	before, err := embedded.Open(filepath.Join(i.dir.Name(), "root.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	docs, err := store.Load(t.Context(), i.store)
	if err != nil {
		t.Fatal(err)
	}
	i.use(before)
	for _, d := range docs {
		d.Version = 1
		i.save(d)
	}
	text := i.take()
	uri := mongotest.URI(t)
	to := restore.Target{Dir: filepath.Join(t.TempDir(), "root"), Store: uri, Role: "moved"}
	if err := i.restore(text, to); err != nil {
		t.Fatal(err)
	}
	moved, err := mongo.Open(t.Context(), uri, "moved")
	if err != nil {
		t.Fatal(err)
	}
	defer moved.Close()
	if got, want := content(t, moved), content(t, before); !maps.Equal(got, want) || want["app/shop"] != "two" {
		t.Errorf("MongoDB has %v, want %v", got, want)
	}
	if _, err := os.Stat(filepath.Join(to.Dir, "root.db")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory has a store, too: %v", err)
	}
	to.Dir += "2"
	if err := i.restore(text, to); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "is in use") {
		t.Errorf("into the same database: got %v, want ErrConflict", err)
	}
	if _, err := os.Stat(to.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the refused restore left its directory: %v", err)
	}

	i.use(moved)
	i.save(store.Doc{Kind: "app", Key: "shop", Version: 2, Data: []byte("three")}, store.Doc{Kind: "app", Key: "new", Version: 1, Data: []byte("n")},
		store.Doc{Kind: "empty", Key: "é", Version: 2})
	back := filepath.Join(t.TempDir(), "root")
	if err := i.restore(i.take(), restore.Target{Dir: back}); err != nil {
		t.Fatal(err)
	}
	after, err := embedded.Open(filepath.Join(back, "root.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer after.Close()
	if got, want := content(t, after), content(t, moved); !maps.Equal(got, want) || want["app/shop"] != "three" || want["app/new"] != "n" || len(want) != len(content(t, before)) {
		t.Errorf("the embedded store has %v, want %v", got, want)
	}
	for _, key := range []string{"root-ca.pem", "token-keys.json"} {
		was, err1 := i.dir.ReadFile(key)
		is, err2 := os.ReadFile(filepath.Join(back, key))
		if err := errors.Join(err1, err2); err != nil || !bytes.Equal(was, is) {
			t.Errorf("%s differs after both moves: %v", key, err)
		}
	}
}

// forge returns a snapshot with other content, encrypted to the same recipient, whose header fits.
func (i *installation) forge(change func(*snapshot.Header), entries ...tar.Header) []byte {
	i.t.Helper()
	r, err := snapshot.Open(bytes.NewReader(i.take()))
	if err != nil {
		i.t.Fatal(err)
	}
	h := r.Header()
	h.Keys, h.Documents, h.Bytes = nil, 0, 0
	change(&h)
	var sealed bytes.Buffer
	enc, err := age.Encrypt(&sealed, i.identity.Recipient())
	if err != nil {
		i.t.Fatal(err)
	}
	packed := gzip.NewWriter(enc)
	archive := tar.NewWriter(packed)
	for _, e := range entries {
		e.Typeflag = max(e.Typeflag, tar.TypeReg)
		if err := archive.WriteHeader(&e); err != nil {
			i.t.Fatal(err)
		}
		if _, err := io.CopyN(archive, zeros{}, e.Size); err != nil {
			i.t.Fatal(err)
		}
	}
	inner := h
	inner.Size, inner.SHA256 = 0, ""
	text, _ := json.Marshal(inner)
	_ = archive.WriteHeader(&tar.Header{Name: "header.json", Size: int64(len(text)), Typeflag: tar.TypeReg})
	_, _ = archive.Write(text)
	if err := errors.Join(archive.Close(), packed.Close(), enc.Close()); err != nil {
		i.t.Fatal(err)
	}
	h.Size, h.SHA256 = int64(sealed.Len()), fmt.Sprintf("%x", sha256.Sum256(sealed.Bytes()))
	text, _ = json.Marshal(h)
	return slices.Concat([]byte("treeline snapshot\n"), text, []byte("\n"), sealed.Bytes())
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestSnapshotBombsAreRefused also bounds what they cost.
func TestSnapshotBombsAreRefused(t *testing.T) {
	i := newInstallation(t)
	pax := map[string]string{"TREELINE.kind": "app", "TREELINE.key": "a"}
	nothing := func(*snapshot.Header) {}
	for name, text := range map[string][]byte{
		"a larger document":              i.forge(func(h *snapshot.Header) { h.Documents, h.Bytes = 1, 1<<40 }, tar.Header{Name: "docs/1", Size: store.MaxData + 1, PAXRecords: pax}),
		"more bytes than it says":        i.forge(func(h *snapshot.Header) { h.Documents, h.Bytes = 1, 10 }, tar.Header{Name: "docs/1", Size: 1 << 20, PAXRecords: pax}),
		"more documents than it says":    i.forge(nothing, tar.Header{Name: "docs/1", PAXRecords: pax}),
		"fewer documents than it says":   i.forge(func(h *snapshot.Header) { h.Documents = 1 }),
		"a large key file":               i.forge(nothing, tar.Header{Name: "keys/root-ca.pem", Size: 2 << 20}),
		"another file":                   i.forge(nothing, tar.Header{Name: "keys/../../etc/passwd", Size: 1}),
		"an absolute path":               i.forge(nothing, tar.Header{Name: "/etc/passwd", Size: 1}),
		"a link":                         i.forge(nothing, tar.Header{Name: "keys/root-ca.pem", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}),
		"a cluster's key":                i.forge(nothing, tar.Header{Name: "keys/operator-token", Size: 1}),
		"a deletion of nothing":          i.forge(func(h *snapshot.Header) { h.Documents = 1 }, tar.Header{Name: "docs/1", PAXRecords: map[string]string{"TREELINE.kind": "app", "TREELINE.key": "a", "TREELINE.deleted": "1"}}),
		"a document without a kind":      i.forge(func(h *snapshot.Header) { h.Documents = 1 }, tar.Header{Name: "docs/1"}),
		"negative sizes":                 i.forge(func(h *snapshot.Header) { h.Bytes = -1 }),
		"a tier that there is not":       i.forge(func(h *snapshot.Header) { h.Tier = "../x" }),
		"a cluster whose name is a path": i.forge(func(h *snapshot.Header) { h.Tier, h.Cluster = snapshot.Cluster, "../x" }),
		"no documents":                   i.forge(nothing),
	} {
		parent := t.TempDir()
		err := i.restore(text, restore.Target{Dir: filepath.Join(parent, "root")})
		if !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
		if all, err := os.ReadDir(parent); err != nil || len(all) > 0 {
			t.Errorf("%s: left %v, %v", name, all, err)
		}
	}
}

func TestDamagedSnapshotsAreRefused(t *testing.T) {
	i := newInstallation(t)
	text := i.take()
	line := bytes.IndexByte(text[len("treeline snapshot\n"):], '\n') + len("treeline snapshot\n")
	other, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	head := func(old, to string) []byte {
		return slices.Concat(bytes.Replace(text[:line], []byte(old), []byte(to), 1), text[line:])
	}
	flipped := slices.Clone(text)
	flipped[len(text)-40] ^= 1
	for _, c := range []struct {
		name, want string
		text       []byte
		kind       error
		id         age.Identity
	}{
		{"empty", "is not a snapshot", nil, api.ErrInvalid, nil},
		{"another file", "is not a snapshot", []byte(strings.Repeat("x", 1<<20)), api.ErrInvalid, nil},
		{"header cut", "header is truncated", text[:line-5], api.ErrInvalid, nil},
		{"cut after the header", "truncated or damaged", text[:line+1], api.ErrInvalid, nil},
		{"one byte less", "truncated or damaged", text[:len(text)-1], api.ErrInvalid, nil},
		{"half", "truncated or damaged", text[:line+(len(text)-line)/2], api.ErrInvalid, nil},
		{"a bit changed", "truncated or damaged", flipped, api.ErrInvalid, nil},
		{"one byte more", "goes on after its end", append(slices.Clone(text), 'x'), api.ErrInvalid, nil},
		{"newer", "its format is 2, and this program reads format 1", head(`"format":1`, `"format":2`), api.ErrInvalid, nil},
		{"header changed", "somebody changed it", head(`"version":"v1"`, `"version":"v2"`), api.ErrInvalid, nil},
		{"header endless", "header is truncated or larger", slices.Concat([]byte("treeline snapshot\n"), bytes.Repeat([]byte(" "), 1<<20)), api.ErrInvalid, nil},
		{"wrong identity", "is not one of its recipients", text, api.ErrForbidden, other},
	} {
		parent := t.TempDir()
		target := restore.Target{Dir: filepath.Join(parent, "root")}
		if c.id != nil {
			target.Identities = []age.Identity{c.id}
		}
		err := i.restore(c.text, target)
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %v with %q", c.name, err, c.kind, c.want)
		}
		if all, err := os.ReadDir(parent); err != nil || len(all) > 0 {
			t.Errorf("%s: left %v, %v", c.name, all, err)
		}
	}
	if err := i.restore(text, restore.Target{Dir: filepath.Join(t.TempDir(), "c"), Tier: snapshot.Cluster}); !errors.Is(err, api.ErrConflict) {
		t.Errorf("of the wrong tier: got %v, want ErrConflict", err)
	}
}

func TestSecretsAreEncrypted(t *testing.T) {
	i := newInstallation(t)
	f, err := i.taker.Take(t.Context(), []string{i.identity.Recipient().String()})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := os.ReadDir(i.dir.Name())
	if err != nil || len(all) != 2 {
		t.Errorf("the data directory has %v, %v, want the two key files only", all, err)
	}
	text, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	for _, clear := range []string{secret, "PRIVATE KEY", "shop"} {
		if bytes.Contains(text, []byte(clear)) {
			t.Errorf("the snapshot has %q in the clear", clear)
		}
	}
}

func TestOneSnapshotAtATime(t *testing.T) {
	i := newInstallation(t)
	to := []string{i.identity.Recipient().String()}
	f, err := i.taker.Take(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.taker.Take(t.Context(), to); !errors.Is(err, api.ErrConflict) {
		t.Errorf("got %v, want ErrConflict", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for _, bad := range [][]string{nil, {"age1"}, {"ssh-ed25519 AAAA"}, {i.identity.String()}, slices.Repeat(to, 9)} {
		if _, err := i.taker.Take(t.Context(), bad); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("recipients %v: got %v, want ErrInvalid", bad, err)
		}
	}
	i.take()
}
