package lab_test

import (
	"path/filepath"
	"testing"

	"github.com/treeline-edge/treeline/testbed/lab"
)

func TestDeploy(t *testing.T) {
	l := open(t, lab.Options{})
	east, west := l.Cluster("east", lab.ClusterOptions{}), l.Cluster("west", lab.ClusterOptions{})
	e1 := east.Node("e1", lab.NodeOptions{})
	w1 := west.Node("w1", lab.NodeOptions{})
	l.Wait("both clusters have their node", func(v lab.View) bool {
		return lab.Nodes("east", 1)(v) && lab.Nodes("west", 1)(v)
	})

	took := lab.Stopwatch()
	l.Apply(lab.App("shop", lab.On(l.Process("web", 1), "east", ""), lab.On(l.Process("db", 1), "west", "")))
	l.Wait("both services run", func(v lab.View) bool {
		return l.Running("shop", "web", 1)(v) && l.Running("shop", "db", 1)(v)
	})
	l.Measured("deploy_process_two_clusters", took())
	web, db := l.Workload(l.ID("shop", "web", 0)), l.Workload(l.ID("shop", "db", 0))
	if web.Node != e1.Name || db.Node != w1.Name {
		t.Errorf("web runs on %q and db on %q, want e1 and w1", web.Node, db.Node)
	}

	took = lab.Stopwatch()
	l.Scale("shop", "web", 4)
	l.Wait("four run", l.Running("shop", "web", 4))
	l.Measured("scale_process_1_to_4", took())
	l.Scale("shop", "web", 1)
	l.Wait("one runs", func(v lab.View) bool { return len(v.Instances) == 2 && l.Running("shop", "web", 1)(v) })
	if !web.Alive() {
		t.Error("scaling down ended the oldest instance")
	}

	took = lab.Stopwatch()
	l.Delete("shop")
	l.Measured("delete_process", took())
	if left := l.Workloads(); len(left) != 0 {
		t.Errorf("deleted, and there run %+v", left)
	}
	_ = filepath.Base
}
