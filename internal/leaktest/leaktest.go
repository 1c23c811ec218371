// Package leaktest fails tests that leave goroutines behind. It is goleak with a longer timeout for
// busy machines: goleak waits for about a second, but an ending goroutine may wait longer for a
// disk.
//
//	func TestMain(m *testing.M) { leaktest.Main(m) }
package leaktest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

const patience = time.Minute

// Main runs the tests and exits, with a failure if goroutines are left.
func Main(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := find(patience); err != nil {
			fmt.Fprintln(os.Stderr, "the tests passed and left goroutines:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// Since returns a check that fails t if goroutines are left that began after the call of Since.
// Goroutines of parallel tests count as leaks.
func Since(t testing.TB) (check func()) {
	before := goleak.IgnoreCurrent()
	return func() {
		t.Helper()
		if err := find(patience, before); err != nil {
			t.Error(err)
		}
	}
}

// find looks for goroutines until none are left or the time is over.
func find(within time.Duration, o ...goleak.Option) error {
	for end := time.Now().Add(within); ; {
		if err := goleak.Find(o...); err == nil || time.Now().After(end) {
			return err
		}
	}
}
