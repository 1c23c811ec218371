package lab_test

import (
	"flag"
	"os"
	"testing"

	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// atOnce is the number of tests that run in parallel. They mostly wait, so that a machine can
// run more of them than it has processors.
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

// open returns a new lab, which needs root for control groups.
func open(t *testing.T, o lab.Options) *lab.Lab {
	t.Helper()
	programtest.NeedRoot(t)
	return lab.New(t, o)
}

// containers are options of nodes that run containers in the lab's containerd.
func containers(t *testing.T) lab.NodeOptions {
	t.Helper()
	programtest.Need(t, "containerd", "runc")
	return lab.NodeOptions{Containers: true}
}

// sub runs a subtest on a shared lab.
func sub(t *testing.T, l *lab.Lab, name string, fn func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		defer l.For(t)()
		defer func() {
			if t.Failed() {
				l.Explain() // the logs go on, until the end of the whole test
			}
		}()
		fn(t)
	})
}

// steady are options of clusters with a long dead time, for tests of other things: on a busy
// machine a node may be silent for a while.
func steady() lab.ClusterOptions {
	return lab.ClusterOptions{Args: []string{"--dead", "30s"}}
}
