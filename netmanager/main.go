// Command netmanager runs the overlay network on a node: it gives instances their addresses,
// configures the kernel to choose among a service's instances, and carries encrypted packets
// between nodes.
//
//	netmanager            runs, beside the node engine
//	netmanager --remove   removes all its devices and rules from the machine
package main

import (
	"os"
	"runtime"
	"runtime/debug"

	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/netmanager/wiring"
)

// The data path allocates nothing, so that frequent garbage collection keeps the process small at
// little cost. GOGC and GOMEMLIMIT override these values.
const (
	gcPercent   = 40
	memoryLimit = 48 << 20
)

// waiting is how many threads wait in the kernel for packets (package rawio). Each of them keeps a
// P of the Go runtime. Without extra Ps a small machine would have none left, and the runtime's
// monitor would keep retaking them.
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
