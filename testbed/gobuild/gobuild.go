// Package gobuild builds programs of this repository for tests and benchmarks, from
// whichever of its modules they run in.
package gobuild

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Module is the path of the module that has the daemons and the CLI.
const Module = "github.com/treeline-edge/treeline"

// Root returns the directory of Module.
func Root(ctx context.Context) (string, error) {
	dir, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", Module).Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return "", fmt.Errorf("find module %s: %w", Module, err)
	}
	return strings.TrimSpace(string(dir)), nil
}

// Command returns the command "go build -trimpath ARGS", without cgo. It runs in the
// directory of Module, so that the programs have the dependencies that Module names and
// not those of the benchmarks' module.
func Command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	dir, err := Root(ctx)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-trimpath"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	return cmd, nil
}

// Build builds packages, named by their paths within Module, into out. out is an
// absolute path: a file, or a directory if it ends with a slash. Without debug
// information programs are linked in two thirds of the time.
func Build(ctx context.Context, out string, packages ...string) error {
	args := []string{"-ldflags=-w", "-o", out}
	for _, p := range packages {
		args = append(args, Module+"/"+p)
	}
	cmd, err := Command(ctx, args...)
	if err != nil {
		return err
	}
	if msg, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", strings.Join(packages, ", "), err, msg)
	}
	return nil
}
