// Command node-engine makes a machine a node of a cluster and runs its workloads.
//
//	node-engine join --token-file FILE   joins the token's cluster and ends; - is stdin
//	node-engine [run]                    runs; with a token it joins first if it has to
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/node-engine/runtime/guard"
	"github.com/treeline-edge/treeline/node-engine/runtime/process"
	"github.com/treeline-edge/treeline/node-engine/wiring"
)

// An engine holds little and allocates little: collecting early keeps it small
// and costs next to nothing. GOGC and GOMEMLIMIT say otherwise if they are set.
const (
	gcPercent   = 40
	memoryLimit = 64 << 20
)

func main() {
	process.ShimMain()
	guard.Main()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop) // a second signal ends the process the hard way
	args, run := os.Args[1:], wiring.Run
	switch {
	case len(args) > 0 && args[0] == "run":
		args = args[1:]
	case len(args) > 0 && args[0] == "join":
		args, run = args[1:], join
		if len(args) > 0 && len(args[0]) > 0 && args[0][0] != '-' {
			args = append([]string{"--token=" + args[0]}, args[1:]...)
		}
	}
	src := daemon.Source{Args: args, Env: os.Getenv, Stdout: os.Stdout}
	os.Exit(daemon.Run(ctx, "node-engine", wiring.Defaults(), src, os.Stderr, run))
}

func join(ctx context.Context, cfg wiring.Config, log *slog.Logger) error {
	if cfg.Token == "" {
		return errors.New("join needs a token: node-engine join --token-file FILE (- is stdin)")
	}
	id, err := wiring.Join(ctx, cfg, log)
	if err != nil {
		return err
	}
	fmt.Println(id)
	return nil
}
