package node

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// checkBooks compares the core's digests and timers with values computed from its whole state.
func (w *world) checkBooks() {
	w.t.Helper()
	var wanted, known api.Digest
	for id, wk := range w.c.works {
		if wk.wanted {
			wanted = wanted.Toggle(wk.assignment.Digest())
		}
		if wk.observed.State == "" || wk.observed.Instance != id {
			w.t.Fatalf("%s is observed as %+v", id, wk.observed)
		}
		known = known.Toggle(wk.observed.Digest())
		timed := w.c.timers.Has(timerKey{timerWork, id})
		if (wk.phase == waiting || wk.phase == stopping) != timed {
			w.t.Fatalf("%s is in phase %d, and a timer is set: %v", id, wk.phase, timed)
		}
		if wk.phase == idle && w.c.mayCreate(wk) {
			w.t.Fatalf("%s waits for nothing", id)
		}
	}
	if w.c.desiredDigest != wanted || w.c.observedDigest != known {
		w.t.Fatalf("wanted %x/%x known %x/%x", w.c.desiredDigest, wanted, w.c.observedDigest, known)
	}
}

// TestRandomInputsWithCrashesConverge steps the core with random valid inputs, a slow runtime and crashes
// between any two saves. It checks the core's state after each input and, in the end, that exactly the
// desired instances run.
func TestRandomInputsWithCrashesConverge(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 13))
		w := newWorld(t)
		w.slow = true
		var orders []any // to the runtime, not yet carried out
		crash := func(eff step.Effects) {
			w.save(eff.Save[:rng.IntN(len(eff.Save)+1)])
			orders = nil // a crash of the engine loses its orders
			w.restart()
			orders = append(orders, ordersOf(w.last)...)
		}
		do := func(in Input) {
			if rng.IntN(10) == 0 {
				crash(w.c.Step(w.now, in))
				return
			}
			orders = append(orders, ordersOf(w.step(in))...)
		}
		carry := func() {
			if len(orders) == 0 {
				return
			}
			o := orders[0]
			orders = orders[1:]
			for _, e := range w.carryOut(o) {
				do(Workload{e})
			}
		}
		set := map[api.InstanceID]wire.Assignment{}
		e := api.Epoch(1)
		for range 150 {
			switch rng.IntN(10) {
			case 0, 1:
				e++
				a := assignment(e, func(m *api.Microservice) { m.Exclusive, m.OneShot = rng.IntN(2) == 0, rng.IntN(3) == 0 })
				a.Instance = a.Instance.Service().Instance(rng.IntN(3))
				if set[a.Instance] = a; rng.IntN(3) == 0 {
					delete(set, a.Instance)
				}
				w.gen++
				d := wire.Desired{Gen: w.gen}
				for _, id := range step.Keys(set) {
					d.Put = append(d.Put, set[id])
					d.Digest = d.Digest.Toggle(set[id].Digest())
				}
				do(Desired{d})
			case 2:
				do(Link{rng.IntN(3) > 0})
			case 3:
				do(Lease{w.newestLease()})
			case 4:
				w.now = w.now.Add(time.Duration(rng.IntN(8000)) * time.Millisecond)
				do(Tick{})
			case 5:
				if ev, ok := w.exits(rng.IntN(2)); ok {
					do(Workload{ev})
				}
			case 6:
				if rng.IntN(4) == 0 {
					crash(w.c.Step(w.now, Tick{}))
				}
			default:
				carry()
			}
			w.checkBooks()
		}
		for len(orders) > 0 {
			carry()
		}
		// In the end all is connected, and the cluster sends its desired set again.
		w.slow = false
		w.restart()
		w.gen++
		d := wire.Desired{Gen: w.gen}
		for _, id := range step.Keys(set) {
			d.Put = append(d.Put, set[id])
			d.Digest = d.Digest.Toggle(set[id].Digest())
		}
		w.step(Desired{d})
		for range 60 {
			w.pass(2 * time.Second)
			w.lease()
		}
		w.checkBooks()
		if got, _ := w.c.Digests(); got != d.Digest {
			t.Fatalf("seed %d: the wanted digest differs", seed)
		}
		for _, in := range w.c.Instances() {
			a, ok := set[in.ID]
			if !ok || in.Epoch != a.Epoch || in.State != api.Running && in.State != api.Completed {
				t.Fatalf("seed %d: %+v, wanted %v", seed, in, ok)
			}
		}
		if len(w.c.Instances()) != len(set) || len(w.has) > len(set) {
			t.Fatalf("seed %d: %d instances, the runtime has %d, wanted %d", seed, len(w.c.Instances()), len(w.has), len(set))
		}
	}
}

func ordersOf(eff step.Effects) (out []any) {
	for _, e := range eff.Send {
		if e.To == wire.ToRuntime {
			out = append(out, e.Msg)
		}
	}
	return out
}

// exits makes the first running workload exit.
func (w *world) exits(code int) (wire.WorkloadEvent, bool) {
	for _, id := range step.Keys(w.has) {
		if ev := w.has[id]; ev.Phase == wire.WorkloadRunning {
			ev.Phase, ev.ExitCode = wire.WorkloadExited, code
			w.has[id] = ev
			return ev, true
		}
	}
	return wire.WorkloadEvent{}, false
}
