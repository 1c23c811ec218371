// Command cluster-orchestrator runs a cluster: it keeps what the root wants on
// the nodes that it has, and goes on without the root.
package main

import (
	"github.com/treeline-edge/treeline/cluster-orchestrator/wiring"
	"github.com/treeline-edge/treeline/internal/daemon"
)

func main() { daemon.Main("cluster-orchestrator", wiring.Defaults(), wiring.Run) }
