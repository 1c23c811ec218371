// Package storetest is the test suite for implementations of store.Store. It checks exactly the
// guarantees in that interface's comment.
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Place {
//			path := filepath.Join(t.TempDir(), "store.db")
//			return func(t *testing.T) store.Store { return open(t, path) }
//		})
//	}
package storetest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/leaktest"
	"github.com/treeline-edge/treeline/internal/store"
)

// Place opens a store, which is empty at first. It is called again only after the previous store
// was closed, and then opens the same documents.
type Place func(t *testing.T) store.Store

// Deviation is a guarantee that a backend is known not to meet.
type Deviation int

// RacyVersions is for engines that read a version and write the next one in two steps: of
// several concurrent writers of one key more than one may succeed. A later writer still gets
// ErrConflict.
const RacyVersions Deviation = iota + 1

// Run runs the suite. Each test calls factory for a new place.
func Run(t *testing.T, factory func(t *testing.T) Place, deviations ...Deviation) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, place Place)
	}{
		{"a new store is empty", testEmpty},
		{"what is saved is loaded", testRoundTrip},
		{"versions count from one", testVersions},
		{"a conflict writes nothing of its document", testConflict},
		{"a save may be repeated", testRepeat},
		{"deletion", testDelete},
		{"a refused document leaves a prefix", testPrefix},
		{"a cancelled save leaves a prefix", testCancel},
		{"bad documents are refused before any is written", testInvalid},
		{"odd keys are kept apart", testOddKeys},
		{"big documents", testBig},
		{"concurrent saves", testConcurrent},
		{"concurrent writers of one key", func(t *testing.T, place Place) {
			testRace(t, place, slices.Contains(deviations, RacyVersions))
		}},
		{"load stops at the first error", testLoadStops},
		{"a closed store says so", testClosed},
		{"a reopened store holds the same", testReopen},
		{"a random history", testHistory},
	} {
		t.Run(test.name, func(t *testing.T) {
			place := factory(t)
			left := leaktest.Since(t)
			// Cleanups run in reverse order: the stores are closed by then.
			t.Cleanup(left)
			test.run(t, place)
		})
	}
}

func testEmpty(t *testing.T, place Place) {
	s := open(t, place)
	expect(t, s)
	must(t, s.Save(t.Context(), nil))
	expect(t, s)
}

func testRoundTrip(t *testing.T, place Place) {
	s := open(t, place)
	docs := []store.Doc{
		put("app", "acme/shop.prod", 1, "one"),
		put("instance", "acme/shop.prod", 1, "the same key of another kind"),
		put("app", "acme/empty", 1, ""),
		put("app", "acme/binary", 1, "\x00\xff\x00{}"),
	}
	must(t, s.Save(t.Context(), docs))
	expect(t, s, docs...)

	// The store must not share bytes with the caller.
	docs[0].Data[0] = 'X'
	expect(t, s, append([]store.Doc{put("app", "acme/shop.prod", 1, "one")}, docs[1:]...)...)
}

func testVersions(t *testing.T, place Place) {
	s := open(t, place)
	must(t, s.Save(t.Context(), []store.Doc{put("app", "a", 1, "1")}))
	must(t, s.Save(t.Context(), []store.Doc{put("app", "a", 2, "2"), put("app", "a", 3, "3")}))
	must(t, s.Save(t.Context(), []store.Doc{put("app", "a", 4, "3")}))
	expect(t, s, put("app", "a", 4, "3"))
}

func testConflict(t *testing.T, place Place) {
	s := open(t, place)
	held := put("app", "a", 3, "c")
	must(t, s.Save(t.Context(), []store.Doc{put("app", "a", 1, "a"), put("app", "a", 2, "b"), held}))

	for _, d := range []store.Doc{
		put("app", "a", 1, "a"),
		put("app", "a", 2, "b"),
		put("app", "a", 3, "x"),
		put("app", "a", 3, ""),
		put("app", "a", 5, "e"),
		del("app", "a", 3),
		del("app", "a", 5),
		put("app", "new", 2, "b"),
	} {
		if err := s.Save(t.Context(), []store.Doc{d}); !errors.Is(err, store.ErrConflict) {
			t.Errorf("%s: got %v, want a conflict", describe(d), err)
		}
		expect(t, s, held)
	}
}

func testRepeat(t *testing.T, place Place) {
	s := open(t, place)
	first := []store.Doc{put("app", "a", 1, "1"), put("app", "b", 1, ""), put("app", "c", 1, "1")}
	// One save may change one key several times.
	second := []store.Doc{put("app", "a", 2, "2"), put("app", "a", 3, "3"), del("app", "b", 2), put("app", "c", 2, "2"), del("app", "c", 3)}
	for range 2 {
		must(t, s.Save(t.Context(), first))
	}
	for range 3 {
		must(t, s.Save(t.Context(), second))
		expect(t, s, put("app", "a", 3, "3"))
	}

	// The repetition completes a save that was interrupted.
	must(t, s.Save(t.Context(), []store.Doc{put("app", "a", 4, "4")}))
	must(t, s.Save(t.Context(), []store.Doc{put("app", "a", 4, "4"), put("app", "d", 1, "1")}))
	expect(t, s, put("app", "a", 4, "4"), put("app", "d", 1, "1"))
}

func testDelete(t *testing.T, place Place) {
	s := open(t, place)
	must(t, s.Save(t.Context(), []store.Doc{put("app", "a", 1, "1"), put("app", "b", 1, "1")}))
	must(t, s.Save(t.Context(), []store.Doc{del("app", "a", 2)}))
	expect(t, s, put("app", "b", 1, "1"))
	must(t, s.Save(t.Context(), []store.Doc{del("app", "a", 2)}))

	if err := s.Save(t.Context(), []store.Doc{put("app", "a", 3, "3")}); !errors.Is(err, store.ErrConflict) {
		t.Errorf("a version that goes on after a deletion: got %v, want a conflict", err)
	}
	must(t, s.Save(t.Context(), []store.Doc{put("app", "a", 1, "again")}))
	must(t, s.Save(t.Context(), []store.Doc{del("app", "b", 2), put("app", "b", 1, "within one save")}))
	expect(t, s, put("app", "a", 1, "again"), put("app", "b", 1, "within one save"))
}

func testPrefix(t *testing.T, place Place) {
	s := open(t, place)
	held := put("app", "held", 1, "1")
	must(t, s.Save(t.Context(), []store.Doc{held}))

	docs := []store.Doc{
		put("app", "a", 1, "1"),
		put("app", "b", 1, "1"),
		put("app", "held", 3, "a version is missing"),
		put("app", "c", 1, "never"),
	}
	if err := s.Save(t.Context(), docs); !errors.Is(err, store.ErrConflict) {
		t.Errorf("got %v, want a conflict", err)
	}
	if n := prefix(t, load(t, s), []store.Doc{held}, docs); n > 2 {
		t.Errorf("%d documents were written, and the third is refused", n)
	}
}

func testCancel(t *testing.T, place Place) {
	s := open(t, place)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Save(ctx, []store.Doc{put("app", "a", 1, "1")}); !errors.Is(err, context.Canceled) {
		t.Errorf("save: got %v, want context.Canceled", err)
	}
	if err := s.Load(ctx, func(store.Doc) error { return nil }); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("load: got %v, want context.Canceled", err)
	}

	// The context is cancelled at a random time: a prefix is stored, or all if Save returned nil.
	docs := make([]store.Doc, 200)
	for i := range docs {
		docs[i] = put("instance", fmt.Sprintf("i%03d", i), 1, "1")
	}
	ctx, cancel = context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Save(ctx, docs) }()
	cancel()
	err := <-done
	have := load(t, s)
	have = slices.DeleteFunc(have, func(d store.Doc) bool { return d.Kind == "app" })
	if n := prefix(t, have, nil, docs); err == nil && n != len(docs) {
		t.Errorf("the save was acknowledged with %d of %d", n, len(docs))
	}

	must(t, s.Save(t.Context(), docs))
	if n := len(load(t, s)); n < len(docs) {
		t.Errorf("after the repetition %d of %d are there", n, len(docs))
	}
}

func testInvalid(t *testing.T, place Place) {
	s := open(t, place)
	good := put("app", "a", 1, "1")
	for _, tc := range []struct {
		doc  store.Doc
		want error
	}{
		{put("App", "a", 1, ""), api.ErrInvalid},
		{put("app", "", 1, ""), api.ErrInvalid},
		{put("app", "a\x00b", 1, ""), api.ErrInvalid},
		{put("app", "\xff", 1, ""), api.ErrInvalid},
		{put("app", "a", 0, ""), api.ErrInvalid},
		{put("app", "big", 1, strings.Repeat("x", store.MaxData+1)), api.ErrTooLarge},
	} {
		if err := s.Save(t.Context(), []store.Doc{good, tc.doc}); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", describe(tc.doc), err, tc.want)
		}
	}
	expect(t, s)
}

func testOddKeys(t *testing.T, place Place) {
	s := open(t, place)
	var docs []store.Doc
	for i, key := range []string{
		"a", "A", "a/b", "a/b/", "/", ".", "..", "$set", "a.b", "a b", " a", "a ", "%2f", `"`, `\`, "'", "\n", "\t", "{}", "[]", "null", "0", "*",
		"é", "e\u0301", "ß", "SS", "日本", "\u200b", "\u202e", "\U0001f332", "\ufeff", "\u007f", strings.Repeat("k", 512), strings.Repeat("k", 511) + "K",
	} {
		docs = append(docs, put("app", key, 1, fmt.Sprint(i)))
	}
	// The same letters, divided differently into kind and key.
	docs = append(docs, put("a", "pp/a", 1, ""), put("a", "ppa", 1, ""), put("app_", "a", 1, ""))
	must(t, s.Save(t.Context(), docs))
	expect(t, s, docs...)

	for i := range docs {
		docs[i].Version, docs[i].Data = 2, []byte("second")
	}
	must(t, s.Save(t.Context(), docs))
	expect(t, s, docs...)
	must(t, s.Save(t.Context(), []store.Doc{del("app", "a", 3)}))
	expect(t, s, slices.DeleteFunc(docs, func(d store.Doc) bool { return d.Kind == "app" && d.Key == "a" })...)
}

func testBig(t *testing.T, place Place) {
	s := open(t, place)
	random := rand.NewChaCha8([32]byte{1})
	var docs []store.Doc
	for i, size := range []int{1, 4095, 4096, 4097, 64 << 10, 1 << 20, store.MaxData} {
		data := make([]byte, size)
		_, _ = random.Read(data)
		docs = append(docs, store.Doc{Kind: "app", Key: fmt.Sprint(i), Version: 1, Data: data})
	}
	must(t, s.Save(t.Context(), docs))
	expect(t, s, docs...)
	for i := range docs {
		docs[i].Version, docs[i].Data = 2, []byte{}
	}
	must(t, s.Save(t.Context(), docs))
	expect(t, s, docs...)
}

func testConcurrent(t *testing.T, place Place) {
	const writers, rounds = 16, 10
	s := open(t, place)
	var want []store.Doc
	var group sync.WaitGroup
	for w := range writers {
		key := fmt.Sprintf("w%02d", w)
		want = append(want, put("app", key, rounds, key), put("instance", key, rounds, key))
		group.Go(func() {
			for v := range uint64(rounds) {
				err := s.Save(t.Context(), []store.Doc{put("app", key, v+1, key), put("instance", key, v+1, key)})
				if err != nil {
					t.Errorf("writer %s, version %d: %v", key, v+1, err)
					return
				}
			}
		})
	}
	group.Wait()
	expect(t, s, want...)
}

func testRace(t *testing.T, place Place, racy bool) {
	const writers = 16
	s := open(t, place)
	for v := range uint64(5) {
		var won, lost atomic.Int64
		var group sync.WaitGroup
		for w := range writers {
			group.Go(func() {
				err := s.Save(t.Context(), []store.Doc{put("app", "one", v+1, fmt.Sprint(w))})
				switch {
				case err == nil:
					won.Add(1)
				case errors.Is(err, store.ErrConflict):
					lost.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		group.Wait()
		if won.Load() < 1 || won.Load()+lost.Load() != writers || (won.Load() > 1 && !racy) {
			t.Fatalf("version %d: %d writers won and %d lost", v+1, won.Load(), lost.Load())
		}
	}
}

func testLoadStops(t *testing.T, place Place) {
	s := open(t, place)
	must(t, s.Save(t.Context(), []store.Doc{put("app", "a", 1, ""), put("app", "b", 1, "")}))
	stop := errors.New("enough")
	calls := 0
	err := s.Load(t.Context(), func(store.Doc) error {
		calls++
		return stop
	})
	if !errors.Is(err, stop) || calls != 1 {
		t.Errorf("got %v after %d calls", err, calls)
	}
	must(t, s.Save(t.Context(), []store.Doc{put("app", "c", 1, "")}))
}

func testClosed(t *testing.T, place Place) {
	s := place(t)
	must(t, s.Save(t.Context(), []store.Doc{put("app", "a", 1, "")}))
	must(t, s.Close())
	if err := s.Save(t.Context(), []store.Doc{put("app", "b", 1, "")}); !errors.Is(err, store.ErrClosed) {
		t.Errorf("save: got %v, want ErrClosed", err)
	}
	if err := s.Load(t.Context(), func(store.Doc) error { return nil }); !errors.Is(err, store.ErrClosed) {
		t.Errorf("load: got %v, want ErrClosed", err)
	}
	must(t, s.Close())

	// Close waits for a save that has begun.
	s = place(t)
	var group sync.WaitGroup
	var acked sync.Map
	for w := range 8 {
		group.Go(func() {
			for v := range uint64(100) {
				d := put("instance", fmt.Sprint(w), v+1, "")
				if err := s.Save(t.Context(), []store.Doc{d}); err != nil {
					return
				}
				acked.Store(d.Key, d.Version)
			}
		})
	}
	must(t, s.Close())
	group.Wait()
	s = open(t, place)
	have := map[string]uint64{}
	for _, d := range load(t, s) {
		have[d.Key] = d.Version
	}
	acked.Range(func(key, version any) bool {
		if have[key.(string)] < version.(uint64) {
			t.Errorf("writer %v was told that version %v is saved, and %d is there", key, version, have[key.(string)])
		}
		return true
	})
}

func testReopen(t *testing.T, place Place) {
	s := place(t)
	docs := []store.Doc{put("app", "a", 1, "1"), put("app", "b", 1, ""), put("node", "a", 1, "n")}
	must(t, s.Save(t.Context(), docs))
	must(t, s.Save(t.Context(), []store.Doc{put("app", "a", 2, "2"), del("node", "a", 2)}))
	must(t, s.Close())

	s = open(t, place)
	expect(t, s, put("app", "a", 2, "2"), put("app", "b", 1, ""))
	must(t, s.Save(t.Context(), []store.Doc{put("app", "a", 3, "3")}))
	if err := s.Save(t.Context(), []store.Doc{put("app", "b", 1, "x")}); !errors.Is(err, store.ErrConflict) {
		t.Errorf("got %v, want a conflict", err)
	}
}

// testHistory compares the store with a map, over a seeded history of puts,
// deletions, repetitions and reopenings.
func testHistory(t *testing.T, place Place) {
	random := rand.New(rand.NewPCG(1, 2))
	model := map[string]store.Doc{}
	s := place(t)
	for range 100 {
		var docs []store.Doc
		for range 1 + random.IntN(5) {
			key := fmt.Sprintf("k%02d", random.IntN(20))
			d := put("app", key, model[key].Version+1, strings.Repeat(key, random.IntN(300)))
			if model[key].Version > 0 && random.IntN(3) == 0 {
				d.Data = nil
				delete(model, key)
			} else {
				model[key] = d
			}
			docs = append(docs, d)
		}
		must(t, s.Save(t.Context(), docs))
		if random.IntN(4) == 0 {
			must(t, s.Save(t.Context(), docs[len(docs)-1:]))
		}
		if random.IntN(10) == 0 {
			must(t, s.Close())
			s = place(t)
		}
	}
	var want []store.Doc
	for _, d := range model {
		want = append(want, d)
	}
	expect(t, s, want...)
	must(t, s.Close())
	expect(t, open(t, place), want...)
}

func open(t *testing.T, place Place) store.Store {
	s := place(t)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

func put(kind, key string, version uint64, data string) store.Doc {
	return store.Doc{Kind: kind, Key: key, Version: version, Data: []byte(data)}
}

func del(kind, key string, version uint64) store.Doc {
	return store.Doc{Kind: kind, Key: key, Version: version}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func load(t *testing.T, s store.Store) []store.Doc {
	t.Helper()
	docs, err := store.Load(t.Context(), s)
	must(t, err)
	for _, d := range docs {
		if d.Data == nil {
			t.Errorf("%s: loaded with nil data, which means deleted", describe(d))
		}
	}
	return docs
}

// expect fails unless s holds exactly want, in any order.
func expect(t *testing.T, s store.Store, want ...store.Doc) {
	t.Helper()
	have := sorted(load(t, s))
	want = sorted(want)
	if !slices.EqualFunc(have, want, equal) {
		t.Fatalf("the store holds\n%s\nwant\n%s", describeAll(have), describeAll(want))
	}
}

// prefix returns how many of docs, all of them new keys, are in have beside before. It fails
// unless they are the first ones.
func prefix(t *testing.T, have, before, docs []store.Doc) int {
	t.Helper()
	n := len(have) - len(before)
	if n < 0 || n > len(docs) || !slices.EqualFunc(sorted(have), sorted(slices.Concat(before, docs[:n])), equal) {
		t.Fatalf("the store holds no prefix of what was saved:\n%s", describeAll(have))
	}
	return n
}

func equal(a, b store.Doc) bool {
	return a.Kind == b.Kind && a.Key == b.Key && a.Version == b.Version && bytes.Equal(a.Data, b.Data)
}

func sorted(docs []store.Doc) []store.Doc {
	return slices.SortedFunc(slices.Values(docs), func(a, b store.Doc) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Key, b.Key))
	})
}

func describe(d store.Doc) string {
	return fmt.Sprintf("%s %q version %d, %d bytes %.20q", d.Kind, d.Key, d.Version, len(d.Data), d.Data)
}

func describeAll(docs []store.Doc) string {
	lines := make([]string, len(docs))
	for i, d := range docs {
		lines[i] = describe(d)
	}
	return strings.Join(lines, "\n")
}
