package mongo_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

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

func TestNextStopsAtAGapAndAfterAMegabyte(t *testing.T) {
	entries, leases, err := mongo.OpenLogs(t.Context(), mongotest.URI(t), "next")
	if err != nil {
		t.Fatal(err)
	}
	defer entries.Close()
	defer leases.Close()
	if err := mongo.Scans(entries); err != nil {
		t.Errorf("the server of the tests: %v", err)
	}
	large := []byte(strings.Repeat("x", 600<<10))
	for _, p := range []uint64{1, 2, 3, 5, 11, 12, 13} {
		e := shared.Entry{Position: p, Epoch: 1, Start: 1, Docs: []store.Doc{{Kind: "app", Key: "a", Version: p, Data: []byte("x")}}}
		if p > 10 {
			e.Docs[0].Data = large
		}
		if taken, err := entries.Append(t.Context(), e); taken || err != nil {
			t.Fatal(taken, err)
		}
	}
	for _, c := range []struct {
		from uint64
		n    int
		want []uint64
	}{
		{1, 64, []uint64{1, 2, 3}}, {2, 1, []uint64{2}}, {1, 2, []uint64{1, 2}}, {4, 64, nil}, {6, 3, nil}, {11, 3, []uint64{11, 12}},
	} {
		all, err := entries.Next(t.Context(), c.from, c.n)
		if err != nil {
			t.Fatal(err)
		}
		var got []uint64
		for _, e := range all {
			if got = append(got, e.Position); len(e.Docs) != 1 || e.Docs[0].Version != e.Position {
				t.Errorf("entry %d has other documents than were stored", e.Position)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%d entries from %d on: got %v, want %v", c.n, c.from, got, c.want)
		}
	}
}

func TestAServerThatReadsAllForOneDocumentIsKnown(t *testing.T) {
	for version, scans := range map[string]bool{"": false, "v1.24.2": true, "v1.24.2-indexed": false, "v2.7.0": false} {
		if err := mongo.ScansAs(version); (err != nil) != scans {
			t.Errorf("FerretDB %q: got %v, want an error: %t", version, err, scans)
		}
	}
}

// mirror counts what a follower has read.
type mirror struct {
	docs    atomic.Int64
	current chan struct{} // has a value when the copy was current
}

func (m *mirror) Reset(docs []store.Doc) error {
	m.docs.Store(int64(len(docs)))
	return nil
}

func (m *mirror) Adopt([]store.Doc) error { return nil }

func (m *mirror) Current(asOf time.Time) {
	if asOf.IsZero() {
		return
	}
	select {
	case m.current <- struct{}{}:
	default:
	}
}

// Two standbys begin with a long log at once, while the active replica writes. Reading it as a whole would delay the renewal of the lease.
func TestFollowersOfALongLogLeaveTheLeaseToTheActiveReplica(t *testing.T) {
	const entries = 500
	uri := mongotest.URI(t)
	data := []byte(strings.Repeat("x", 500))
	fill := []any{bson.D{{Key: "_id", Value: fmt.Sprintf("%020d", 1)}, {Key: "epoch", Value: int64(1)}, {Key: "takeover", Value: "earlier"}}}
	for p := 2; p <= entries; p++ {
		fill = append(fill, bson.D{{Key: "_id", Value: fmt.Sprintf("%020d", p)}, {Key: "epoch", Value: int64(1)}, {Key: "start", Value: int64(1)}, {Key: "docs", Value: bson.A{
			bson.D{{Key: "kind", Value: "app"}, {Key: "key", Value: fmt.Sprint(p)}, {Key: "version", Value: int64(1)}, {Key: "data", Value: bson.Binary{Data: data}}},
		}}})
	}
	server, err := driver.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		t.Fatal(err)
	}
	_, err = server.Database(uri[strings.LastIndex(uri, "/")+1:]).Collection("log.long").InsertMany(t.Context(), fill)
	if err := errors.Join(err, server.Disconnect(t.Context())); err != nil {
		t.Fatal(err)
	}
	active := activate(t, uri, "long", shared.Options{TTL: 20 * time.Second}) // for a machine that is busy
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	held := make(chan error, 1)
	group.Go(func() { held <- active.Hold(ctx) })
	var writes atomic.Int64
	group.Go(func() {
		for v := uint64(1); active.Save(ctx, []store.Doc{{Kind: "app", Key: "written", Version: v, Data: data}}) == nil; v++ {
			writes.Add(1)
			time.Sleep(100 * time.Millisecond)
		}
	})
	began := time.Now()
	var both []*mirror
	for range 2 {
		entries, leases, err := mongo.OpenLogs(t.Context(), uri, "long")
		if err != nil {
			t.Fatal(err)
		}
		defer entries.Close()
		defer leases.Close()
		m := &mirror{current: make(chan struct{}, 1)}
		f := shared.New(entries, leases, shared.Options{Log: slog.New(slog.DiscardHandler)}).NewFollower(m)
		f.Want()
		group.Go(func() { _ = f.Run(ctx) })
		both = append(both, m)
	}
	late := time.After(3 * time.Minute)
	for i, m := range both {
		select {
		case <-m.current:
		case err := <-held:
			t.Fatalf("the lease was lost after %s: %v", time.Since(began), err)
		case <-late:
			t.Fatalf("standby %d has not read the log after three minutes", i)
		}
		if n := m.docs.Load(); n < entries-1 {
			t.Errorf("standby %d has %d documents, want %d", i, n, entries)
		}
	}
	t.Logf("two standbys have read %d entries in %s, while the active replica wrote %d times", entries, time.Since(began), writes.Load())
}
