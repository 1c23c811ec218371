package wiring

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
)

// newExits calls ended for a workload whose process has ended, as soon as the kernel
// says so. The word of the container runtime comes by way of the runtime and the node
// engine; until then the kernel refuses whoever connects to what is dead.
func newExits(ended func(ctx context.Context, a api.Attach)) *watches {
	return newWatches(func(ctx context.Context, a api.Attach) {
		if exits(ctx, a.NetNS) && ctx.Err() == nil {
			ended(ctx, a)
		}
	})
}

// exits returns when the process that names the network namespace has ended: true; or
// when ctx ends; or at once where it cannot be seen: no process names the namespace, or the
// kernel is old, and the runtime's word has to do.
func exits(ctx context.Context, netNS string) bool {
	pid := 0
	if _, err := fmt.Sscanf(netNS, "/proc/%d/ns/net", &pid); err != nil {
		return false
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return err == unix.ESRCH // it has ended before
	}
	process := os.NewFile(uintptr(fd), netNS)
	defer process.Close()
	defer context.AfterFunc(ctx, func() { _ = process.Close() })()
	raw, err := process.SyscallConn()
	if err != nil {
		return false
	}
	ended := false
	err = raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		ended = n > 0 && err == nil
		return ended
	})
	return err == nil && ended
}
