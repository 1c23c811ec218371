package shared_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/shared"
	"github.com/treeline-edge/treeline/internal/store/shared/sharedtest"
	"github.com/treeline-edge/treeline/internal/store/storetest"
)

// engines are those of a log and its leases.
type engines struct{ log, leases *sharedtest.Engine }

func newEngines() engines { return engines{sharedtest.NewEngine(), sharedtest.NewEngine()} }

func (e engines) replica(name string) *shared.Replica {
	return e.replicaWith(shared.Options{Name: name})
}

func (e engines) replicaWith(o shared.Options) *shared.Replica {
	o.Log = slog.New(slog.DiscardHandler)
	return shared.New(e.log.Open(), e.leases.Open(), o)
}

// active returns the store of a new replica that has taken over.
func (e engines) active(t *testing.T, name string) *shared.Store {
	t.Helper()
	s, err := e.replica(name).Await(t.Context(), func(shared.Lease) {})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// patient returns an active store whose lease lasts as long as a test outside a bubble of synctest.
func (e engines) patient(t *testing.T) *shared.Store {
	t.Helper()
	s, err := e.replicaWith(shared.Options{TTL: time.Minute}).Await(t.Context(), func(shared.Lease) {})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Place {
		e := newEngines()
		return func(t *testing.T) store.Store { return e.patient(t) }
	})
}

func put(key string, version uint64, data string) store.Doc {
	return store.Doc{Kind: "app", Key: key, Version: version, Data: []byte(data)}
}

func save(t *testing.T, s store.Store, docs ...store.Doc) {
	t.Helper()
	if err := s.Save(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
}

// content returns the documents as "key=data" by key.
func content(t *testing.T, s store.Store) map[string]string {
	t.Helper()
	docs, err := store.Load(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, d := range docs {
		got[d.Key] = string(d.Data)
	}
	return got
}

func TestAPausedActiveReplicaWritesNothingAfterATakeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngines()
		one := e.active(t, "one") // does not renew its lease, as if it were paused
		one.IgnoreLease()
		save(t, one, put("a", 1, "one"), put("b", 1, "one"))

		two := e.active(t, "two")
		if one.Active() || !two.Active() {
			t.Errorf("active: one %v, two %v, want only two", one.Active(), two.Active())
		}
		// It writes documents that the new active replica has not touched, and new ones.
		for _, d := range []store.Doc{put("a", 2, "late"), put("new", 1, "late"), {Kind: "app", Key: "b", Version: 2}} {
			if err := one.Save(t.Context(), []store.Doc{d}); !errors.Is(err, store.ErrConflict) {
				t.Errorf("%s version %d: got %v, want a conflict", d.Key, d.Version, err)
			}
		}
		save(t, two, put("b", 2, "two"))
		for range 2 {
			if got := fmt.Sprint(content(t, two)); got != "map[a:one b:two]" {
				t.Errorf("the store holds %s", got)
			}
		}
		// A replica that looks at its clock first does not even try.
		three := e.active(t, "three")
		time.Sleep(shared.DefaultTTL)
		if err := three.Save(t.Context(), []store.Doc{put("c", 1, "late")}); !errors.Is(err, shared.ErrLeaseLost) {
			t.Errorf("a write after the lease: got %v, want ErrLeaseLost", err)
		}
		if err := one.Hold(t.Context()); !errors.Is(err, shared.ErrLeaseLost) || !errors.Is(err, store.ErrConflict) {
			t.Errorf("got %v, want ErrLeaseLost", err)
		}
	})
}

// A hint that the active replica has gone does not shorten the lease.
func TestAStandbyWaitsForTheLeaseOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngines()
		one := e.active(t, "one")
		r, wake := e.replica("two"), make(chan struct{}, 1)
		r.Gossip("10.0.0.2:7446", wake)
		began := time.Now()
		taken := make(chan *shared.Store, 1)
		var took time.Duration
		go func() {
			two, err := r.Await(t.Context(), func(l shared.Lease) {
				if l.Name != "one" || l.Gossip != "" {
					t.Errorf("the standby waits for %+v, want one, which has no gossip", l)
				}
			})
			if err != nil {
				t.Error(err)
			}
			took = time.Since(began)
			taken <- two
		}()
		for range 100 { // as after false alarms
			time.Sleep(7 * time.Millisecond)
			wake <- struct{}{}
			synctest.Wait()
		}
		two := <-taken
		if took != shared.DefaultTTL {
			t.Errorf("the standby took over after %v, want the lease of %v to the point", took, shared.DefaultTTL)
		}
		if one.Active() {
			t.Error("two replicas are active")
		}

		// The hint that it was released is taken at once.
		third := e.replica("three")
		third.Gossip("10.0.0.3:7446", wake)
		go func() {
			three, err := third.Await(t.Context(), func(l shared.Lease) {
				if l.Name != "two" || l.Gossip != "10.0.0.2:7446" {
					t.Errorf("the standby waits for %+v, want two with the address of its gossip", l)
				}
			})
			if err != nil {
				t.Error(err)
			}
			taken <- three
		}()
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if err := two.Close(); err != nil {
			t.Fatal(err)
		}
		released := time.Now()
		wake <- struct{}{}
		three := <-taken
		if after := time.Since(released); after != 0 {
			t.Errorf("the standby took over %v after the release, want at once", after)
		}
		if err := three.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// The log of the new active replica is trimmed so far that the position of the paused replica's next
// write is obsolete.
func TestAPausedReplicaIsFencedByATrimmedLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngines()
		one := e.active(t, "one")
		one.IgnoreLease()
		save(t, one, put("a", 1, "one"), put("kept", 1, "one"))
		two := e.active(t, "two")
		go func() { _ = two.Hold(t.Context()) }()
		big := strings.Repeat("x", 1<<20)
		for v := uint64(2); v < 40; v++ {
			save(t, two, put("a", v, big))
		}
		entries := e.log.Entries()
		if len(entries) > 15 {
			t.Errorf("the log has %d entries, want it trimmed", len(entries))
		}
		if err := one.Save(t.Context(), []store.Doc{put("kept", 2, "late")}); !errors.Is(err, store.ErrConflict) {
			t.Errorf("a late write: got %v, want a conflict", err)
		}
		// A conflict that is decided by a document whose entry was trimmed is not a corrupt store.
		if err := one.Save(t.Context(), []store.Doc{put("kept", 1, "other")}); !errors.Is(err, store.ErrConflict) {
			t.Errorf("a conflict: got %v, want ErrConflict", err)
		}
		if err := two.Close(); err != nil {
			t.Fatal(err)
		}
		three := e.active(t, "three")
		got := content(t, three)
		if len(got) != 2 || got["kept"] != "one" || len(got["a"]) != 1<<20 {
			t.Errorf("%d documents, kept=%q", len(got), got["kept"])
		}
		save(t, three, put("a", 40, "small"))
	})
}

func TestACleanStopHandsOverAtOnceAndACrashAfterTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngines()
		one := e.active(t, "one")
		ctx, cancel := context.WithCancel(t.Context())
		held := make(chan error)
		go func() { held <- one.Hold(ctx) }()

		var waited []string
		became := make(chan *shared.Store)
		stand := func(name string) {
			go func() {
				s, err := e.replica(name).Await(t.Context(), func(l shared.Lease) { waited = append(waited, name+" for "+l.Name) })
				if err != nil {
					t.Error(err)
				}
				became <- s
			}()
		}
		stand("two")
		select {
		case <-became:
			t.Fatal("two took over while one renews its lease")
		case <-time.After(time.Minute):
		}
		cancel()
		if err := <-held; err != nil {
			t.Errorf("hold: %v", err)
		}
		stopped := time.Now()
		if err := one.Close(); err != nil {
			t.Error(err)
		}
		two := <-became
		if took := time.Since(stopped); took > time.Second {
			t.Errorf("the takeover after a clean stop took %v, want at most 1s", took)
		}

		stand("three") // two renews nothing from here on, as after a crash
		crashed := time.Now()
		three := <-became
		if took := time.Since(crashed); took > 5*time.Second || two.Active() {
			t.Errorf("the takeover after a crash took %v (two is active: %v), want at most 5s", took, two.Active())
		}
		if got := fmt.Sprint(waited); got != "[two for one three for two]" {
			t.Errorf("the standbys waited %s", got)
		}
		_ = three.Close()
	})
}

func TestOneOfManyStandbysTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngines()
		stores := make(chan *shared.Store, 5)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		for i := range 5 {
			go func() {
				defer func() { done <- struct{}{} }()
				s, err := e.replica(fmt.Sprint(i)).Await(ctx, func(shared.Lease) {})
				if err != nil {
					return
				}
				stores <- s
				_ = s.Hold(ctx)
			}()
		}
		time.Sleep(time.Minute)
		if len(stores) != 1 {
			t.Errorf("%d replicas are active, want 1", len(stores))
		}
		cancel()
		for range 5 {
			<-done
		}
	})
}

func TestADamagedLogIsRefused(t *testing.T) {
	e := newEngines()
	s := e.patient(t)
	for i := range 5 {
		save(t, s, put(fmt.Sprint(i), 1, "x"))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	e.log.Remove(3)
	if _, err := e.replica("two").Await(t.Context(), func(shared.Lease) {}); !errors.Is(err, store.ErrCorrupt) || !strings.Contains(err.Error(), "entry 4 follows 2") {
		t.Errorf("got %v, want ErrCorrupt that says what is missing", err)
	}
}

func TestALogGrowsWithWhatItHoldsOnly(t *testing.T) {
	e := newEngines()
	s := e.patient(t)
	random := rand.New(rand.NewPCG(5, 5))
	want := map[string]string{}
	versions := map[string]uint64{}
	for i := range 4000 {
		key := fmt.Sprint(random.IntN(60))
		if i < 10 {
			key = fmt.Sprint("cold", i) // written once, and carried forward
		}
		d := put(key, versions[key]+1, strings.Repeat(key, random.IntN(4000)))
		if versions[key] > 0 && random.IntN(4) == 0 {
			d.Data = nil
			delete(versions, key)
			delete(want, key)
		} else {
			versions[key], want[key] = d.Version, string(d.Data)
		}
		save(t, s, d)
	}
	bytes := 0
	for _, entry := range e.log.Entries() {
		for _, d := range entry.Docs {
			bytes += len(d.Data)
		}
	}
	if bytes > 8<<20 {
		t.Errorf("the log has %d bytes", bytes)
	}
	// An engine may take milliseconds for each, in which nothing is written and no lease renewed.
	if n := e.log.MostDeleted(); n > 16 {
		t.Errorf("a save deleted %d entries, want at most 16", n)
	}
	if got := content(t, s); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Error("the store differs from what was saved")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = e.patient(t)
	if got := content(t, s); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Error("the store of the next replica differs from what was saved")
	}
}

func TestCheckFindsAnEngineThatIsNotAtomic(t *testing.T) {
	e := sharedtest.NewEngine()
	if err := shared.Check(t.Context(), e.Open()); err != nil {
		t.Errorf("an atomic engine: %v", err)
	}
	if n := len(e.Entries()); n != 0 {
		t.Errorf("the check has left %d entries", n)
	}
	e.Racy = time.Millisecond
	if err := shared.Check(t.Context(), e.Open()); !errors.Is(err, shared.ErrNotAtomic) {
		t.Errorf("an engine that looks and writes in two steps: got %v, want ErrNotAtomic", err)
	}
	if n := len(e.Entries()); n != 0 {
		t.Errorf("the check has left %d entries", n)
	}
}
