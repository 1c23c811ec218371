package node

import (
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

func TestADeadlineEndsAOneShot(t *testing.T) {
	change := func(m *api.Microservice) { m.OneShot, m.Deadline = true, 60 }
	ends := func(t *testing.T, w *world) {
		t.Helper()
		in := w.is(api.Failed)
		if in.Reason != api.ReasonDeadline || !strings.Contains(in.Detail, "deadline of 1m0s") {
			t.Fatalf("it is %s (%s): %s", in.State, in.Reason, in.Detail)
		}
		created := count[wire.CreateWorkload](w)
		w.pass(time.Hour)
		w.restart()
		w.pass(time.Hour)
		if in := w.is(api.Failed); in.Reason != api.ReasonDeadline || count[wire.CreateWorkload](w) != created {
			t.Errorf("it was created again: %s", in.Detail)
		}
	}
	t.Run("while it runs", func(t *testing.T) {
		w := newWorld(t)
		w.wants(assignment(1, change))
		w.pass(59 * time.Second)
		w.is(api.Running)
		if n := count[wire.KillWorkload](w); n != 0 {
			t.Fatalf("%d kills before the deadline", n)
		}
		w.pass(2 * time.Second)
		if n := count[wire.KillWorkload](w); n == 0 {
			t.Fatal("the deadline is over, and nothing ended it")
		}
		w.exit(web, 0) // it handles SIGTERM; it has failed all the same
		ends(t, w)
	})
	t.Run("across a restart of the engine", func(t *testing.T) {
		w := newWorld(t)
		w.wants(assignment(1, change))
		w.pass(40 * time.Second)
		w.restart()
		w.pass(21 * time.Second)
		w.exit(web, 137)
		ends(t, w)
	})
	t.Run("between two attempts", func(t *testing.T) {
		w := newWorld(t)
		w.wants(assignment(1, func(m *api.Microservice) { change(m); m.MaxAttempts = 1000 }))
		for range 100 {
			if w.c.Instances()[0].State == api.Running {
				w.exit(web, 1)
			}
			w.pass(3 * time.Second)
		}
		ends(t, w)
	})
	t.Run("not if it is in time", func(t *testing.T) {
		w := newWorld(t)
		w.wants(assignment(1, change))
		w.pass(30 * time.Second)
		w.exit(web, 0)
		w.pass(time.Hour)
		w.is(api.Completed)
	})
}
