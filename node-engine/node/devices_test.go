package node

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// checkDevices fails the test if a creation has a device of another workload, or devices that the
// spec does not need.
func (w *world) checkDevices(o wire.CreateWorkload) {
	w.t.Helper()
	if old := w.has[o.Instance]; old.Phase == wire.WorkloadRunning && !slices.Equal(old.Devices, o.Devices) {
		w.t.Fatalf("%s is created with %v while it runs with %v", o.Key, o.Devices, old.Devices)
	}
	for id, e := range w.has {
		for _, d := range o.Devices {
			if id != o.Instance && slices.Contains(e.Devices, d) && !endedForGood(e) {
				w.t.Fatalf("%s is created with %s, which %s has", o.Key, d, e.Key)
			}
		}
	}
	need := 0
	for _, n := range o.Spec.NeedsDevices() {
		need += n.Count
	}
	if len(o.Devices) != need || !slices.IsSorted(o.Devices) || len(slices.Compact(slices.Clone(o.Devices))) != need {
		w.t.Fatalf("%s is created with %v and needs %v", o.Key, o.Devices, o.Spec.NeedsDevices())
	}
}

func endedForGood(e wire.WorkloadEvent) bool {
	return e.Phase == wire.WorkloadExited && e.ExitCode == 0 && e.Spec.OneShot
}

func device(kind string, n int) api.NodeDevice {
	kinds := []string{kind}
	if strings.HasSuffix(kind, "/gpu") {
		kinds = []string{api.DeviceGPU, kind}
	}
	return api.NodeDevice{ID: fmt.Sprintf("%s=%d", kind, n), Kinds: kinds}
}

func (w *world) offers(ds ...api.NodeDevice) {
	w.info.Devices = ds
	w.step(Info{Info: w.info})
}

func gpus(n int) func(*api.Microservice) { return func(m *api.Microservice) { m.VGPUs = n } }

// of is assignment for instance n.
func of(n int, e api.Epoch, change ...func(*api.Microservice)) wire.Assignment {
	a := assignment(e, change...)
	a.Instance = web.Service().Instance(n)
	return a
}

func (w *world) observed(n int) api.Instance {
	for _, in := range w.c.Instances() {
		if in.Number == n {
			return in
		}
	}
	return api.Instance{}
}

func TestSecondInstanceOfOneDeviceFailsAndSaysWhy(t *testing.T) {
	w := newWorld(t)
	w.offers(device("nvidia.com/gpu", 0))
	w.wants(of(0, 1, gpus(1)), of(1, 2, gpus(1)))
	if in := w.observed(0); in.State != api.Running || !slices.Equal(in.Devices, []string{"nvidia.com/gpu=0"}) {
		t.Fatalf("the first is %+v", in)
	}
	in := w.observed(1)
	if in.State != api.Failed || in.Reason != api.ReasonNoDevice || !strings.Contains(in.Detail, "needs 1 of device gpu; the node has 1, 0 of them free") {
		t.Fatalf("the second is %+v", in)
	}
	w.wants(of(1, 2, gpus(1))) // the first is withdrawn
	w.pass(2 * time.Second)
	if in := w.observed(1); in.State != api.Running || len(in.Devices) != 1 {
		t.Errorf("after the first went the second is %+v", in)
	}
	if o := w.c.works[of(1, 2).Instance].observed; !slices.Equal(o.Devices, []string{"nvidia.com/gpu=0"}) {
		t.Errorf("the cluster is told of %v", o.Devices)
	}
}

func TestDeviceStaysOverRestartsOfWorkloadAndEngine(t *testing.T) {
	w := newWorld(t)
	w.offers(device("a.com/gpu", 0), device("a.com/gpu", 1), device("a.com/gpu", 2))
	w.wants(of(0, 1, gpus(1)), of(1, 1, gpus(1)))
	w.wants(of(1, 1, gpus(1))) // leaves the first device free
	want := []string{"a.com/gpu=1"}
	w.exit(of(1, 1).Instance, 1)
	w.pass(2 * time.Second)
	w.restart()
	if in := w.observed(1); in.State != api.Running || !slices.Equal(in.Devices, want) {
		t.Errorf("after a restart it is %+v", in)
	}
	w.loseStore() // the runtime's list tells which instance has which device
	w.wants(of(0, 2, gpus(1)), of(1, 1, gpus(1)), of(2, 2, gpus(1)))
	if in := w.observed(1); in.State != api.Running || !slices.Equal(in.Devices, want) {
		t.Errorf("after the store was lost it is %+v", in)
	}
}

func TestDeviceThatVanishesEndsWhoHasIt(t *testing.T) {
	w := newWorld(t)
	w.offers(device("a.com/gpu", 0), device("b.com/x", 0))
	w.wants(of(0, 1, gpus(1)), of(1, 1))
	w.offers(device("b.com/x", 0))
	in := w.observed(0)
	if in.State != api.Failed || in.Reason != api.ReasonNoDevice || len(in.Devices) > 0 {
		t.Errorf("it is %+v", in)
	}
	told := slices.ContainsFunc(w.all, func(m any) bool {
		r, ok := m.(wire.NodeReport)
		return ok && slices.ContainsFunc(r.Observed, func(o api.Observed) bool {
			return o.Reason == api.ReasonNoDevice && strings.Contains(o.Detail, "the node lost a.com/gpu=0")
		})
	})
	if !told {
		t.Error("the cluster was not told which device is lost")
	}
	if w.observed(1).State != api.Running {
		t.Error("one that has no device was ended too")
	}
	w.offers(device("a.com/gpu", 0))
	w.pass(2 * time.Second)
	if in := w.observed(0); in.State != api.Running {
		t.Errorf("when the device is back it is %+v", in)
	}
}

func TestWhatCompletedUsesNoDevice(t *testing.T) {
	w := newWorld(t)
	w.offers(device("a.com/gpu", 0))
	w.wants(of(0, 1, gpus(1), oneShot), of(1, 1, gpus(1)))
	w.exit(of(0, 1).Instance, 0)
	w.pass(2 * time.Second)
	w.restart()
	w.pass(2 * time.Second)
	if in := w.observed(0); in.State != api.Completed || len(in.Devices) > 0 {
		t.Errorf("the first is %+v", in)
	}
	if in := w.observed(1); in.State != api.Running || len(in.Devices) != 1 {
		t.Errorf("the second is %+v", in)
	}
}

// TestWhatCompletedGetsNoDeviceWhileItIsRemoved: the runtime cannot remove a completed instance and
// lists it again (seed 7584).
func TestWhatCompletedGetsNoDeviceWhileItIsRemoved(t *testing.T) {
	w := newWorld(t)
	w.offers(device("nvidia.com/gpu", 0))
	w.wants(assignment(1, oneShot, gpus(1)))
	w.exit(web, 0)
	w.is(api.Completed)
	w.slow = true
	w.wants()
	if s := last[wire.StopWorkload](w); s.Instance != web {
		t.Fatal("its stop is not ordered")
	}
	w.fresh()
	if in := w.is(api.Completed); len(in.Devices) > 0 {
		t.Errorf("it has %v", in.Devices)
	}
}

func TestUpdateInPlaceGetsTheDeviceWhenTheOlderIsGone(t *testing.T) {
	w := newWorld(t)
	w.offers(device("a.com/gpu", 0))
	w.wants(of(0, 1, gpus(1)))
	w.wants(of(0, 2, gpus(1)))
	if in := w.observed(0); in.State != api.Running || in.Epoch != 2 || len(in.Devices) != 1 {
		t.Errorf("it is %+v", in)
	}
}

// TestChooseAgreesWithASimpleTwin compares choose with a search of all assignments.
func TestChooseAgreesWithASimpleTwin(t *testing.T) {
	kinds := []string{"a", "b", "c"}
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 3))
		var offered []api.NodeDevice
		taken := map[string]bool{}
		for i := range rng.IntN(5) {
			d := api.NodeDevice{ID: fmt.Sprintf("d%d", i)}
			for _, k := range kinds {
				if rng.IntN(2) == 0 {
					d.Kinds = append(d.Kinds, k)
				}
			}
			taken[d.ID] = rng.IntN(4) == 0
			offered = append(offered, d)
		}
		var needs []api.Device
		var units []string
		for _, k := range kinds {
			if n := rng.IntN(3); n > 0 {
				needs = append(needs, api.Device{Name: k, Count: n})
				units = append(units, slices.Repeat([]string{k}, n)...)
			}
		}
		var possible func(units []string, used map[string]bool) bool
		possible = func(units []string, used map[string]bool) bool {
			if len(units) == 0 {
				return true
			}
			for _, d := range offered {
				if !used[d.ID] && slices.Contains(d.Kinds, units[0]) {
					used[d.ID] = true
					ok := possible(units[1:], used)
					delete(used, d.ID)
					if ok {
						return true
					}
				}
			}
			return false
		}
		used := map[string]bool{}
		for id, is := range taken {
			if is {
				used[id] = true
			}
		}
		ids, lacks := chooseDevices(needs, offered, taken)
		if (lacks == "") != possible(units, used) {
			t.Fatalf("seed %d: %v of %v without %v: %v, %q", seed, needs, offered, taken, ids, lacks)
		}
		if lacks == "" && len(ids) != len(units) {
			t.Fatalf("seed %d: %v for %v", seed, ids, needs)
		}
		if again, _ := chooseDevices(needs, offered, taken); !slices.Equal(again, ids) {
			t.Fatalf("seed %d: %v, then %v", seed, ids, again)
		}
	}
}

func TestAnAbsurdNeedCostsNothing(t *testing.T) {
	if _, lacks := chooseDevices([]api.Device{{Name: "gpu", Count: 1 << 60}}, []api.NodeDevice{device("a.com/gpu", 0)}, nil); lacks == "" {
		t.Error("it was met")
	}
}

// TestADeviceIsNeverGivenTwice creates, updates and removes instances with devices at random, while
// devices disappear and return, the runtime is slow, and the engine crashes between any two saves or
// loses its store. Orders from before a crash are carried out or lost. checkDevices fails if two
// instances have the same device. In the end all devices that can be used are in use.
func TestADeviceIsNeverGivenTwice(t *testing.T) {
	all := []api.NodeDevice{device("a.com/gpu", 0), device("a.com/gpu", 1), device("b.com/gpu", 0), device("t.dev/w", 0)}
	needs := []func(*api.Microservice){
		gpus(1), gpus(2), func(*api.Microservice) {},
		func(m *api.Microservice) { m.Devices = []api.Device{{Name: "b.com/gpu", Count: 1}} },
		func(m *api.Microservice) { m.VGPUs, m.Devices = 1, []api.Device{{Name: "t.dev/w", Count: 1}} },
	}
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 7))
		w := newWorld(t)
		w.slow = true
		var orders []any
		// take removes the first order with the key of orders[i] and returns it; nil for a creation
		// with a later stop, which the driver does not carry out.
		take := func(i int) any {
			k := keyOf(orders[i])
			i = slices.IndexFunc(orders, func(o any) bool { return keyOf(o) == k })
			o := orders[i]
			orders = slices.Delete(orders, i, i+1)
			if _, creates := o.(wire.CreateWorkload); creates && slices.ContainsFunc(orders, func(later any) bool {
				_, stops := later.(wire.StopWorkload)
				return stops && keyOf(later) == k
			}) {
				return nil
			}
			return o
		}
		crash := func(eff step.Effects) {
			w.save(eff.Save[:rng.IntN(len(eff.Save)+1)])
			for len(orders) > 0 && rng.IntN(3) > 0 { // the runtime completes orders that it has begun
				w.carryOut(take(0))
			}
			orders = nil
			if rng.IntN(8) == 0 {
				w.loseStore()
			} else {
				w.restart()
			}
			orders = append(orders, ordersOf(w.last)...)
		}
		do := func(in Input) {
			if rng.IntN(12) == 0 {
				crash(w.c.Step(w.now, in))
				return
			}
			orders = append(orders, ordersOf(w.step(in))...)
		}
		carry := func(i int) {
			for _, e := range w.carryOut(take(i)) {
				do(Workload{e})
			}
		}
		set := map[api.InstanceID]wire.Assignment{}
		send := func() wire.Desired {
			w.gen++
			d := wire.Desired{Gen: w.gen}
			for _, id := range step.Keys(set) {
				d.Put = append(d.Put, set[id])
				d.Digest = d.Digest.Toggle(set[id].Digest())
			}
			return d
		}
		found := func() (out []wire.WorkloadEvent) {
			for _, id := range step.Keys(w.has) {
				out = append(out, w.has[id])
			}
			return out
		}
		e := api.Epoch(1)
		w.offers(all...)
		for range 200 {
			switch rng.IntN(10) {
			case 0, 1:
				e++
				a := of(rng.IntN(4), e, needs[rng.IntN(len(needs))], func(m *api.Microservice) { m.OneShot = rng.IntN(4) == 0 })
				if set[a.Instance] = a; rng.IntN(3) == 0 {
					delete(set, a.Instance)
				}
				do(Desired{send()})
			case 2:
				w.now = w.now.Add(time.Duration(rng.IntN(4000)) * time.Millisecond)
				do(Tick{})
			case 3:
				if ev, ok := w.exits(rng.IntN(2)); ok {
					do(Workload{ev})
				}
			case 4:
				w.info.Devices = nil
				for _, d := range all {
					if rng.IntN(4) > 0 {
						w.info.Devices = append(w.info.Devices, d)
					}
				}
				in := Info{Info: w.info}
				if rng.IntN(2) == 0 {
					in.Fresh, in.Found = true, found()
				}
				do(in)
			default:
				if len(orders) > 0 {
					carry(rng.IntN(len(orders)))
				}
			}
		}
		for len(orders) > 0 {
			carry(0)
		}
		w.slow = false
		w.info.Devices = all
		w.restart()
		w.step(Desired{send()})
		for range 60 {
			w.pass(2 * time.Second)
			w.lease()
		}
		taken := map[string]bool{}
		for _, ev := range w.has {
			if endedForGood(ev) {
				continue
			}
			for _, d := range ev.Devices {
				if taken[d] {
					t.Fatalf("seed %d: %s is given twice: %v", seed, d, w.has)
				}
				taken[d] = true
			}
		}
		for _, in := range w.c.Instances() {
			if in.State == api.Running || in.State == api.Completed {
				continue
			}
			a, ok := set[in.ID]
			if _, lacks := chooseDevices(a.Spec.NeedsDevices(), all, taken); !ok || lacks == "" || in.Reason != api.ReasonNoDevice {
				t.Fatalf("seed %d: %+v, wanted %v, taken %v", seed, in, ok, taken)
			}
		}
		w.checkBooks()
	}
}

func keyOf(order any) wire.Key {
	switch o := order.(type) {
	case wire.CreateWorkload:
		return o.Key
	case wire.StartWorkload:
		return o.Key
	case wire.StopWorkload:
		return o.Key
	case wire.DetachWorkload:
		return o.Key
	case wire.GuardWorkload:
		return o.Key
	case wire.UpdateFiles:
		return o.Key
	}
	return wire.Key{}
}
