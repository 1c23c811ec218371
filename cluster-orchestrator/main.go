// Command cluster-orchestrator runs a cluster: it keeps what the root wants on
// the nodes that it has, and goes on without the root.
package main

import (
	"os"
	"runtime/debug"

	"github.com/treeline-edge/treeline/cluster-orchestrator/wiring"
	"github.com/treeline-edge/treeline/internal/daemon"
)

func main() {
	// What a cluster holds is its nodes' connections, which live long; what it
	// throws away is small. Collecting at half of what is alive, rather than at as
	// much again, saves a tenth of its memory for a part of a percent of a core.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	daemon.Main("cluster-orchestrator", wiring.Defaults(), wiring.Run)
}
