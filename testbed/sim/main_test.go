package sim_test

import (
	"os"
	"runtime/debug"
	"testing"
)

// A world is small and short-lived: at the usual pace the collector would look at
// a few megabytes many times a second, for a quarter of the time that seeds take.
func TestMain(m *testing.M) {
	debug.SetGCPercent(800)
	os.Exit(m.Run())
}
