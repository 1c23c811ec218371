// Command cluster-orchestrator runs a cluster: it places what the root wants on the
// cluster's nodes, and works on while the root is unreachable.
package main

import (
	"os"
	"runtime/debug"

	"github.com/treeline-edge/treeline/cluster-orchestrator/wiring"
	"github.com/treeline-edge/treeline/internal/daemon"
)

func main() {
	// Most of the heap is long-lived: the nodes' connections. Collecting when garbage is half
	// of the live heap, instead of as much, saves a tenth of the memory for a fraction of a
	// percent of a core.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	daemon.Main("cluster-orchestrator", wiring.Defaults(), wiring.Run)
}
