package sim

import (
	"hash/fnv"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/node"
	"github.com/treeline-edge/treeline/node-engine/node/health"
)

// fakeChecks carries out health checks on one machine, with the machines of the node engine. It ends
// with the engine.
type fakeChecks struct {
	m       *NodeMachine
	targets map[wire.Key]*fakeTarget
}

type fakeTarget struct {
	node.Check
	machine *health.Machine
}

func newChecks(m *NodeMachine) *fakeChecks {
	return &fakeChecks{m: m, targets: map[wire.Key]*fakeTarget{}}
}

func (f *fakeChecks) engineEnds() { clear(f.targets) }

func (f *fakeChecks) uncheck(k wire.Key) { delete(f.targets, k) }

func (f *fakeChecks) check(o node.Check) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(o.Key.String()))
	t := &fakeTarget{o, health.New(o.Health, f.now(), h.Sum64(), o.Known)}
	f.targets[o.Key] = t
	f.plan(t)
}

func (f *fakeChecks) now() time.Time { return f.m.clock.at(f.m.w.now) }

// plan carries out the checks of a target when they are due.
func (f *fakeChecks) plan(t *fakeTarget) {
	next := t.machine.Next()
	if next.IsZero() {
		return
	}
	w := f.m.w
	w.at(max(w.now, f.m.clock.when(next)), func() {
		if f.targets[t.Key] != t {
			return
		}
		for kind, ok := t.machine.Due(f.now()); ok; kind, ok = t.machine.Due(f.now()) {
			w.after(time.Millisecond, func() {
				if f.targets[t.Key] != t {
					return
				}
				if v, changed := t.machine.Result(f.now(), kind, w.checked(f.m.runtime.find(t.Key), kind)); changed {
					f.deliver(t, v)
				}
				f.plan(t)
			})
		}
		f.plan(t)
	})
}

// deliver repeats a verdict until the engine has it or a newer one.
func (f *fakeChecks) deliver(t *fakeTarget, v health.Verdict) {
	if f.targets[t.Key] != t || t.machine.Verdict() != v {
		return
	}
	if a := f.m.proc.give(node.Health{Key: t.Key, Attempt: t.Attempt, Verdict: v}); !a.taken {
		f.m.w.after(time.Second, func() { f.deliver(t, v) })
	}
}

// startTime is how long a workload of the image "slow" fails its checks.
const startTime = 20 * time.Second

// checked returns the result of a check of a workload.
func (w *World) checked(v *workload, kind api.CheckKind) health.Result {
	failed := health.Result{Text: "status 503"}
	switch {
	case v == nil || v.phase != wire.WorkloadRunning:
		return health.Result{Unknown: true}
	case w.ill[v.Instance] == "dead", w.ill[v.Instance] == "unready" && kind != api.CheckLiveness:
		return failed
	case strings.HasSuffix(v.spec.Code, ":slow") && w.now-v.begun < startTime:
		return health.Result{Text: "connection refused"}
	case w.opts.Health && !w.chaos.ended && w.chance.IntN(4) == 0:
		return failed
	}
	return health.Result{Passed: true}
}

// checks adds health checks to some services, without changing the run otherwise.
func (o Options) checks(m api.Microservice) api.Microservice {
	if !o.Health || m.OneShot {
		return m
	}
	c := &api.Check{TCP: &api.TCPCheck{Port: 80}, Interval: 2, Failures: 2}
	all := []*api.Health{nil, {Readiness: c}, {Startup: c, Liveness: c}, {Startup: c, Readiness: c, Liveness: c}, {Liveness: c}}
	m.Health = all[len(m.Code)%len(all)]
	return m
}
