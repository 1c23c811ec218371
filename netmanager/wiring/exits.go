package wiring

import (
	"context"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
)

// exits tells of workloads whose process has ended, each once, as soon as the kernel
// does. The word of the container runtime comes by way of the runtime and the node engine;
// until then the kernel refuses whoever connects to what is dead.
type exits struct {
	ended func(ctx context.Context, a api.Attach)

	mu      sync.Mutex // guards the fields below
	ctx     context.Context
	watches map[api.Key]watch // under way, or to begin with Run
	wg      sync.WaitGroup
}

type watch struct {
	attach  api.Attach
	process *os.File // nil: not begun
}

func newExits(ended func(context.Context, api.Attach)) *exits {
	return &exits{ended: ended, watches: map[api.Key]watch{}}
}

// Run watches until ctx ends.
func (e *exits) Run(ctx context.Context) error {
	e.mu.Lock()
	e.ctx = ctx
	for _, w := range e.watches {
		e.begin(w.attach)
	}
	e.mu.Unlock()
	<-ctx.Done()
	e.mu.Lock()
	for _, w := range e.watches {
		w.end()
	}
	e.mu.Unlock()
	e.wg.Wait()
	return nil
}

// watch has a workload's process watched, unless it is already. One whose namespace is
// not named by a process is not.
func (e *exits) watch(a api.Attach) {
	e.mu.Lock()
	defer e.mu.Unlock()
	old, ok := e.watches[a.Key]
	switch {
	case e.ctx != nil && e.ctx.Err() != nil, ok && old.attach.NetNS == a.NetNS:
	case e.ctx == nil:
		e.watches[a.Key] = watch{attach: a}
	default:
		old.end()
		e.begin(a)
	}
}

// forget watches it no more.
func (e *exits) forget(k api.Key) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.watches[k].end()
	delete(e.watches, k)
}

func (w watch) end() {
	if w.process != nil {
		_ = w.process.Close()
	}
}

// begin is called with mu held.
func (e *exits) begin(a api.Attach) {
	delete(e.watches, a.Key)
	pid := 0
	if _, err := fmt.Sscanf(a.NetNS, "/proc/%d/ns/net", &pid); err != nil {
		return
	}
	w := watch{attach: a}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	switch err {
	case nil:
		w.process = os.NewFile(uintptr(fd), a.NetNS)
	case unix.ESRCH: // it has ended before
	default: // an old kernel: the runtime's word has to do
		return
	}
	e.watches[a.Key] = w
	ctx := e.ctx
	e.wg.Go(func() {
		defer w.end()
		if w.process == nil || gone(w.process) {
			e.ended(ctx, a)
		}
	})
}

// gone returns when the process has ended: true; or when it is closed.
func gone(process *os.File) bool {
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
