package lab

import (
	"context"
	_ "embed"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/testbed/gobuild"
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
	Busybox bool // busybox is its only program, as on a fresh Alpine
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
	if o.Busybox {
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

// Write writes a file on the machine.
func (b *Bare) Write(path, text string) {
	b.lab.t.Helper()
	at := filepath.Join(b.Root, path)
	b.lab.must(os.MkdirAll(filepath.Dir(at), 0o755))  //nolint:gosec // directories of a machine
	b.lab.must(os.WriteFile(at, []byte(text), 0o755)) //nolint:gosec // some are scripts
}

// Traces lists what there is on the machine, apart from temporary files: files, processes, control
// groups, network devices and rules.
func (b *Bare) Traces() []string {
	b.lab.t.Helper()
	var out []string
	for _, dir := range []string{"etc", "var", "run", "root", "opt", "local", "bin", "sbin", "usr"} {
		err := filepath.WalkDir(filepath.Join(b.Root, dir), func(p string, d fs.DirEntry, err error) error {
			if err == nil {
				out = append(out, "file "+strings.TrimPrefix(p, b.Root))
			}
			return nil
		})
		b.lab.must(err)
	}
	for _, pid := range pids() {
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
		if mine, _ := os.Readlink("/proc/" + b.pid + "/ns/pid"); err == nil && ns == mine {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			out = append(out, "process "+strings.TrimSpace(strings.ReplaceAll(string(name), "\x00", " ")))
		}
	}
	for _, g := range CgroupsOf(filepath.Base(b.lab.Dir) + "-" + b.Name) {
		out = append(out, "cgroup "+g)
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
	for _, p := range []string{"root-orchestrator", "cluster-orchestrator", "node-engine", "netmanager"} {
		if err := os.Link(filepath.Join(l.bin, p), filepath.Join(dir, p)); err != nil {
			text, err := os.ReadFile(filepath.Join(l.bin, p)) // another disk
			l.must(err)
			l.must(os.WriteFile(filepath.Join(dir, p), text, 0o755)) //nolint:gosec // a program
		}
	}
	ctx, cancel := context.WithTimeout(l.ctx, 10*time.Minute)
	defer cancel()
	l.must(gobuild.Build(ctx, filepath.Join(dir, "treeline"), "cli"))
	return dir
}
