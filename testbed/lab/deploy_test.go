package lab_test

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// TestDeploy deploys applications as processes and containers on two clusters, and checks
// that their deletion leaves nothing.
func TestDeploy(t *testing.T) {
	t.Parallel()
	l := open(t, lab.Options{})
	east, west := l.Cluster("east", steady()), l.Cluster("west", steady())
	e1, w1 := east.Node("e1", containers(t)), west.Node("w1", lab.NodeOptions{})
	l.Wait("both clusters have their node", func(v lab.View) bool {
		return lab.Nodes("east", 1)(v) && lab.Nodes("west", 1)(v)
	})
	mounts := len(lab.MountsUnder(l.Dir))

	took := lab.Stopwatch()
	l.Apply(lab.App("first", l.Container("web", 1)))
	l.Wait("it runs", l.Running("first", "web", 1))
	l.Measured("deploy_container_image_unpacked", took())
	l.Delete("first")

	took = lab.Stopwatch()
	l.Apply(lab.App("shop", lab.Needing(l.Container("web", 1), 0.1, 64), l.Process("db", 1)))
	l.Wait("the container runs", l.Running("shop", "web", 1))
	l.Measured("deploy_container", took())
	l.Wait("both services run", l.Running("shop", "db", 1))
	web, db := l.Workload(l.ID("shop", "web", 0)), l.Workload(l.ID("shop", "db", 0))
	if web.Node != e1.Name || db.Node != w1.Name {
		t.Errorf("web runs on %q and db on %q, want e1 and w1", web.Node, db.Node)
	}
	if !says(t, l, web.Instance, "sleeping") {
		t.Error("the log of the instance does not contain its first line")
	}

	took = lab.Stopwatch()
	l.Scale("shop", "web", 4)
	l.Wait("four run", l.Running("shop", "web", 4))
	l.Measured("scale_container_1_to_4", took())
	l.Scale("shop", "web", 1)
	l.Wait("one runs", func(v lab.View) bool { return len(v.Instances) == 2 && l.Running("shop", "web", 1)(v) })
	if !web.Alive() {
		t.Error("scaling down ended the oldest instance, want it to end the newest")
	}

	took = lab.Stopwatch()
	l.Delete("shop")
	l.Measured("delete", took())
	if left := l.Workloads(); len(left) != 0 {
		t.Errorf("after the deletion these workloads run: %+v", left)
	}
	if left := l.Tasks(e1); len(left) != 0 {
		t.Errorf("after the deletion containerd has %v, want nothing", left)
	}
	if now := len(lab.MountsUnder(l.Dir)); now != mounts {
		t.Errorf("after the deletion there are %d mounts, want %d: %v", now, mounts, lab.MountsUnder(l.Dir))
	}
	for _, g := range lab.CgroupsOf(filepath.Base(l.Dir) + "-") {
		// Only the node's own control group may be left, and must be empty.
		node := strings.HasPrefix(filepath.Base(g), filepath.Base(l.Dir)) || filepath.Base(g) == "shims"
		if procs, err := os.ReadFile(filepath.Join(g, "cgroup.procs")); err != nil || len(procs) > 0 || !node {
			t.Errorf("after the deletion the control group %s is left", g)
		}
	}
	if files, _ := os.ReadDir(filepath.Join(w1.Data, "process", "w")); len(files) > 0 {
		t.Errorf("after the deletion the node keeps the files %v", files)
	}
}

// says follows the instance's log until it contains the text: an instance runs before its
// first line is copied.
func says(t *testing.T, l *lab.Lab, id api.InstanceID, text string) bool {
	t.Helper()
	logs, err := l.API.Logs(l.Context(), id, true, -1)
	if err != nil {
		t.Fatalf("logs: %v", err)
	}
	defer logs.Close()
	lines := bufio.NewScanner(logs)
	for lines.Scan() {
		if strings.Contains(lines.Text(), text) {
			return true
		}
	}
	return false
}
