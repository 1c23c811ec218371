//go:build unix

// Package restore writes a snapshot of a control plane into an empty data directory and an empty store.
//
//	h, err := restore.Run(ctx, file, restore.Target{Dir: "/var/lib/treeline/root", Identities: identities})
package restore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/durable"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/storemark"
	"github.com/treeline-edge/treeline/internal/snapshot"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/embedded"
	"github.com/treeline-edge/treeline/internal/store/mongo"
)

// Target is where a snapshot is restored to.
type Target struct {
	Dir        string // the data directory: it does not exist, or is empty
	Store      string // mongodb://…, where nothing of the role is stored; empty: a file in Dir
	Role       string // in Store; empty: that of a daemon whose configuration has no role
	Tier       string // what the snapshot must be of; empty: anything
	Identities []snapshot.Identity
}

// What is saved at once.
const (
	batchDocs  = 256
	batchBytes = 4 << 20
)

// Run checks the snapshot to its end, and then restores it. When it returns nil, keys and documents are durable.
// After an error Dir is as before; a database has no documents, or some that belong to keys which are nowhere, so
// that no daemon uses them. Errors: those of snapshot.Reader, ErrConflict (Dir or Store are not empty, or another
// tier).
func Run(ctx context.Context, from io.ReadSeeker, t Target) (snapshot.Header, error) {
	r, err := snapshot.Open(from)
	if err != nil {
		return snapshot.Header{}, err
	}
	h := r.Header()
	if t.Tier != "" && t.Tier != h.Tier {
		return h, fmt.Errorf("restore: the snapshot is of a %s, not of a %s: %w", h.Tier, t.Tier, api.ErrConflict)
	}
	if err := empty(t.Dir); err != nil {
		return h, err
	}
	nothing := func(string, []byte) error { return nil }
	if err := r.Content(t.Identities, nothing, func(snapshot.Doc) error { return ctx.Err() }); err != nil {
		return h, err
	}
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return h, fmt.Errorf("restore: read the snapshot again: %w", err)
	}
	if r, err = snapshot.Open(from); err != nil {
		return h, err
	}
	if err := write(ctx, r, t); err != nil {
		return h, fmt.Errorf("restore into %s: %w", t.Dir, err)
	}
	return h, nil
}

func empty(dir string) error {
	all, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if len(all) > 0 {
		return fmt.Errorf("restore: the data directory %s is not empty (it has %s): stop the daemon and move the directory away: %w", dir, all[0].Name(), api.ErrConflict)
	}
	return nil
}

// write writes everything beside the directory and then renames it.
func write(ctx context.Context, r *snapshot.Reader, t Target) (err error) {
	parent := filepath.Dir(filepath.Clean(t.Dir))
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	beside, err := os.MkdirTemp(parent, filepath.Base(t.Dir)+".restore-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(beside))
		}
	}()
	dir, err := os.OpenRoot(beside)
	if err != nil {
		return err
	}
	defer dir.Close()
	w := &writer{ctx: ctx, header: r.Header(), dir: dir, beside: beside, target: t}
	defer func() {
		if w.store != nil {
			err = errors.Join(err, w.store.Close())
		}
	}()
	if err := r.Content(t.Identities, w.key, w.doc); err != nil {
		return err
	}
	if err := w.finish(); err != nil {
		return err
	}
	if err := w.own(); err != nil {
		return err
	}
	if err := durable.SyncDir(beside); err != nil {
		return err
	}
	// os.Rename refuses an empty directory in its place.
	if err := unix.Rename(beside, t.Dir); err != nil {
		return fmt.Errorf("rename %s: %w: if %s is a mount point, restore into a directory of that disk and move its content", beside, err, t.Dir)
	}
	return durable.SyncDir(parent)
}

type writer struct {
	ctx    context.Context
	header snapshot.Header
	dir    *os.Root
	beside string
	target Target

	store store.Store // opened at the first document
	batch []store.Doc
	bytes int
}

func (w *writer) key(name string, text []byte) error { return ca.WriteFile(w.dir, name, text, 0o600) }

// open checks the keys, which precede the documents, and opens the store with the mark of these keys.
func (w *writer) open() error {
	pair, err := ca.LoadPair(w.dir, snapshot.KeyFiles(w.header.Tier)[0])
	if err != nil {
		return err
	}
	if sum := fmt.Sprintf("%x", sha256.Sum256(pair.Chain[0].RawSubjectPublicKeyInfo)); sum != w.header.Authority {
		return fmt.Errorf("the authority in the snapshot (%.16s…) is not that of its header (%.16s…): %w", sum, w.header.Authority, api.ErrInvalid)
	}
	if w.store, err = w.openStore(); err != nil {
		return err
	}
	mark, err := storemark.Of(pair.Chain[0])
	if err != nil {
		return err
	}
	restored, err := json.Marshal(store.Restored{Taken: w.header.Time, Restored: time.Now().UTC()})
	if err != nil {
		return err
	}
	return w.store.Save(w.ctx, []store.Doc{mark, {Kind: store.KindRestored, Key: store.KeyRestored, Version: 1, Data: restored}})
}

func (w *writer) openStore() (store.Store, error) {
	if w.target.Store == "" {
		return embedded.Open(filepath.Join(w.beside, w.header.Tier+".db"))
	}
	role := snapshot.Root
	if w.header.Tier == snapshot.Cluster {
		role = "cluster-" + w.header.Cluster
	}
	s, err := mongo.Open(w.ctx, w.target.Store, cmp.Or(w.target.Role, role))
	if err != nil {
		return nil, err
	}
	if err := s.Unused(w.ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (w *writer) doc(d snapshot.Doc) error {
	if w.store == nil {
		if err := w.open(); err != nil {
			return err
		}
	}
	// Versions count the changes of a document in one store.
	out := store.Doc{Kind: d.Kind, Key: d.Key, Version: 1, Data: d.Data}
	if storemark.Marked([]store.Doc{out}) || d.Kind == store.KindRestored {
		return nil // open has saved newer ones
	}
	if d.Again {
		return w.again(out)
	}
	w.batch = append(w.batch, out)
	if w.bytes += len(d.Data); len(w.batch) >= batchDocs || w.bytes >= batchBytes {
		return w.flush()
	}
	return nil
}

func (w *writer) flush() error {
	err := w.store.Save(w.ctx, w.batch)
	w.batch, w.bytes = nil, 0
	if errors.Is(err, store.ErrConflict) {
		return fmt.Errorf("the snapshot has a document twice: %w: %w", err, api.ErrInvalid)
	}
	return err
}

// again replaces or deletes a document that may be there.
func (w *writer) again(d store.Doc) error {
	if err := w.flush(); err != nil {
		return err
	}
	second := d
	second.Version = 2
	err := w.store.Save(w.ctx, []store.Doc{second})
	if !errors.Is(err, store.ErrConflict) {
		return err
	}
	if d.Data == nil {
		return nil // it was not there
	}
	return w.store.Save(w.ctx, []store.Doc{d})
}

func (w *writer) finish() error {
	if w.store == nil {
		return fmt.Errorf("the snapshot has no documents: %w", api.ErrInvalid)
	}
	if err := w.flush(); err != nil {
		return err
	}
	err := w.store.Close()
	w.store = nil
	return err
}

// own gives everything to the owner of the empty directory that it replaces.
func (w *writer) own() error {
	var as unix.Stat_t
	if err := unix.Stat(w.target.Dir, &as); errors.Is(err, unix.ENOENT) || os.Geteuid() != 0 {
		return nil
	} else if err != nil {
		return err
	}
	return filepath.WalkDir(w.beside, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, int(as.Uid), int(as.Gid)))
	})
}
