package containerd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	tasktypes "github.com/containerd/containerd/api/types/task"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

func (r *Runtime) Namespace(ctx context.Context, k wire.Key) (string, runtime.Workload, error) {
	path, w, err := r.namespace(ctx, runtime.ID(k))
	return path, w, failure("find the network namespace of", k, err)
}

func (r *Runtime) namespace(ctx context.Context, id string) (string, runtime.Workload, error) {
	ctx, cancel := r.call(ctx)
	defer cancel()
	rec, err := r.find(ctx, id)
	if err != nil {
		return "", rec.Workload, err
	}
	task, err := r.task(ctx, id)
	if err == nil && task == nil && !r.logs.Marked(id) {
		if err = r.recreateTask(ctx, id); err == nil {
			task, err = r.task(ctx, id)
		}
	}
	if err != nil || task == nil || task.Status == tasktypes.Status_STOPPED || task.Pid == 0 {
		return "", rec.Workload, err
	}
	path := fmt.Sprintf("/proc/%d/ns/net", task.Pid)
	// A container that was created when the configuration was "host" shares the host's network.
	if own, err := sameFile(path, "/proc/self/ns/net"); err != nil || own {
		return "", rec.Workload, nil //nolint:nilerr // the process has just ended
	}
	return path, rec.Workload, nil
}

func sameFile(a, b string) (bool, error) {
	x, err := os.Stat(a)
	if err != nil {
		return false, err
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y), err
}

// namesDir returns the directory of the files that containers on the overlay need for names.
func (c Config) namesDir(id string) string { return filepath.Join(c.StateDir, "names", id) }

// writeNames writes the files in namesDir, which are mounted into the container.
func (r *Runtime) writeNames(w runtime.Workload) error {
	if r.cfg.Network != api.NetworkOverlay {
		return nil
	}
	id := runtime.ID(w.Key)
	dir := r.cfg.namesDir(id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for name, text := range map[string]string{"resolv.conf": runtime.ResolvConf(w.Instance.Service()), "hosts": runtime.Hosts(id[:12])} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil { //nolint:gosec // any user in the container reads it
			return err
		}
	}
	return nil
}
