// Command treeline is the command-line client of Treeline. It applies SLAs, shows and
// explains the state of services, administers clusters and nodes through the REST API of the
// root orchestrator, and runs a whole installation on one machine (treeline dev).
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
	// A second signal terminates the process at once.
	context.AfterFunc(ctx, stop)
	os.Exit(command.Main(ctx, os.Args[1:], command.Terminal()))
}
