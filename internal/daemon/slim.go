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

// trimEvery is the interval of TrimMemory's work. The first release frees most: the start of a daemon
// uses far more pages of its program than its later work.
const trimEvery = 5 * time.Second

// TrimMemory collects the heap if at least trimGrown bytes were allocated since its last collection, and
// less than trimQuiet in the last trimEvery. A collection takes milliseconds.
const (
	trimGrown = 2 << 20
	trimQuiet = 512 << 10
)

// TrimMemory is the Run of a Part that returns unused memory to the operating system: free heap, and
// pages of the program, which the kernel loads again when they are used.
func TrimMemory(ctx context.Context) error {
	program, err := programMappings()
	if err != nil {
		program = nil // only the heap is returned
	}
	var h heap
	return Every(trimEvery, func(context.Context) {
		if h.due(allocatedBytes()) {
			debug.FreeOSMemory()
		}
		dropPages(program)
	})(ctx)
}

// heap has the bytes allocated since the start, at the last call of due and at the last collection.
type heap struct{ seen, freed uint64 }

// due takes the bytes allocated since the start, and reports whether to collect now.
func (h *heap) due(all uint64) bool {
	quiet := h.seen == 0 || all-h.seen < trimQuiet
	h.seen = all
	if !quiet || h.freed != 0 && all-h.freed < trimGrown {
		return false
	}
	h.freed = all
	return true
}

func allocatedBytes() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// mapping is a part of the program's address space.
type mapping struct{ from, to uintptr }

// programMappings returns the parts of the address space that have the program's code and constants.
func programMappings() (all []mapping, _ error) {
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
		if from, to, ok := parseMapping(lines.Text(), self); ok {
			all = append(all, mapping{from, to})
		}
	}
	return all, lines.Err()
}

// dropPages returns the memory of unchanged pages of a file. The kernel reads a page again at its
// next use (madvise(2), MADV_DONTNEED on a private mapping of a file).
func dropPages(all []mapping) {
	for _, e := range all {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, e.from, e.to-e.from, unix.MADV_DONTNEED) // best effort
	}
}

// parseMapping parses a line of /proc/self/maps. ok is false unless it is a private mapping of the
// program that is not writable.
func parseMapping(line, program string) (from, to uintptr, ok bool) {
	f := strings.Fields(line) // "55f0-55f9 r-xp 00000000 08:01 1234 /usr/bin/netmanager"
	if len(f) < 6 || strings.Join(f[5:], " ") != program || strings.Contains(f[1], "w") || !strings.HasSuffix(f[1], "p") {
		return 0, 0, false
	}
	a, b, _ := strings.Cut(f[0], "-")
	x, err1 := strconv.ParseUint(a, 16, 64)
	y, err2 := strconv.ParseUint(b, 16, 64)
	return uintptr(x), uintptr(y), err1 == nil && err2 == nil && x < y
}
