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

// removeBundle removes a stale bundle. The container must have no task and no process.
func removeBundle(path string) error {
	if err := unix.Unmount(filepath.Join(path, "rootfs"), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil &&
		!errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "unmount", Path: path, Err: err}
	}
	return os.RemoveAll(path)
}
