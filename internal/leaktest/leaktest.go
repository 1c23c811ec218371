// Package leaktest fails tests that leave goroutines behind. It is goleak with the
// patience that a busy machine needs: goleak itself waits for about a second in
// all, and what was told to end may be waiting for a disk for longer. What tests
// leave on the machine is for others to see.
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

// Main runs the tests and ends the program, with a failure if goroutines are left.
func Main(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := find(patience); err != nil {
			fmt.Fprintln(os.Stderr, "the tests passed and left behind:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// Since returns a check that fails t where goroutines are left that began after
// Since. Tests beside it are taken for leaks.
func Since(t testing.TB) (check func()) {
	before := goleak.IgnoreCurrent()
	return func() {
		t.Helper()
		if err := find(patience, before); err != nil {
			t.Error(err)
		}
	}
}

// find looks until nothing is left or the time is over.
func find(within time.Duration, o ...goleak.Option) error {
	for end := time.Now().Add(within); ; {
		if err := goleak.Find(o...); err == nil || time.Now().After(end) {
			return err
		}
	}
}
