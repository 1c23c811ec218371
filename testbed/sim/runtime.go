package sim

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay"
)

// FakeRuntime replaces containerd on one machine. Its workloads outlive the node engine. It
// has delays and failures like a registry or a runtime, and a guard that kills workloads
// without the engine. The name of an image determines the behaviour of its workloads: "ok",
// "once", "crash", "flaky", "missing", "deaf" (ignores SIGTERM).
type FakeRuntime struct {
	w       *World
	machine *NodeMachine
	have    map[api.InstanceID][]*workload
	queue   map[wire.Key][]func() // orders for one key do not overlap
	down    bool
	era     int // counts starts of the node engine: orders of earlier ones are not finished
}

// workload is the runtime's state of one key.
type workload struct {
	wire.Key
	attempt int
	spec    api.Microservice

	addresses api.ServiceAddresses
	devices   []string
	phase     wire.WorkloadPhase
	exit      int
	run       int    // counts starts and ends, so that a planned exit belongs to one process
	guard     uint64 // counts guards
	due       bool   // the guard's deadline passed while there was no process to kill
	hidden    bool   // its end is hidden; see PlantHiddenStop
	begun     moment // when its process started
}

func newRuntime(m *NodeMachine) *FakeRuntime {
	return &FakeRuntime{w: m.w, machine: m, have: map[api.InstanceID][]*workload{}, queue: map[wire.Key][]func(){}}
}

func (r *FakeRuntime) find(k wire.Key) *workload {
	for _, v := range r.have[k.Instance] {
		if v.Epoch == k.Epoch {
			return v
		}
	}
	return nil
}

// Fetch fetches an image.
func (r *FakeRuntime) Fetch(o wire.FetchWorkload) { r.enqueue(o.Key, func() { r.fetch(o) }) }

func (r *FakeRuntime) fetch(o wire.FetchWorkload) {
	e := wire.WorkloadEvent{Key: o.Key, Phase: wire.WorkloadFetched}
	if r.down {
		e.Reason, e.Detail = api.ReasonRuntimeDown, runtimeDownDetail
		r.finish(o.Key, e)
		return
	}
	era := r.era
	r.w.after(r.w.runtimeDelay(), func() {
		if r.era != era {
			return
		}
		switch {
		case r.down:
			e.Reason, e.Detail = api.ReasonRuntimeDown, runtimeDownDetail
		case strings.HasSuffix(o.Spec.Code, ":missing") && r.w.sick():
			e.Reason, e.Detail = api.ReasonImageNotFound, "no such image "+o.Spec.Code
		case r.w.registryDown:
			e.Reason, e.Detail = api.ReasonRegistryDown, "the registry cannot be reached"
		}
		r.finish(o.Key, e)
	})
}

// Create implements wire.WorkloadOrderHandler, as do the methods below. Orders of one
// placement are carried out in turn, but guards at once: they do not depend on the runtime.
func (r *FakeRuntime) Create(o wire.CreateWorkload) { r.enqueue(o.Key, func() { r.create(o) }) }

// Start starts a workload.
func (r *FakeRuntime) Start(o wire.StartWorkload) { r.enqueue(o.Key, func() { r.startWorkload(o) }) }

// Stop stops a workload.
func (r *FakeRuntime) Stop(o wire.StopWorkload) { r.enqueue(o.Key, func() { r.stop(o) }) }

// Update does nothing: no service of the simulator has files.
func (r *FakeRuntime) Update(wire.UpdateFiles) {}

// Kill ends the processes of a workload.
func (r *FakeRuntime) Kill(o wire.KillWorkload) { r.enqueue(o.Key, func() { r.kill(o) }) }

// SetReady sets whether a workload gets flows.
func (r *FakeRuntime) SetReady(o wire.ReadyWorkload) {
	if n := r.machine.net; n != nil && !n.proc.give(overlay.SetReady{Key: o.Key, Ready: o.Ready}).taken {
		era := r.era
		r.w.after(time.Second, func() {
			if r.era == era {
				r.recheck() // the core finds the difference
			}
		})
	}
}

// Detach takes a workload off the network.
func (r *FakeRuntime) Detach(o wire.DetachWorkload) {
	if n := r.machine.net; n != nil {
		n.detach(o.Key)
	}
}

// Guard sets or lifts the deadline of a workload.
func (r *FakeRuntime) Guard(o wire.GuardWorkload) { r.guard(o) }

func (r *FakeRuntime) enqueue(k wire.Key, do func()) {
	q, busy := r.queue[k]
	r.queue[k] = append(q, do)
	if !busy {
		do()
	}
}

// finish answers an order and starts the next one of its key.
func (r *FakeRuntime) finish(k wire.Key, e wire.WorkloadEvent) {
	if len(r.queue[k]) == 0 {
		return // the engine ended meanwhile, for example while the workload was attached
	}
	r.tell(e)
	r.next(k)
}

// next starts the next order of a key.
func (r *FakeRuntime) next(k wire.Key) {
	rest := r.queue[k][1:]
	if len(rest) == 0 {
		delete(r.queue, k)
		return
	}
	r.queue[k] = rest
	rest[0]()
}

// tell reports to the engine, a moment later.
func (r *FakeRuntime) tell(e wire.WorkloadEvent) {
	era := r.era
	r.w.said(r.machine.name+"/runtime", r.machine.name, "", e)
	r.w.after(time.Millisecond, func() {
		if r.era == era {
			r.machine.happened(e)
		}
	})
}

func (r *FakeRuntime) fail(k wire.Key, attempt int, reason api.Reason, detail string) {
	r.finish(k, wire.WorkloadEvent{Key: k, Attempt: attempt, Phase: wire.WorkloadFailed, Reason: reason, Detail: detail})
}

const runtimeDownDetail = "the runtime does not answer"

// within calls done after a while, unless the engine or the runtime ends first.
func (r *FakeRuntime) within(d time.Duration, k wire.Key, attempt int, done func()) {
	era := r.era
	r.w.after(d, func() {
		switch {
		case r.era != era:
		case r.down:
			r.fail(k, attempt, api.ReasonRuntimeDown, runtimeDownDetail)
		default:
			done()
		}
	})
}

func (r *FakeRuntime) create(o wire.CreateWorkload) {
	if r.down {
		r.fail(o.Key, o.Attempt, api.ReasonRuntimeDown, runtimeDownDetail)
		return
	}
	r.w.checkImage(r.machine, o)
	r.within(r.w.runtimeDelay(), o.Key, o.Attempt, func() {
		switch {
		case strings.HasSuffix(o.Spec.Code, ":missing") && r.w.sick():
			r.fail(o.Key, o.Attempt, api.ReasonImageNotFound, "no such image "+o.Spec.Code)
			return
		case r.w.registryDown:
			r.fail(o.Key, o.Attempt, api.ReasonRegistryDown, "the registry cannot be reached")
			return
		case r.machine.refuses(o.Instance, o.Epoch, o.Spec):
			r.fail(o.Key, o.Attempt, api.ReasonVolume, "its volume has moved to another node")
			return
		}
		v := r.find(o.Key)
		switch {
		case v == nil:
			v = &workload{Key: o.Key}
			r.have[o.Instance] = append(r.have[o.Instance], v)
		case v.attempt == o.Attempt && slices.Equal(v.devices, o.Devices):
			r.finish(o.Key, wire.WorkloadEvent{Key: v.Key, Attempt: v.attempt, Phase: v.phase, ExitCode: v.exit})
			return
		case v.phase == wire.WorkloadRunning:
			r.fail(o.Key, o.Attempt, api.ReasonStartFailed, "an earlier attempt runs")
			r.recheck()
			return
		}
		if r.w.opts.Plant == PlantOneDevice {
			o.Devices = firstOnes(o.Devices)
		}
		v.attempt, v.spec, v.phase, v.addresses, v.devices = o.Attempt, o.Spec, wire.WorkloadCreated, o.Addresses, o.Devices
		v.hidden = false
		r.w.checkCapacity(r.machine)
		r.w.checkDevices(r.machine, v)
		r.finish(o.Key, wire.WorkloadEvent{Key: o.Key, Attempt: o.Attempt, Phase: wire.WorkloadCreated})
	})
}

func (r *FakeRuntime) startWorkload(o wire.StartWorkload) {
	if r.down {
		r.fail(o.Key, o.Attempt, api.ReasonRuntimeDown, runtimeDownDetail)
		return
	}
	r.within(r.w.runtimeDelay()/4, o.Key, o.Attempt, func() {
		v := r.find(o.Key)
		switch {
		case v == nil || v.attempt != o.Attempt:
			r.fail(o.Key, o.Attempt, api.ReasonStartFailed, "there is no such workload")
			return
		}
		e := wire.WorkloadEvent{Key: o.Key, Attempt: o.Attempt, Phase: wire.WorkloadRunning}
		if n := r.machine.net; n != nil {
			at, err := n.attach(v)
			switch {
			case errors.Is(err, api.ErrFull):
				r.fail(o.Key, o.Attempt, api.ReasonNetworkFull, err.Error())
				return
			case err != nil:
				r.fail(o.Key, o.Attempt, api.ReasonNetworkDown, err.Error())
				return
			}
			e.Address, e.Ready = at.Address, at.Ready
		}
		if v.phase == wire.WorkloadCreated {
			r.machine.useVolumes(v)
			r.begin(v)
		}
		r.finish(o.Key, e)
	})
}

// begin starts the workload's process. Its image determines when it exits.
func (r *FakeRuntime) begin(v *workload) {
	v.phase, v.begun = wire.WorkloadRunning, r.w.now
	v.run++
	r.w.began(r.machine, v)
	if v.due {
		r.w.after(guardLooks, func() { r.killDue(v) })
	}
	life, code, ends := time.Duration(0), 0, false
	switch kind := v.spec.Code[strings.LastIndexByte(v.spec.Code, ':')+1:]; {
	case v.spec.OneShot:
		life, code, ends = r.w.between(time.Second, 10*time.Second), 0, true
		if kind == "crash" || kind == "flaky" && r.w.sick() && r.w.chance.IntN(2) == 0 {
			code = 1
		}
	case kind == "crash" && r.w.sick():
		life, code, ends = r.w.between(100*time.Millisecond, 3*time.Second), 2, true
	case kind == "flaky" && r.w.sick():
		life, code, ends = r.w.between(5*time.Second, 60*time.Second), 137, true
	}
	if !ends {
		return
	}
	run := v.run
	r.w.after(life, func() {
		if v.run == run && v.phase == wire.WorkloadRunning && (v.spec.OneShot || r.w.sick()) {
			r.exit(v, code)
		}
	})
}

// exit ends the process and reports it.
func (r *FakeRuntime) exit(v *workload, code int) {
	r.machine.write(v)
	v.phase, v.exit = wire.WorkloadExited, code
	v.run++
	r.w.ended(r.machine, v)
	if !r.down {
		r.tell(wire.WorkloadEvent{Key: v.Key, Attempt: v.attempt, Phase: wire.WorkloadExited, ExitCode: code})
	}
}

// stop sends SIGTERM, after the grace period SIGKILL, and removes the workload. If the engine
// or the runtime ends in between, the rest does not happen.
func (r *FakeRuntime) stop(o wire.StopWorkload) {
	if r.down {
		r.fail(o.Key, 0, api.ReasonRuntimeDown, runtimeDownDetail)
		return
	}
	v := r.find(o.Key)
	if v == nil {
		r.within(time.Millisecond, o.Key, 0, func() {
			r.finish(o.Key, wire.WorkloadEvent{Key: o.Key, Phase: wire.WorkloadGone})
		})
		return
	}
	remove := func() {
		r.within(r.w.between(time.Millisecond, 20*time.Millisecond), o.Key, v.attempt, func() {
			r.remove(v)
			r.finish(o.Key, wire.WorkloadEvent{Key: v.Key, Attempt: v.attempt, Phase: wire.WorkloadGone})
		})
	}
	if v.phase != wire.WorkloadRunning {
		remove()
		return
	}
	run := v.run
	kill := func() {
		r.within(r.w.killDelay(), o.Key, v.attempt, func() {
			if v.run == run {
				r.exit(v, 137)
			}
			remove()
		})
	}
	if o.Grace <= 0 {
		kill()
		return
	}
	if hears := !strings.HasSuffix(v.spec.Code, ":deaf"); hears {
		if took := r.w.termDelay(); took < o.Grace {
			// The signal is sent: the process ends even if the engine is gone.
			r.w.after(took, func() {
				if v.run == run {
					r.exit(v, 143)
				}
			})
			r.within(took+time.Millisecond, o.Key, v.attempt, remove)
			return
		}
	}
	r.within(o.Grace, o.Key, v.attempt, kill)
}

// kill sends SIGTERM and, after the grace period, SIGKILL, like stop, and removes nothing.
func (r *FakeRuntime) kill(o wire.KillWorkload) {
	v := r.find(o.Key)
	switch {
	case r.down:
		r.fail(o.Key, o.Attempt, api.ReasonRuntimeDown, runtimeDownDetail)
		return
	case v == nil || v.phase != wire.WorkloadRunning:
		r.next(o.Key)
		return
	}
	run, took, code := v.run, r.w.termDelay(), 143
	if strings.HasSuffix(v.spec.Code, ":deaf") || took >= o.Grace {
		took, code = o.Grace, 137
	}
	r.within(took, o.Key, v.attempt, func() {
		if v.run == run {
			r.exit(v, code)
		}
		r.next(o.Key)
	})
}

func (r *FakeRuntime) remove(v *workload) {
	if n := r.machine.net; n != nil {
		defer n.detach(v.Key)
	}
	rest := slices.DeleteFunc(r.have[v.Instance], func(x *workload) bool { return x == v })
	if len(rest) == 0 {
		delete(r.have, v.Instance)
		return
	}
	r.have[v.Instance] = rest
}

// onNetwork returns the workload's attachment, if any.
func (r *FakeRuntime) onNetwork(k wire.Key) (at wire.Attached) {
	if n := r.machine.net; n != nil && n.proc.alive {
		at, _ = n.core.View().Attached(k)
	}
	return at
}

// guard kills the workload at a time of the machine's clock, even without the engine, and
// repeats this for a process that was being started then.
func (r *FakeRuntime) guard(o wire.GuardWorkload) {
	v := r.find(o.Key)
	if v == nil {
		return
	}
	v.lift()
	if o.Until.IsZero() {
		return
	}
	guard := v.guard
	r.w.at(max(r.w.now, r.machine.clock.when(o.Until)), func() {
		if v.guard == guard {
			v.due = true
			r.killDue(v)
		}
	})
}

// guardLooks is the interval at which the guard repeats a kill.
const guardLooks = 100 * time.Millisecond

func (r *FakeRuntime) killDue(v *workload) {
	if !v.due || v.phase != wire.WorkloadRunning {
		return
	}
	v.due = false
	run := v.run
	r.w.note(r.machine.name, "the guard kills %s", key(v.Key))
	if r.w.opts.Only == OnlyRestarts && r.machine.keeps(v.Key) {
		r.w.violate("lease-kept", string(v.Instance), "the guard of %s kills %s", r.machine.name, v.Epoch)
	}
	r.w.after(r.w.killDelay(), func() {
		if v.run == run {
			r.exit(v, 137)
		}
	})
}

// lift removes the guard.
func (v *workload) lift() {
	v.guard++
	v.due = false
}

// engineEnds interrupts the engine's orders.
func (r *FakeRuntime) engineEnds() {
	r.era++
	clear(r.queue)
}

// machineEnds kills every workload. Some runtimes still list them afterwards.
func (r *FakeRuntime) machineEnds(forgets bool) {
	r.engineEnds()
	r.down = false
	for _, v := range r.all() {
		r.lose(v, forgets)
	}
}

// found lists the workloads of the runtime, as the node engine requests at its start.
func (r *FakeRuntime) found() []wire.WorkloadEvent {
	if r.down {
		return nil // it does not answer
	}
	var out []wire.WorkloadEvent
	for _, v := range r.all() {
		spec, at, phase := v.spec, r.onNetwork(v.Key), v.phase
		if v.hidden {
			phase = wire.WorkloadRunning
		}
		out = append(out, wire.WorkloadEvent{
			Key: v.Key, Attempt: v.attempt, Phase: phase, ExitCode: v.exit, Spec: &spec, Devices: v.devices, Address: at.Address, Ready: at.Ready,
		})
	}
	return out
}

func (r *FakeRuntime) all() []*workload {
	var out []*workload
	for _, vs := range r.have {
		out = append(out, vs...)
	}
	slices.SortFunc(out, func(a, b *workload) int {
		if a.Instance != b.Instance {
			return strings.Compare(string(a.Instance), string(b.Instance))
		}
		return int(int64(a.Epoch) - int64(b.Epoch))
	})
	return out
}
