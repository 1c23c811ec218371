// Command treeline is the terminal's face of Treeline: it applies SLAs, shows
// what became of them and why, and runs a whole installation on one machine
// (treeline dev). It talks to the root orchestrator's REST API.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/treeline-edge/treeline/cli/command"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the process the hard way.
	context.AfterFunc(ctx, stop)
	os.Exit(command.Main(ctx, os.Args[1:], command.Terminal()))
}
