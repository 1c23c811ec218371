package sim_test

import (
	"os"
	"runtime/debug"
	"testing"
)

// A world is small and short-lived. With the default GOGC the garbage collector would run
// many times a second for a few megabytes, and take a quarter of the time.
func TestMain(m *testing.M) {
	debug.SetGCPercent(800)
	os.Exit(m.Run())
}
