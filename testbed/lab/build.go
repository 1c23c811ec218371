package lab

import (
	"context"
	"os"
	"path/filepath"
	"sync"

	"github.com/treeline-edge/treeline/testbed/gobuild"
)

// Programs are the packages of a lab's binaries, within the module, which are named by go build. The
// last one, cli, is treeline.
func Programs() []string {
	return []string{"root-orchestrator", "cluster-orchestrator", "node-engine", "netmanager", "testbed/workload", "cli"}
}

var built struct {
	sync.Once
	dir string
	err error
}

// Bin returns the directory of the binaries, which are built once per process.
// TREELINE_LAB_BIN names a directory with existing ones, to build them once for several processes.
func Bin(t T) string {
	t.Helper()
	built.Do(func() { built.dir, built.err = build() })
	if built.err != nil {
		t.Fatalf("build the daemons: %v", built.err)
	}
	return built.dir
}

func build() (string, error) {
	if dir := os.Getenv("TREELINE_LAB_BIN"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.MkdirTemp("", "lab-bin-")
	if err != nil {
		return "", err
	}
	// Workloads run as user nobody and must be able to read the program.
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // it holds programs, no secrets
		return "", err
	}
	return dir, gobuild.Build(context.Background(), dir+"/", Programs()...)
}

// forget removes the binaries that build made.
func forget() {
	if built.dir != "" && os.Getenv("TREELINE_LAB_BIN") == "" {
		_ = os.RemoveAll(built.dir)
	}
}
