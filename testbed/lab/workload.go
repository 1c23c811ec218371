package lab

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
)

// Workload is a process that the kernel runs for an instance, whatever the daemons report.
type Workload struct {
	PID      int
	Instance api.InstanceID
	Epoch    api.Epoch
	Attempt  int
	Node     string        // whose control group it is in
	Started  time.Duration // since the machine's start, in hundredths of a second
}

// Workloads returns the live processes of the lab's instances, sorted by instance and start.
func (l *Lab) Workloads() []Workload {
	var out []Workload
	for _, pid := range pids() {
		if w, ok := l.workload(pid); ok {
			out = append(out, w)
		}
	}
	slices.SortFunc(out, func(a, b Workload) int {
		if c := strings.Compare(string(a.Instance), string(b.Instance)); c != 0 {
			return c
		}
		return int(a.Started - b.Started)
	})
	return out
}

// WorkloadsOf is Workloads for one instance.
func (l *Lab) WorkloadsOf(id api.InstanceID) []Workload {
	return slices.DeleteFunc(l.Workloads(), func(w Workload) bool { return w.Instance != id })
}

// Service waits until a service has n processes and returns them. A container's process has
// its instance's name only after its exec, which may be later than the reports about it.
func (l *Lab) Service(app, service string, n int) (all []Workload) {
	l.t.Helper()
	id := l.ServiceID(app, service)
	Within(l.t, patience, fmt.Sprintf("%s has %d processes", id, n), func() error {
		all = slices.DeleteFunc(l.Workloads(), func(w Workload) bool { return w.Instance.Service() != id })
		if len(all) != n {
			return fmt.Errorf("its processes are %+v", all)
		}
		return nil
	})
	return all
}

// Workload returns the process of an instance and fails the test if there are several. There
// may be none for a moment: a container's process has its instance's name only after its exec,
// and a node without CPU time stops an exclusive instance.
func (l *Lab) Workload(id api.InstanceID) Workload {
	l.t.Helper()
	var one Workload
	Within(l.t, patience, string(id)+" has a process", func() error {
		switch all := l.WorkloadsOf(id); len(all) {
		case 0:
			return errors.New("it has none")
		case 1:
			one = all[0]
		default:
			l.t.Fatalf("%s has %d processes, want 1: %+v", id, len(all), all)
		}
		return nil
	})
	return one
}

func (l *Lab) workload(pid int) (Workload, bool) {
	id := instanceOf(pid)
	if !strings.HasPrefix(id, string(l.Tenant)+"/") {
		return Workload{}, false
	}
	started, live := startOf(pid)
	if !live {
		return Workload{}, false
	}
	w := Workload{PID: pid, Instance: api.InstanceID(id), Started: started}
	epoch, _ := strconv.ParseUint(environ(pid, "TREELINE_EPOCH"), 10, 64)
	w.Epoch = api.Epoch(epoch)
	w.Attempt, _ = strconv.Atoi(environ(pid, "TREELINE_ATTEMPT"))
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if _, rest, ok := strings.Cut(string(text), "/"+filepath.Base(l.Dir)+"-"); ok {
		w.Node, _, _ = strings.Cut(rest, "/")
	}
	return w, true
}

func instanceOf(pid int) string { return environ(pid, "TREELINE_INSTANCE") }

func environ(pid int, key string) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	for kv := range bytes.SplitSeq(text, []byte{0}) {
		if v, ok := bytes.CutPrefix(kv, []byte(key+"=")); ok {
			return string(v)
		}
	}
	return ""
}

// startOf returns when a process started, since the machine's start, and whether it is alive;
// a zombie is not.
func startOf(pid int) (time.Duration, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	s := string(text)
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return 0, false
	}
	ticks, err := strconv.ParseInt(f[19], 10, 64)
	return time.Duration(ticks) * 10 * time.Millisecond, err == nil
}

// SinceBoot returns the time since the machine's start, on the clock of Workload.Started.
func SinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // exists on every Linux
	}
	return time.Duration(ts.Nano())
}

// Kill9 ends the workload's process from outside.
func (w Workload) Kill9() { _ = unix.Kill(w.PID, unix.SIGKILL) }

// Alive reports whether the process still runs.
func (w Workload) Alive() bool {
	started, live := startOf(w.PID)
	return live && started == w.Started
}

// Gone returns a channel that receives, on SinceBoot's clock, when the process ended by the
// kernel's notification. Call it before the action that ends the process.
func (w Workload) Gone(l *Lab) <-chan time.Duration {
	l.t.Helper()
	fd, err := unix.PidfdOpen(w.PID, 0)
	if err != nil || !w.Alive() {
		l.t.Fatalf("process %d of %s has already ended (%v)", w.PID, w.Instance, err)
	}
	out := make(chan time.Duration, 1)
	go func() {
		defer unix.Close(fd)
		for l.ctx.Err() == nil {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 500)
			if n > 0 || err != nil && err != unix.EINTR {
				out <- SinceBoot()
				return
			}
		}
	}()
	return out
}

// WaitGone waits for the end that Gone reports.
func (l *Lab) WaitGone(what string, gone <-chan time.Duration) time.Duration {
	l.t.Helper()
	select {
	case at := <-gone:
		return at
	case <-time.After(patience):
		l.t.Fatalf("%s: the process did not end within %s", what, patience)
		return 0
	}
}
