package storemark_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/storemark"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/mem"
)

// keys returns the options for a new data directory with an authority.
func keys(t *testing.T) storemark.Options {
	t.Helper()
	dir, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	a, err := ca.NewRoot(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return storemark.Options{Dir: dir, Authority: a.Root(), Embedded: "root.db", Log: slog.New(slog.DiscardHandler)}
}

func check(t *testing.T, st store.Store, o storemark.Options) ([]store.Doc, error) {
	t.Helper()
	docs, err := store.Load(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	return storemark.Check(t.Context(), st, docs, o)
}

// refused checks the error, and that the store is unchanged.
func refused(t *testing.T, st store.Store, o storemark.Options, kind error, says string) {
	t.Helper()
	before, _ := store.Load(t.Context(), st)
	if _, err := check(t, st, o); !errors.Is(err, kind) || !strings.Contains(err.Error(), says) {
		t.Errorf("got %v, want %v with %q", err, kind, says)
	}
	if after, _ := store.Load(t.Context(), st); len(after) != len(before) {
		t.Errorf("the store had %d documents and has %d", len(before), len(after))
	}
}

func TestAStoreOfOtherKeysIsRefused(t *testing.T) {
	ours, others, st := keys(t), keys(t), mem.New()
	for range 2 {
		if docs, err := check(t, st, ours); err != nil || len(docs) != 0 {
			t.Fatalf("the store of these keys: %v, %v", docs, err)
		}
	}
	refused(t, st, others, api.ErrConflict, "one backup")
	others.New = true
	refused(t, st, others, api.ErrConflict, "one backup")
}

func TestAnEmptyStoreAfterAnotherIsRefused(t *testing.T) {
	o := keys(t)
	if _, err := check(t, mem.New(), o); err != nil {
		t.Fatal(err)
	}
	refused(t, mem.New(), o, api.ErrNotFound, "--new-store")
	o.New = true
	st := mem.New()
	if _, err := check(t, st, o); err != nil {
		t.Fatal(err)
	}
	o.New = false
	if _, err := check(t, st, o); err != nil {
		t.Errorf("the new store, afterwards: %v", err)
	}

	// An installation of an earlier release whose store is at a URL now.
	o = keys(t)
	o.Elsewhere = true
	if err := ca.WriteFile(o.Dir, o.Embedded, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, mem.New(), o, api.ErrNotFound, "--new-store")
}

func TestAStoreOfAnEarlierReleaseIsAdopted(t *testing.T) {
	o, st := keys(t), mem.New()
	doc := store.Doc{Kind: "app", Key: "acme/shop", Version: 1, Data: []byte("{}")}
	if err := st.Save(t.Context(), []store.Doc{doc}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time the store has a mark, which Check does not return
		if docs, err := check(t, st, o); err != nil || len(docs) != 1 || docs[0].Kind != "app" {
			t.Fatalf("%v, %v", docs, err)
		}
	}
	refused(t, st, keys(t), api.ErrConflict, "other keys")
}

// A store without a mark is from an earlier release only if the directory has no file either.
func TestAnUnmarkedStoreAfterAMarkedOneIsRefused(t *testing.T) {
	o, st := keys(t), mem.New()
	if _, err := check(t, mem.New(), o); err != nil {
		t.Fatal(err)
	}
	doc := store.Doc{Kind: "app", Key: "acme/shop", Version: 1, Data: []byte("{}")}
	if err := st.Save(t.Context(), []store.Doc{doc}); err != nil {
		t.Fatal(err)
	}
	refused(t, st, o, api.ErrConflict, "delete "+filepath.Join(o.Dir.Name(), storemark.File))
	o.New = true // allows an empty store only
	refused(t, st, o, api.ErrConflict, "another installation")
	o.New = false
	if err := o.Dir.Remove(storemark.File); err != nil { // as the error recommends
		t.Fatal(err)
	}
	if docs, err := check(t, st, o); err != nil || len(docs) != 1 {
		t.Errorf("after the fix that the error names: %v, %v", docs, err)
	}

	// An upgrade that moves the store to a URL: the embedded file is no mark.
	o, st = keys(t), mem.New()
	o.Elsewhere = true
	if err := ca.WriteFile(o.Dir, o.Embedded, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := st.Save(t.Context(), []store.Doc{doc}); err != nil {
		t.Fatal(err)
	}
	if docs, err := check(t, st, o); err != nil || len(docs) != 1 {
		t.Errorf("an earlier release's store at a URL: %v, %v", docs, err)
	}
}

// A first start that crashes after any of its steps can be repeated.
func TestACrashInTheFirstStartIsRepaired(t *testing.T) {
	o := keys(t) // crash before the mark: keys exist, the store has no mark
	if _, err := check(t, mem.New(), o); err != nil {
		t.Error(err)
	}
	o, st := keys(t), mem.New()
	if _, err := check(t, st, o); err != nil {
		t.Fatal(err)
	}
	if err := o.Dir.Remove(storemark.File); err != nil { // crash after the mark: the directory has no file
		t.Fatal(err)
	}
	if _, err := check(t, st, o); err != nil {
		t.Error(err)
	}
	refused(t, mem.New(), o, api.ErrNotFound, "--new-store")
}

// A store that cannot save the mark is an error.
func TestAMarkThatIsNotSavedIsAnError(t *testing.T) {
	o := keys(t)
	st := mem.New()
	st.Close()
	if _, err := storemark.Check(context.Background(), st, nil, o); err == nil {
		t.Error("a closed store was taken")
	}
	if _, err := o.Dir.Stat(storemark.File); err == nil {
		t.Error("the directory says that there is a store")
	}
}
