package runtimetest

import (
	"context"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/treeline-edge/treeline/testbed/ociimage/image"
)

var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "workload-")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // workloads do not run as root
		return "", err
	}
	return image.Compile(context.Background(), dir, "github.com/treeline-edge/treeline/testbed/workload", runtime.GOARCH)
})

// Program returns the path of testbed/workload, which it compiles once per test binary.
func Program(t testing.TB) string {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
