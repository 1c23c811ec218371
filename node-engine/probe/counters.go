package probe

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"strings"
	"time"
)

// Counters are what the machine has used since its boot, and the memory that it uses. -1: unknown.
type Counters struct {
	CPU     time.Duration
	Memory  int64 // bytes
	In, Out int64 // bytes on the interface of the default route
}

// Count reads the machine's counters.
func Count() Counters {
	c := Counters{CPU: -1, Memory: -1, In: -1, Out: -1}
	if busy, all, err := cpuTimes("/proc/stat"); err == nil && all > 0 {
		// Ticks have the same length on all architectures that Go supports: 1/100 s.
		c.CPU = time.Duration(busy) * (time.Second / 100)
	}
	if m, err := meminfo("/proc/meminfo"); err == nil {
		c.Memory = (m.total - m.available) << 10
	}
	if iface, err := defaultRoute("/proc/net"); err == nil {
		c.In, c.Out = Traffic("/proc/net/dev", iface)
	}
	return c
}

// Traffic returns the bytes that a device received and sent, from a file such as /proc/4711/net/dev; -1:
// unknown.
func Traffic(path, device string) (in, out int64) {
	b, err := os.ReadFile(path)
	if err != nil {
		return -1, -1
	}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		name, rest, ok := strings.Cut(s.Text(), ":")
		f := strings.Fields(rest)
		if !ok || strings.TrimSpace(name) != device || len(f) < 9 {
			continue
		}
		in, err1 := strconv.ParseInt(f[0], 10, 64)
		out, err2 := strconv.ParseInt(f[8], 10, 64)
		if err1 != nil || err2 != nil {
			return -1, -1
		}
		return in, out
	}
	return -1, -1
}
