// Command netmanager is a node's part of the overlay network: it gives instances
// their addresses, has the kernel choose among a service's instances, and carries
// what the kernel cannot between nodes.
//
//	netmanager            runs, beside the node engine
//	netmanager --remove   takes everything of it away from the machine
package main

import (
	"os"
	"runtime"
	"runtime/debug"

	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/netmanager/wiring"
)

// A netmanager holds little and its data path allocates nothing: collecting early
// keeps it small and costs next to nothing. GOGC and GOMEMLIMIT say otherwise if
// they are set.
const (
	gcPercent   = 40
	memoryLimit = 48 << 20
)

// waiting is how many threads wait in the kernel for packets (package rawio). Each
// keeps one of Go's processors meanwhile: with as many as there are cores, none would
// be left on a small machine, and the runtime's monitor would take them away again
// and again.
const waiting = 2

func main() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + waiting)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	daemon.Main("netmanager", wiring.Defaults(), wiring.Run)
}
