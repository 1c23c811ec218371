package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/treeline-edge/treeline/internal/store"
)

// sample returns the file of a store with some history, and its documents.
func sample(t *testing.T) ([]byte, []store.Doc) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "store.db")
	s := mustOpen(t, path)
	save := func(version uint64, from, to int) {
		for i := from; i < to; i += 25 {
			var docs []store.Doc
			for j := i; j < min(i+25, to); j++ {
				key := fmt.Sprintf("acme/shop.prod.web.prod#%d", j)
				docs = append(docs, store.Doc{Kind: "instance", Key: key, Version: version, Data: bytes.Repeat([]byte(key), j%40)})
			}
			if err := s.Save(t.Context(), docs); err != nil {
				t.Fatal(err)
			}
		}
	}
	save(1, 0, 400)
	save(2, 100, 300)
	big := store.Doc{Kind: "app", Key: "acme/big", Version: 1, Data: bytes.Repeat([]byte("big"), 10_000)}
	if err := s.Save(t.Context(), []store.Doc{big, {Kind: "instance", Key: "acme/shop.prod.web.prod#7", Version: 2}}); err != nil {
		t.Fatal(err)
	}
	docs, err := store.Load(t.Context(), s)
	if err != nil || len(docs) != 400 {
		t.Fatalf("%d documents, %v, want no error, 400 of docs", len(docs), err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b, docs
}

// try opens a store file with the content b and reports whether it is refused. The test fails unless it
// is refused with ErrCorrupt or has all documents of want.
func try(t *testing.T, name string, b []byte, want []store.Doc) (refused bool) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "store.db")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(path)
	if err == nil {
		var docs []store.Doc
		docs, err = store.Load(t.Context(), s)
		if err == nil && !slices.EqualFunc(docs, want, func(a, b store.Doc) bool {
			return a.Kind == b.Kind && a.Key == b.Key && a.Version == b.Version && bytes.Equal(a.Data, b.Data)
		}) {
			t.Errorf("%s: opened, with %d documents that differ from the %d saved", name, len(docs), len(want))
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err == nil {
		return false
	}
	if !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("%s: %v is not ErrCorrupt", name, err)
	}
	if text := err.Error(); !strings.Contains(text, path) || !strings.Contains(text, "not changed") {
		t.Errorf("%s: the error does not say what became of the file: %s", name, text)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, b) {
		t.Errorf("%s: the file was changed (%v)", name, err)
	}
	return true
}

func TestTruncatedFileIsRefusedOrWhole(t *testing.T) {
	b, docs := sample(t)
	if try(t, "untouched", b, docs) {
		t.Fatal("the sample itself is refused")
	}
	lengths := []int{0, 1, 15, 16, 80, 4095, 4096, 4097, 8192, len(b) - 1, len(b) - 4096}
	for at := 0; at < len(b); at += 4096 {
		lengths = append(lengths, at+at/2%4096)
	}
	refused := 0
	for _, n := range lengths {
		if try(t, fmt.Sprint("cut to ", n), b[:n], docs) {
			refused++
		}
	}
	t.Logf("%d of %d lengths are refused", refused, len(lengths))
	if !try(t, "cut to nothing", nil, docs) {
		t.Error("an empty file passes for a new store")
	}
}

func TestFlippedBitsAreRefusedOrHarmless(t *testing.T) {
	b, docs := sample(t)
	random := rand.New(rand.NewPCG(3, 3))
	refused := 0
	const flips = 600
	for i := range flips {
		at := random.IntN(len(b))
		// Change headers more often, because they are few and important.
		if i%3 == 0 {
			at = at/4096*4096 + random.IntN(200)
		}
		bit := byte(1) << random.IntN(8)
		b[at] ^= bit
		if try(t, fmt.Sprintf("byte %d ^ %#x", at, bit), b, docs) {
			refused++
		}
		b[at] ^= bit
	}
	t.Logf("%d of %d flips are refused; the others hit unused bytes", refused, flips)
}

func TestEveryBitOfTheMetaPagesCounts(t *testing.T) {
	b, docs := sample(t)
	for page := range 2 {
		for at := range pageHeader + metaSize {
			// The count and overflow of a meta page are not used.
			if at >= 10 && at < pageHeader {
				continue
			}
			at += page * 4096
			b[at] ^= 1
			if !try(t, fmt.Sprint("byte ", at), b, docs) {
				t.Errorf("byte %d: a flipped bit goes unseen", at)
			}
			b[at] ^= 1
		}
	}
}

func TestWipedAndSwappedPagesAreRefusedOrHarmless(t *testing.T) {
	b, docs := sample(t)
	for at := 0; at+8192 <= len(b); at += 4096 {
		damaged := bytes.Clone(b)
		clear(damaged[at : at+4096])
		try(t, fmt.Sprint("wiped ", at), damaged, docs)

		damaged = bytes.Clone(b)
		copy(damaged[at:], b[at+4096:at+8192])
		copy(damaged[at+4096:], b[at:at+4096])
		try(t, fmt.Sprint("swapped ", at), damaged, docs)
	}
}

func TestForeignFilesAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "foreign.db")
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucket([]byte("other"))
		return err
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	other, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"a bbolt database of somebody else": other,
		"text":                              []byte(strings.Repeat("not a database\n", 1000)),
		"zeros":                             make([]byte, 64<<10),
	} {
		if !try(t, name, b, nil) {
			t.Errorf("%s: is taken for a store", name)
		}
	}
}

func TestOneProcessAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := mustOpen(t, path)
	_, err := open(path, time.Millisecond, func() error { return nil })
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v, want one that says who has the file", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := mustOpen(t, path).Close(); err != nil {
		t.Fatal(err)
	}
}
