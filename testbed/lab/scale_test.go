package lab_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/freeport"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// TestScaleToZero wakes services by their first packet, with real daemons, containers and an overlay
// network.
func TestScaleToZero(t *testing.T) {
	t.Parallel()
	programtest.Need(t, "containerd", "runc")
	w := lab.NewOverlay(t, lab.Options{}, "--dead", "30s")
	second := w.NewCluster("c2", 2)
	for _, c := range []*lab.Cluster{w.First, w.First, second} {
		w.Site(c, netlab.None, lab.NodeOptions{})
	}
	w.Ready(w.First, 2)
	w.Ready(second, 1)
	zero := 0
	sleeper := func(name string, idle int) api.Microservice {
		m := w.Server(name, 1)
		m.Replicas, m.Scale = nil, &api.Scale{Min: &zero, Max: 1, IdleTime: idle}
		return m
	}
	w.Apply(lab.App("shop", lab.On(w.Container("client", 1), "c1", "n0"), lab.On(sleeper("near", 5), "c1", "n1"),
		lab.On(sleeper("far", 3600), "c2", "n2"), lab.On(sleeper("engine", 3600), "c1", "n1"),
		lab.On(sleeper("containerd", 3600), "c1", "n1"), lab.On(sleeper("cluster", 3600), "c1", "n1")))
	counted := w.Server("counted", 1)
	counted.Replicas, counted.Scale = nil, &api.Scale{Max: 2, Requests: &api.RequestGoal{Target: 5, Port: 80, Counter: "http_requests_total"}}
	w.Apply(lab.App("counted", lab.On(counted, "c1", "n1")))
	loaded := func(name, mode string, scale api.Scale) api.Microservice {
		m := w.Server(name, 1)
		m.Cmd, m.VCPUs, m.Memory = []string{"/app", mode}, 0.1, 32
		scale.Max, scale.StabilisationDown = 2, &zero
		m.Replicas, m.Scale = nil, &scale
		return lab.On(m, "c2", "n2")
	}
	w.Apply(lab.App("loaded", loaded("cpu", "busy", api.Scale{CPU: 40}), loaded("connections", "echo", api.Scale{Connections: 1}),
		loaded("memory", "serve", api.Scale{Memory: 2})))
	id := func(service string) api.InstanceID { return w.ID("shop", service, 0) }
	is := func(service string, state api.State) {
		t.Helper()
		w.Wait(service+" is "+string(state), lab.Is(id(service), func(i api.Instance) bool { return i.State == state }))
	}
	is("client", api.Running)
	for _, s := range []string{"near", "far", "engine", "containerd", "cluster"} {
		is(s, api.Dormant)
	}
	in := w.Inside(id("client"))
	const cold = 29 * time.Second // packets wait for 30 s
	answers := func(t *testing.T, service string) {
		t.Helper()
		at := netip.AddrPortFrom(w.Addresses("shop", service).RoundRobin, 80).String()
		if who, err := in.Who(at, cold); err != nil || who != id(service) {
			t.Errorf("the first connection to %s is answered by %q, %v", service, who, err)
		}
	}

	// says waits for a text in what a command prints: the root hears of a reason and of values later than of a state.
	says := func(t *testing.T, want string, args ...string) {
		t.Helper()
		lab.Within(t, time.Minute, want, func() error {
			if text := w.CLI(args...); !strings.Contains(text, want) {
				return fmt.Errorf("treeline %v says\n%s", args, text)
			}
			return nil
		})
	}

	// The load of these starts second instances while the other subtests run, and its end stops them.
	var load []net.Conn
	unload := func() {
		for _, c := range load {
			_ = c.Close()
		}
	}
	t.Cleanup(unload)
	for _, service := range []string{"cpu", "connections", "connections", "connections"} {
		w.Wait(service+" runs", lab.Is(w.ID("loaded", service, 0), func(i api.Instance) bool { return i.State == api.Running }))
		at := netip.AddrPortFrom(w.Addresses("loaded", service).RoundRobin, 80).String()
		lab.Within(t, time.Minute, "a connection to "+service, func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			c, err := in.Dial(ctx, "tcp", at)
			if err == nil {
				load = append(load, c)
				go func() { _, _ = io.Copy(io.Discard, c) }()
			}
			return err
		})
	}
	seconds := func(state api.State, services ...string) {
		t.Helper()
		for _, service := range services {
			second := lab.Is(w.ID("loaded", service, 1), func(i api.Instance) bool { return i.State == state })
			w.WaitWithin(3*time.Minute, "the second instance that scales by "+service+" is "+string(state), second)
		}
	}

	sub(t, w.Lab, "the first connection is answered", func(t *testing.T) {
		answers(t, "near")
	})
	sub(t, w.Lab, "an instance of another cluster is woken", func(t *testing.T) {
		answers(t, "far")
		is("far", api.Running)
		says(t, "last change: packets wait for the service", "describe", "instance", string(id("far")))
	})
	sub(t, w.Lab, "an idle instance sleeps and is woken again", func(t *testing.T) {
		is("near", api.Dormant)
		says(t, "idle for 5s", "describe", "instance", string(id("near")))
		w.Service("shop", "near", 0)
		answers(t, "near")
	})
	sub(t, w.Lab, "requests that an instance counts start another one", func(t *testing.T) {
		second := w.ID("counted", "counted", 1)
		w.Wait("it runs", lab.Is(w.ID("counted", "counted", 0), func(i api.Instance) bool { return i.State == api.Running }))
		at := netip.AddrPortFrom(w.Addresses("counted", "counted").RoundRobin, 80).String()
		lab.Within(t, 90*time.Second, "a second instance runs", func() error {
			for range 10 {
				if _, err := in.Who(at, 5*time.Second); err != nil {
					return err
				}
			}
			if i, err := w.API.Instance(t.Context(), second); err != nil || i.State != api.Running {
				return fmt.Errorf("it is %s: %s, %v", i.State, i.Detail, err)
			}
			return nil
		})
		for _, args := range [][]string{{"why", string(second)}, {"describe", "service", "counted/counted"}} {
			says(t, "requests is ", args...)
			says(t, "the target is 5/s", args...)
		}
	})
	sub(t, w.Lab, "processor time, connections and memory start another instance", func(t *testing.T) {
		seconds(api.Running, "cpu", "connections", "memory")
		for service, text := range map[string]string{"cpu": "%, the target is 40%", "connections": ", the target is 1", "memory": "%, the target is 2%"} {
			says(t, text, "describe", "service", "loaded/"+service)
		}
		unload()
	})
	kills := map[string]func(){
		"engine":     func() { w.Nodes[1].Kill9(); w.Nodes[1].Start() },
		"containerd": func() { w.Containerd().Kill9(); w.Containerd().Start() },
		"cluster":    func() { w.First.Kill9(); w.First.Start() },
	}
	for _, name := range []string{"engine", "containerd", "cluster"} {
		sub(t, w.Lab, "kill -9 of the "+name+" during a cold start", func(t *testing.T) {
			done := make(chan struct{})
			before := containersOf(w.Nodes[1])
			go func() {
				defer close(done)
				// Packets wait for 30 s; on a busy machine that may end before all daemons are back.
				at := netip.AddrPortFrom(w.Addresses("shop", name).RoundRobin, 80).String()
				lab.Within(t, 90*time.Second, "a connection is answered", func() error {
					who, err := in.Who(at, cold)
					if err == nil && who != id(name) {
						err = fmt.Errorf("%s answers", who)
					}
					return err
				})
			}()
			for deadline := time.Now().Add(time.Minute); containersOf(w.Nodes[1]) <= before; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("no container is created within a minute of the first packet")
				}
			}
			kills[name]()
			<-done
			is(name, api.Running)
			w.Service("shop", name, 1)
		})
	}
	sub(t, w.Lab, "without the load it sleeps", func(*testing.T) {
		seconds(api.Dormant, "cpu", "connections")
		seconds(api.Running, "memory")
	})
	w.Delete("shop")
	w.Delete("counted")
	w.Delete("loaded")
	w.Wait("all is gone", func(v lab.View) bool { return w.Gone("shop")(v) && w.Gone("counted")(v) && w.Gone("loaded")(v) })
	lab.Within(t, time.Minute, "nothing is left", func() error {
		if held := w.Held(w.Nodes[1]); held["task"]+held["container"] > 0 {
			return fmt.Errorf("objects of containerd: %v", held)
		}
		if n := containersOf(w.Nodes[1]); n > 0 {
			return fmt.Errorf("files of %d containers", n)
		}
		return nil
	})
}

// containersOf returns how many containers a node has, or is creating: each has a directory from the start.
func containersOf(n *lab.Node) int {
	dirs, _ := filepath.Glob(filepath.Join(n.Data, "containerd", "names", "*"))
	return len(dirs)
}

// TestScaleByPrometheus scales a service up and down by an expression that a real Prometheus server evaluates.
func TestScaleByPrometheus(t *testing.T) {
	t.Parallel()
	programtest.Need(t, "containerd", "runc", "prometheus")
	l := lab.New(t, lab.Options{})
	var jobs atomic.Int64
	jobs.Store(20)
	metrics := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "jobs{tenant=%q} %d\njobs{tenant=\"other\"} 1000\n", l.Tenant, jobs.Load())
	}))
	t.Cleanup(metrics.Close)
	o := steady()
	o.Args = append(o.Args, "--prometheus-url", prometheus(t, metrics.Listener.Addr().String()))
	c := l.Cluster("c1", o)
	c.Node("n1", lab.NodeOptions{Containers: true})
	m := l.Container("worker", 1)
	down := 0
	m.Replicas, m.Scale = nil, &api.Scale{Max: 3, StabilisationDown: &down, Prometheus: &api.QueryGoal{Query: "sum(jobs)", Target: 10}}
	l.Apply(lab.App("queue", m))
	number := func(n int) func(lab.View) bool {
		return func(v lab.View) bool {
			for k := range 3 {
				if in := v.Instances[l.ID("queue", "worker", k)]; (in.State == api.Running) != (k < n) || k >= n && in.State != api.Dormant {
					return false
				}
			}
			return true
		}
	}
	l.WaitWithin(time.Minute, "two instances run for 20 jobs", number(2))
	lab.Within(t, time.Minute, "describe shows the value", func() error { // the root hears of it later than of the states
		if text := l.CLI("describe", "service", "queue/worker"); !strings.Contains(text, "prometheus is 20, the target is 10") {
			return errors.New(text)
		}
		return nil
	})
	jobs.Store(3)
	l.WaitWithin(time.Minute, "one instance runs for 3 jobs", number(1))
	l.Delete("queue")
	l.Wait("all is gone", l.Gone("queue"))
}

// prometheus runs a Prometheus server that scrapes an address, and returns its URL.
func prometheus(t *testing.T, target string) string {
	t.Helper()
	dir := t.TempDir()
	conf := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf("scrape_configs:\n- job_name: jobs\n  scrape_interval: 500ms\n  scrape_timeout: 500ms\n  static_configs:\n  - targets: [%q]\n", target)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ln, err := freeport.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := ln.Addr().String()
	_ = ln.Close()
	cmd := exec.CommandContext(t.Context(), "prometheus", "--config.file", conf, "--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", at)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	// The cluster evaluates an expression every 15 s: the first time finds a value.
	lab.Within(t, time.Minute, "the server has scraped", func() error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at+"/api/v1/query?query=jobs", http.NoBody)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if text, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(text), `"__name__":"jobs"`) {
			return fmt.Errorf("it answers %s, %v", text, err)
		}
		return nil
	})
	return "http://" + at
}
