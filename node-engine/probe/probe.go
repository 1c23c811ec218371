// Package probe measures the capacity and the usage of the machine, from /proc and /sys.
//
//	have, err := probe.Capacity()
//	m := probe.Meter{}
//	cpu, mem, err := m.Usage() // percent, since the last call
package probe

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// Capacity returns the CPUs that this process may use, and the memory that the kernel manages.
func Capacity() (api.Resources, error) {
	m, err := meminfo("/proc/meminfo")
	if err != nil {
		return api.Resources{}, err
	}
	return api.Resources{MilliCPU: int64(runtime.NumCPU()) * 1000, MemoryMB: m.total >> 10}, nil
}

// Meter measures usage. The zero value is ready.
type Meter struct {
	busy, all uint64
}

// Usage returns the percentages of CPU time that was used since the last call (at first since the boot),
// and of memory that is in use.
func (m *Meter) Usage() (cpu, mem uint8, err error) {
	busy, all, err := cpuTimes("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	cpu = percent(busy-m.busy, all-m.all)
	m.busy, m.all = busy, all
	mi, err := meminfo("/proc/meminfo")
	if err != nil {
		return 0, 0, err
	}
	return cpu, percent(uint64(mi.total-mi.available), uint64(mi.total)), nil
}

func percent(part, whole uint64) uint8 {
	if whole == 0 || part > whole {
		return 0
	}
	return uint8((part*100 + whole/2) / whole)
}

type memory struct{ total, available int64 } // KiB

func meminfo(path string) (memory, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return memory{}, fmt.Errorf("measure the machine's memory: %w", err)
	}
	var m memory
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		name, rest, _ := strings.Cut(s.Text(), ":")
		var to *int64
		switch name {
		case "MemTotal":
			to = &m.total
		case "MemAvailable":
			to = &m.available
		default:
			continue
		}
		if *to, err = strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64); err != nil {
			return memory{}, fmt.Errorf("measure the machine's memory: %s: %w", path, err)
		}
	}
	if m.total <= 0 {
		return memory{}, fmt.Errorf("measure the machine's memory: %s has no MemTotal: %w", path, api.ErrUnavailable)
	}
	return m, nil
}

// cpuTimes returns the ticks in which a CPU worked, and all ticks.
func cpuTimes(path string) (busy, all uint64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, fmt.Errorf("measure the machine's CPUs: %w", err)
	}
	defer f.Close()
	// The first line is the sum over all CPUs.
	line, err := bufio.NewReaderSize(f, 512).ReadString('\n')
	fields := strings.Fields(line)
	if err != nil || len(fields) < 5 || fields[0] != "cpu" {
		return 0, 0, fmt.Errorf("measure the machine's CPUs: %s does not begin with a line of all CPUs: %w", path, api.ErrUnavailable)
	}
	// User time includes guest time.
	for i, s := range fields[1:min(len(fields), 9)] {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("measure the machine's CPUs: %s: %w", path, err)
		}
		all += n
		if i != 3 && i != 4 { // idle and iowait
			busy += n
		}
	}
	return busy, all, nil
}
