package lab

import (
	_ "embed"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/testbed/netlab"
)

// Bare is a machine without Treeline: own files, processes, control groups and network. Its programs
// are those of this machine, read-only, or busybox alone.
type Bare struct {
	*Proc
	Root string // its root directory, seen from outside
	lab  *Lab
	pid  string // of its first process
}

// BareOptions configure a Bare.
type BareOptions struct {
	Host    *netlab.Host
	Busybox bool   // busybox is its only program, as on a fresh Alpine
	Init    string // systemd, or openrc, which implies Busybox; empty: no service manager
}

//go:embed bare.sh
var bareScript string

// Bare starts a machine.
func (l *Lab) Bare(name string, o BareOptions) *Bare {
	l.t.Helper()
	b := &Bare{Root: filepath.Join(l.Dir, name), lab: l}
	script := filepath.Join(l.Dir, name+".sh")
	l.must(os.MkdirAll(b.Root, 0o755)) //nolint:gosec // a root directory
	l.must(os.WriteFile(script, []byte(bareScript), 0o600))
	kind := "debian"
	switch {
	case o.Init != "":
		kind = o.Init
	case o.Busybox:
		kind = "busybox"
	}
	b.Proc = l.proc(name, on(o.Host, []string{"sh", script, filepath.Base(l.Dir) + "-" + name, b.Root, kind, l.bin})...)
	b.Launch()
	ready := filepath.Join(b.Root, "tmp", "ready")
	Within(l.t, patience, "the bare machine "+name+" starts", func() error {
		if !b.Alive() {
			l.t.Fatalf("%s ended: %s", name, b.Log())
		}
		_, err := os.Stat(ready)
		return err
	})
	l.must(os.Remove(ready))
	for _, p := range pids() {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p))
		if strings.Contains(string(status), fmt.Sprintf("\nPPid:\t%d\n", b.PID())) {
			b.pid = fmt.Sprint(p)
		}
	}
	if b.pid == "" {
		l.t.Fatalf("%s has no first process", name)
	}
	if up := map[string]string{
		"systemd": "systemctl is-active -q default.target", "openrc": "rc-status -r | grep -q default",
	}[o.Init]; up != "" {
		Within(l.t, patience, o.Init+" has started on "+name, func() error {
			out, err := b.Try(up)
			if err != nil {
				return fmt.Errorf("%s: %w: %s", up, err, out)
			}
			return nil
		})
	}
	return b
}

func (l *Lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatalf("%v", err)
	}
}

// Command returns a command of a shell on the machine, as root, which has not started.
func (b *Bare) Command(line string) *exec.Cmd {
	return exec.Command("nsenter", "--target", b.pid, "--all", "--root", "--wd", "/usr/bin/env", "-i",
		"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "/bin/sh", "-c", line)
}

// Try runs a command and returns what it prints. It uses a file, because daemons that a command
// starts would keep a pipe open.
func (b *Bare) Try(line string) (string, error) {
	b.lab.t.Helper()
	out, err := os.CreateTemp(b.lab.Dir, "out-")
	b.lab.must(err)
	defer out.Close()
	cmd := b.Command(line)
	cmd.Stdout, cmd.Stderr = out, out
	if err = cmd.Start(); err == nil {
		late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		err = cmd.Wait()
		late.Stop()
	}
	text, _ := os.ReadFile(out.Name())
	return string(text), err
}

// Run is Try for a command that must succeed.
func (b *Bare) Run(line string) string {
	b.lab.t.Helper()
	out, err := b.Try(line)
	if err != nil {
		b.lab.t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return out
}

// processes returns the command lines of the machine's processes, by their pids outside.
func (b *Bare) processes() map[int]string {
	out := map[int]string{}
	mine, _ := os.Readlink("/proc/" + b.pid + "/ns/pid")
	for _, pid := range pids() {
		if ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid)); err == nil && ns == mine {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			out[pid] = strings.TrimSpace(strings.ReplaceAll(string(name), "\x00", " "))
		}
	}
	return out
}

// Processes returns the pids outside of the machine's processes whose command lines match.
func (b *Bare) Processes(command *regexp.Regexp) []int {
	var out []int
	for pid, is := range b.processes() {
		if command.MatchString(is) {
			out = append(out, pid)
		}
	}
	slices.Sort(out)
	return out
}

// Cut runs a command and kills the processes whose command lines match, as soon as a file whose name
// is a pattern of path.Match exists on the machine. It reports whether it came to that, and returns
// when the command has ended.
func (b *Bare) Cut(line, file string, victims *regexp.Regexp) (killed bool) {
	b.lab.t.Helper()
	cmd := b.Command(line)
	b.lab.must(cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	late := time.After(patience)
	for {
		select {
		case <-ended:
			return killed
		case <-late:
			b.lab.t.Fatalf("%s: not ended within %s", line, patience)
		case <-time.After(5 * time.Millisecond):
		}
		if found, _ := filepath.Glob(filepath.Join(b.Root, file)); len(found) == 0 {
			continue
		}
		for _, pid := range b.Processes(victims) {
			killed = unix.Kill(pid, unix.SIGKILL) == nil || killed
		}
	}
}

// Write writes a file on the machine.
func (b *Bare) Write(path, text string) {
	b.lab.t.Helper()
	at := filepath.Join(b.Root, path)
	b.lab.must(os.MkdirAll(filepath.Dir(at), 0o755))  //nolint:gosec // directories of a machine
	b.lab.must(os.WriteFile(at, []byte(text), 0o755)) //nolint:gosec // some are scripts
}

// Traces lists what there is on the machine, apart from temporary files and the service manager's own
// state: files, processes, control groups, network devices and rules.
func (b *Bare) Traces() []string {
	b.lab.t.Helper()
	var out []string
	for _, dir := range []string{"etc", "var", "run", "root", "opt", "local", "bin", "sbin", "usr"} {
		err := filepath.WalkDir(filepath.Join(b.Root, dir), func(p string, d fs.DirEntry, err error) error {
			at := strings.TrimPrefix(p, b.Root)
			if err == nil && slices.Contains([]string{"/run/systemd", "/run/log", "/run/openrc", "/var/lib/systemd"}, at) {
				return filepath.SkipDir
			}
			if err == nil {
				out = append(out, "file "+at)
			}
			return nil
		})
		b.lab.must(err)
	}
	for _, command := range b.processes() {
		out = append(out, "process "+command)
	}
	for _, g := range CgroupsOf(filepath.Base(b.lab.Dir) + "-" + b.Name) {
		if name := filepath.Base(g); name != "init.scope" && name != "system.slice" && !strings.HasPrefix(name, "systemd-") {
			out = append(out, "cgroup "+g)
		}
	}
	net := exec.Command("nsenter", "--target", b.pid, "--net", "sh", "-c", "ip -o link | cut -d: -f2; nft list ruleset; ip route; ip rule; sysctl -n net.ipv4.ip_forward")
	text, err := net.CombinedOutput()
	b.lab.must(err)
	for line := range strings.Lines(string(text)) {
		out = append(out, "network "+strings.TrimSpace(line))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// InstallDir returns a directory with the programs of this machine's architecture that machines
// install, among them treeline.
func (l *Lab) InstallDir() string {
	l.t.Helper()
	dir := filepath.Join(l.Dir, "release")
	l.must(os.MkdirAll(dir, 0o755)) //nolint:gosec // programs
	for _, p := range []string{"root-orchestrator", "cluster-orchestrator", "node-engine", "netmanager", "cli"} {
		from, to := filepath.Join(l.bin, p), filepath.Join(dir, p)
		if p == "cli" {
			to = filepath.Join(dir, "treeline")
		}
		if err := os.Link(from, to); err != nil {
			text, err := os.ReadFile(from) // another disk
			l.must(err)
			l.must(os.WriteFile(to, text, 0o755)) //nolint:gosec // a program
		}
	}
	return dir
}
