package shared_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/shared"
	"github.com/treeline-edge/treeline/internal/store/shared/sharedtest"
)

// fault is what a history leaves out, to show that the check finds it.
type fault int

const (
	none            fault = iota
	engineNotAtomic       // the engine looks and writes in two steps
	readsUnguarded        // a replica answers reads without Store.Active
)

// operation is a read or a write of a key by a client.
type operation struct {
	key   string
	write bool
	value string
}

// world is a run of replicas and clients with random faults.
type world struct {
	t         *testing.T
	fault     fault
	random    *rand.Rand // used by one goroutine at a time: turns
	engines   engines
	processes []*process
	clock     atomic.Int64 // numbers calls and returns in their order
	values    atomic.Int64

	mu      sync.Mutex // guards history
	history []porcupine.Operation
}

// process is a daemon that starts again whenever it ends. Its state is what its store holds, as in a
// core.
type process struct {
	w    *world
	name string
	link *sharedtest.Link
	// unguarded processes write when their lease has ended: the log alone has to refuse them.
	unguarded bool

	mu     sync.Mutex // guards the fields below
	store  *shared.Store
	rows   map[string]store.Doc
	crash  context.CancelFunc // ends the process without a word
	stop   context.CancelFunc // ends it cleanly
	saving chan struct{}      // sent to by the write that is being saved, as by a core's loop
}

const (
	processes = 3
	clients   = 4
	keys      = 2
	perClient = 12
)

// run runs a history. It returns whether it is linearizable, and the number of takeovers.
func run(t *testing.T, seed uint64, f fault) (ok bool, history []porcupine.Operation, takeovers int) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, fault: f, random: rand.New(rand.NewPCG(seed, 7)), engines: newEngines()}
		if f == engineNotAtomic {
			w.engines.log.Racy, w.engines.leases.Racy = 30*time.Millisecond, 30*time.Millisecond
		}
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		for i := range processes {
			p := &process{w: w, unguarded: seed%2 == 0, saving: make(chan struct{}, 1), name: fmt.Sprint("process-", i), link: sharedtest.NewLink(seed*processes+uint64(i), time.Second)}
			p.link.Faults(w.random.Float64()*0.1, w.random.Float64()*0.1)
			w.processes = append(w.processes, p)
			next := w.random.Uint64()
			group.Go(func() { p.live(ctx, rand.New(rand.NewPCG(next, 1))) })
		}
		var working sync.WaitGroup
		for range clients {
			seed := w.random.Uint64()
			working.Go(func() { w.client(rand.New(rand.NewPCG(seed, 2))) })
		}
		ended := make(chan struct{})
		var disturbing sync.WaitGroup
		disturbing.Go(func() { w.disturb(ended) })
		working.Wait()
		close(ended)
		disturbing.Wait()
		for _, p := range w.processes {
			p.link.Faults(0, 0)
			p.link.Cut(false, false)
			p.link.Continue()
		}
		for k := range keys {
			for !w.operate(operation{key: fmt.Sprint(k)}, w.processes[w.random.IntN(processes)]) {
				time.Sleep(100 * time.Millisecond)
			}
		}
		cancel()
		group.Wait()
		for _, p := range w.processes {
			p.link.Settle()
		}
		if f != engineNotAtomic {
			takeovers = w.checkEpochs()
		}
		history = w.history
		ok = porcupine.CheckOperations(model, history)
	})
	return ok, history, takeovers
}

// checkEpochs counts the takeovers, and fails unless each entry was stored by the replica that took over last.
func (w *world) checkEpochs() (takeovers int) {
	epochs, end := map[uint64]uint64{}, uint64(0)
	for _, e := range w.engines.log.History() {
		if e.Position != end+1 {
			continue // a takeover at an obsolete position, which fences nobody
		}
		end = e.Position
		epochs[end] = epochs[end-1]
		if e.Takeover != "" {
			epochs[end] = e.Position
			takeovers++
		}
		if e.Epoch != epochs[end] {
			w.t.Errorf("entry %d was stored in epoch %d after the takeover %d", e.Position, e.Epoch, epochs[end])
		}
	}
	return takeovers
}

// live starts the process again and again until ctx ends.
func (p *process) live(ctx context.Context, random *rand.Rand) {
	for ctx.Err() == nil {
		p.once(ctx)
		select {
		case <-time.After(time.Duration(random.Int64N(int64(2 * time.Second)))):
		case <-ctx.Done():
		}
	}
}

func (p *process) once(ctx context.Context) {
	living, crash := context.WithCancel(ctx)
	defer crash()
	holding, stop := context.WithCancel(living)
	defer stop()
	p.mu.Lock()
	p.crash, p.stop = crash, stop
	p.mu.Unlock()
	r := shared.New(p.link.To(p.w.engines.log.Open()), p.link.To(p.w.engines.leases.Open()), shared.Options{
		Name: p.name, Log: slog.New(slog.DiscardHandler), Slack: 2 << 10,
	})
	st, err := r.Await(holding, func(shared.Lease) {})
	if err != nil {
		return
	}
	if p.unguarded {
		st.IgnoreLease()
	}
	rows := map[string]store.Doc{}
	for {
		docs, err := store.Load(living, st)
		if living.Err() != nil {
			return
		}
		if err == nil {
			for _, d := range docs {
				rows[d.Key] = d
			}
			break
		}
	}
	p.mu.Lock()
	p.store, p.rows = st, rows
	p.mu.Unlock()
	_ = st.Hold(holding)
	// The process notices late: it was paused, and its goroutines continue in any order.
	p.link.Running()
	time.Sleep(100 * time.Millisecond)
	crashed := living.Err() != nil
	crash() // ends the save that is under way
	p.mu.Lock()
	p.store = nil
	p.mu.Unlock()
	p.saving <- struct{}{}
	defer func() { <-p.saving }()
	if !crashed {
		_ = st.Close()
	}
}

// client makes operations at random processes.
func (w *world) client(random *rand.Rand) {
	for done := 0; done < perClient; {
		o := operation{key: fmt.Sprint(random.IntN(keys))}
		if random.IntN(2) == 0 {
			o.write, o.value = true, fmt.Sprint("v", w.values.Add(1))
		}
		if w.operate(o, w.processes[random.IntN(processes)]) {
			done++
		}
		time.Sleep(time.Duration(random.Int64N(int64(500 * time.Millisecond))))
	}
}

// operate asks a process, and reports whether it answered, or may have done what it was asked.
func (w *world) operate(o operation, p *process) bool {
	p.link.Running()
	call := w.clock.Add(1)
	value, outcome := p.do(o)
	p.link.Running()
	if outcome == refused || outcome == unknown && !o.write {
		return false
	}
	op := porcupine.Operation{Input: o, Call: call, Output: value, Return: w.clock.Add(1)}
	if outcome == unknown {
		op.Return = math.MaxInt64
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	op.ClientId = len(w.history) // one client per operation, because an unknown one never ends
	w.history = append(w.history, op)
	return true
}

const (
	refused = iota
	unknown
	answered
)

func (p *process) do(o operation) (value string, outcome int) {
	if !o.write {
		p.mu.Lock()
		st, rows := p.store, p.rows
		value = string(rows[o.key].Data)
		p.mu.Unlock()
		if st == nil || !st.Active() && p.w.fault != readsUnguarded {
			return "", refused
		}
		return value, answered
	}
	p.saving <- struct{}{}
	defer func() { <-p.saving }()
	p.mu.Lock()
	st := p.store
	d := store.Doc{Kind: "app", Key: o.key, Version: p.rows[o.key].Version + 1, Data: []byte(o.value)}
	p.mu.Unlock()
	if st == nil {
		return "", refused
	}
	tried := false
	for {
		p.mu.Lock()
		gone := p.store != st
		p.mu.Unlock()
		if gone {
			if tried {
				return "", unknown
			}
			return "", refused
		}
		tried = true
		ctx, cancel := context.WithTimeout(p.w.t.Context(), 3*time.Second)
		err := st.Save(ctx, []store.Doc{d})
		cancel()
		if errors.Is(err, shared.ErrLeaseLost) {
			return "", unknown // an earlier attempt may be stored
		}
		if errors.Is(err, store.ErrConflict) {
			return "", refused // fenced: none of its attempts is stored, or ever will be
		}
		if err == nil {
			p.mu.Lock()
			p.rows = maps.Clone(p.rows)
			p.rows[o.key] = d
			p.mu.Unlock()
			return "", answered
		}
	}
}

// disturb pauses, cuts, crashes and stops processes until ended.
func (w *world) disturb(ended chan struct{}) {
	for {
		select {
		case <-ended:
			return
		case <-time.After(time.Duration(w.random.Int64N(int64(3 * time.Second)))):
		}
		p := w.processes[w.random.IntN(processes)]
		switch w.random.IntN(7) {
		case 0, 1:
			p.link.Pause()
			time.AfterFunc(time.Duration(w.random.Int64N(int64(8*time.Second))), p.link.Continue)
		case 2, 3:
			p.link.Cut(w.random.IntN(2) == 0, w.random.IntN(2) == 0)
			time.AfterFunc(time.Duration(w.random.Int64N(int64(8*time.Second))), func() { p.link.Cut(false, false) })
		case 4:
			p.mu.Lock()
			p.crash()
			p.mu.Unlock()
		case 5:
			p.mu.Lock()
			p.stop()
			p.mu.Unlock()
		case 6:
			p.link.Cut(false, false)
			p.link.Continue()
		}
	}
}

// model is a register per key, which holds the value that was written last.
var model = porcupine.Model{
	Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
		by := map[string][]porcupine.Operation{}
		for _, o := range history {
			k := o.Input.(operation).key
			by[k] = append(by[k], o)
		}
		for _, part := range by {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		o := input.(operation)
		if o.write {
			return true, o.value
		}
		return output == state, state
	},
}

// A write that is acknowledged, and a read of the active replica, are linearizable, whatever is lost,
// late, cut, paused or killed.
func TestRandomHistoriesAreLinearizable(t *testing.T) {
	operations, takeovers := 0, 0
	for seed := range uint64(1000) {
		ok, history, epochs := run(t, seed, none)
		operations, takeovers = operations+len(history), takeovers+epochs
		if !ok {
			t.Errorf("seed %d: not linearizable:\n%s", seed, describe(history))
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%d operations, %d takeovers", operations, takeovers)
}

// The check is worth something only if it finds what it is to find.
func TestHistoriesWithoutAGuardAreFound(t *testing.T) {
	for name, f := range map[string]fault{"an engine that is not atomic": engineNotAtomic, "reads without the lease": readsUnguarded} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(1000) {
				if ok, _, _ := run(t, seed, f); !ok {
					t.Logf("found at seed %d", seed)
					return
				}
			}
			t.Error("1000 histories are linearizable, want a violation")
		})
	}
}

func describe(history []porcupine.Operation) (text string) {
	for _, o := range history {
		text += fmt.Sprintf("%d-%d %+v: %q\n", o.Call, o.Return, o.Input, o.Output)
	}
	return text
}
