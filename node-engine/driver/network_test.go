package driver

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/node"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// spaced is a fakeRuntime whose workloads have network namespaces.
type spaced struct{ *fakeRuntime }

func (f spaced) Namespace(_ context.Context, k wire.Key) (string, runtime.Workload, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, ok := f.have[k]
	if !ok {
		return "", runtime.Workload{}, api.ErrNotFound
	}
	w := runtime.Workload{Key: k, Attempt: s.Attempt, Spec: s.Spec, ImageHealth: s.ImageHealth}
	if s.Phase == wire.WorkloadExited {
		return "", w, nil
	}
	return "/ns/" + string(k.Instance), w, nil
}

// fakeNetwork has attachments in memory. It records its calls with those of the runtime.
type fakeNetwork struct {
	rt *fakeRuntime

	mu    sync.Mutex
	at    map[wire.Key]wire.Attached
	fail  error
	ready error
	older bool // it does not know health checks
	execs bool // the runtime can run commands in workloads
}

var address = netip.MustParseAddr("10.16.0.2")

func (n *fakeNetwork) note(format string, args ...any) {
	n.rt.mu.Lock()
	defer n.rt.mu.Unlock()
	n.rt.calls = append(n.rt.calls, fmt.Sprintf(format, args...))
}

func (n *fakeNetwork) Attach(_ context.Context, a wire.Attach) (wire.Attached, error) {
	n.note("attach %s %v", a.NetNS, a.Ports)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fail != nil {
		return wire.Attached{}, n.fail
	}
	n.at[a.Key] = wire.Attached{Key: a.Key, Address: address, Ready: n.at[a.Key].Ready, Checked: a.Checked && !n.older}
	return n.at[a.Key], nil
}

func (n *fakeNetwork) Detach(_ context.Context, k wire.Key) error {
	n.note("detach %s", k)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fail == nil {
		delete(n.at, k)
	}
	return n.fail
}

func (n *fakeNetwork) setFail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fail = err
}

func (n *fakeNetwork) Drain(_ context.Context, k wire.Key) error {
	n.note("drain")
	return nil
}

func (n *fakeNetwork) SetReady(_ context.Context, _ wire.Key, ready bool) error {
	n.note("ready %t", ready)
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.fail
}

func (n *fakeNetwork) Attachments(context.Context) ([]wire.Attached, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []wire.Attached
	for _, a := range n.at {
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b wire.Attached) int { return int(a.Epoch) - int(b.Epoch) })
	return all, nil
}

func (n *fakeNetwork) Ready() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ready
}

func startOnNetwork(t *testing.T, prepare func(*fakeRuntime, *fakeNetwork)) (*fixture, *fakeNetwork) {
	f := &fixture{rt: newFake(), inputs: make(chan node.Input, 100)}
	n := &fakeNetwork{rt: f.rt, at: map[wire.Key]wire.Attached{}}
	if prepare != nil {
		prepare(f.rt, n)
	}
	var rt runtime.Runtime = spaced{f.rt}
	if n.execs {
		rt = executing{spaced{f.rt}}
	}
	f.Driver = New(Options{
		Runtime: rt, Network: n, Info: api.NodeInfo{ID: "n1"}, Log: slog.New(slog.DiscardHandler),
		Deliver: func(_ context.Context, in node.Input) error { f.inputs <- in; return nil },
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return f, n
}

func TestWorkloadIsAttachedBeforeItsStartAndDetachedAfterItsStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := startOnNetwork(t, nil)
		<-f.inputs
		f.Order(wire.CreateWorkload{Key: k1, Spec: api.Microservice{Port: "80:8080"}})
		f.event(t)
		f.Order(wire.StartWorkload{Key: k1})
		if e := f.event(t); e.Phase != wire.WorkloadRunning || e.Address != address {
			t.Errorf("event: got %+v, want phase running with address %s", e, address)
		}
		began := time.Now()
		f.Order(wire.StopWorkload{Key: k1, Grace: time.Second})
		f.event(t)
		if took := time.Since(began); took != drainTime {
			t.Errorf("time between drain and stop: got %s, want %s", took, drainTime)
		}
		want := "[create 0 attach /ns/t/a.n.s.n#0 [80:8080/tcp] start drain stop 1s detach t/a.n.s.n#0@1]"
		if got := fmt.Sprint(f.rt.made()); got != want {
			t.Errorf("calls: got %s, want %s", got, want)
		}
	})
}

func TestWorkloadIsAttachedWhileItIsCreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := startOnNetwork(t, func(rt *fakeRuntime, _ *fakeNetwork) { rt.joins = true })
		<-f.inputs
		f.Order(wire.CreateWorkload{Key: k1})
		f.event(t)
		f.Order(wire.StartWorkload{Key: k1})
		if e := f.event(t); e.Phase != wire.WorkloadRunning || e.Address != address {
			t.Errorf("event: got %+v, want phase running with address %s", e, address)
		}
		want := []string{"attach /ns/early []", "create 0", "attach /ns/" + string(k1.Instance) + " []", "start"}
		if !slices.Equal(f.rt.calls, want) {
			t.Errorf("calls: got %q, want %q", f.rt.calls, want)
		}
	})
}

func TestAFailedEarlyAttachIsRepeatedByTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, n := startOnNetwork(t, func(rt *fakeRuntime, n *fakeNetwork) { rt.joins, n.fail = true, api.ErrUnavailable })
		<-f.inputs
		f.Order(wire.CreateWorkload{Key: k1})
		if e := f.event(t); e.Phase != wire.WorkloadCreated {
			t.Errorf("event: got %+v, want phase created", e)
		}
		n.setFail(nil)
		f.Order(wire.StartWorkload{Key: k1})
		if e := f.event(t); e.Phase != wire.WorkloadRunning || e.Address != address {
			t.Errorf("event: got %+v, want phase running with address %s", e, address)
		}
	})
}

func TestAWorkloadThatIsNotCreatedIsDetached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, n := startOnNetwork(t, func(rt *fakeRuntime, _ *fakeNetwork) { rt.joins, rt.refuse = true, api.ErrUnavailable })
		<-f.inputs
		f.Order(wire.CreateWorkload{Key: k1})
		if e := f.event(t); e.Phase != wire.WorkloadFailed {
			t.Errorf("event: got %+v, want phase failed", e)
		}
		if all, _ := n.Attachments(t.Context()); len(all) > 0 {
			t.Errorf("attachments: got %v, want none", all)
		}
	})
}

func TestFailedAttachFailsTheStart(t *testing.T) {
	for _, c := range []struct {
		fail error
		want api.Reason
	}{
		{api.ErrUnavailable, api.ReasonNetworkDown},
		{api.ErrFull, api.ReasonNetworkFull},
		{api.ErrConflict, api.ReasonStartFailed},
	} {
		synctest.Test(t, func(t *testing.T) {
			f, n := startOnNetwork(t, func(_ *fakeRuntime, n *fakeNetwork) { n.fail = c.fail })
			<-f.inputs
			f.Order(wire.CreateWorkload{Key: k1})
			f.event(t)
			f.Order(wire.StartWorkload{Key: k1})
			if e := f.event(t); e.Phase != wire.WorkloadFailed || e.Reason != c.want {
				t.Errorf("event: got %+v, want reason %s", e, c.want)
			}
			if got := f.rt.made(); slices.Contains(got, "start") {
				t.Errorf("calls: got %v, want no start without a network", got)
			}
			_ = n
		})
	}
}

func TestNetworkErrorIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, n := startOnNetwork(t, func(_ *fakeRuntime, n *fakeNetwork) { n.ready = api.ErrUnavailable })
		if in := (<-f.inputs).(node.Info); in.Info.NetworkError == "" {
			t.Errorf("info: got %+v, want a network error", in.Info)
		}
		f.Order(wire.CreateWorkload{Key: k1})
		f.event(t)
		f.Order(wire.StartWorkload{Key: k1})
		if e := f.event(t); e.Reason != api.ReasonNetworkDown {
			t.Errorf("event: got %+v, want reason %s", e, api.ReasonNetworkDown)
		}
		n.mu.Lock()
		n.ready = nil
		n.mu.Unlock()
		f.Recheck()
		if in := (<-f.inputs).(node.Info); in.Info.NetworkError != "" || !in.Fresh {
			t.Errorf("input: got %+v, want a fresh Info without a network error", in)
		}
	})
}

func TestWorkloadsAndAttachmentsAreCompared(t *testing.T) {
	lacks := wire.Key{Instance: "t/a.n.s.n#1", Epoch: 2}
	stray := wire.Key{Instance: "t/a.n.s.n#2", Epoch: 3}
	ended := wire.Key{Instance: "t/a.n.s.n#3", Epoch: 4}
	synctest.Test(t, func(t *testing.T) {
		f, n := startOnNetwork(t, func(rt *fakeRuntime, n *fakeNetwork) {
			rt.have[k1] = runtime.Status{Key: k1, Phase: wire.WorkloadRunning}
			rt.have[lacks] = runtime.Status{Key: lacks, Attempt: 7, Phase: wire.WorkloadRunning}
			rt.have[ended] = runtime.Status{Key: ended, Phase: wire.WorkloadExited}
			for _, k := range []wire.Key{k1, stray, ended} {
				n.at[k] = wire.Attached{Key: k, Address: address}
			}
		})
		in := (<-f.inputs).(node.Info)
		for _, e := range in.Found {
			if want := e.Key != lacks; e.Address.IsValid() != want {
				t.Errorf("found: got %+v, want an address unless it is not attached", e)
			}
		}
		if e := f.event(t); e.Key != lacks || e.Attempt != 7 || e.Phase != "" || e.Address != address {
			t.Errorf("event: got %+v, want the address of the workload that had none", e)
		}
		synctest.Wait()
		all, _ := n.Attachments(t.Context())
		var keys []wire.Key
		for _, a := range all {
			keys = append(keys, a.Key)
		}
		if want := []wire.Key{k1, lacks, ended}; !slices.Equal(keys, want) {
			t.Errorf("attachments: got %v, want %v", keys, want)
		}
	})
}

func TestServiceThatNeedsANetworkFailsWithoutOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		for _, m := range []api.Microservice{{Port: "80"}, {Network: api.NetworkOverlay}} {
			f.Order(wire.CreateWorkload{Key: k1, Spec: m})
			if e := f.event(t); e.Reason != api.ReasonNoNetwork {
				t.Errorf("event for %+v: got %+v, want reason %s", m, e, api.ReasonNoNetwork)
			}
		}
		f.Order(wire.CreateWorkload{Key: k1, Spec: api.Microservice{Network: api.NetworkAny}})
		if e := f.event(t); e.Reason == api.ReasonNoNetwork {
			t.Errorf("event for network any: got %+v, want another reason", e)
		}
	})
}

// TestReadinessIsReported by an event, and by a comparison.
func TestReadinessIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, n := startOnNetwork(t, nil)
		<-f.inputs
		f.Order(wire.CreateWorkload{Key: k1, Attempt: 3})
		f.event(t)
		f.Order(wire.StartWorkload{Key: k1, Attempt: 3})
		if e := f.event(t); e.Phase != wire.WorkloadRunning || e.Ready {
			t.Errorf("event: got %+v, want phase running, not ready", e)
		}
		n.mu.Lock()
		n.at[k1] = wire.Attached{Key: k1, Address: address, Ready: true}
		n.mu.Unlock()
		f.ReadinessChanged(k1)
		if e := f.event(t); e.Phase != "" || e.Attempt != 3 || e.Address != address || !e.Ready {
			t.Errorf("event: got %+v, want it ready", e)
		}
		f.Recheck()
		if in := (<-f.inputs).(node.Info); len(in.Found) != 1 || !in.Found[0].Ready {
			t.Errorf("input: got %+v, want the workload found ready", in)
		}
	})
}

func TestEndedWorkloadIsDetachedByOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, n := startOnNetwork(t, nil)
		<-f.inputs
		f.Order(wire.CreateWorkload{Key: k1})
		f.event(t)
		f.Order(wire.StartWorkload{Key: k1})
		f.event(t)
		f.rt.mu.Lock()
		s := f.rt.have[k1]
		s.Phase = wire.WorkloadExited
		f.rt.have[k1] = s
		f.rt.mu.Unlock()
		f.exits <- runtime.Exit{Key: k1}
		f.event(t)
		n.setFail(api.ErrUnavailable)
		f.Order(wire.DetachWorkload{Key: k1})
		if in := (<-f.inputs).(node.Info); len(in.Found) != 1 || in.Found[0].Address != address {
			t.Errorf("input: got %+v, want the workload with its address", in)
		}
		n.setFail(nil)
		f.Order(wire.DetachWorkload{Key: k1})
		synctest.Wait()
		if all, _ := n.Attachments(t.Context()); len(all) > 0 {
			t.Errorf("attachments after detaching: got %+v, want none", all)
		}
		f.Recheck()
		if in := (<-f.inputs).(node.Info); len(in.Found) != 1 || in.Found[0].Address.IsValid() {
			t.Errorf("input: got %+v, want the workload without an address", in)
		}
		synctest.Wait()
		if all, _ := n.Attachments(t.Context()); len(all) > 0 {
			t.Errorf("attachments after a comparison: got %+v, want none", all)
		}
	})
}

func TestExitedWorkloadIsDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := startOnNetwork(t, nil)
		<-f.inputs
		f.exits <- runtime.Exit{Key: k1, ExitCode: 1}
		if e := f.event(t); e.Phase != wire.WorkloadExited {
			t.Errorf("event: got %+v, want phase exited", e)
		}
		synctest.Wait()
		if got := fmt.Sprint(f.rt.made()); got != "[drain]" {
			t.Errorf("calls: got %s, want a drain", got)
		}
	})
}

// executing is a runtime that can run the HEALTHCHECK of an image.
type executing struct{ spaced }

func (executing) Exec(context.Context, wire.Key, runtime.Process) (runtime.Running, error) {
	return nil, api.ErrUnavailable
}

func TestHealthChecksDecideOverFlows(t *testing.T) {
	checked := api.Microservice{Health: &api.Health{Readiness: &api.Check{TCP: &api.TCPCheck{Port: 80}}}}
	synctest.Test(t, func(t *testing.T) {
		f, n := startOnNetwork(t, nil)
		<-f.inputs
		f.Order(wire.CreateWorkload{Key: k1, Spec: checked})
		f.event(t)
		f.Order(wire.StartWorkload{Key: k1})
		f.event(t)
		if at := n.at[k1]; !at.Checked {
			t.Errorf("attached as %+v, want health checks to decide", at)
		}
		f.Order(wire.ReadyWorkload{Key: k1, Ready: true})
		synctest.Wait()
		n.setFail(api.ErrUnavailable)
		f.Order(wire.ReadyWorkload{Key: k1, Ready: false})
		if _, ok := (<-f.inputs).(node.Info); !ok {
			t.Error("no comparison follows a failure, want one, so that the core repeats the order")
		}
		f.Order(wire.KillWorkload{Key: k1, Grace: time.Second})
		synctest.Wait()
		want := "[create 0 attach /ns/t/a.n.s.n#0 [] start ready true ready false drain kill 1s]"
		if got := fmt.Sprint(f.rt.made()); got != want {
			t.Errorf("calls: got %s, want %s", got, want)
		}
	})
}

func TestAnOlderNetmanagerGetsNoWorkloadWithHealthChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := startOnNetwork(t, func(_ *fakeRuntime, n *fakeNetwork) { n.older = true })
		<-f.inputs
		f.Order(wire.CreateWorkload{Key: k1, Spec: api.Microservice{Health: &api.Health{Startup: &api.Check{TCP: &api.TCPCheck{Port: 80}}}}})
		f.event(t)
		f.Order(wire.StartWorkload{Key: k1})
		if e := f.event(t); e.Phase != wire.WorkloadFailed || e.Reason != api.ReasonNetworkDown || !strings.Contains(e.Detail, "upgrade it") {
			t.Errorf("event: got %+v, want a failure that asks for an upgrade", e)
		}
		if got := f.rt.made(); slices.Contains(got, "start") {
			t.Errorf("calls: got %v, want no start", got)
		}
	})
}

func TestTheImagesHealthcheckCountsIfItCanRun(t *testing.T) {
	image := &api.Health{Startup: &api.Check{Command: []string{"check"}}}
	for _, can := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f, n := startOnNetwork(t, func(rt *fakeRuntime, n *fakeNetwork) {
				rt.have[k1] = runtime.Status{Key: k1, Phase: wire.WorkloadCreated, ImageHealth: image}
				n.execs = can
			})
			<-f.inputs
			f.Order(wire.StartWorkload{Key: k1})
			e := f.event(t)
			n.mu.Lock()
			defer n.mu.Unlock()
			if got := e.ImageHealth != nil; got != can || n.at[k1].Checked != can {
				t.Errorf("the runtime can run commands: %t; event %+v, attached %+v; want health checks only then", can, e, n.at[k1])
			}
		})
	}
}

func TestAFailedKillIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		synctest.Wait() // the watch of the runtime has begun: begun later, it would fail too
		f.rt.mu.Lock()
		f.rt.down = &runtime.Error{Reason: api.ReasonRuntimeDown, Err: api.ErrUnavailable}
		f.rt.mu.Unlock()
		f.Order(wire.KillWorkload{Key: k1, Attempt: 4})
		if e := f.event(t); e.Phase != wire.WorkloadFailed || e.Attempt != 4 || e.Reason != api.ReasonRuntimeDown {
			t.Errorf("event: got %+v, want a failure of attempt 4", e)
		}
	})
}
