package sim

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// FakeRuntime stands in for containerd on one machine. It keeps workloads
// apart from the node engine's life, takes its time, fails as a registry or a
// runtime does, and lets a guard kill what the engine no longer watches over.
// What its workloads do is written in their image's name: "ok", "once", "crash",
// "flaky", "missing", "deaf" (does not hear SIGTERM).
type FakeRuntime struct {
	w       *World
	machine *NodeMachine
	have    map[api.InstanceID][]*workload
	queue   map[api.Key][]func() // orders for one key do not overlap
	down    bool
	era     int // counts the node engine's lives: orders of an earlier one are not finished
}

// workload is what the runtime has of one key.
type workload struct {
	api.Key
	attempt int
	spec    api.Microservice

	addresses api.ServiceAddresses
	devices   []string
	phase     api.WorkloadPhase
	exit      int
	run       int    // counts starts and ends, so that a planned exit knows its process
	guard     uint64 // counts guards
	due       bool   // the guard's deadline has passed, and it found nothing to kill
	hidden    bool   // that it ended; see PlantHiddenStop
}

func newRuntime(m *NodeMachine) *FakeRuntime {
	return &FakeRuntime{w: m.w, machine: m, have: map[api.InstanceID][]*workload{}, queue: map[api.Key][]func(){}}
}

func (r *FakeRuntime) find(k api.Key) *workload {
	for _, v := range r.have[k.Instance] {
		if v.Epoch == k.Epoch {
			return v
		}
	}
	return nil
}

// order takes an order of the node engine. Guards go round the queue: they are
// for something that lives beside the runtime.
func (r *FakeRuntime) order(msg any) {
	switch o := msg.(type) {
	case api.CreateWorkload:
		r.enqueue(o.Key, func() { r.create(o) })
	case api.StartWorkload:
		r.enqueue(o.Key, func() { r.startWorkload(o) })
	case api.StopWorkload:
		r.enqueue(o.Key, func() { r.stop(o) })
	case api.DetachWorkload:
		if n := r.machine.net; n != nil {
			n.detach(o.Key)
		}
	case api.GuardWorkload:
		r.guard(o)
	default:
		r.w.violate("wire", r.machine.name, "the runtime got a %T", msg)
	}
}

func (r *FakeRuntime) enqueue(k api.Key, do func()) {
	q, busy := r.queue[k]
	r.queue[k] = append(q, do)
	if !busy {
		do()
	}
}

// finish answers an order and begins the next of its key.
func (r *FakeRuntime) finish(k api.Key, e api.WorkloadEvent) {
	r.tell(e)
	rest := r.queue[k][1:]
	if len(rest) == 0 {
		delete(r.queue, k)
		return
	}
	r.queue[k] = rest
	rest[0]()
}

// tell lets the engine know, a moment later.
func (r *FakeRuntime) tell(e api.WorkloadEvent) {
	era := r.era
	r.w.said(r.machine.name+"/runtime", r.machine.name, "", e)
	r.w.after(time.Millisecond, func() {
		if r.era == era {
			r.machine.happened(e)
		}
	})
}

func (r *FakeRuntime) fail(k api.Key, attempt int, reason api.Reason, detail string) {
	r.finish(k, api.WorkloadEvent{Key: k, Attempt: attempt, Phase: api.WorkloadFailed, Reason: reason, Detail: detail})
}

const runtimeDownDetail = "the runtime does not answer"

// within runs done after a while, unless the engine or the runtime end first.
func (r *FakeRuntime) within(d time.Duration, k api.Key, attempt int, done func()) {
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

func (r *FakeRuntime) create(o api.CreateWorkload) {
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
		}
		v := r.find(o.Key)
		switch {
		case v == nil:
			v = &workload{Key: o.Key}
			r.have[o.Instance] = append(r.have[o.Instance], v)
		case v.attempt == o.Attempt && slices.Equal(v.devices, o.Devices):
			r.finish(o.Key, api.WorkloadEvent{Key: v.Key, Attempt: v.attempt, Phase: v.phase, ExitCode: v.exit})
			return
		case v.phase == api.WorkloadRunning:
			r.fail(o.Key, o.Attempt, api.ReasonStartFailed, "an earlier attempt runs")
			r.recheck()
			return
		}
		if r.w.opts.Plant == PlantOneDevice {
			o.Devices = firstOnes(o.Devices)
		}
		v.attempt, v.spec, v.phase, v.addresses, v.devices = o.Attempt, o.Spec, api.WorkloadCreated, o.Addresses, o.Devices
		v.hidden = false
		r.w.checkCapacity(r.machine)
		r.w.checkDevices(r.machine, v)
		r.finish(o.Key, api.WorkloadEvent{Key: o.Key, Attempt: o.Attempt, Phase: api.WorkloadCreated})
	})
}

func (r *FakeRuntime) startWorkload(o api.StartWorkload) {
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
		e := api.WorkloadEvent{Key: o.Key, Attempt: o.Attempt, Phase: api.WorkloadRunning}
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
		if v.phase == api.WorkloadCreated {
			r.begin(v)
		}
		r.finish(o.Key, e)
	})
}

// begin starts the workload's process and lets its image say how long it lasts.
func (r *FakeRuntime) begin(v *workload) {
	v.phase = api.WorkloadRunning
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
		if v.run == run && v.phase == api.WorkloadRunning && (v.spec.OneShot || r.w.sick()) {
			r.exit(v, code)
		}
	})
}

// exit ends the process; whoever watches is told.
func (r *FakeRuntime) exit(v *workload, code int) {
	v.phase, v.exit = api.WorkloadExited, code
	v.run++
	r.w.ended(r.machine, v)
	if !r.down {
		r.tell(api.WorkloadEvent{Key: v.Key, Attempt: v.attempt, Phase: api.WorkloadExited, ExitCode: code})
	}
}

// stop sends SIGTERM, after the grace SIGKILL, and removes what is left. When
// the engine or the runtime ends meanwhile the rest of it does not happen.
func (r *FakeRuntime) stop(o api.StopWorkload) {
	if r.down {
		r.fail(o.Key, 0, api.ReasonRuntimeDown, runtimeDownDetail)
		return
	}
	v := r.find(o.Key)
	if v == nil {
		r.within(time.Millisecond, o.Key, 0, func() {
			r.finish(o.Key, api.WorkloadEvent{Key: o.Key, Phase: api.WorkloadGone})
		})
		return
	}
	remove := func() {
		r.within(r.w.between(time.Millisecond, 20*time.Millisecond), o.Key, v.attempt, func() {
			r.remove(v)
			r.finish(o.Key, api.WorkloadEvent{Key: v.Key, Attempt: v.attempt, Phase: api.WorkloadGone})
		})
	}
	if v.phase != api.WorkloadRunning {
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
			// The signal is sent; the process ends by itself, whoever watches.
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

// onNetwork is what the workload has of the network, if anything.
func (r *FakeRuntime) onNetwork(k api.Key) (at api.Attached) {
	if n := r.machine.net; n != nil && n.proc.alive {
		at, _ = n.core.Attached(k)
	}
	return at
}

// guard kills at a moment of the machine's own clock, engine or no engine, and
// goes on looking for what was being started then.
func (r *FakeRuntime) guard(o api.GuardWorkload) {
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

// guardLooks is how often the guard looks for what is due.
const guardLooks = 100 * time.Millisecond

func (r *FakeRuntime) killDue(v *workload) {
	if !v.due || v.phase != api.WorkloadRunning {
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

// lift forgets the guard.
func (v *workload) lift() {
	v.guard++
	v.due = false
}

// engineEnds leaves what the engine had under way half done.
func (r *FakeRuntime) engineEnds() {
	r.era++
	clear(r.queue)
}

// machineEnds kills every workload. Some machines still know of them afterwards.
func (r *FakeRuntime) machineEnds(forgets bool) {
	r.engineEnds()
	r.down = false
	for _, v := range r.all() {
		r.lose(v, forgets)
	}
}

// found lists what the runtime has, as the node engine asks at its start.
func (r *FakeRuntime) found() []api.WorkloadEvent {
	if r.down {
		return nil // it does not answer
	}
	var out []api.WorkloadEvent
	for _, v := range r.all() {
		spec, at, phase := v.spec, r.onNetwork(v.Key), v.phase
		if v.hidden {
			phase = api.WorkloadRunning
		}
		out = append(out, api.WorkloadEvent{
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
