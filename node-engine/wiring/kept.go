package wiring

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/node-engine/clusterlink"
)

// runtimeFile holds the name of the runtime with which the node joined.
const runtimeFile = "runtime"

// keptRuntime returns the runtime of this node: the one with which it joined. A
// node that ran another one would not see the workloads that it has, and would
// tell its cluster that they are gone. auto chooses once, before the node joins.
//
// A node that joined under a release that kept no file has the state of the
// runtimes that it used; where there is that of several, auto is containerd.
func (c Config) keptRuntime(dir *os.Root) (string, error) {
	kept, err := dir.ReadFile(runtimeFile)
	name := strings.TrimSpace(string(kept))
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("read which runtime this node has: %w", err)
	case err != nil && c.Runtime == "auto" && clusterlink.Joined(dir):
		for _, had := range []string{"containerd", "process"} {
			if _, err := dir.Stat(had); err == nil {
				return had, nil
			}
		}
		return c.runtimeName(), nil
	case err != nil:
		return c.runtimeName(), nil
	case openers[name] == nil:
		return "", fmt.Errorf("%s names the runtime %q, and this engine has %s: %w",
			filepath.Join(c.Data, runtimeFile), name, strings.Join(runtimes(), ", "), api.ErrInvalid)
	case c.Runtime != "auto" && c.Runtime != name:
		return "", fmt.Errorf("runtime: %q is configured, and this node joined with %s, whose workloads %[1]q cannot see; set runtime to %[2]s, or drain the node and remove %[3]s: %[4]w",
			c.Runtime, name, filepath.Join(c.Data, runtimeFile), api.ErrConflict)
	}
	return name, nil
}

// keepRuntime saves the runtime of a node that has joined.
func (c Config) keepRuntime(dir *os.Root) error {
	if _, err := dir.Stat(runtimeFile); err == nil {
		return nil
	}
	if err := ca.WriteFile(dir, runtimeFile, []byte(c.Runtime+"\n"), 0o600); err != nil {
		return fmt.Errorf("save which runtime this node has: %w", err)
	}
	return nil
}
