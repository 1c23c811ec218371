// Command root-orchestrator is Treeline's top tier: it accepts SLAs and offers instances
// to clusters. It knows no nodes.
package main

import (
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/root-orchestrator/wiring"
)

func main() {
	daemon.Main("root-orchestrator", wiring.Defaults(), wiring.Run)
}
