package store

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/treeline-edge/treeline/api"
)

// Validate checks docs before any of them is written, so that every backend refuses the same
// ones. Errors are api.ErrInvalid or api.ErrTooLarge.
func Validate(docs []Doc) error {
	for _, d := range docs {
		if err := d.validate(); err != nil {
			return fmt.Errorf("save %s %q: %w", d.Kind, d.Key, err)
		}
	}
	return nil
}

func (d Doc) validate() error {
	switch {
	case !validKind(d.Kind):
		return fmt.Errorf("the kind must match [a-z_]{1,32}: %w", api.ErrInvalid)
	case !validKey(d.Key):
		return fmt.Errorf("the key must be 1 to 512 bytes of UTF-8 without NUL: %w", api.ErrInvalid)
	// MongoDB has signed integers only.
	case d.Version == 0 || d.Version > math.MaxInt64:
		return fmt.Errorf("the version %d is not in 1 to 2^63-1: %w", d.Version, api.ErrInvalid)
	case len(d.Data) > MaxData:
		return fmt.Errorf("the data has %d bytes, the limit is %d: %w", len(d.Data), MaxData, api.ErrTooLarge)
	}
	return nil
}

func validKind(kind string) bool {
	for i := range len(kind) {
		if c := kind[i]; c != '_' && (c < 'a' || c > 'z') {
			return false
		}
	}
	return 1 <= len(kind) && len(kind) <= 32
}

func validKey(key string) bool {
	return 1 <= len(key) && len(key) <= 512 && utf8.ValidString(key) && !strings.Contains(key, "\x00")
}

// Verdict is what a store does with one document of a Save.
type Verdict int

const (
	Refuse Verdict = iota // another process wrote the key: ErrConflict
	Write                 // write it, or delete it if its data is nil
	Repeat                // nothing to do: it was written before
)

// Decide decides about docs[0] of a Save. stored is the document under its key; version 0 means
// none. docs are the rest of the Save, which may change one key several times and is repeated as
// a whole if its answer is lost: docs[0] is also a repeat if stored is the result of a later
// document.
func Decide(stored Doc, docs []Doc) Verdict {
	d := docs[0]
	if stored.Version == d.Version-1 && (d.Data != nil || stored.Version > 0) {
		return Write
	}
	for _, later := range docs {
		if later.Kind == d.Kind && later.Key == d.Key && later.leaves(stored) {
			return Repeat
		}
	}
	return Refuse
}

// leaves reports whether stored is the result of writing d.
func (d Doc) leaves(stored Doc) bool {
	if d.Data == nil {
		return stored.Version == 0
	}
	return stored.Version == d.Version && bytes.Equal(stored.Data, d.Data)
}

// Conflict returns the error of a refused document.
func Conflict(d Doc, stored uint64) error {
	return fmt.Errorf("save %s %q version %d over version %d: %w", d.Kind, d.Key, d.Version, stored, ErrConflict)
}
