package lab_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// setHealth sets the status with which an instance of testbed/workload answers its health checks.
func setHealth(t *testing.T, in *lab.Inside, port, status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := http.Client{Transport: &http.Transport{DialContext: in.Dial, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/set?status=%d", port, status), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatalf("set the health of %s: %v", in.W.Instance, err)
	}
	_ = resp.Body.Close()
}

// TestHealthChecks runs health checks of every effect with real daemons, containers and an overlay
// network.
func TestHealthChecks(t *testing.T) {
	t.Parallel()
	programtest.Need(t, "containerd", "runc")
	w := lab.NewOverlay(t, lab.Options{}, "--dead", "30s")
	for range 2 {
		w.Site(w.First, netlab.None, lab.NodeOptions{})
	}
	w.Ready(w.First, 2)
	every := func(c api.Check) *api.Check { c.Interval, c.Failures = 1, 2; return &c }
	web := w.Server("web", 1)
	web.Environment = append(web.Environment, "HEALTH=503")
	web.Health = &api.Health{Readiness: every(api.Check{HTTP: &api.HTTPCheck{Port: 80, Path: "/healthz"}})}
	sick := w.Server("sick", 1)
	sick.Health = &api.Health{Liveness: every(api.Check{HTTP: &api.HTTPCheck{Port: 80, Path: "/healthz"}})}
	closed := w.Server("closed", 1)
	closed.Health = &api.Health{Startup: every(api.Check{TCP: &api.TCPCheck{Port: 9}})}
	image := w.Server("image", 1)
	image.Code, image.Environment = lab.HealthImage, []string{"HEALTH=503"}
	w.Apply(lab.App("shop", lab.On(w.Container("client", 1), "c1", "n0"), lab.On(web, "c1", "n1"), lab.On(sick, "c1", "n1"), lab.On(closed, "c1", "n1"), lab.On(image, "c1", "n1")))
	id := func(service string) api.InstanceID { return w.ID("shop", service, 0) }
	is := func(service, what string, ok func(api.Instance) bool) api.Instance {
		t.Helper()
		w.Wait(service+" "+what, lab.Is(id(service), ok))
		return w.Instance(id(service))
	}
	unready := func(i api.Instance) bool { return i.State == api.Running && i.Reason == api.ReasonNotReady }
	ready := func(i api.Instance) bool { return i.State == api.Running && i.Reason == api.ReasonNone }
	is("client", "runs", func(i api.Instance) bool { return i.State == api.Running })
	in := w.Inside(id("client"))
	at := netip.AddrPortFrom(w.Addresses("shop", "web").RoundRobin, 80).String()
	answers := func(want bool) error {
		patience := 500 * time.Millisecond
		if want {
			patience = 10 * time.Second
		}
		_, err := in.Who(at, patience)
		if (err == nil) != want {
			return fmt.Errorf("answers: %t (%w), want %t", err == nil, err, want)
		}
		return nil
	}

	sub(t, w.Lab, "an instance that listens and is not ready gets no flows", func(t *testing.T) {
		const found = "readiness: GET :80/healthz: status 503"
		is("web", "is not ready, because of "+found, func(i api.Instance) bool { return unready(i) && strings.HasPrefix(i.Detail, found) })
		for range 8 { // longer than a netmanager waits for an instance without checks
			if err := answers(false); err != nil {
				t.Fatal(err)
			}
		}
		if why := w.CLI("why", string(id("web"))); !strings.Contains(why, "RUNNING,NOT_READY") || !strings.Contains(why, found) {
			t.Errorf("why says %q, want why it gets no flows", why)
		}
		server := w.Inside(id("web"))
		setHealth(t, server, 80, 200)
		lab.Within(t, time.Minute, "it gets flows when it is ready", func() error { return answers(true) })
		is("web", "is ready", ready)
		setHealth(t, server, 80, 503)
		is("web", "is not ready again", unready)
		lab.Within(t, time.Minute, "it gets no flows any more", func() error { return answers(false) })
	})
	sub(t, w.Lab, "failed liveness restarts", func(t *testing.T) {
		const want = "liveness: GET :80/healthz: status 500, 2 of 2 failed"
		var kept []api.Event
		for range 3 { // on a busy machine the root may not hear of a state that lasts for a moment
			before := is("sick", "runs", ready)
			setHealth(t, w.Inside(id("sick")), 80, 500)
			after := is("sick", "runs again", func(i api.Instance) bool { return ready(i) && i.Restarts > before.Restarts })
			if after.Epoch != before.Epoch {
				t.Errorf("epoch %s after the restart, want %s", after.Epoch, before.Epoch)
			}
			var err error
			if kept, _, err = w.API.Events(w.Context(), client.ListOptions{Instance: id("sick")}); err != nil {
				t.Fatal(err)
			}
			if slices.ContainsFunc(kept, func(e api.Event) bool { return e.Reason == api.ReasonUnhealthy && strings.Contains(e.Detail, want) }) {
				return
			}
		}
		t.Errorf("the events are %+v, want one that is unhealthy and says %q", kept, want)
	})
	sub(t, w.Lab, "a closed port has a clear reason", func(t *testing.T) {
		is("closed", "has failed", func(i api.Instance) bool {
			return i.State == api.Failed && strings.Contains(i.Detail, "connection refused")
		})
		// The reason is "unhealthy" for the first failures and "too_many_failures" later.
		// It starts again after each pause; then it waits for its check and has no reason yet.
		for command, want := range map[string]string{
			"why":               "startup: TCP :9: connection refused, 2 of 2 failed; next attempt in ",
			"describe instance": "startup: TCP :9: connection refused",
		} {
			lab.Within(t, 30*time.Second, command+" names the check, the port and what follows", func() error {
				if text := w.CLI(append(strings.Fields(command), string(id("closed")))...); !strings.Contains(text, want) {
					return fmt.Errorf("got %q, want %q", text, want)
				}
				return nil
			})
		}
	})
	sub(t, w.Lab, "the HEALTHCHECK of the image counts", func(t *testing.T) {
		const found = "startup: command /app check http://127.0.0.1:8080/healthz: exit code 1"
		is("image", "is not ready, because of "+found, func(i api.Instance) bool { return unready(i) && strings.Contains(i.Detail, found) })
		setHealth(t, w.Inside(id("image")), 8080, 200)
		is("image", "is ready", ready)
	})
	if t.Failed() {
		t.Log(errors.New("the lab's story follows"), w.Story())
	}
}
