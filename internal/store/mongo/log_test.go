package mongo_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/mongo"
	"github.com/treeline-edge/treeline/internal/store/mongo/mongotest"
	"github.com/treeline-edge/treeline/internal/store/shared"
	"github.com/treeline-edge/treeline/internal/store/storetest"
)

// activate returns the store of a new replica that has taken over.
func activate(t *testing.T, uri, role string, o shared.Options) *shared.Store {
	t.Helper()
	entries, leases, err := mongo.OpenLogs(t.Context(), uri, role)
	if err != nil {
		t.Fatal(err)
	}
	o.Log = slog.New(slog.DiscardHandler)
	s, err := shared.New(entries, leases, o).Await(t.Context(), func(shared.Lease) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// The log has no deviation on FerretDB, unlike the store of one process, because it only inserts.
func TestSharedStore(t *testing.T) {
	uri := mongotest.URI(t)
	var places atomic.Int64
	storetest.Run(t, func(*testing.T) storetest.Place {
		role := fmt.Sprintf("suite-%d", places.Add(1))
		// The lease is released when a store is closed, even if nobody renews it on a slow machine.
		return func(t *testing.T) store.Store {
			return activate(t, uri, role, shared.Options{TTL: time.Minute, Slack: 64 << 10})
		}
	})
}

// Two processes fight for one store: each is active until the other takes over, and no acknowledged
// write is lost.
func TestReplicasOnOneServerLoseNothing(t *testing.T) {
	uri := mongotest.URI(t)
	var mu sync.Mutex
	var acked []string
	one := activate(t, uri, "pair", shared.Options{Name: "one", TTL: time.Second})
	write := func(s store.Store, key string) error {
		err := s.Save(t.Context(), []store.Doc{{Kind: "app", Key: key, Version: 1, Data: []byte(key)}})
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			acked = append(acked, key)
		}
		return err
	}
	ended := make(chan error)
	go func() { // one writes and does not renew its lease
		for i := 0; ; i++ {
			if err := write(one, fmt.Sprint("one-", i)); err != nil {
				ended <- err
				return
			}
		}
	}()
	two := activate(t, uri, "pair", shared.Options{Name: "two", TTL: time.Minute})
	if err := <-ended; !errors.Is(err, store.ErrConflict) {
		t.Errorf("the first replica ended with %v, want a conflict", err)
	}
	for i := range 20 {
		if err := write(two, fmt.Sprint("two-", i)); err != nil {
			t.Fatal(err)
		}
	}
	docs, err := store.Load(t.Context(), two)
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, d := range docs {
		have[d.Key] = true
	}
	for _, key := range acked {
		if !have[key] {
			t.Errorf("%s was acknowledged and is missing", key)
		}
	}
	if len(docs) != len(acked) {
		t.Errorf("the store has %d documents, %d were acknowledged", len(docs), len(acked))
	}
}

func TestOptionsThatLoseWritesAreRefused(t *testing.T) {
	for _, option := range []string{"w=1", "w=0", "journal=false", "readConcernLevel=local", "readPreference=secondary"} {
		_, _, err := mongo.OpenLogs(t.Context(), "mongodb://127.0.0.1:1/?"+option, "root")
		name, _, _ := strings.Cut(option, "=")
		if !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), "option "+name) {
			t.Errorf("%s: got %v, want ErrInvalid that names it", option, err)
		}
	}
	_, _, err := mongo.OpenLogs(t.Context(), "mongodb://127.0.0.1:1/?w=majority&journal=true&serverSelectionTimeoutMS=100", "root")
	if !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("the right options: got %v, want ErrUnavailable, because there is no server", err)
	}
}

func TestARetiredStoreIsNotLoaded(t *testing.T) {
	s := open(t, mongotest.URI(t), "retired")
	d := store.Doc{Kind: "app", Key: "a", Version: 1, Data: []byte("x")}
	if err := s.Save(t.Context(), []store.Doc{d}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		n := 0
		if err := s.Retire(context.WithoutCancel(t.Context()), func(store.Doc) error { n++; return nil }); err != nil || n != 1 {
			t.Fatalf("retire: %d documents, %v, want 1", n, err)
		}
	}
	if _, err := store.Load(t.Context(), s); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "set replica") {
		t.Errorf("got %v, want ErrConflict that says what to do", err)
	}
}
