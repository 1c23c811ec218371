package loop

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/leaktest"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// counter is a core that adds up its inputs: it saves and sends every sum, refuses negative inputs, and
// wakes when an input requests it.
type counter struct {
	journal step.Journal
	n       int
	ticks   int
	wake    time.Time
}

type in struct {
	add    int
	wakeIn time.Duration
	tick   bool
}

func (c *counter) Step(now time.Time, x in) step.Effects {
	switch {
	case x.tick:
		c.ticks++
		c.wake = time.Time{}
		return step.Effects{Send: []wire.Envelope{{To: "tick", Msg: c.ticks, Volatile: true}, {To: "later", Msg: c.ticks}}}
	case x.add < 0:
		return step.Effects{Err: fmt.Errorf("add %d: %w", x.add, api.ErrInvalid)}
	case x.wakeIn > 0:
		c.wake = now.Add(x.wakeIn)
		return step.Effects{Wake: c.wake}
	}
	c.n += x.add
	c.journal.Put("count", "n", c.n)
	return step.Effects{
		Save: c.journal.Take(),
		Send: []wire.Envelope{{To: "all", Msg: c.n}},
		Wake: c.wake,
	}
}

// flaky is a store in memory whose saves fail while fail is set.
type flaky struct {
	mu    sync.Mutex
	fail  error
	data  string
	saves int
	gate  chan struct{} // if set, a save waits for it
}

func (f *flaky) Save(ctx context.Context, docs []store.Doc) error {
	if f.gate != nil {
		select {
		case <-f.gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.saves++
	if f.fail != nil {
		return f.fail
	}
	f.data = string(docs[len(docs)-1].Data)
	return nil
}

func (f *flaky) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

func (f *flaky) durable() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.data
}

func (f *flaky) Load(context.Context, func(store.Doc) error) error { return nil }
func (f *flaky) Close() error                                      { return nil }

type world struct {
	*Loop[in]
	core  *counter
	store *flaky
	sent  chan wire.Envelope
	ended chan error
}

func start(t *testing.T, o Options[in]) *world {
	t.Helper()
	w := &world{core: &counter{}, store: &flaky{}, sent: make(chan wire.Envelope, 2*maxUnsaved), ended: make(chan error, 1)}
	o.Tick = in{tick: true}
	w.Loop = New(w.core, w.store, func(es []wire.Envelope) {
		for _, e := range es {
			w.sent <- e
		}
	}, o)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { w.ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-w.Loop.ended
	})
	return w
}

func TestDoReturnsAfterSaveAndSend(t *testing.T) {
	w := start(t, Options[in]{})
	var seen int
	if err := w.Do(t.Context(), in{add: 3}, func() { seen = w.core.n }); err != nil {
		t.Fatal(err)
	}
	if seen != 3 || w.store.durable() != "3" || len(w.sent) != 1 {
		t.Errorf("after saw %d, stored %q, sent %d; want 3, 3 and 1", seen, w.store.durable(), len(w.sent))
	}
	if err := w.Do(t.Context(), in{add: -1}, nil); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("a refused input answers %v, want ErrInvalid", err)
	}
}

func TestNothingIsSentOrReadBeforeItIsSaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, Options[in]{})
		w.store.gate = make(chan struct{})
		w.Post(in{add: 1})
		synctest.Wait()
		var read atomic.Bool
		go func() { _ = w.Read(t.Context(), func() { read.Store(true) }) }()
		synctest.Wait()
		if len(w.sent) != 0 || read.Load() {
			t.Fatal("sent or read what is not durable")
		}
		close(w.store.gate)
		synctest.Wait()
		if len(w.sent) != 1 || !read.Load() {
			t.Fatal("neither sent nor read once it was durable")
		}
	})
}

func TestWaitingInputsAreSavedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var steps atomic.Int64
		w := start(t, Options[in]{Batch: 10, Observe: func(s Sample) { steps.Add(int64(s.Steps)) }})
		w.store.gate = make(chan struct{})
		w.Post(in{add: 1})
		synctest.Wait() // its save is being written
		for range 20 {
			w.Post(in{add: 1})
		}
		close(w.store.gate)
		synctest.Wait()
		if w.store.saves != 3 || w.store.durable() != "21" || steps.Load() != 21 {
			t.Errorf("%d saves left %q after %d steps; want 3, 21, 21", w.store.saves, w.store.durable(), steps.Load())
		}
	})
}

func TestTickComesAtTheRequestedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, Options[in]{})
		began := time.Now()
		if err := w.Do(t.Context(), in{wakeIn: 90 * time.Second}, nil); err != nil {
			t.Fatal(err)
		}
		e := <-w.sent
		if e.To != "tick" || time.Since(began) != 90*time.Second {
			t.Errorf("%v after %v, want a tick after 90 s", e, time.Since(began))
		}
		// A refused input changes nothing, not even the time to wake.
		<-w.sent
		_ = w.Do(t.Context(), in{wakeIn: time.Second}, nil)
		_ = w.Do(t.Context(), in{add: -1}, nil)
		<-w.sent
	})
}

func TestFullStoreRefusesAtOnceAndRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, Options[in]{})
		w.store.set(store.ErrFull)
		began := time.Now()
		if err := w.Do(t.Context(), in{add: 1}, nil); !errors.Is(err, api.ErrFull) {
			t.Fatalf("the input that found the store full answers %v", err)
		}
		if err := w.Do(t.Context(), in{add: 1}, nil); !errors.Is(err, api.ErrFull) {
			t.Fatalf("an input while the store is full answers %v", err)
		}
		w.Post(in{add: 1})
		var n int
		if err := w.Read(t.Context(), func() { n = w.core.n }); err != nil || n != 1 {
			t.Fatalf("a read while the store is full gives %d, %v", n, err)
		}
		if time.Since(began) != 0 || w.Dropped() != 1 || len(w.sent) != 0 {
			t.Fatalf("took %v, dropped %d, sent %d", time.Since(began), w.Dropped(), len(w.sent))
		}
		time.Sleep(time.Minute) // fake time: many repetitions
		w.store.set(nil)
		if e := <-w.sent; e.Msg != 1 || w.store.durable() != "1" {
			t.Fatalf("after the recovery: sent %v, stored %q", e, w.store.durable())
		}
		if err := w.Do(t.Context(), in{add: 1}, nil); err != nil || w.store.durable() != "2" {
			t.Fatalf("after the recovery: %v, stored %q", err, w.store.durable())
		}
	})
}

func TestAFullStoreStopsNoHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, Options[in]{WhenFull: func(x in) bool { return x.tick }})
		if err := w.Do(t.Context(), in{wakeIn: 10 * time.Second}, nil); err != nil {
			t.Fatal(err)
		}
		w.store.set(store.ErrFull)
		if err := w.Do(t.Context(), in{add: 1}, nil); !errors.Is(err, api.ErrFull) {
			t.Fatal(err)
		}
		if e := <-w.sent; e.To != "tick" {
			t.Fatalf("while the store is full %v goes out, want the tick", e)
		}
		if len(w.sent) != 0 {
			t.Fatalf("%d messages that promise something went out", len(w.sent))
		}
		// Inputs for WhenFull are accepted meanwhile.
		if w.Post(in{tick: true}); !w.Offer(in{tick: true}) || w.Offer(in{add: 1}) {
			t.Fatal("what may be stepped is not taken, or what may not is")
		}
		if a, b := <-w.sent, <-w.sent; a.Msg != 2 || b.Msg != 3 {
			t.Fatalf("while the store is full %v and %v go out", a, b)
		}
		w.store.set(nil)
		if a, b := <-w.sent, <-w.sent; a.To != "all" || b.To != "later" {
			t.Fatalf("after the recovery %v and %v go out", a, b)
		}
	})
}

// While the store is full, unsaved documents accumulate up to a bound. Inputs that are queued by then are
// stepped; Offer refuses later ones.
func TestUnsavedDocumentsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, Options[in]{WhenFull: func(in) bool { return true }})
		w.store.set(store.ErrFull)
		if err := w.Do(t.Context(), in{add: 1}, nil); !errors.Is(err, api.ErrFull) {
			t.Fatal(err)
		}
		taken := 1
		for ; w.Offer(in{add: 1}); taken++ {
			if taken%1000 == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		if taken < maxUnsaved || taken > maxUnsaved+1000 || w.core.n != taken || w.Dropped() != 1 {
			t.Fatalf("%d taken, %d stepped, %d dropped", taken, w.core.n, w.Dropped())
		}
		w.store.set(nil)
		time.Sleep(time.Minute)
		if w.store.durable() != fmt.Sprint(taken) || !w.Offer(in{add: 1}) {
			t.Fatalf("%s is durable of %d", w.store.durable(), taken)
		}
	})
}

func TestSlowStoreIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, Options[in]{})
		w.store.gate = make(chan struct{})
		began := time.Now()
		if err := w.Do(t.Context(), in{add: 1}, nil); !errors.Is(err, api.ErrUnavailable) || time.Since(began) != 10*time.Second {
			t.Fatalf("answers %v after %v", err, time.Since(began))
		}
		close(w.store.gate)
		<-w.sent
	})
}

func TestConflictEndsTheRole(t *testing.T) {
	w := start(t, Options[in]{})
	w.store.set(fmt.Errorf("save: %w", store.ErrConflict))
	if err := w.Do(t.Context(), in{add: 1}, nil); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("the waiter is told %v", err)
	}
	if err := <-w.ended; !errors.Is(err, store.ErrConflict) {
		t.Errorf("Run returns %v", err)
	}
	if err := w.Do(t.Context(), in{add: 1}, nil); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("Do after the end: %v", err)
	}
	w.Post(in{add: 1})
	if w.Dropped() != 1 {
		t.Errorf("%d posts dropped after the end, want 1", w.Dropped())
	}
}

func TestPostNeverBlocks(t *testing.T) {
	l := New(&counter{}, &flaky{}, func([]wire.Envelope) {}, Options[in]{Queue: 5})
	for range 8 {
		l.Post(in{add: 1})
	}
	if l.Dropped() != 3 {
		t.Errorf("%d dropped, want 3", l.Dropped())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Do(ctx, in{add: 1}, nil); !errors.Is(err, api.ErrTimeout) {
		t.Errorf("Do before Run with a context that ended: %v", err)
	}
	if err := l.Run(ctx); err != nil {
		t.Errorf("Run: %v", err)
	}
}

func TestAbandonedInputIsNotStepped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, Options[in]{})
		w.store.gate = make(chan struct{})
		w.Post(in{add: 1})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.Do(ctx, in{add: 10}, nil); !errors.Is(err, api.ErrTimeout) {
			t.Errorf("Do answers %v", err)
		}
		close(w.store.gate)
		synctest.Wait()
		if w.store.durable() != "1" {
			t.Errorf("stored %q, want 1", w.store.durable())
		}
	})
}

func TestConcurrentCallsAreAnswered(t *testing.T) {
	w := start(t, Options[in]{Queue: 16, Batch: 8})
	var g sync.WaitGroup
	for range 50 {
		g.Go(func() {
			for range 20 {
				if err := w.Do(t.Context(), in{add: 1}, nil); err != nil {
					t.Error(err)
				}
				w.Post(in{add: 0})
			}
		})
	}
	g.Wait()
	if w.store.durable() != "1000" {
		t.Errorf("stored %q, want 1000", w.store.durable())
	}
}

func BenchmarkDo(b *testing.B) {
	l := New(&counter{}, &flaky{}, func([]wire.Envelope) {}, Options[in]{})
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	for b.Loop() {
		_ = l.Do(ctx, in{add: 1}, nil)
	}
	cancel()
	<-ended
}
