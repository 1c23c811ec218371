package runtimetest

import (
	"context"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/treeline-edge/treeline/testbed/ociimage/image"
)

var program struct {
	sync.Once
	path string
	err  error
}

// Program is the path of testbed/workload, built once for the test binary and
// readable by everybody, since workloads do not run as root.
func Program(t testing.TB) string {
	t.Helper()
	program.Do(func() {
		var dir string
		if dir, program.err = os.MkdirTemp("", "workload-"); program.err != nil {
			return
		}
		if program.err = os.Chmod(dir, 0o755); program.err != nil {
			return
		}
		program.path, program.err = image.Compile(context.Background(), dir,
			"github.com/treeline-edge/treeline/testbed/workload", runtime.GOARCH)
	})
	if program.err != nil {
		t.Fatal(program.err)
	}
	return program.path
}

// Require fails or skips a test that cannot run here: it fails where everything
// is required (TREELINE_TEST_REQUIRE=1), so that nothing hides as passed.
func Require(t testing.TB, what string, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if os.Getenv("TREELINE_TEST_REQUIRE") == "1" {
		t.Fatalf("%s is required: %v", what, err)
	}
	t.Skipf("needs %s: %v", what, err)
}

// NeedRoot is Require for the superuser.
func NeedRoot(t testing.TB) {
	t.Helper()
	var err error
	if os.Geteuid() != 0 {
		err = os.ErrPermission
	}
	Require(t, "root", err)
}
