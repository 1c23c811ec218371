package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	goruntime "runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	_ "github.com/treeline-edge/treeline/internal/mainthread"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// joins reports whether the container joins a network namespace that this runtime makes before, so that
// it can be connected to the network while the container is created.
func (c Config) joins(w runtime.Workload) bool {
	h, _ := c.handler(w.Spec.Virtualization)
	return c.Network == api.NetworkOverlay && h.Runtime == runcV2
}

// netNSLink returns the path by which a container's specification names its network namespace. It is a
// symbolic link that exists while a task is created: the specification outlives this process, and must
// not name a file of another one then.
func (c Config) netNSLink(id string) string { return filepath.Join(c.namesDir(id), "netns") }

// makeNetNS makes the network namespace of a container that joins one, and begins to connect it. The
// caller calls done when the task is created or has failed. A namespace without a task ends then, and also
// if this process ends.
func (r *Runtime) makeNetNS(ctx context.Context, id string, w runtime.Workload) (done func(), err error) {
	if !r.cfg.joins(w) {
		return func() {}, nil
	}
	ns, err := newNetNS()
	if err != nil {
		return nil, fmt.Errorf("make a network namespace: %w", err)
	}
	path, link := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.Fd()), r.cfg.netNSLink(id)
	if err = os.Remove(link); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = os.Symlink(path, link)
	}
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	var connecting sync.WaitGroup
	if w.Connect != nil {
		connecting.Go(func() { w.Connect(ctx, path, w) })
	}
	return func() {
		connecting.Wait()
		_ = os.Remove(link)
		_ = ns.Close()
	}, nil
}

// newNetNS returns a new network namespace with its loopback device up, as runc would make it.
func newNetNS() (*os.File, error) {
	type result struct {
		ns  *os.File
		err error
	}
	made := make(chan result, 1)
	go func() {
		goruntime.LockOSThread() // the thread ends with this goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			made <- result{err: err}
			return
		}
		ns, err := os.Open("/proc/thread-self/ns/net")
		if err == nil {
			if err = loopbackUp(); err != nil {
				err = errors.Join(fmt.Errorf("set lo up: %w", err), ns.Close())
			}
		}
		made <- result{ns, err}
	}()
	m := <-made
	return m.ns, m.err
}

func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo)
}
