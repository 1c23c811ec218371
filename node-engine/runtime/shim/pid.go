package shim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const pollInterval = time.Second // of gone

// Process identifies a process since the machine's boot. The kernel reuses PIDs; PID and
// start time together are unique.
type Process struct {
	PID   int
	Start uint64 // clock ticks since the boot
}

// processOf returns the process that has the PID now.
func processOf(pid int) (Process, error) {
	_, start, err := stat(pid)
	return Process{PID: pid, Start: start}, err
}

// alive reports whether the process runs. A zombie does not. If the state cannot be read, for
// example for lack of a file descriptor, the process counts as running.
func (p Process) alive() bool {
	if p.PID == 0 {
		return false
	}
	state, start, err := stat(p.PID)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH)
	}
	return start == p.Start && state != 'Z' && state != 'X'
}

// wait returns nil when the process has ended, or an error if it cannot wait for that.
func (p Process) wait(ctx context.Context) error {
	if !p.alive() {
		return nil
	}
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("wait for process %d (needs Linux 5.10): %w", p.PID, err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	if !p.alive() {
		return nil // the PID was reused before the descriptor was opened
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })()
	err = conn.Read(func(fd uintptr) bool {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return ready > 0 || err != nil && err != unix.EINTR
	})
	if ctx.Err() != nil && p.alive() {
		return context.Cause(ctx)
	}
	return err
}

// gone waits for the end of the process, and returns false if ctx ends first. If it cannot
// wait, for example for lack of a file descriptor, it polls.
func (p Process) gone(ctx context.Context) bool {
	for p.wait(ctx) != nil {
		select {
		case <-time.After(pollInterval):
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// stat reads the state and the start time of a process from /proc.
func stat(pid int) (state byte, start uint64, err error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, err
	}
	// The name in parentheses may contain any character, including ")".
	s := string(b)
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(f) < 20 {
		return 0, 0, fmt.Errorf("/proc/%d/stat is malformed: %q", pid, s)
	}
	start, err = strconv.ParseUint(f[19], 10, 64)
	return f[0][0], start, err
}
