package lab_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/testbed/lab"
)

// TestAClusterMissesItsStore removes a cluster's store, and replaces it with another cluster's.
// The cluster refuses to start in both cases.
func TestAClusterMissesItsStore(t *testing.T) {
	t.Parallel()
	l := open(t, lab.Options{})
	munich, oslo := l.Cluster("munich", steady()), l.Cluster("oslo", steady())
	munich.Node("n1", lab.NodeOptions{})
	l.Wait("munich has its node", lab.Nodes("munich", 1))
	munich.Stop()
	oslo.Stop()
	db, kept := filepath.Join(munich.Data, "cluster.db"), filepath.Join(munich.Data, "kept")
	if err := os.Rename(db, kept); err != nil {
		t.Fatal(err)
	}
	refuses := func(what, says string) {
		t.Helper()
		munich.Launch()
		if code := munich.WaitEnd(); code == 0 || !strings.Contains(munich.Log(), says) {
			t.Errorf("the cluster with %s exited with %d, want an error that names the store:\n%s", what, code, munich.Log())
		}
	}
	refuses("no store", "--new-store")
	foreign, err := os.ReadFile(filepath.Join(oslo.Data, "cluster.db"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(db, foreign, 0o600); err != nil {
		t.Fatal(err)
	}
	refuses("another cluster's store", "one backup")
	if err := os.Rename(kept, db); err != nil {
		t.Fatal(err)
	}
	munich.Start()
	l.Wait("munich has its node again", lab.Nodes("munich", 1))
}
