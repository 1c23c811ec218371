package netbench

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Resident is what the largest of a path's processes has in memory, in MiB: now,
// and at most since ResetPeak.
func Resident(p Path) (now, peak float64, err error) {
	for _, pid := range p.Processes() {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			return 0, 0, err
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) < 2 {
				continue
			}
			kib, _ := strconv.ParseFloat(f[1], 64)
			switch f[0] {
			case "VmRSS:":
				now = max(now, kib/1024)
			case "VmHWM:":
				peak = max(peak, kib/1024)
			}
		}
	}
	return now, peak, nil
}

// ResetPeak forgets the most that a path's processes have had in memory.
func ResetPeak(p Path) error {
	for _, pid := range p.Processes() {
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
			return err
		}
	}
	return nil
}

// Idle is the CPU time that the busiest of a path's processes uses while nothing
// happens, as a share of a core in %.
func Idle(ctx context.Context, p Path, d time.Duration) (Sample, error) {
	return metered(func() (float64, error) {
		before, began := map[int]time.Duration{}, time.Now()
		for _, pid := range p.Processes() {
			before[pid] = clockOf(pid)
		}
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		most := 0.0
		for pid, was := range before {
			most = max(most, 100*float64(clockOf(pid)-was)/float64(time.Since(began)))
		}
		return most, nil
	})
}

// clockOf is the CPU time of all threads of a process, to the nanosecond.
func clockOf(pid int) time.Duration {
	const schedClock = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|schedClock), &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
