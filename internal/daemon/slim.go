package daemon

import (
	"bufio"
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// When a daemon gives back what it does not use: soon after its start, which
// touches far more of a program than its life does, and then now and again.
const (
	slimFirst = 5 * time.Second
	slimEvery = 5 * time.Second
)

// The heap is collected and given back after something was going on, and once it
// is over: when so much was allocated since the last time, and little in the last
// slimEvery. A collection costs milliseconds.
const (
	slimGrown = 2 << 20
	slimQuiet = 512 << 10
)

// Slim gives memory back to the machine that the daemon does not use, until ctx
// ends: a part of a daemon that is to be small (RunAll). What it needs after all
// comes back by itself.
func Slim(ctx context.Context) error {
	program, err := constants()
	if err != nil {
		program = nil // the daemon is merely larger
	}
	timer := time.NewTimer(slimFirst)
	defer timer.Stop()
	var h heap
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			if h.due(allocated()) {
				debug.FreeOSMemory()
			}
			release(program)
			timer.Reset(slimEvery)
		}
	}
}

// heap knows how much was allocated when it was looked at, and when it was freed.
type heap struct{ seen, freed uint64 }

// due takes what was allocated in all, and reports whether it is time to free.
func (h *heap) due(all uint64) bool {
	quiet := h.seen == 0 || all-h.seen < slimQuiet
	h.seen = all
	if !quiet || h.freed != 0 && all-h.freed < slimGrown {
		return false
	}
	h.freed = all
	return true
}

// allocated is how many bytes the program has allocated since its start.
func allocated() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// extent is a part of the program's address space.
type extent struct{ from, to uintptr }

// constants are the program's own pages, code and constants.
func constants() (all []extent, _ error) {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	defer maps.Close()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		if from, to, ok := constant(lines.Text(), self); ok {
			all = append(all, extent{from, to})
		}
	}
	return all, lines.Err()
}

// release lets go of pages that are a file's, unchanged: the kernel maps each again
// when it is used next (madvise(2), MADV_DONTNEED on a private mapping of a file).
func release(all []extent) {
	for _, e := range all {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, e.from, e.to-e.from, unix.MADV_DONTNEED) // refused, they stay
	}
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
