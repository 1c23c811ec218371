package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/mount"
	continuity "github.com/containerd/continuity/fs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// fileMounts returns the mounts of a workload's files. They come after the container's own /run.
func fileMounts(f *runtime.Files) []specs.Mount {
	options := []string{"rbind", "ro", "nosuid", "nodev", "noexec"}
	out := []specs.Mount{{Destination: api.FilesDir, Type: "bind", Source: f.Dir, Options: options}}
	for _, m := range f.Mounts {
		out = append(out, specs.Mount{Destination: m.Path, Type: "bind", Source: m.Dir, Options: options})
	}
	return out
}

// linkFiles makes symbolic links among the container's files, before it starts. A bind mount of each
// file would not show a file that is renamed over it.
func linkFiles(ctx context.Context, files []mount.Mount, links []runtime.FileLink) error {
	if len(links) == 0 {
		return nil
	}
	return mount.WithTempMount(ctx, files, func(root string) error {
		for _, l := range links {
			if err := linkFile(root, l); err != nil {
				return runtime.Errorf(api.ReasonNoFiles, "put file %s into the image's files: %w", l.Path, err)
			}
		}
		return nil
	})
}

// hidden are the directories over which the container mounts others.
var hidden = []string{"/run", "/proc", "/sys", "/dev"}

func linkFile(root string, l runtime.FileLink) error {
	// Links of the image are followed within root. Nothing else changes root meanwhile.
	dir, err := continuity.RootPath(root, filepath.Dir(l.Path))
	if err != nil {
		return err
	}
	inside := strings.TrimPrefix(dir, root)
	for _, h := range hidden {
		if inside == h || strings.HasPrefix(inside, h+"/") {
			return fmt.Errorf("the image links its directory to %s: %w", inside, api.ErrConflict)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("the directory cannot be made: %w", errors.Unwrap(err)) // without the path on the node
	}
	at := filepath.Join(dir, filepath.Base(l.Path))
	switch info, err := os.Lstat(at); {
	case err == nil && info.IsDir():
		return fmt.Errorf("it is a directory in the image: %w", api.ErrConflict)
	case err == nil:
		if err := os.Remove(at); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return os.Symlink(l.Target, at)
}

// Signal implements runtime.Filer.
func (r *Runtime) Signal(ctx context.Context, k wire.Key, s syscall.Signal) error {
	ctx, cancel := r.call(ctx)
	defer cancel()
	id := runtime.ID(k)
	task, err := r.task(ctx, id)
	if err == nil && !alive(task) {
		return fmt.Errorf("signal %s: it does not run: %w", k, api.ErrNotFound)
	}
	if err == nil {
		_, err = native(r.c.TaskService().Kill(ctx, &tasks.KillRequest{ContainerID: id, Signal: uint32(s)}))
	}
	if err != nil && ignoreNotFound(err) == nil {
		return fmt.Errorf("signal %s: it does not run: %w", k, api.ErrNotFound)
	}
	return failure("signal", k, err)
}
