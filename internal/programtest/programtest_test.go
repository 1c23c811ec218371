package programtest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/internal/programtest"
)

// end is a T that records how the test ended.
type end struct{ failed, skipped string }

func (*end) Helper()                     {}
func (e *end) Fatalf(f string, a ...any) { e.failed = fmt.Sprintf(f, a...) }
func (e *end) Skip(a ...any)             { e.skipped = fmt.Sprint(a...) }

func TestNeedNamesMissingPrograms(t *testing.T) {
	missing := []string{"no-such-program", "nor-this"}
	for _, c := range []struct {
		require         string
		failed, skipped bool
	}{{"1", true, false}, {"", false, true}} {
		t.Setenv("TREELINE_TEST_REQUIRE", c.require)
		var e end
		programtest.Need(&e, append(missing, "sh")...)
		if (e.failed != "") != c.failed || (e.skipped != "") != c.skipped || !strings.HasPrefix(e.failed+e.skipped, "no-such-program, nor-this ") {
			t.Errorf("Need of missing programs, TREELINE_TEST_REQUIRE=%q: got %+v, want failed %t, skipped %t, with their names", c.require, e, c.failed, c.skipped)
		}
		e = end{}
		if programtest.Need(&e, "sh"); e != (end{}) {
			t.Errorf("Need of an existing program: got %+v, want no effect", e)
		}
	}
}
