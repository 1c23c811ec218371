package workloads

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/internal/wire"
)

// NewExits returns a watcher that calls exited when a workload's process ends. The container
// runtime reports the exit too, through the node engine; until then the kernel would refuse
// connections to the workload.
func NewExits(exited func(ctx context.Context, a wire.Attach)) *Watcher {
	return newWatcher(func(ctx context.Context, a wire.Attach) {
		if awaitExit(ctx, a.NetNS) && ctx.Err() == nil {
			exited(ctx, a)
		}
	})
}

// awaitExit waits for the end of the process that the namespace's path names, and reports
// whether it ended. It returns false when ctx ends, and at once when the path names no
// process or the kernel is too old: then only the runtime reports the exit.
func awaitExit(ctx context.Context, netNS string) bool {
	pid := 0
	if _, err := fmt.Sscanf(netNS, "/proc/%d/ns/net", &pid); err != nil {
		return false
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return errors.Is(err, unix.ESRCH) // it has ended already
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
