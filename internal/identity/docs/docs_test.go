package docs_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/treeline-edge/treeline/internal/identity/docs"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/mem"
)

type thing struct{ N int }

func inc(old thing, _ bool) (thing, error) { return thing{old.N + 1}, nil }

func TestUpdatesQueueAndSurvive(t *testing.T) {
	ctx := context.Background()
	st := mem.New()
	tab := docs.New[thing]("thing", st)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if err := tab.Update(ctx, "a", inc); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := tab.Update(ctx, "b", inc); err != nil {
		t.Fatal(err)
	}
	if err := tab.DeleteWhere(ctx, func(x thing) bool { return x.N == 1 }); err != nil {
		t.Fatal(err)
	}
	again := docs.New[thing]("thing", st)
	loaded, err := store.Load(ctx, st)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Load(append(loaded, store.Doc{Kind: "other", Key: "x", Version: 1, Data: []byte("no JSON")})); err != nil {
		t.Fatal(err)
	}
	if all := again.All(); len(all) != 1 || all[0].N != 50 {
		t.Errorf("restored %v", all)
	}
	// The restored table continues the versions of the first one; those of a deleted key start at 1.
	for _, key := range []string{"a", "b"} {
		if err := again.Update(ctx, key, inc); err != nil {
			t.Error(err)
		}
	}
}

// flaky is a store that saves and then fails, or fails without saving.
type flaky struct {
	store.Store
	before, after error
}

func (f *flaky) Save(ctx context.Context, d []store.Doc) error {
	if f.before != nil {
		return f.before
	}
	if err := f.Store.Save(ctx, d); err != nil {
		return err
	}
	return f.after
}

func TestDoubtIsSettledByTheNextUpdate(t *testing.T) {
	ctx := context.Background()
	lost := errors.New("lost")
	for _, f := range []*flaky{{Store: mem.New(), before: lost}, {Store: mem.New(), after: lost}} {
		tab := docs.New[thing]("thing", f)
		if err := tab.Update(ctx, "a", inc); !errors.Is(err, lost) {
			t.Fatal(err)
		}
		f.before, f.after = nil, nil
		if err := tab.Update(ctx, "a", inc); err != nil {
			t.Fatal(err)
		}
		if got, _ := tab.Get("a"); got.N != 2 {
			t.Errorf("%+v: the change in doubt was lost or doubled", got)
		}
	}
}

func TestRefusalChangesNothing(t *testing.T) {
	tab := docs.New[thing]("thing", mem.New())
	no := errors.New("no")
	err := tab.Update(context.Background(), "a", func(thing, bool) (thing, error) { return thing{1}, no })
	if !errors.Is(err, no) || tab.Len() != 0 {
		t.Error(err, tab.Len())
	}
}
