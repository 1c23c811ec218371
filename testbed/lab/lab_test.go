package lab_test

import (
	"flag"
	"os"
	"testing"

	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/node-engine/runtime/runtimetest"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// atOnce is how many tests that may run beside others do: they wait more than they
// work, so that a machine has time for more of them than it has processors.
const atOnce = "4"

func TestMain(m *testing.M) {
	lab.Main()
	flag.Parse()
	asked := false
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == "test.parallel" })
	if !asked {
		_ = flag.Set("test.parallel", atOnce)
	}
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

// containers are nodes that run containers by a containerd of the lab's own.
func containers(t *testing.T) lab.NodeOptions {
	t.Helper()
	programtest.Need(t, "containerd", "runc")
	return lab.NodeOptions{Containers: true}
}

// sub is a subtest on a lab that it shares with others.
func sub(t *testing.T, l *lab.Lab, name string, fn func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		defer l.For(t)()
		fn(t)
	})
}

// steady are clusters that are slow to call a node dead, for tests of other
// things: on a machine that is busy enough a node may fall silent for a while.
func steady() lab.ClusterOptions {
	return lab.ClusterOptions{Args: []string{"--dead", "30s"}}
}
