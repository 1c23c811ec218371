package tiers

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/command"
	cluster "github.com/treeline-edge/treeline/cluster-orchestrator/wiring"
	node "github.com/treeline-edge/treeline/node-engine/wiring"
	root "github.com/treeline-edge/treeline/root-orchestrator/wiring"
)

// terminal runs the CLI against a real root with one cluster, munich.
type terminal struct {
	t    *testing.T
	root *realRoot
	at   *tier
	env  map[string]string
}

func openTerminal(t *testing.T) *terminal { return openTerminalWith(t, func(*cluster.Config) {}) }

// openTerminalWith is openTerminal with another configuration of the cluster.
func openTerminalWith(t *testing.T, change func(*cluster.Config)) *terminal {
	t.Helper()
	r := startRoot(t, func(*root.Config) {})
	check(t, r.admin.CreateTenant(t.Context(), "acme", "Acme"))
	tok, err := r.admin.CreateJoinToken(t.Context(), api.TokenRequest{Kind: "cluster"})
	check(t, err)
	c := newCluster(t, r.anchor(t), tok.Token)
	change(&c.cfg)
	c.run(t)
	return &terminal{t: t, root: r, at: c, env: map[string]string{
		"XDG_CONFIG_HOME": t.TempDir(), "TREELINE_ADDR": r.url, "TREELINE_TOKEN": r.token,
		"TREELINE_CA": filepath.Join(r.cfg.Data, root.CAFile), "TREELINE_TENANT": "acme",
	}}
}

// run runs a command line until it ends.
func (c *terminal) run(args ...string) (stdout, stderr string, code int) {
	return c.runWith(c.t.Context(), "", args...)
}

func (c *terminal) runWith(ctx context.Context, stdin string, args ...string) (stdout, stderr string, code int) {
	var out, err bytes.Buffer
	code = command.Main(ctx, args, command.IO{
		In: strings.NewReader(stdin), Out: &out, Err: &err, Now: time.Now, Env: func(k string) string { return c.env[k] },
	})
	return out.String(), err.String(), code
}

// must runs a command line and fails the test if it fails.
func (c *terminal) must(args ...string) string {
	c.t.Helper()
	out, stderr, code := c.run(args...)
	if code != 0 {
		c.t.Fatalf("treeline %s: exit %d\n%s%s", strings.Join(args, " "), code, out, stderr)
	}
	return out
}

// apply applies a document without a file.
func (c *terminal) apply(doc string) {
	c.t.Helper()
	_, err := c.root.admin.Apply(c.t.Context(), []byte(doc), client.ApplyOptions{Tenant: "acme", ContentType: "application/yaml"})
	check(c.t, err)
}

// ends makes every workload of a service exit with a code right after its start.
func (f *fakeRuntime) ends(ctx context.Context, service api.ServiceID, code int) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			for _, k := range f.running() {
				if k.Instance.Service() == service {
					f.kill(k, code)
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond): // the fake runtime has no event for starts
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

const tasks = `sla_version: v2.0
applications:
  - application_name: tasks
    application_namespace: prod
    microservices:
      - {microservice_name: good, microservice_namespace: v1, virtualization: container, network: any, code: "good:1", one_shot: true}
      - {microservice_name: bad, microservice_namespace: v1, virtualization: container, network: any, code: "bad:1", one_shot: true, max_attempts: 2}
      - {microservice_name: web, microservice_namespace: v1, virtualization: container, network: any, code: "web:1"}
`

// TestTasksEndForPeople: instances that completed or failed for good are shown as such, and wait ends
// at once with the reason if the state cannot be reached.
func TestTasksEndForPeople(t *testing.T) {
	c := openTerminal(t)
	_, cfg := c.at.startNode(t, "n1")
	rt := cfg.Fake.(*fakeRuntime)
	defer rt.ends(t.Context(), "acme/tasks.prod.good.v1", 0)()
	defer rt.ends(t.Context(), "acme/tasks.prod.bad.v1", 3)()
	c.apply(tasks)

	c.must("wait", "tasks/good", "--for=completed", "--timeout", "3m")
	c.must("wait", "tasks/good#0", "--for=running", "--timeout", "3m") // it has run
	for _, tt := range []struct {
		args []string
		says []string
	}{
		{[]string{"wait", "tasks/bad", "--for=completed", "--timeout", "3m"}, []string{"failed for good", "2 of 2 attempts failed", "exited with code 3", "attempts_exhausted"}},
		{[]string{"wait", "tasks/bad#0", "--for=running", "--timeout", "3m"}, []string{"failed for good"}},
		{[]string{"wait", "tasks", "--timeout", "3m"}, []string{"1 instance failed for good"}},
		{[]string{"wait", "tasks/web", "--for=completed", "--timeout", "3m"}, []string{"is not a one_shot"}},
	} {
		_, stderr, code := c.run(tt.args...)
		if code != 1 {
			t.Errorf("%v: exit %d, want 1: %s", tt.args, code, stderr)
		}
		for _, s := range tt.says {
			if !strings.Contains(stderr, s) {
				t.Errorf("%v: want %q in the output: %s", tt.args, s, stderr)
			}
		}
	}
	c.must("wait", "tasks/web", "--timeout", "3m")
	if out := c.must("get", "apps"); !strings.Contains(out, "1/3, 1 completed, 1 failed") || !strings.Contains(out, "  failed") {
		t.Errorf("unexpected state of the application: %s", out)
	}

	// Without the failed instance the application is complete; with one-shots only it has completed.
	c.must("scale", "tasks/bad", "0")
	c.must("wait", "tasks", "--timeout", "3m")
	if out := c.must("get", "apps"); !strings.Contains(out, "1/2, 1 completed") || !strings.Contains(out, "  complete ") {
		t.Errorf("unexpected state of the application: %s", out)
	}
	c.must("scale", "tasks/web", "0")
	eventually(t, "the application has completed", func() bool {
		return strings.Contains(c.must("get", "apps"), "  completed ")
	})

	// A wait ends when the service is deleted.
	c.must("scale", "tasks/web", "1")
	told := make(chan int, 1)
	go func() {
		_, _, code := c.run("wait", "tasks/web", "--for=running", "--timeout", "3m")
		told <- code
	}()
	c.must("delete", "app", "tasks", "-y", "--wait")
	if code := <-told; code != 6 && code != 0 { // it may have run before
		t.Errorf("wait for a deleted service exited with %d, want 6, or 0 if it ran before", code)
	}
}

const pair = `sla_version: v2.0
applications:
  - application_name: hello
    application_namespace: prod
    microservices:
      - {microservice_name: web, microservice_namespace: v1, virtualization: container, network: any, code: "web:1", vcpus: 1, stop_grace: 1}
`

const ledger = `sla_version: v2.0
applications:
  - application_name: bank
    application_namespace: prod
    microservices:
      - {microservice_name: ledger, microservice_namespace: v1, virtualization: container, network: any, code: "ledger:1", vcpus: 1,
         stop_grace: 1, exclusive: true, disruption: {max_unavailable: 1}}
`

// TestOperatorsDrainAndNameNodes: drain lists stuck instances with the reason, ends at its timeout,
// and stops them with --force; commands accept the names that -o name prints. Drains of two nodes honour a
// disruption budget.
func TestOperatorsDrainAndNameNodes(t *testing.T) {
	c := openTerminal(t)
	c.at.startNode(t, "n1")
	c.apply(pair)
	c.must("scale", "hello/web", "3")
	c.must("wait", "hello", "--timeout", "3m")
	if out := c.must("get", "apps"); !strings.Contains(out, "3/3") {
		t.Errorf("%s", out)
	}
	if out := c.must("scale", "hello/web", "2"); !strings.Contains(out, "2/2") {
		t.Errorf("unexpected output while the service is scaled to 2: %s", out)
	}
	c.must("wait", "hello", "--timeout", "3m")
	if out := c.must("get", "apps"); !strings.Contains(out, "2/2") {
		t.Errorf("unexpected output after scaling to 2: %s", out)
	}

	// There is no other node.
	_, stderr, code := c.run("drain", "n1", "--timeout", "1s")
	if code != 3 || !strings.Contains(stderr, "hello.prod.web.v1#0") || !strings.Contains(stderr, "hello.prod.web.v1#1") ||
		!strings.Contains(stderr, "fits on no other node: 0 of 1 nodes fit") || !strings.Contains(stderr, "instances left") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	if out := c.must("describe", "node", "n1"); !strings.Contains(out, "fits on no other node") {
		t.Errorf("%s", out)
	}
	_, stderr, code = c.run("drain", "munich/n1", "--force", "--timeout", "2m")
	if code != 0 || !strings.Contains(stderr, "drained") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	eventually(t, "the root knows that both instances stopped", func() bool { // drain asks the cluster
		return strings.Contains(c.must("get", "apps"), "0/2")
	})

	// With another node nothing is stuck, and commands accept what -o name prints.
	c.at.startNode(t, "n2")
	c.must("wait", "hello", "--timeout", "3m")
	c.must("drain", "n2", "--detach")
	c.must("uncordon", "n1")
	c.must("uncordon", "munich/n2")
	c.must("drain", "n2", "--timeout", "2m")
	for kind, verbs := range map[string][][]string{
		"nodes":     {{"get", "nodes"}, {"describe", "node"}, {"cordon"}, {"uncordon"}},
		"clusters":  {{"get", "clusters"}, {"describe", "cluster"}},
		"apps":      {{"get", "apps"}, {"describe", "app"}, {"wait"}, {"events"}},
		"services":  {{"get", "services"}, {"describe", "service"}, {"wait"}},
		"instances": {{"get", "instances"}, {"describe", "instance"}, {"why"}, {"wait"}, {"events"}},
	} {
		for _, name := range strings.Fields(c.must("get", kind, "-o", "name")) {
			for _, verb := range verbs {
				if _, stderr, code := c.run(append(verb, name)...); code != 0 {
					t.Errorf("%v %s: exit %d: %s", verb, name, code, stderr)
				}
			}
		}
	}
	for _, args := range [][]string{{"cordon", "n9"}, {"cordon", "munich/n9"}, {"describe", "node", "n9"}} {
		if _, stderr, code := c.run(args...); code != 6 {
			t.Errorf("%v: exit %d: %s", args, code, stderr)
		}
	}
	if _, _, code := c.run("cordon", "munich/n1", "--cluster", "oslo"); code != 2 {
		t.Errorf("a node name that two clusters have: exit %d, want a refusal", code)
	}
	if _, _, code := c.run("get", "instances", "h"); code != 6 {
		t.Errorf("a prefix of an instance's name: exit %d, want not found", code)
	}
	if out := c.must("__complete", "logs", "hello/"); !strings.Contains(out, "hello/web#0\trunning") {
		t.Errorf("unexpected completion of hello/: %q", out)
	}

	// While one exclusive instance is away for a drain, its disruption budget keeps the other one on a drained node.
	c.must("delete", "app", "hello", "-y", "--wait")
	c.must("cordon", "n2")
	c.apply(ledger)
	c.must("wait", "bank", "--timeout", "3m")
	c.must("uncordon", "n2")
	c.must("cordon", "n1")
	c.must("scale", "bank/ledger", "2")
	c.must("wait", "bank", "--timeout", "3m")
	for _, node := range []string{"n1", "n2"} {
		if out := c.must("get", "instances", "--node", node, "-o", "name"); strings.Count(out, "bank.") != 1 {
			t.Fatalf("on %s are %q, want one instance of bank", node, out)
		}
	}
	_, third := c.at.startNode(t, "n3")
	goOn := third.Fake.(*fakeRuntime).pause()
	c.must("drain", "n1", "--detach")
	c.must("drain", "n2", "--detach")
	drained := func() string { return c.must("describe", "node", "n1") + c.must("describe", "node", "n2") }
	eventually(t, "one instance is away and the other waits", func() bool {
		return strings.Contains(c.must("get", "apps"), "1/2") && strings.Count(drained(), "max_unavailable 1) permits") == 1
	})
	eventually(t, "one instance runs with the reason disruption_budget while the other one moves", func() bool {
		out := c.must("get", "instances", "bank")
		return strings.Count(out, "disruption_budget") == 1 && strings.Count(out, "running") == 1
	})
	goOn()
	c.must("drain", "n1", "--timeout", "2m")
	c.must("drain", "n2", "--timeout", "2m")
	c.must("wait", "bank", "--timeout", "3m")
	if out := c.must("get", "instances", "--node", "n3", "-o", "name"); strings.Count(out, "bank.") != 2 {
		t.Errorf("on n3 are %q, want both instances", out)
	}
}

// TestLogsOfWhatHasNotStarted: the error names the instance's state.
func TestLogsOfWhatHasNotStarted(t *testing.T) {
	c := openTerminal(t)
	_, stderr, code := c.run("logs", "hello/web#0")
	if code != 6 {
		t.Errorf("logs of an instance that does not exist: exit %d: %s", code, stderr)
	}
	c.apply(pair)
	_, stderr, code = c.run("logs", "hello/web#0")
	if code != 7 || !strings.Contains(stderr, "no_cluster") && !strings.Contains(stderr, "no_capacity") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	cfg := c.at.nodeConfig(t, "n1", c.at.nodeToken(api.TokenRequest{}))
	goOn := cfg.Fake.(*fakeRuntime).pause()
	defer goOn()
	begin(t, func(ctx context.Context) error { return node.Run(ctx, cfg, quiet(t)) })
	eventually(t, "the image is being fetched", func() bool {
		return strings.Contains(c.must("get", "instances"), "node_scheduled")
	})
	_, stderr, code = c.run("logs", "hello/web#0")
	if code != 7 || !strings.Contains(stderr, "has not started") || !strings.Contains(stderr, "node_scheduled") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}
