package containerd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// bundles is the directory in containerd's state that has a bundle for each task.
const bundles = "io.containerd.runtime.v2.task"

// socketRetries is how often a task is created again after socketMissing.
const socketRetries = 3

// socketMissing reports whether no shim was started because the previous shim, which is ending, removed
// its socket first.
func socketMissing(err error) bool {
	return err != nil && strings.Contains(err.Error(), "remove pre-existing socket") && strings.Contains(err.Error(), "no such file or directory")
}

// staleBundle returns the directory of an earlier task of the container, if that prevented the
// creation of a task; else "". If containerd is killed while it creates a task, it leaves the
// directory, cannot remove it at its next start, and then rejects every task of the container.
func staleBundle(err error, namespace, id string) string {
	if err == nil {
		return ""
	}
	_, rest, found := strings.Cut(err.Error(), "mkdir ")
	path, _, exists := strings.Cut(rest, ": file exists")
	if !found || !exists || !filepath.IsAbs(path) || filepath.Clean(path) != path ||
		!strings.HasSuffix(path, filepath.Join("/", bundles, namespace, id)) {
		return ""
	}
	return path
}

const (
	// stateFile in the state directory has the directory of containerd's bundles, in which those of all
	// namespaces are. containerd does not export it.
	stateFile    = "bundles"
	defaultState = "/run/containerd"
)

// bundlesDir returns the directory of containerd's bundles: the last known one, or containerd's default.
func (r *Runtime) bundlesDir() string {
	if dir, ok := r.bundles.Load().(string); ok {
		return dir
	}
	if last, err := os.ReadFile(filepath.Join(r.cfg.StateDir, stateFile)); err == nil && filepath.IsAbs(string(last)) {
		return string(last)
	}
	return filepath.Join(defaultState, bundles)
}

// learnBundles learns the directory of bundles from the mounts of a container that has a task. It does
// nothing if it is known.
func (r *Runtime) learnBundles(id string) {
	if r.bundles.Load() != nil {
		return
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return
	}
	suffix := filepath.Join("/", bundles, r.cfg.Namespace, id, "rootfs")
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) < 5 || !strings.HasSuffix(f[4], suffix) {
			continue
		}
		dir := filepath.Join(strings.TrimSuffix(f[4], suffix), bundles)
		r.bundles.Store(dir)
		_ = os.WriteFile(filepath.Join(r.cfg.StateDir, stateFile), []byte(dir), 0o600) // for the next engine
		return
	}
}

// removeStale removes the bundle of a container that was deleted. containerd forgets a bundle if it is killed
// while it creates or deletes the task.
func (r *Runtime) removeStale(id string) error {
	for _, name := range []string{id, "." + id} { // containerd renames a bundle before it removes it
		path := filepath.Join(r.bundlesDir(), r.cfg.Namespace, name)
		if _, err := os.Lstat(path); err != nil {
			continue
		}
		r.log.Warn("removing the bundle that containerd left of a deleted container", "container", id, "path", path)
		if err := removeBundle(path); err != nil {
			return err
		}
	}
	return nil
}

// removeBundle removes a stale bundle. The container must have no task and no process.
func removeBundle(path string) error {
	if err := unix.Unmount(filepath.Join(path, "rootfs"), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil &&
		!errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "unmount", Path: path, Err: err}
	}
	return os.RemoveAll(path)
}
