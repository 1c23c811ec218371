// Command node-engine makes a machine a node of a cluster and runs its workloads.
//
//	node-engine join --token-file FILE   joins the token's cluster and ends; - is stdin
//	node-engine [run]                    runs; with a token, joins first if necessary
//	node-engine purge --yes              deletes the node's workloads, images, logs, keys and data
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"

	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/node-engine/runtime/containerd"
	"github.com/treeline-edge/treeline/node-engine/runtime/guard"
	"github.com/treeline-edge/treeline/node-engine/runtime/process"
	"github.com/treeline-edge/treeline/node-engine/runtime/qemu"
	"github.com/treeline-edge/treeline/node-engine/wiring"
)

// The garbage collector runs early: the engine allocates little, so this costs little CPU time
// and saves memory. GOGC and GOMEMLIMIT override these values.
const (
	gcPercent   = 40
	memoryLimit = 64 << 20
)

func main() {
	process.ShimMain()
	qemu.ShimMain()
	guard.Main()
	containerd.LogWriterMain()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	args, run := os.Args[1:], wiring.Run
	left, purging := false, false
	switch {
	case len(args) > 0 && args[0] == "run":
		args = args[1:]
	case len(args) > 0 && args[0] == "join":
		args, run = args[1:], join
		if len(args) > 0 && len(args[0]) > 0 && args[0][0] != '-' {
			args = append([]string{"--token=" + args[0]}, args[1:]...)
		}
	case len(args) > 0 && args[0] == "purge":
		purging = true
		args, run = args[1:], purge
		if i := slices.Index(args, "--yes"); i >= 0 {
			args, run = slices.Delete(args, i, i+1), wiring.Purge
		}
	}
	defaults := wiring.Defaults()
	defaults.File = daemon.ConfigFile(args, os.Getenv)
	src := daemon.Source{Args: args, Env: os.Getenv, Stdout: os.Stdout}
	code := daemon.Run(ctx, "node-engine", defaults, src, os.Stderr, func(ctx context.Context, cfg wiring.Config, log *slog.Logger) error {
		err := run(ctx, cfg, log)
		if errors.Is(err, wiring.ErrLeft) {
			log.Warn(err.Error())
			left = true
			return nil
		}
		return err
	})
	if left && !purging {
		code = exitLeft
	}
	os.Exit(code)
}

// exitLeft is the exit code of an engine whose node was purged. Its service does not
// start it again (RestartPreventExitStatus).
const exitLeft = 9

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

// purge returns an error that lists what --yes would delete.
func purge(_ context.Context, cfg wiring.Config, _ *slog.Logger) error {
	return fmt.Errorf("this stops all workloads of the node in %s and deletes them with their images, logs, keys and data, and the secrets in its configuration; add --yes to do it", cfg.Data)
}
