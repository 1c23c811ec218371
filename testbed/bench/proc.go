package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cpuOf returns the CPU time of all threads of a process from its CPU clock, in nanoseconds;
// /proc/PID/stat has only hundredths of a second.
func cpuOf(pid int) (time.Duration, error) {
	const schedClock = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|schedClock), &ts); err != nil {
		return 0, fmt.Errorf("read the CPU clock of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// memory is the memory of a process.
type memory struct {
	resident, anonymous, peak float64 // MiB
}

// memoryOf reads /proc/PID/status. VmRSS includes pages of the program's file, which processes
// of one program share.
func memoryOf(pid int) (m memory, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kib, _ := strconv.ParseFloat(f[1], 64)
		switch f[0] {
		case "VmRSS:":
			m.resident = kib / 1024
		case "RssAnon:":
			m.anonymous = kib / 1024
		case "VmHWM:":
			m.peak = kib / 1024
		}
	}
	return m, err
}

// watcher measures the CPU time of other processes between two times: the busy time of all CPUs,
// less that of this process, its descendants and processes with mark in their command line.
type watcher struct {
	mark  []byte
	began time.Time
	busy  time.Duration
	ours  map[int]time.Duration
}

// tick is the unit of /proc/stat: a hundredth of a second on every Linux.
const tick = 10 * time.Millisecond

func watch(mark string) watcher {
	w := watcher{mark: []byte(mark), ours: map[int]time.Duration{}}
	w.ours = w.measure()
	w.busy, w.began = busy(), time.Now()
	return w
}

// foreign returns the share of the whole machine that other processes used since watch.
func (w watcher) foreign() float64 {
	took := time.Since(w.began)
	used := busy() - w.busy
	for pid, now := range w.measure() {
		used -= now - w.ours[pid] // new processes count completely
	}
	machine := took * time.Duration(cpus())
	return max(0, float64(used-2*tick)/float64(machine)) // less the rounding error of ticks
}

// disturbed reports whether other processes used more than a tenth of the machine.
func (w watcher) disturbed() bool { return w.foreign() > 0.1 }

func cpus() int {
	text, _ := os.ReadFile("/proc/stat")
	return max(1, bytes.Count(text, []byte("\ncpu")))
}

func busy() time.Duration {
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(text), "\n")
	var sum time.Duration
	for i, f := range strings.Fields(line) {
		if i == 0 || i == 4 || i == 5 || i > 8 { // idle, iowait and times counted elsewhere
			continue
		}
		n, _ := strconv.ParseInt(f, 10, 64)
		sum += time.Duration(n) * tick
	}
	return sum
}

// measure reads the CPU time of our processes and of their children that ended.
func (w watcher) measure() map[int]time.Duration {
	type proc struct {
		parent int
		used   time.Duration
		ours   bool
	}
	all := map[int]proc{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(f) < 15 {
			continue
		}
		p := proc{ours: pid == os.Getpid()}
		p.parent, _ = strconv.Atoi(f[1])
		for _, field := range f[11:15] { // utime stime cutime cstime
			n, _ := strconv.ParseInt(field, 10, 64)
			p.used += time.Duration(n) * tick
		}
		if len(w.mark) > 0 {
			cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			p.ours = p.ours || bytes.Contains(cmdline, w.mark)
		}
		all[pid] = p
	}
	out := map[int]time.Duration{}
	for pid := range all {
		for up := pid; up > 1; up = all[up].parent {
			if all[up].ours {
				out[pid] = all[pid].used
				break
			}
		}
	}
	return out
}
