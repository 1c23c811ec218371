package netbench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Sample is one figure, and the CPU time used during its measurement.
type Sample struct {
	Value   float64
	CPU     float64 // in cores, of our processes and the kernel: everything except Foreign
	Foreign float64 // share of the whole machine used by other processes
}

// Polluted reports whether other processes used so much that the sample is disturbed.
func (s Sample) Polluted() bool { return s.Foreign > 0.1 }

// meter measures the CPU time used since its start. Interrupts count as ours, because nearly all
// of them are caused by the measured packets.
type meter struct {
	began   time.Time
	machine usage
	others  time.Duration
}

// tick is the unit of /proc/stat: a hundredth of a second on every Linux.
const tick = 10 * time.Millisecond

func startMeter() meter {
	return meter{began: time.Now(), machine: machineUsage(), others: foreignTime()}
}

// stop returns our use in cores, and the share of the machine that others used.
func (m meter) stop() (ours, foreign float64) {
	took, now := time.Since(m.began), machineUsage()
	others := max(0, foreignTime()-m.others+now.stolen-m.machine.stolen)
	busy := now.busy - m.machine.busy
	return max(0, float64(busy-others)/float64(took)), float64(others) / float64(took*time.Duration(max(1, now.cpus)))
}

// usage is the CPU time of all CPUs in /proc/stat.
type usage struct {
	busy, stolen time.Duration // stolen is part of busy
	cpus         int
}

func machineUsage() (u usage) {
	text, _ := os.ReadFile("/proc/stat")
	u.cpus = bytes.Count(text, []byte("\ncpu"))
	line, _, _ := strings.Cut(string(text), "\n")
	for i, f := range strings.Fields(line) {
		if i == 0 || i == 4 || i == 5 || i > 8 { // the name, idle, iowait, and times counted in others
			continue
		}
		n, _ := strconv.ParseInt(f, 10, 64)
		u.busy += time.Duration(n) * tick
		if i == 8 {
			u.stolen = time.Duration(n) * tick
		}
	}
	return u
}

// foreignTime returns the CPU time of all processes, and of their ended children, that are neither
// kernel threads nor this process or its descendants.
func foreignTime() (sum time.Duration) {
	type proc struct {
		parent int
		used   time.Duration
	}
	all := map[int]proc{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		f, err := statOf(pid)
		if err != nil {
			continue
		}
		p := proc{}
		p.parent, _ = strconv.Atoi(f[1])
		for _, field := range f[11:15] { // utime stime cutime cstime
			n, _ := strconv.ParseInt(field, 10, 64)
			p.used += time.Duration(n) * tick
		}
		all[pid] = p
	}
	const kthreadd = 2
	for pid, p := range all {
		up := pid
		for up > 1 && up != os.Getpid() && up != kthreadd {
			up = all[up].parent
		}
		if up != os.Getpid() && up != kthreadd {
			sum += p.used
		}
	}
	return sum
}

// statOf returns the fields of /proc/PID/stat from the third on, the state.
func statOf(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(f) < 15 {
		return nil, fmt.Errorf("/proc/%d/stat is short", pid)
	}
	return f, nil
}
