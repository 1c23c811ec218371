// Command root-orchestrator runs the root orchestrator: it accepts SLAs and offers instances to
// clusters.
package main

import (
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/root-orchestrator/wiring"
)

func main() {
	daemon.Main("root-orchestrator", wiring.Defaults(), wiring.Run)
}
