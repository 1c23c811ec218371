package lab

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// janitorName is the name of the helper process that cleans up after a lab.
const janitorName = "treeline-lab-janitor"

var mainCalled bool

// Main must be called first by a program that opens labs. If the process was started as a
// janitor, Main runs the janitor and does not return.
//
//	func TestMain(m *testing.M) { lab.Main(); code := m.Run(); lab.Forget(); os.Exit(code) }
func Main() {
	mainCalled = true
	if len(os.Args) != 3 || os.Args[0] != janitorName {
		return
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // ends with the lab, also if that is killed
	if err := sweep(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Forget removes the binaries that the labs of this process built. It is called last.
func Forget() { forget() }

// janitor cleans up when it is closed or this process ends.
type janitor struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   bytes.Buffer
}

func startJanitor(dir, tenant string) (*janitor, error) {
	if !mainCalled {
		return nil, errors.New("lab.Main was not called at the start of main or TestMain")
	}
	j := &janitor{cmd: &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{janitorName, dir, tenant}, Dir: "/",
		SysProcAttr: &syscall.SysProcAttr{Setsid: true}, // it must not get a Ctrl-C
	}}
	j.cmd.Stdout, j.cmd.Stderr = &j.out, &j.out
	var err error
	if j.stdin, err = j.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return j, j.cmd.Start()
}

func (j *janitor) close() error {
	_ = j.stdin.Close()
	if err := j.cmd.Wait(); err != nil {
		return fmt.Errorf("clean up: %w: %s", err, bytes.TrimSpace(j.out.Bytes()))
	}
	return nil
}

// sweep ends every process of the lab and removes its mounts, control groups and files. A
// process of the lab has the lab's directory in its command line or an instance of the lab's
// tenant in its environment, or is in a control group of one of its nodes, like a container
// that was created and not started.
func sweep(dir, tenant string) error {
	var errs []error
	// A process may start another one during the search, so repeat until there is none.
	for deadline := time.Now().Add(time.Minute); ; {
		pids := processesOf(dir, tenant)
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		if len(pids) == 0 {
			break
		}
		if time.Now().After(deadline) {
			errs = append(errs, fmt.Errorf("processes %v do not end", pids))
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	for _, m := range slices.Backward(MountsUnder(dir)) {
		if err := unix.Unmount(m, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", m, err))
		}
	}
	for _, g := range CgroupsOf(filepath.Base(dir) + "-") {
		if err := removeCgroup(g); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, os.RemoveAll(dir))...)
}

// removeCgroup repeats until the kernel permits it, which is a moment after the end of the last
// process, on a busy machine seconds.
func removeCgroup(path string) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Rmdir(path)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("remove cgroup %s: %w", path, err)
		}
	}
}

// processesOf returns the live processes of a lab, without this one and its janitors.
func processesOf(dir, tenant string) []int {
	var out []int
	for _, pid := range pids() {
		if pid == os.Getpid() {
			continue
		}
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if bytes.HasPrefix(cmdline, []byte(janitorName)) {
			continue
		}
		cgroup, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if bytes.Contains(cmdline, []byte(dir)) || bytes.Contains(cgroup, []byte("/"+filepath.Base(dir)+"-")) || strings.HasPrefix(instanceOf(pid), tenant+"/") {
			out = append(out, pid)
		}
	}
	return out
}

func pids() []int {
	entries, _ := os.ReadDir("/proc")
	var out []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// MountsUnder returns the mount points below dir, outermost first.
func MountsUnder(dir string) []string {
	text, _ := os.ReadFile("/proc/self/mountinfo")
	var out []string
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			out = append(out, f[4])
		}
	}
	return out
}

// CgroupsOf returns the control group directories, in all hierarchies, of the nodes whose names
// begin with prefix, and all below; inner ones first.
func CgroupsOf(prefix string) []string {
	var out []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(p string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() && strings.Contains(p, "/"+prefix) {
			out = append(out, p)
		}
		return nil
	})
	slices.Reverse(out)
	return out
}
