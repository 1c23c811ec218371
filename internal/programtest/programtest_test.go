package programtest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/internal/programtest"
)

// end is how a test ended.
type end struct{ failed, skipped string }

func (*end) Helper()                     {}
func (e *end) Fatalf(f string, a ...any) { e.failed = fmt.Sprintf(f, a...) }
func (e *end) Skip(a ...any)             { e.skipped = fmt.Sprint(a...) }

func TestNeedNamesWhatIsMissing(t *testing.T) {
	missing := []string{"no-such-program", "nor-this"}
	for _, c := range []struct {
		require         string
		failed, skipped bool
	}{{"1", true, false}, {"", false, true}} {
		t.Setenv("TREELINE_TEST_REQUIRE", c.require)
		var e end
		programtest.Need(&e, append(missing, "sh")...)
		if (e.failed != "") != c.failed || (e.skipped != "") != c.skipped || !strings.HasPrefix(e.failed+e.skipped, "no-such-program, nor-this ") {
			t.Errorf("TREELINE_TEST_REQUIRE=%q: %+v", c.require, e)
		}
		e = end{}
		if programtest.Need(&e, "sh"); e != (end{}) {
			t.Errorf("a program that is there: %+v", e)
		}
	}
}
