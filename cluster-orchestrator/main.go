// Command cluster-orchestrator runs a cluster orchestrator. It places the instances that the
// root offers on the cluster's nodes, and continues to work while the root is unreachable.
package main

import (
	"os"
	"runtime/debug"

	"github.com/treeline-edge/treeline/cluster-orchestrator/wiring"
	"github.com/treeline-edge/treeline/internal/daemon"
)

func main() {
	// Most of the heap is long-lived (the nodes' connections). Compared to the default of 100,
	// this saves a tenth of the memory for a fraction of a percent of a core.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	daemon.Main("cluster-orchestrator", wiring.Defaults(), wiring.Run)
}
