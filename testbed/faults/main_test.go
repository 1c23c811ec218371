package faults

import (
	"errors"
	"os"
	"testing"

	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/testbed/lab"
)

func TestMain(m *testing.M) {
	lab.Main()
	code := m.Run()
	lab.Forget()
	os.Exit(code)
}

// open returns a new World, which needs root, containerd, Mosquitto and FerretDB.
func open(t *testing.T) *World {
	t.Helper()
	programtest.NeedRoot(t)
	programtest.Need(t, "containerd", "runc", "mosquitto", "mkfs.ext4")
	if lab.FerretDB() == "" {
		programtest.Require(t, "FerretDB", errors.New("set TREELINE_TEST_FERRETDB=$(scripts/ferretdb)"))
	}
	return New(t)
}
