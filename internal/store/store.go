// Package store is the journal of a core: documents become durable before messages about them
// are sent. The state is in memory; a store is read once, at start.
//
// The contract is limited to what the weakest backend guarantees: one document changes at a time;
// there are no transactions, queries or watches. Every implementation passes storetest.
//
//	docs, err := store.Load(ctx, s)
//	err = s.Save(ctx, []store.Doc{{Kind: "app", Key: "acme/shop.prod", Version: 1, Data: b}})
package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Doc is one document. Version counts the changes of (Kind, Key) from 1; the writer increments
// it with every change.
type Doc struct {
	Kind    string // [a-z_]{1,32}
	Key     string // 1 to 512 bytes of UTF-8 without NUL
	Version uint64
	Data    []byte // at most MaxData; nil deletes the document
}

// The document that a restore from a snapshot adds, so that the daemon stops nothing that was made since the
// snapshot until an administrator accepts it.
const (
	KindRestored = "restored"
	KeyRestored  = "snapshot"
)

// Restored is the content of that document.
type Restored struct {
	Taken    time.Time `json:"taken"` // the snapshot
	Restored time.Time `json:"restored"`
}

// MaxData bounds a document, in bytes.
const MaxData = 4 << 20

// ErrConflict means that the stored version is not the predecessor of the version to be written,
// because another process wrote the document. A daemon that gets it stops.
var ErrConflict = errors.New("store: written by another process")

// ErrFull means that the disk or the quota of the store is full. Saved documents are kept, and
// a later Save may succeed.
var ErrFull = fmt.Errorf("store: %w", api.ErrFull)

// ErrCorrupt means that the stored data cannot be read. It is left unchanged.
var ErrCorrupt = errors.New("store: corrupt")

// ErrClosed means that the store was used after Close.
var ErrClosed = errors.New("store: closed")

// Store keeps documents.
//
// Save makes docs durable in their order and returns when all are. On an error a prefix of docs
// may be durable. A document with Version v replaces a stored one with version v-1 (0: none). A
// stored document with the same version and data counts as written, so that a Save may be
// repeated. Otherwise Save fails with ErrConflict. Deletions follow the same rule. After a
// deletion the versions of the key start at 1 again.
//
// Load calls fn with every stored document in any order, and stops at fn's first error. It does
// not run concurrently with Save, except in package view: each document that is saved meanwhile is passed as
// before or after, or not at all.
//
// Save is safe for concurrent use. After Close, Save and Load fail with ErrClosed.
type Store interface {
	Save(ctx context.Context, docs []Doc) error
	Load(ctx context.Context, fn func(Doc) error) error
	Close() error
}

func Load(ctx context.Context, s Store) ([]Doc, error) {
	var docs []Doc
	err := s.Load(ctx, func(d Doc) error {
		docs = append(docs, d)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("load the store: %w", err)
	}
	return docs, nil
}
