// Package programtest declares the programs that a test starts, so that a missing one
// ends the test at once with its name instead of by a timeout.
package programtest

import (
	"os"
	"os/exec"
	"strings"
)

// T is the part of testing.TB that Need uses.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
	Skip(args ...any)
}

// Need ends the test if one of the programs is not in PATH: it fails the test where
// everything is required (TREELINE_TEST_REQUIRE=1, as in scripts/test), and skips it
// elsewhere. The programs must be in scripts/lib.sh, which TestProgramsAreListed checks.
func Need(t T, programs ...string) {
	t.Helper()
	var missing []string
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 {
		return
	}
	what := strings.Join(missing, ", ") + " not in PATH; scripts/lib.sh names the packages"
	if os.Getenv("TREELINE_TEST_REQUIRE") == "1" {
		t.Fatalf("%s", what)
		return
	}
	t.Skip(what)
}
