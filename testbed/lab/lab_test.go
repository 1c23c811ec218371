package lab_test

import (
	"os"
	"testing"

	"github.com/treeline-edge/treeline/node-engine/runtime/runtimetest"
	"github.com/treeline-edge/treeline/testbed/lab"
)

func TestMain(m *testing.M) {
	lab.Main()
	code := m.Run()
	lab.Forget()
	os.Exit(code)
}

// open is a new lab, which needs the superuser for cgroups.
func open(t *testing.T, o lab.Options) *lab.Lab {
	t.Helper()
	runtimetest.NeedRoot(t)
	return lab.New(t, o)
}
