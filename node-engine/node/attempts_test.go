package node

import (
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// TestOneShotFailsForGood checks the number of attempts, across restarts of the engine and with the
// attempts of earlier placements.
func TestOneShotFailsForGood(t *testing.T) {
	for name, tt := range map[string]struct {
		change  func(*api.Microservice)
		earlier int // failures of earlier placements
		want    int // starts here
	}{
		"by default":                 {oneShot, 0, api.DefaultAttempts},
		"as the SLA says":            {func(m *api.Microservice) { m.OneShot, m.MaxAttempts = true, 3 }, 0, 3},
		"once":                       {func(m *api.Microservice) { m.OneShot, m.MaxAttempts = true, 1 }, 0, 1},
		"after others elsewhere":     {oneShot, 4, 2},
		"not, after all of them":     {oneShot, 6, 0},
		"also one that is exclusive": {func(m *api.Microservice) { m.OneShot, m.Exclusive, m.MaxAttempts = true, true, 2 }, 0, 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a := assignment(1, tt.change)
			a.Failures, a.Restarts = tt.earlier, tt.earlier
			w.wants(a)
			for i := range tt.want {
				if a.Spec.Exclusive {
					w.lease()
				}
				w.is(api.Running)
				w.exit(web, 3)
				if last := i == tt.want-1; !last {
					w.restart() // the count survives
					w.pass(time.Minute)
				}
			}
			in := w.is(api.Failed)
			if in.Reason != api.ReasonAttemptsSpent || in.Failures != tt.want+tt.earlier {
				t.Fatalf("%s after %d failures: %s", in.Reason, in.Failures, in.Detail)
			}
			if tt.want > 0 && (in.ExitCode == nil || *in.ExitCode != 3 || !strings.Contains(in.Detail, "exited with code 3")) {
				t.Errorf("exit code %v, detail %q", in.ExitCode, in.Detail)
			}
			created := count[wire.CreateWorkload](w)
			w.pass(time.Hour)
			w.restart()
			w.pass(time.Hour)
			w.wants(a)
			if in := w.is(api.Failed); in.Reason != api.ReasonAttemptsSpent || count[wire.CreateWorkload](w) != created {
				t.Errorf("%s, and it was created again", in.Reason)
			}
			w.wants(assignment(2, tt.change))
			if !a.Spec.Exclusive {
				w.is(api.Running)
			}
			w.wants()
			w.isGone()
		})
	}
}

// TestWhatIsNotItsFaultIsNoAttempt: failures of the node, the registry or the machine do not count as
// attempts of a one-shot.
func TestWhatIsNotItsFaultIsNoAttempt(t *testing.T) {
	for _, reason := range []api.Reason{
		api.ReasonNetworkDown, api.ReasonNetworkFull, api.ReasonRegistryDown, api.ReasonDiskFull, api.ReasonNoRuntime,
	} {
		w := newWorld(t)
		w.slow = true
		w.wants(assignment(1, oneShot))
		for range 2 * api.DefaultAttempts {
			o := last[wire.CreateWorkload](w)
			w.step(Workload{wire.WorkloadEvent{Key: o.Key, Attempt: o.Attempt, Phase: wire.WorkloadFailed, Reason: reason}})
			if in := w.is(api.Failed); api.Ended(in.State, in.Reason) || in.Failures != 0 {
				t.Fatalf("%s: %s after %d failures", reason, in.Reason, in.Failures)
			}
			w.pass(2 * time.Minute)
		}
	}
	w := newWorld(t)
	w.wants(assignment(1, oneShot))
	for range 2 * api.DefaultAttempts {
		w.is(api.Running)
		delete(w.has, web) // the machine lost power
		w.restart()
		w.pass(time.Minute)
	}
	if in := w.is(api.Running); in.Failures != 0 || in.Restarts != 2*api.DefaultAttempts {
		t.Errorf("%d failures, %d restarts", in.Failures, in.Restarts)
	}
}

// TestOtherServicesAreTriedWithoutEnd: only the attempts of a one-shot are limited.
func TestOtherServicesAreTriedWithoutEnd(t *testing.T) {
	w := newWorld(t)
	w.wants(assignment(1))
	for range 3 * api.DefaultAttempts {
		w.exit(web, 1)
		w.is(api.Failed)
		w.pass(2 * time.Minute)
		w.is(api.Running)
	}
}
