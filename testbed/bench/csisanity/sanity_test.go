// Package csisanity runs the checks of kubernetes-csi/csi-test against the driver of testbed/csidriver,
// so that what passes with this driver passes with others that follow the specification. It is in the
// module of the benchmarks, because csi-test needs modules that Treeline does not.
package csisanity

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"

	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/testbed/csidriver"
)

func TestDriverFollowsTheSpecification(t *testing.T) {
	programtest.NeedRoot(t)
	dir := t.TempDir()
	o := csidriver.Options{Name: "dirs.test.example", Dir: filepath.Join(dir, "volumes"), TopologyKey: "zone"}
	if err := os.Mkdir(o.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "csi.sock")
	s, err := csidriver.Serve(socket, csidriver.NewStorage(o), "n1", map[string]string{"zone": "a"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	conf := sanity.NewTestConfig()
	conf.Address = socket
	conf.TargetPath, conf.StagingPath = filepath.Join(dir, "target"), filepath.Join(dir, "staging")
	sanity.Test(t, conf)
	if left := s.Volumes(); len(left) > 0 {
		t.Errorf("volumes left by the checks: %v", left)
	}
}
