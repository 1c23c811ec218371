package daemon

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// When a daemon gives back what it does not use: soon after its start, which
// touches far more of a program than its life does, and now and then.
const (
	slimFirst = 5 * time.Second
	slimEvery = 10 * time.Minute
)

// Slim gives memory back to the machine that the daemon does not use, until ctx
// ends: a part of a daemon that is to be small (RunAll). What it needs after all
// comes back by itself.
func Slim(ctx context.Context) error {
	timer := time.NewTimer(slimFirst)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			debug.FreeOSMemory()
			_ = releaseProgram() // the daemon is merely larger
			timer.Reset(slimEvery)
		}
	}
}

// releaseProgram lets go of the program's own pages, code and constants: they are
// the file's, unchanged, and the kernel maps each again when it is used next
// (madvise(2), MADV_DONTNEED on a private mapping of a file).
func releaseProgram() error {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		from, to, ok := constant(lines.Text(), self)
		if !ok {
			continue
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("release %x-%x: %w", from, to, errno)
		}
	}
	return nil
}

// constant is a line of /proc/self/maps that is a part of the program which nobody
// can have written to.
func constant(line, program string) (from, to uintptr, ok bool) {
	f := strings.Fields(line) // "55f0-55f9 r-xp 00000000 08:01 1234 /usr/bin/netmanager"
	if len(f) < 6 || strings.Join(f[5:], " ") != program || strings.Contains(f[1], "w") || !strings.HasSuffix(f[1], "p") {
		return 0, 0, false
	}
	a, b, _ := strings.Cut(f[0], "-")
	x, err1 := strconv.ParseUint(a, 16, 64)
	y, err2 := strconv.ParseUint(b, 16, 64)
	return uintptr(x), uintptr(y), err1 == nil && err2 == nil && x < y
}
