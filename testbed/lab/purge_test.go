package lab_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// exitLeft is the exit code of a node engine whose node was purged.
const exitLeft = 9

const registryPassword = "a registry's own password"

// TestAPurgedNodeLeavesNothing purges nodes with containers on the overlay network: one that
// runs normally, one whose engine is down, and one by hand on its machine. Nothing of them is
// left on the machine, and a neighbour is not affected.
func TestAPurgedNodeLeavesNothing(t *testing.T) {
	// Not in parallel: the kernel gives numbers of namespaces again, to those of other tests.
	programtest.Need(t, "containerd", "runc", "ip")
	o := lab.NewOverlay(t, lab.Options{})
	var config []string // of each node, with a password
	var links []map[string]bool
	for i := range 4 {
		file := filepath.Join(o.Dir, fmt.Sprintf("n%d.yaml", i))
		text := fmt.Sprintf("containerd:\n  registries:\n    - host: registry.example\n      username: lab\n      password: %q\n", registryPassword)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		config = append(config, file)
		o.Site(o.First, netlab.None, lab.NodeOptions{Args: []string{"--config", file}})
	}
	o.Ready(o.First, 4)
	for i := range 4 {
		links = append(links, interfaces(o.Hosts[i]))
	}
	var services []api.Microservice
	for i := range 4 {
		services = append(services, lab.On(o.Container(fmt.Sprintf("at%d", i), 1), "c1", fmt.Sprintf("n%d", i)))
	}
	services = append(services, o.Container("web", 6))
	o.Apply(lab.App("shop", services...))
	o.Wait("all run", func(v lab.View) bool {
		for i := range 4 {
			if !o.Running("shop", fmt.Sprintf("at%d", i), 1)(v) {
				return false
			}
		}
		return o.Running("shop", "web", 6)(v)
	})
	o.Service("shop", "web", 6)
	of := func(n *lab.Node) (all []lab.Workload) {
		return slices.DeleteFunc(o.Workloads(), func(w lab.Workload) bool { return w.Node != n.Name })
	}
	neighbour := of(o.Nodes[3])
	held := o.Held(o.Nodes[3])

	// left fails the test if anything of a node is left.
	left := func(i int, spaces map[string]bool) {
		t.Helper()
		n := o.Nodes[i]
		if h := o.Held(n); len(h) > 0 {
			t.Errorf("containerd still has objects of %s: %v", n.Name, h)
		}
		if w := of(n); len(w) > 0 {
			t.Errorf("workloads still run on %s: %+v", n.Name, w)
		}
		if s := shared(spaces, networks()); len(s) > 0 {
			t.Errorf("network namespaces of workloads of %s still exist: %v", n.Name, s)
		}
		// The kernel removes a namespace's interfaces a moment after the namespace.
		lab.Within(t, time.Minute, n.Name+" has no interface of a workload", func() error {
			for link := range interfaces(o.Hosts[i]) {
				if !links[i][link] {
					return fmt.Errorf("the interface %s still exists", link)
				}
			}
			return nil
		})
		if g := lab.CgroupsOf(filepath.Base(o.Dir) + "-" + n.Name + "/"); len(g) > 0 {
			t.Errorf("control groups of %s still exist: %v", n.Name, g)
		}
		for _, m := range lab.MountsUnder(o.Dir) {
			if strings.Contains(m, filepath.Base(o.Dir)+"-"+n.Name+"/") || strings.HasPrefix(m, n.Data+"/") {
				t.Errorf("%s is still mounted", m)
			}
		}
		var files []string
		entries, err := os.ReadDir(n.Data)
		for _, e := range entries {
			files = append(files, e.Name())
		}
		if err != nil || !slices.Equal(files, []string{"left"}) {
			t.Errorf("%s contains %v, %v; want only the mark of the used token", n.Data, files, err)
		}
		if text, err := os.ReadFile(config[i]); err != nil || strings.Contains(string(text), registryPassword) {
			t.Errorf("the configuration of %s keeps the password: %s, %v", n.Name, text, err)
		}
		lab.Within(t, time.Minute, "the cluster forgets "+n.Name, func() error {
			if _, err := o.First.NodeOf(n.ID); !errors.Is(err, api.ErrNotFound) {
				return fmt.Errorf("it says %v", err)
			}
			return nil
		})
		// It does not join again with the token in its environment.
		n.Launch()
		if code := n.WaitEnd(); code != exitLeft {
			t.Errorf("started again, the engine of %s exited with %d", n.Name, code)
		}
		if now := of(o.Nodes[3]); !slices.Equal(neighbourOf(now, neighbour), neighbour) || len(o.Held(o.Nodes[3])) < len(held) {
			t.Errorf("the neighbour has the workloads %+[2]v, want %+[1]v; in containerd %[3]v", neighbour, now, o.Held(o.Nodes[3]))
		}
	}

	// A node that runs normally.
	spaces := spacesOf(t, of(o.Nodes[0]))
	said := o.CLI("delete", "node", "c1/n0", "--purge", "--yes")
	if !strings.Contains(said, "n0") {
		t.Errorf("delete node --purge printed %s", said)
	}
	if code := o.Nodes[0].WaitEnd(); code != exitLeft {
		t.Errorf("the engine exited with %d", code)
	}
	left(0, spaces)
	o.Wait("what can runs elsewhere", o.Running("shop", "web", 6))

	// A node whose engine is down: the command names what may still run, and the order is kept.
	n1 := o.Nodes[1]
	spaces = spacesOf(t, of(n1))
	n1.Kill9()
	lab.Within(t, time.Minute, "n1 is silent", func() error {
		if n, err := o.First.NodeOf("n1"); err != nil || n.Status != api.NodeSilent {
			return fmt.Errorf("the node is %s, %v", n.Status, err)
		}
		return nil
	})
	said, err := o.TryCLI("delete", "node", "c1/n1", "--purge", "--yes")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 8 || !strings.Contains(said, "shop.lab.at1.lab#0") || !strings.Contains(said, "node-engine purge --yes") {
		t.Errorf("%v: want the instances that may still run and how to delete them, got: %s", err, said)
	}
	if len(of(n1)) == 0 {
		t.Error("nothing runs on n1, so that the test proves nothing")
	}
	n1.Launch()
	if code := n1.WaitEnd(); code != exitLeft {
		t.Errorf("the engine exited with %d", code)
	}
	left(1, spaces)

	// A node that is purged by hand on its machine.
	n2 := o.Nodes[2]
	spaces = spacesOf(t, of(n2))
	n2.Stop()
	if len(of(n2)) == 0 {
		t.Error("nothing runs on n2, so that the test proves nothing")
	}
	if said, err := n2.Purge(); err != nil {
		t.Fatalf("purge by hand: %v\n%s", err, said)
	}
	left(2, spaces)
}

// neighbourOf returns those of now that existed before.
func neighbourOf(now, before []lab.Workload) []lab.Workload {
	return slices.DeleteFunc(slices.Clone(now), func(w lab.Workload) bool { return !slices.Contains(before, w) })
}

// spacesOf returns the network namespaces of workloads.
func spacesOf(t *testing.T, all []lab.Workload) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for _, w := range all {
		at, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", w.PID))
		if err != nil {
			t.Fatal(err)
		}
		out[at] = true
	}
	if len(out) == 0 {
		t.Fatal("the node runs no workloads, so that the test proves nothing")
	}
	return out
}

// networks returns the network namespaces that a process or a mount refers to.
func networks() map[string]bool {
	out := map[string]bool{}
	all, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, p := range all {
		if at, err := os.Readlink(p); err == nil {
			out[at] = true
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 3 && strings.HasPrefix(f[3], "net:[") {
			out[f[3]] = true
		}
	}
	return out
}

func shared(a, b map[string]bool) []string {
	out := maps.Clone(a)
	maps.DeleteFunc(out, func(k string, _ bool) bool { return !b[k] })
	return slices.Sorted(maps.Keys(out))
}

// interfaces returns the names of a host's network interfaces.
func interfaces(h *netlab.Host) map[string]bool {
	out := map[string]bool{}
	for line := range strings.Lines(h.Run("ip", "-o", "link")) {
		if f := strings.Fields(line); len(f) > 1 {
			name, _, _ := strings.Cut(strings.TrimSuffix(f[1], ":"), "@")
			out[name] = true
		}
	}
	return out
}
