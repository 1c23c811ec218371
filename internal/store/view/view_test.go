package view_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/embedded"
	"github.com/treeline-edge/treeline/internal/store/mem"
	"github.com/treeline-edge/treeline/internal/store/storetest"
	"github.com/treeline-edge/treeline/internal/store/view"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Place {
		path := filepath.Join(t.TempDir(), "store")
		return func(t *testing.T) store.Store {
			s, err := embedded.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			return view.New(s)
		}
	})
}

// collect returns the documents of a view, and calls meanwhile after the first one was read.
func collect(t *testing.T, s *view.Store, meanwhile func()) (map[string]string, error) {
	t.Helper()
	all := map[string]string{}
	err := s.All(t.Context(), func(d store.Doc, _ bool) error {
		if meanwhile != nil {
			meanwhile()
			meanwhile = nil
		}
		if d.Data == nil {
			delete(all, d.Key)
		} else {
			all[d.Key] = string(d.Data)
		}
		return nil
	})
	return all, err
}

func save(t *testing.T, s store.Store, docs ...store.Doc) {
	t.Helper()
	if err := s.Save(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
}

func doc(key string, version uint64, data string) store.Doc {
	d := store.Doc{Kind: "app", Key: key, Version: version}
	if data != "" {
		d.Data = []byte(data)
	}
	return d
}

// slow reads its documents one by one, as they are when they are read: as MongoDB.
type slow struct{ *mem.Store }

func (s slow) Load(ctx context.Context, fn func(store.Doc) error) error {
	for _, first := range s.Docs() {
		for _, d := range s.Docs() {
			if d.Key == first.Key {
				if err := fn(d); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func TestChangesWhileAViewIsReadAreInIt(t *testing.T) {
	for name, inner := range map[string]store.Store{"at once": mem.New(), "one by one": slow{mem.New()}} {
		s := view.New(inner)
		save(t, s, doc("a", 1, "a1"), doc("b", 1, "b1"), doc("c", 1, "c1"), doc("d", 1, "d1"))
		got, err := collect(t, s, func() {
			save(t, s, doc("a", 2, "a2"), doc("c", 2, "c2"), doc("e", 1, "e1"))
			save(t, s, doc("b", 2, ""))
			save(t, s, doc("d", 2, ""), doc("d", 1, "again"), doc("f", 1, "f"), doc("f", 2, ""))
		})
		want := map[string]string{"a": "a2", "c": "c2", "d": "again", "e": "e1"}
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, want)
		}
		save(t, s, doc("a", 3, "a3"))
		if got, err := collect(t, s, nil); err != nil || got["a"] != "a3" {
			t.Errorf("%s: the next view has a=%q, %v, want a3", name, got["a"], err)
		}
	}
}

// Each save writes the same number to two documents: a view must never have different ones.
func TestASaveIsInAViewAsAWholeOrNot(t *testing.T) {
	s := view.New(slow{mem.New()})
	save(t, s, doc("a", 1, "1"), doc("b", 1, "1"), doc("c", 1, "x"))
	var stop atomic.Bool
	ended := make(chan error, 1)
	go func() {
		for v := uint64(2); !stop.Load(); v++ {
			n := fmt.Sprint(v)
			if err := s.Save(context.Background(), []store.Doc{doc("a", v, n), doc("b", v, n)}); err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	for range 200 {
		got, err := collect(t, s, nil)
		if err != nil || got["a"] != got["b"] || got["a"] == "" || got["c"] != "x" {
			t.Errorf("got %v, %v, want the same in a and b, and c=x", got, err)
			break
		}
	}
	stop.Store(true)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestAFailedSaveFailsTheView(t *testing.T) {
	s := view.New(mem.New())
	save(t, s, doc("a", 1, "a1"))
	_, err := collect(t, s, func() {
		if err := s.Save(t.Context(), []store.Doc{doc("a", 7, "x")}); !errors.Is(err, store.ErrConflict) {
			t.Errorf("got %v, want a conflict", err)
		}
	})
	if !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	if got, err := collect(t, s, nil); err != nil || got["a"] != "a1" {
		t.Errorf("the next view has %v, %v, want a1", got, err)
	}
}

func TestKeptDocumentsAreBounded(t *testing.T) {
	s := view.New(mem.New())
	save(t, s, doc("a", 1, "a"))
	large := string(make([]byte, store.MaxData))
	_, err := collect(t, s, func() {
		for i := range view.MaxKept/store.MaxData + 1 {
			save(t, s, doc(fmt.Sprint("large-", i), 1, large))
		}
	})
	if !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
}
