package lab_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// A device belongs to one instance as long as that exists, also across a restart of the node
// engine. An instance that waits for the device shows this as the reason.
func TestADeviceIsGivenOnceAndGivenOn(t *testing.T) {
	t.Parallel()
	l := open(t, lab.Options{})
	c := l.Cluster("c1", steady())
	o := containers(t)
	o.Args = []string{"--test-devices", "test.treeline.dev/gpu=1"}
	n := c.Node("n1", o)
	l.Wait("the cluster has its node", lab.Nodes("c1", 1))

	want := l.Container("train", 1)
	want.VGPUs = 1
	l.Apply(lab.App("first", want))
	l.Wait("the first runs", l.Running("first", "train", 1))
	first := l.Workload(l.ID("first", "train", 0))
	device := environ(t, first.PID, "TREELINE_TEST_GPU_0")
	if _, err := os.Stat(fmt.Sprintf("/proc/%d/root/dev/treeline-test-gpu0", first.PID)); err != nil || device == "" {
		t.Errorf("the instance's container has the device %q: %v", device, err)
	}
	second := l.ID("second", "train", 0)
	l.Apply(lab.App("second", want))
	waits := func() {
		t.Helper()
		lab.Within(t, time.Minute, "the second waits for the device", func() error { return blames(l, second, "device:gpu") })
	}
	waits()

	n.Kill9()
	n.Start()
	lab.Within(t, time.Minute, "the node engine serves again", n.Ready)
	waits()
	if now := l.Workload(first.Instance); now.PID != first.PID || len(l.WorkloadsOf(second)) > 0 {
		t.Errorf("after the engine's restart the first is %+v, was %+v", now, first)
	}

	l.Delete("first")
	l.Wait("the second runs", l.Running("second", "train", 1))
	if got := environ(t, l.Workload(second).PID, "TREELINE_TEST_GPU_0"); got != device {
		t.Errorf("the second instance has the device %q, want %q, which the first had", got, device)
	}
}

// Two external schedulers place by their preference. One that fails delays placement by its
// deadline and is named in an event.
func TestSchedulersFromOutsidePlace(t *testing.T) {
	t.Parallel()
	l := open(t, lab.Options{})
	module, err := filepath.Abs("../../scheduler-plugins/examples/quiet/quiet.wasm")
	if err != nil {
		t.Fatal(err)
	}
	python, url := rankByPython(t)
	quiet := l.Cluster("quiet", lab.ClusterOptions{Args: []string{"--dead", "30s", "--scheduler", "wasm:" + module}})
	solar := l.Cluster("solar", lab.ClusterOptions{Args: []string{"--dead", "30s", "--scheduler", url}})
	quiet.Node("q1", lab.NodeOptions{CPUs: 4, Memory: 4096})
	quiet.Node("q2", lab.NodeOptions{CPUs: 1, Memory: 512})
	solar.Node("s1", lab.NodeOptions{CPUs: 1, Memory: 512, Args: []string{"--labels", "power=solar"}})
	solar.Node("s2", lab.NodeOptions{CPUs: 4, Memory: 4096})
	l.Wait("both clusters have their nodes", func(v lab.View) bool { return lab.Nodes("quiet", 2)(v) && lab.Nodes("solar", 2)(v) })

	// The built-in scheduler would choose those with more capacity, q1 and s2.
	l.Apply(lab.App("busy", lab.On(l.Process("web", 1), "quiet", "q1")))
	l.Wait("q1 has an instance", l.Running("busy", "web", 1))
	small := func(name, cluster string) api.Microservice {
		return lab.On(lab.Needing(l.Process(name, 1), 0.1, 32), cluster, "")
	}
	l.Apply(lab.App("asked", small("web", "quiet"), small("sun", "solar")))
	l.Wait("both run", func(v lab.View) bool { return l.Running("asked", "web", 1)(v) && l.Running("asked", "sun", 1)(v) })
	if w := l.Workload(l.ID("asked", "web", 0)); w.Node != "q2" {
		t.Errorf("the instance runs on %s, want the node with the fewest instances, which the module prefers", w.Node)
	}
	if w := l.Workload(l.ID("asked", "sun", 0)); w.Node != "s1" {
		t.Errorf("the instance runs on %s, want the node with solar power, which the service prefers", w.Node)
	}

	_ = python.Process.Kill()
	_ = python.Wait()
	l.Apply(lab.App("alone", small("sun", "solar")))
	l.Wait("the built-in one places it", l.Running("alone", "sun", 1))
	if w := l.Workload(l.ID("alone", "sun", 0)); w.Node != "s2" {
		t.Errorf("the instance runs on %s, want the node with the most capacity, which the built-in scheduler prefers", w.Node)
	}
	lab.Within(t, time.Minute, "the one that is gone is named", func() error {
		if !strings.Contains(solar.Log(), url) {
			return errors.New("the cluster's log does not name " + url)
		}
		events, _, err := l.API.Events(l.Context(), client.ListOptions{})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(events, func(e api.Event) bool {
			return e.Kind == "cluster" && e.Object == "solar" && e.Reason == api.ReasonNoScheduler && strings.Contains(e.Detail, url)
		}) {
			return errors.New("no event of the cluster names " + url)
		}
		return nil
	})
}

// Applying with the revision of a plan has the planned result, and is refused after a change.
func TestAPlanIsWhatHappens(t *testing.T) {
	t.Parallel()
	l := open(t, lab.Options{})
	for _, name := range []string{"east", "west"} {
		c := l.Cluster(api.ClusterID(name), steady())
		c.Node(name+"1", lab.NodeOptions{CPUs: 2})
		c.Node(name+"2", lab.NodeOptions{CPUs: 1})
	}
	l.Wait("both clusters have their nodes", func(v lab.View) bool { return lab.Nodes("east", 2)(v) && lab.Nodes("west", 2)(v) })

	l.Apply(lab.App("shop", lab.Needing(l.Process("web", 1), 0.5, 64)))
	l.Wait("one runs", l.Running("shop", "web", 1))
	doc := lab.Encode(lab.App("shop", lab.Needing(l.Process("web", 3), 0.5, 64)))
	plan, err := l.API.Plan(l.Context(), doc, client.ApplyOptions{Tenant: l.Tenant})
	if err != nil {
		t.Fatalf("plan: %v", err)
	}
	where := map[api.InstanceID]api.InstancePlan{}
	for _, a := range plan.Apps {
		for _, in := range a.Instances {
			where[in.ID] = in
		}
	}
	if len(l.Workloads()) != 1 {
		t.Errorf("a plan started workloads: %+v", l.Workloads())
	}
	o := client.ApplyOptions{Tenant: l.Tenant, IfMatch: plan.Revision}
	if _, err := l.API.Apply(l.Context(), doc, o); err != nil {
		t.Fatalf("apply with the plan's revision: %v", err)
	}
	l.Wait("three run", l.Running("shop", "web", 3))
	placed := 0
	for _, w := range l.Workloads() {
		p := where[w.Instance]
		if p.Action != "place" {
			continue
		}
		placed++
		if !strings.HasPrefix(w.Node, string(p.Cluster)) || p.Node != "" && string(p.Node) != w.Node {
			t.Errorf("%s was planned for %s of %s, but runs on %s", w.Instance, p.Node, p.Cluster, w.Node)
		}
	}
	if placed != 2 {
		t.Errorf("the plan was %+v", plan.Apps)
	}
	if _, err := l.API.Apply(l.Context(), doc, o); !errors.Is(err, api.ErrConflict) && !errors.Is(err, api.ErrPrecondition) {
		t.Errorf("apply again with the old revision: %v, want a conflict", err)
	}
}

// On a full node an instance of high priority preempts that of the lowest priority, which is
// placed again when there is capacity.
func TestTheUrgentTakesTheRoomOfTheLeastUrgent(t *testing.T) {
	t.Parallel()
	l := open(t, lab.Options{})
	c := l.Cluster("c1", lab.ClusterOptions{Args: []string{"--dead", "30s", "--preempt"}})
	c.Node("n1", lab.NodeOptions{CPUs: 1, Args: []string{"--labels", "disk=ssd"}})
	c.Node("n2", lab.NodeOptions{CPUs: 1}) // the root sees that there is capacity, but not where
	l.Wait("the cluster has its nodes", lab.Nodes("c1", 2))
	on := func(name, priority string, vcpus float64) api.Microservice {
		m := lab.Needing(l.Process(name, 1), vcpus, 64)
		m.Priority = priority
		m.Constraints = []api.Constraint{{Type: api.ConstrainLabels, Labels: []string{"disk=ssd"}}}
		return m
	}
	l.Apply(lab.App("jobs", on("low", "low", 0.5), on("high", "high", 0.5)))
	l.Wait("the node is full", func(v lab.View) bool { return l.Running("jobs", "low", 1)(v) && l.Running("jobs", "high", 1)(v) })
	high := l.Workload(l.ID("jobs", "high", 0))

	l.Apply(lab.App("now", on("main", "urgent", 0.5)))
	l.Wait("the urgent one runs", l.Running("now", "main", 1))
	low := l.ID("jobs", "low", 0)
	l.Wait("the least urgent one made way", func(v lab.View) bool { return v.Instances[low].Reason == api.ReasonPreempted })
	if !high.Alive() || len(l.WorkloadsOf(low)) > 0 {
		t.Errorf("there run %+v", l.Workloads())
	}
	l.Delete("now")
	l.Wait("it runs again", l.Running("jobs", "low", 1))
}

// blames returns an error unless why names the constraint for an instance, at either tier.
func blames(l *lab.Lab, id api.InstanceID, constraint string) error {
	why, err := l.API.Why(l.Context(), id)
	if err != nil {
		return err
	}
	causes := why.Root.Causes
	for _, c := range why.Clusters {
		causes = append(slices.Clone(causes), c.Answer.Causes...)
	}
	if !slices.ContainsFunc(causes, func(c api.Cause) bool { return c.Constraint == constraint }) {
		return fmt.Errorf("why says %q", why.Summary)
	}
	return nil
}

// environ returns an environment variable of a process.
func environ(t *testing.T, pid int, name string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		t.Fatal(err)
	}
	for v := range strings.SplitSeq(string(text), "\x00") {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

// rankByPython runs the Python example and returns its URL.
func rankByPython(t *testing.T) (*exec.Cmd, string) {
	t.Helper()
	programtest.Need(t, "python3")
	cmd := exec.Command("python3", "-u", "../../scheduler-plugins/examples/python/rank.py", "127.0.0.1:0")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("read the URL of the Python example: %v", err)
	}
	i := strings.Index(line, "127.0.0.1:")
	if i < 0 {
		t.Fatalf("the Python example printed %q, want a line with its URL", line)
	}
	return cmd, "http://" + strings.TrimRight(strings.TrimSpace(line[i:]), "/") + "/"
}
