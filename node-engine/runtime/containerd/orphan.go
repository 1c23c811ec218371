package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// A shim that containerd started for a task that it could not create stays, without containers, if containerd
// or the request ended at that moment. containerd does not list it.

// interrupted returns the instance of a container that has no task: it was not created, or its shim was killed.
// It returns "" for others.
func (r *Runtime) interrupted(ctx context.Context, id string) (api.InstanceID, error) {
	task, err := r.anyTask(ctx, id)
	if err != nil || task != nil {
		return "", err
	}
	rec, err := r.find(ctx, id)
	if errors.Is(err, api.ErrNotFound) || errors.Is(err, api.ErrConflict) { // it has no record
		return "", nil
	}
	return rec.Instance, err
}

// endOrphan ends the shim that was started for the container id, which had no task and has been deleted.
// Containers of the same application may use that shim: then it stays, and containerd ends it with the last of
// them. The turn keeps new ones from finding the shim while it ends.
func (r *Runtime) endOrphan(ctx context.Context, id string, of api.InstanceID) error {
	if of == "" {
		return nil
	}
	leave, err := r.starts.Enter(ctx, time.Now(), []string{r.cfg.shimGroup(of)}, false)
	if err != nil {
		return err
	}
	defer leave()
	users, err := r.c.ContainerService().List(ctx, fmt.Sprintf("labels.%q==%q", appLabel, of.Service().App()))
	if err != nil || len(users) > 0 {
		return err
	}
	return r.endShims(func(started string) bool { return started == id })
}

// endShims kills the shims of this namespace of this containerd, of those that were started for containers
// that match. They must have no containers.
func (r *Runtime) endShims(match func(id string) bool) error {
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range all {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			continue
		}
		if id, ok := r.shim(path); !ok || !match(id) {
			continue
		}
		p, err := os.FindProcess(pid) // a handle of the process, whatever becomes of its number
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if id, ok := r.shim(path); ok && match(id) {
			r.log.Warn("ending a shim that has no containers", "container", id, "pid", pid)
			if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
				errs = append(errs, fmt.Errorf("end the shim of container %s, process %d: %w", id, pid, err))
			}
		}
		_ = p.Release()
	}
	return errors.Join(errs...)
}

// shim returns the container that a shim of this namespace of this containerd was started for, by the file
// with the arguments of its process. ok is false for every other process.
func (r *Runtime) shim(path string) (id string, ok bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", false
	}
	args := strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
	value := func(name string) string {
		if at := slices.Index(args, name); at > 0 && at+1 < len(args) {
			return args[at+1]
		}
		return ""
	}
	id = value("-id")
	return id, strings.HasPrefix(filepath.Base(args[0]), "containerd-shim-") && id != "" &&
		!slices.Contains(args, "start") && !slices.Contains(args, "delete") && // its commands, which end by themselves
		value("-namespace") == r.cfg.Namespace && value("-address") == r.cfg.Address
}
