package node

import (
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// world drives one core with a store in memory, and a runtime that carries out each order at once
// unless it is slow.
type world struct {
	t    testing.TB
	cfg  Config
	c    *Core
	now  time.Time
	disk map[string]store.Doc
	has  map[api.InstanceID]wire.WorkloadEvent // what the runtime has
	gen  api.Generation
	last step.Effects
	slow bool // the test carries out the orders
	// holdsFetches means that the test answers FetchWorkload.
	holdsFetches bool
	info         api.NodeInfo
	all          []any
}

func newWorld(t testing.TB) *world {
	w := &world{
		t: t, cfg: Config{ID: "n7"}, now: epoch, disk: map[string]store.Doc{},
		has: map[api.InstanceID]wire.WorkloadEvent{},
	}
	w.c = New(w.cfg)
	w.step(Start{})
	w.step(Link{Up: true})
	return w
}

func (w *world) step(in Input) step.Effects {
	w.t.Helper()
	eff := w.c.Step(w.now, in)
	w.save(eff.Save)
	w.last = eff
	for _, e := range eff.Send {
		w.all = append(w.all, e.Msg)
	}
	if !w.slow {
		for _, e := range eff.Send {
			if e.To == wire.ToRuntime {
				for _, ev := range w.carryOut(e.Msg) {
					w.step(Workload{ev})
				}
			}
		}
	}
	return eff
}

func (w *world) save(docs []store.Doc) {
	w.t.Helper()
	if err := store.Validate(docs); err != nil {
		w.t.Fatal(err)
	}
	for i, d := range docs {
		k := d.Kind + "\x00" + d.Key
		switch store.Decide(w.disk[k], docs[i:]) {
		case store.Refuse:
			w.t.Fatalf("the store refuses %s %s version %d over %d", d.Kind, d.Key, d.Version, w.disk[k].Version)
		case store.Write:
			if w.disk[k] = d; d.Data == nil {
				delete(w.disk, k)
			}
		}
	}
}

// carryOut carries out an order as the runtime would, and returns the events.
func (w *world) carryOut(order any) []wire.WorkloadEvent {
	switch o := order.(type) {
	case wire.FetchWorkload:
		if w.holdsFetches {
			return nil
		}
		return []wire.WorkloadEvent{{Key: o.Key, Phase: wire.WorkloadFetched}}
	case wire.CreateWorkload:
		if old, ok := w.has[o.Instance]; ok && old.Epoch != o.Epoch {
			w.t.Fatalf("%s is created while %s is there", o.Key, old.Key)
		}
		s := o.Spec
		e := wire.WorkloadEvent{Key: o.Key, Attempt: o.Attempt, Phase: wire.WorkloadCreated, Spec: &s, Devices: o.Devices}
		if old, ok := w.has[o.Instance]; ok && old.Attempt == o.Attempt && slices.Equal(old.Devices, o.Devices) {
			return []wire.WorkloadEvent{e} // it is unchanged
		}
		w.checkDevices(o)
		w.has[o.Instance] = e
		return []wire.WorkloadEvent{e}
	case wire.StartWorkload:
		e := w.has[o.Instance]
		if e.Phase == wire.WorkloadExited {
			e.Phase, e.Attempt = wire.WorkloadRunning, o.Attempt
			return []wire.WorkloadEvent{e} // it was started and has exited
		}
		e.Phase, e.Attempt = wire.WorkloadRunning, o.Attempt
		w.has[o.Instance] = e
		return []wire.WorkloadEvent{e}
	case wire.KillWorkload:
		e := w.has[o.Instance]
		e.Phase, e.ExitCode = wire.WorkloadExited, 143
		w.has[o.Instance] = e
		return []wire.WorkloadEvent{e}
	case wire.StopWorkload:
		if w.has[o.Instance].Epoch == o.Epoch {
			delete(w.has, o.Instance)
		}
		return []wire.WorkloadEvent{{Key: o.Key, Phase: wire.WorkloadGone}}
	}
	return nil
}

// exit ends a workload.
func (w *world) exit(id api.InstanceID, code int) {
	e := w.has[id]
	e.Phase, e.ExitCode = wire.WorkloadExited, code
	w.has[id] = e
	w.step(Workload{e})
}

// pass lets time pass, with a Tick at each Wake.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	end := w.now.Add(d)
	for {
		wake := w.last.Wake
		if wake.IsZero() || wake.After(end) {
			break
		}
		if wake.After(w.now) {
			w.now = wake
		}
		w.step(Tick{})
	}
	w.now = end
}

// lease answers the newest heartbeat.
func (w *world) lease() { w.step(Lease{w.newestLease()}) }

func (w *world) newestLease() wire.Lease {
	a := last[wire.Alive](w)
	return wire.Lease{Boot: a.Boot, Seq: a.Seq, Gen: a.Gen}
}

// last returns the newest message of a type that the core sent.
func last[T any](w *world) (m T) {
	for _, x := range w.all {
		if v, ok := x.(T); ok {
			m = v
		}
	}
	return m
}

func count[T any](w *world) (n int) {
	for _, x := range w.all {
		if _, ok := x.(T); ok {
			n++
		}
	}
	return n
}

// wants sends the whole desired set.
func (w *world) wants(as ...wire.Assignment) {
	w.gen++
	d := wire.Desired{Gen: w.gen, Put: as}
	for _, a := range as {
		d.Digest = d.Digest.Toggle(a.Digest())
	}
	w.step(Desired{d})
}

// restart starts another core with the stored documents and the workloads of the runtime.
func (w *world) restart() {
	w.t.Helper()
	w.c = New(w.cfg)
	var docs []store.Doc
	for _, d := range w.disk {
		docs = append(docs, d)
	}
	if err := w.c.Restore(docs); err != nil {
		w.t.Fatal(err)
	}
	w.start()
}

func (w *world) start() {
	var found []wire.WorkloadEvent
	for _, id := range step.Keys(w.has) {
		found = append(found, w.has[id])
	}
	w.step(Start{Info: w.info, Found: found})
	w.step(Link{Up: true})
}

// loseStore starts another core with an empty store.
func (w *world) loseStore() {
	clear(w.disk)
	w.restart()
}

const web = api.InstanceID("acme/shop.prod.web.prod#0")

func assignment(e api.Epoch, change ...func(*api.Microservice)) wire.Assignment {
	m := api.Microservice{Name: "web", Namespace: "prod", Virtualization: "container", VCPUs: 1, Memory: 64}
	for _, f := range change {
		f(&m)
	}
	return wire.Assignment{Instance: web, Epoch: e, SpecRev: 1, Spec: m}
}

func exclusive(m *api.Microservice) { m.Exclusive = true }
func oneShot(m *api.Microservice)   { m.OneShot = true }

func (w *world) is(s api.State) api.Instance {
	w.t.Helper()
	for _, in := range w.c.Instances() {
		if in.ID == web {
			if in.State != s {
				w.t.Fatalf("it is %s (%s: %s), want %s", in.State, in.Reason, in.Detail, s)
			}
			return in
		}
	}
	w.t.Fatalf("it is not here, want %s", s)
	return api.Instance{}
}

func (w *world) isGone() {
	w.t.Helper()
	if all := w.c.Instances(); len(all) > 0 || len(w.has) > 0 {
		w.t.Fatalf("still here: %+v, the runtime has %v", all, w.has)
	}
}
