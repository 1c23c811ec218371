package workloads

import (
	"context"
	"fmt"
	"os/exec"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Each watched process that ends is reported once, whether it ends before or after Watch.
func TestExitsAreReported(t *testing.T) {
	reported := make(chan wire.Attach, 10)
	e := NewExits(func(_ context.Context, a wire.Attach) { reported <- a })
	ctx, cancel := context.WithCancel(t.Context())
	process := func(epoch api.Epoch) (wire.Attach, func()) {
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		end := func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		t.Cleanup(end)
		return wire.Attach{Key: wire.Key{Instance: "t/a.n.s.n#0", Epoch: epoch}, NetNS: fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)}, end
	}
	early, endEarly := process(1)
	before, endBefore := process(2)
	late, endLate := process(3)
	again, endAgain := process(4)
	next, endNext := process(4)
	unwanted, endUnwanted := process(5)
	e.Watch(early)
	e.Watch(before)
	endBefore()
	done := make(chan error)
	go func() { done <- e.Run(ctx) }()
	if got := <-reported; got.NetNS != before.NetNS {
		t.Fatalf("first report is of %s, want %s", got.NetNS, before.NetNS)
	}
	for _, a := range []wire.Attach{early, late, late, again, next, unwanted} {
		e.Watch(a)
	}
	e.Watch(wire.Attach{Key: wire.Key{Instance: "t/a.n.s.n#1", Epoch: 1}, NetNS: "/run/netns/other"})
	e.Remove(unwanted.Key)
	e.Remove(unwanted.Key)
	for _, end := range []func(){endUnwanted, endAgain} { // not watched any more
		end()
	}
	for _, o := range []struct {
		wire.Attach
		end func()
	}{{early, endEarly}, {next, endNext}, {late, endLate}} {
		o.end()
		if got := <-reported; got.NetNS != o.NetNS {
			t.Errorf("process of %s ended and %s was reported", o.NetNS, got.NetNS)
		}
	}
	last, _ := process(6)
	e.Watch(last)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	e.Watch(early)
	if len(reported) > 0 {
		t.Errorf("%v was reported twice", <-reported)
	}
}
