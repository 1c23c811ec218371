package lab_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// updated is a service with two instances that is updated while callers count losses. There is room
// for more of them on two nodes; the callers are on a third.
type updated struct {
	*talk
	serial int
}

func newUpdated(t *testing.T, o lab.Options) *updated {
	w := &talk{Overlay: lab.NewOverlay(t, o), t: t, many: map[string]*lab.Caller{}}
	for range 3 {
		w.Site(w.First, netlab.None, lab.NodeOptions{})
	}
	w.Ready(w.First, 3)
	u := &updated{talk: w}
	u.update(nil)
	w.Wait("both run", func(v lab.View) bool { return w.Running("shop", "client", 1)(v) && w.Running("shop", "web", 2)(v) })
	w.in, w.at = w.Inside(w.ID("shop", "client", 0)), w.Addresses("shop", "web")
	return u
}

// update applies another version of the service.
func (u *updated) update(change func(*api.Microservice)) { u.Apply(u.next(change)) }

// next returns the SLA with another version of the service.
func (u *updated) next(change func(*api.Microservice)) api.SLA {
	u.serial++
	healthy := 1
	web := lab.Needing(u.Server("web", 2), 0.2, 50)
	web.Addresses = &api.Addresses{Closest: "auto"}
	web.Environment = append(web.Environment, fmt.Sprintf("VERSION=%d", u.serial))
	web.Update = &api.Update{MinHealthyTime: &healthy, Deadline: 8}
	if change != nil {
		change(&web)
	}
	return lab.App("shop", lab.On(u.Container("client", 1), "c1", "n0"), lab.On(web, "c1", "n1;n2"))
}

// over waits until the roll-out is over, and returns it.
func (u *updated) over(t *testing.T) (r api.RollOut) {
	t.Helper()
	lab.Within(t, 3*time.Minute, "the roll-out is over", func() (err error) {
		if r, err = u.API.RollOut(t.Context(), u.ServiceID("shop", "web")); err == nil && !r.Over() {
			err = fmt.Errorf("%s", r.Standing())
		}
		return err
	})
	return r
}

// Callers lose no request while a service is updated, while a version without an image fails, and
// while daemons are killed in the middle of a roll-out.
func TestRollOutLosesNoRequest(t *testing.T) {
	t.Parallel()
	u := newUpdated(t, lab.Options{})
	u.call()
	u.more(t, 20)
	t.Run("new version", func(t *testing.T) {
		defer u.For(t)()
		was := u.Workload(u.ID("shop", "web", 0))
		u.forget()
		// An instance needs 8 s until it listens: the old ones must not stop before.
		u.update(func(m *api.Microservice) {
			m.Environment = append(m.Environment, "LISTEN_AFTER=8s")
			m.Health = &api.Health{Readiness: &api.Check{TCP: &api.TCPCheck{Port: 80}, Interval: 1}}
			m.Update.Deadline = 30
		})
		if r := u.over(t); r.State != api.RollOutHealthy || r.Failed != 0 {
			t.Fatalf("the roll-out is %s", r.Standing())
		}
		u.Wait("two are left", func(v lab.View) bool { return len(v.Instances) == 2+1 && u.Running("shop", "web", 2)(v) })
		u.all(t, 2)
		u.more(t, 20)
		if was.Alive() {
			t.Error("the earlier version of web#0 still runs")
		}
		u.nothingLost(t, "a roll-out")
	})
	t.Run("no such image", func(t *testing.T) {
		defer u.For(t)()
		was := []lab.Workload{u.Workload(u.ID("shop", "web", 0)), u.Workload(u.ID("shop", "web", 1))}
		u.forget()
		file := filepath.Join(t.TempDir(), "shop.json")
		if err := os.WriteFile(file, lab.Encode(u.next(func(m *api.Microservice) { m.Code = "treeline.local/workload:mistyped" })), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, command := range [][]string{{"apply", "-f", file, "--timeout", "60s"}, {"rollout", "status", string(u.ServiceID("shop", "web"))}} {
			out, err := u.TryCLI(command...)
			exit := (*exec.ExitError)(nil)
			if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(out, "has returned: ") || !strings.Contains(out, "workload:mistyped") {
				t.Errorf("%v: %v\n%s\nwant exit code 1, and that a version has returned and why", command, err, out)
			}
		}
		if r := u.over(t); r.State != api.RollOutHealthy || r.Failed == 0 {
			t.Fatalf("the roll-out is %s, want a return to the version before", r.Standing())
		}
		for _, w := range was {
			if !w.Alive() {
				t.Errorf("%s was stopped for a version without an image", w.Instance)
			}
		}
		u.more(t, 20)
		u.nothingLost(t, "a version without an image")
	})
	t.Run("killed", func(t *testing.T) {
		defer u.For(t)()
		u.forget()
		u.update(nil)
		u.Wait("an additional instance exists", func(v lab.View) bool { return len(v.Instances) > 2+1 })
		u.Root.Kill9()
		u.StartRoot()
		u.First.Kill9()
		u.First.Start()
		u.Nodes[1].Kill9()
		u.Nodes[1].Start()
		if r := u.over(t); r.State != api.RollOutHealthy {
			t.Fatalf("the roll-out is %s", r.Standing())
		}
		u.Wait("two are left", func(v lab.View) bool { return len(v.Instances) == 2+1 && u.Running("shop", "web", 2)(v) })
		u.all(t, 2)
		u.more(t, 20)
		u.fewLost(t, "daemons that were killed in a roll-out", nil) // no workload or netmanager was
	})
}
