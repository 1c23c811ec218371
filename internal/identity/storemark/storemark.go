// Package storemark binds a store to the keys in a daemon's data directory. With an empty store
// or the store of another installation, a daemon would accept the wrong peers or lose its own. A
// document in the store (the mark) names the keys; a file in the data directory records that a
// store was used.
//
//	docs, err = storemark.Check(ctx, st, docs, storemark.Options{Dir: dir, Authority: cert, Embedded: "root.db"})
package storemark

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/store"
)

// File is the file in the data directory that records that a store was used with its keys.
const File = "store-in-use"

const (
	kind = "installation"
	key  = "keys"
)

type mark struct {
	Authority string `json:"authority"` // SHA-256 of the authority's public key, hex
}

// Options describe the store and the keys.
type Options struct {
	Dir       *os.Root          // the data directory
	Authority *x509.Certificate // of the daemon's own authority; renewals keep its key
	// Before is the certificate of the authority's key before the last rotation: a crash may have left its mark. nil: there was none.
	Before    *x509.Certificate
	Embedded  string // the embedded store's file in Dir
	Elsewhere bool   // the store is at a URL, not in that file
	New       bool   // the operator allows an empty store
	Log       *slog.Logger
}

// Check compares the keys with the store, whose documents are docs, and returns docs without the
// mark. It is called before anything else is written. It fails with ErrConflict if the store
// belongs to other keys, or has documents and no mark although a marked store was used before. It
// fails with ErrNotFound if the store is empty although another one was used before, unless o.New.
// Otherwise a store without a mark, new or from an earlier release, gets one.
func Check(ctx context.Context, st store.Store, docs []store.Doc, o Options) ([]store.Doc, error) {
	have := mark{Authority: fingerprint(o.Authority)}
	i := slices.IndexFunc(docs, isMark)
	if i >= 0 {
		var in mark
		if err := json.Unmarshal(docs[i].Data, &in); err != nil {
			return nil, fmt.Errorf("read which keys the store belongs to: %w: %w", err, store.ErrCorrupt)
		}
		if in != have && o.Before != nil && in.Authority == fingerprint(o.Before) {
			return slices.Delete(slices.Clone(docs), i, i+1), save(ctx, st, have, docs[i].Version+1)
		}
		if in != have {
			return nil, fmt.Errorf("open the store %s: it belongs to other keys (%.16s…) than those in %s (%.16s…): "+
				"restore the keys and the store of one backup, or set store to the one of this installation; nothing was changed: %w",
				o.place(), in.Authority, o.Dir.Name(), have.Authority, api.ErrConflict)
		}
		return slices.Delete(slices.Clone(docs), i, i+1), o.use(have)
	}
	unmarked := o.earlier
	if len(docs) == 0 {
		unmarked = o.empty
	}
	if err := unmarked(); err != nil {
		return nil, err
	}
	if err := save(ctx, st, have, 1); err != nil {
		return nil, err
	}
	return docs, o.use(have)
}

// Of returns the mark of a new store that belongs to an authority.
func Of(authority *x509.Certificate) (store.Doc, error) {
	return doc(mark{Authority: fingerprint(authority)}, 1)
}

func doc(m mark, version uint64) (store.Doc, error) {
	data, err := json.Marshal(m)
	if err != nil {
		return store.Doc{}, fmt.Errorf("encode which keys the store belongs to: %w", err)
	}
	return store.Doc{Kind: kind, Key: key, Version: version, Data: data}, nil
}

// Replace changes the mark of a store when the key of its authority was replaced. It may be repeated.
func Replace(ctx context.Context, st store.Store, authority *x509.Certificate) error {
	docs, err := store.Load(ctx, st)
	if err != nil {
		return fmt.Errorf("read which keys the store belongs to: %w", err)
	}
	i := slices.IndexFunc(docs, isMark)
	if i < 0 {
		return fmt.Errorf("replace the mark of the store: it has none: %w", api.ErrNotFound)
	}
	return save(ctx, st, mark{Authority: fingerprint(authority)}, docs[i].Version+1)
}

func save(ctx context.Context, st store.Store, m mark, version uint64) error {
	d, err := doc(m, version)
	if err == nil {
		err = st.Save(ctx, []store.Doc{d})
	}
	if err != nil {
		return fmt.Errorf("save which keys the store belongs to: %w", err)
	}
	return nil
}

// Marked reports whether docs have a mark.
func Marked(docs []store.Doc) bool { return slices.ContainsFunc(docs, isMark) }

func isMark(d store.Doc) bool { return d.Kind == kind && d.Key == key }

// empty returns an error if an empty store must not be used.
func (o Options) empty() error {
	used, err := o.used()
	switch {
	case err != nil:
		return err
	case !used:
		return nil // the first start, or one after a crash within it
	case o.New:
		o.Log.Warn("starting with an empty store: what the installation knew is not in it", "store", o.place())
		return nil
	}
	return fmt.Errorf("open the store %s: it is empty, and the keys in %s were used with another one: "+
		"set store to that one, or restore a backup of it; --new-store starts with the empty one, and what the old one knew is lost: %w",
		o.place(), o.Dir.Name(), api.ErrNotFound)
}

// earlier returns an error if a store with documents and no mark cannot be from an earlier
// release: the file in the data directory exists, and it is written after the store's mark.
func (o Options) earlier() error {
	switch _, err := o.Dir.Stat(File); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("check whether a store was used before: %w", err)
	}
	return fmt.Errorf("open the store %s: it does not say to which keys it belongs, and the keys in %s were used with one that does: "+
		"it is of another installation, or a backup from before the upgrade; set store to the one of this installation, or restore "+
		"the keys and the store of one backup; only if it is this installation's, delete %s; nothing was changed: %w",
		o.place(), o.Dir.Name(), filepath.Join(o.Dir.Name(), File), api.ErrConflict)
}

// place describes where the store is, without its URL, which may contain a password.
func (o Options) place() string {
	if o.Elsewhere {
		return "at the URL of the key store"
	}
	return filepath.Join(o.Dir.Name(), o.Embedded)
}

// used reports whether a store was used with the keys before. Earlier releases wrote no File, so
// that, if the store is at a URL now, an embedded store in Dir counts too.
func (o Options) used() (bool, error) {
	files := []string{File}
	if o.Elsewhere {
		files = append(files, o.Embedded)
	}
	for _, f := range files {
		if _, err := o.Dir.Stat(f); err == nil {
			return true, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return false, fmt.Errorf("check whether a store was used before: %w", err)
		}
	}
	return false, nil
}

// use records in the data directory that a store is used. It is called when the store's mark is
// durable, so that a crash in between leaves a store that is recognized by its mark.
func (o Options) use(m mark) error {
	if _, err := o.Dir.Stat(File); err == nil {
		return nil
	}
	return ca.WriteFile(o.Dir, File, []byte(m.Authority+"\n"), 0o600)
}

func fingerprint(c *x509.Certificate) string {
	return fmt.Sprintf("%x", sha256.Sum256(c.RawSubjectPublicKeyInfo))
}
