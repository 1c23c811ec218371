// Command root-orchestrator is Treeline's top tier: it takes SLAs, knows
// clusters and never nodes, and offers instances to clusters.
package main

import (
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/root-orchestrator/wiring"
)

func main() {
	daemon.Main("root-orchestrator", wiring.Defaults(), wiring.Run)
}
