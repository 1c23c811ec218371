// Package programtest checks what a test requires of the machine, such as programs, so that the
// test ends at once with a message and not by a timeout.
package programtest

import (
	"errors"
	"os"
	"os/exec"
	"strings"
)

// T is the part of testing.TB that the package uses.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
	Skip(args ...any)
}

// Need ends the test if one of the programs is not in PATH. The programs must be in
// scripts/lib.sh, which TestProgramsAreListed checks.
func Need(t T, programs ...string) {
	t.Helper()
	var missing []string
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			missing = append(missing, p)
		}
	}
	if len(missing) > 0 {
		Require(t, strings.Join(missing, ", "), errors.New("not in PATH; scripts/lib.sh has the packages"))
	}
}

// NeedRoot ends the test unless it runs as root.
func NeedRoot(t T) {
	t.Helper()
	if os.Geteuid() != 0 {
		Require(t, "root", os.ErrPermission)
	}
}

// Require ends the test if err is not nil, because what is missing. The test fails if all tests must
// run (TREELINE_TEST_REQUIRE=1, as in scripts/test), else it is skipped.
func Require(t T, what string, err error) {
	t.Helper()
	switch {
	case err == nil:
	case os.Getenv("TREELINE_TEST_REQUIRE") == "1":
		t.Fatalf("%s is required: %v", what, err)
	default:
		t.Skip(what + " is required: " + err.Error())
	}
}
