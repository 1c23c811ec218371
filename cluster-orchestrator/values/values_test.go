package values_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/values"
	"github.com/treeline-edge/treeline/internal/seal"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/mem"
	"github.com/treeline-edge/treeline/internal/wire"
)

// root is a root that has values and may be down.
type root struct {
	mu      sync.Mutex
	has     map[wire.WantValue]wire.Value
	down    bool
	fetches int
}

func (r *root) fetch(_ context.Context, w wire.WantValue) (wire.Value, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fetches++
	v, ok := r.has[w]
	switch {
	case r.down:
		return wire.Value{}, fmt.Errorf("the root is down: %w", api.ErrUnavailable)
	case !ok:
		return wire.Value{}, fmt.Errorf("no instance needs it: %w", api.ErrNotFound)
	}
	return v, nil
}

func (r *root) setDown(down bool) {
	r.mu.Lock()
	r.down = down
	r.mu.Unlock()
}

func (r *root) add(name string, version uint64, text string) wire.ValueKey {
	v := seal.Salted(map[string][]byte{"password": []byte(text)})
	k := wire.ValueKey{Tenant: "acme", ValueRef: wire.ValueRef{Kind: api.KindSecret, Name: name, Version: version, Digest: v.Digest()}}
	r.mu.Lock()
	r.has[k.Want()] = v
	r.mu.Unlock()
	return k
}

func sealer(t *testing.T, dir string) *seal.Sealer {
	t.Helper()
	d, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	w, err := seal.KeyFile(d, "secrets.key", false)
	if err != nil {
		t.Fatal(err)
	}
	return seal.New(w)
}

func load(t *testing.T, st store.Store) []store.Doc {
	t.Helper()
	docs, err := store.Load(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	return docs
}

// open returns the values in a store, whose Run ends with stop.
func open(t *testing.T, st store.Store, dir string, r *root) (v *values.Values, stop func()) {
	t.Helper()
	v, err := values.New(values.Options{Store: st, Loaded: load(t, st), Sealer: sealer(t, dir), Fetch: r.fetch, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = v.Run(ctx)
	}()
	return v, func() {
		cancel()
		<-ended
	}
}

func TestValuesAreKeptWithoutTheRootAndDeletedWithTheirInstances(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		st, r := mem.New(), &root{has: map[wire.WantValue]wire.Value{}}
		k := r.add("db", 1, "marked-value")
		v, stop := open(t, st, dir, r)
		r.setDown(true)
		v.Need([]wire.ValueKey{k})
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if docs := load(t, st); len(docs) > 0 {
			t.Fatalf("%d documents while the root is down, want none", len(docs))
		}
		r.setDown(false)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		docs := load(t, st)
		if len(docs) != 1 || bytes.Contains(docs[0].Data, []byte("marked")) || bytes.Contains(docs[0].Data, []byte("bWFya2Vk")) {
			t.Fatalf("the store has %d documents, want one that is encrypted", len(docs))
		}
		stop()

		r.setDown(true)
		v, stop = open(t, st, dir, r)
		v.Need([]wire.ValueKey{k})
		if got, err := v.Get(t.Context(), k); err != nil || string(got.Data["password"]) != "marked-value" {
			t.Errorf("after a restart without the root: %v, want the value", err)
		}
		v.Need(nil)
		synctest.Wait()
		if docs := load(t, st); len(docs) > 0 {
			t.Errorf("%d documents after the last instance, want none", len(docs))
		}
		stop()
	})
}

func TestAWrongValueOfTheRootIsRefused(t *testing.T) {
	r := &root{has: map[wire.WantValue]wire.Value{}}
	k := r.add("db", 1, "right")
	r.add("db", 1, "wrong")
	v, stop := open(t, mem.New(), t.TempDir(), r)
	defer stop()
	v.Need([]wire.ValueKey{k})
	if _, err := v.Get(t.Context(), k); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("a value with another digest: %v, want ErrUnavailable", err)
	}
}

func TestALostKeyMakesValuesBeFetchedAgain(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		st, r := mem.New(), &root{has: map[wire.WantValue]wire.Value{}}
		k := r.add("db", 1, "value")
		v, stop := open(t, st, dir, r)
		v.Need([]wire.ValueKey{k})
		synctest.Wait()
		stop()
		if err := os.Remove(dir + "/secrets.key"); err != nil {
			t.Fatal(err)
		}
		v, stop = open(t, st, dir, r)
		defer stop()
		v.Need([]wire.ValueKey{k})
		if got, err := v.Get(t.Context(), k); err != nil || string(got.Data["password"]) != "value" || r.fetches != 2 {
			t.Errorf("%v after %d fetches, want the value after 2", err, r.fetches)
		}
	})
}
