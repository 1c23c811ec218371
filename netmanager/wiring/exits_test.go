package wiring

import (
	"context"
	"fmt"
	"os/exec"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// Processes are told of when they end, before or after they are watched, each once and
// only while somebody wants to know.
func TestExitsAreTold(t *testing.T) {
	told := make(chan api.Attach, 10)
	e := newExits(func(_ context.Context, a api.Attach) { told <- a })
	ctx, cancel := context.WithCancel(t.Context())
	process := func(epoch api.Epoch) (api.Attach, func()) {
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		end := func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		t.Cleanup(end)
		return api.Attach{Key: api.Key{Instance: "t/a.n.s.n#0", Epoch: epoch}, NetNS: fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)}, end
	}
	early, endEarly := process(1)
	before, endBefore := process(2)
	late, endLate := process(3)
	again, endAgain := process(4)
	next, endNext := process(4)
	unwanted, endUnwanted := process(5)
	e.watch(early)
	e.watch(before)
	endBefore()
	done := make(chan error)
	go func() { done <- e.Run(ctx) }()
	if got := <-told; got.NetNS != before.NetNS {
		t.Fatalf("%s ended first", got.NetNS)
	}
	for _, a := range []api.Attach{early, late, late, again, next, unwanted} {
		e.watch(a)
	}
	e.watch(api.Attach{Key: api.Key{Instance: "t/a.n.s.n#1", Epoch: 1}, NetNS: "/run/netns/somebody's"})
	e.forget(unwanted.Key)
	e.forget(unwanted.Key)
	for _, end := range []func(){endUnwanted, endAgain} { // nobody asks for them any more
		end()
	}
	for _, o := range []struct {
		api.Attach
		end func()
	}{{early, endEarly}, {next, endNext}, {late, endLate}} {
		o.end()
		if got := <-told; got.NetNS != o.NetNS {
			t.Errorf("%s ended, and %s was told of", o.NetNS, got.NetNS)
		}
	}
	last, _ := process(6)
	e.watch(last)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	e.watch(early)
	if len(told) > 0 {
		t.Errorf("%v is told of again", <-told)
	}
}
