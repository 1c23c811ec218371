package lab

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// spawns passes process starts to one thread that never ends, because the kernel sends
// Pdeathsig when the thread that started a process ends, not when the program ends.
var spawns = sync.OnceValue(func() chan<- func() {
	c := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range c {
			f()
		}
	}()
	return c
})

// Proc is the process of one daemon. Only one goroutine may call its methods.
type Proc struct {
	Name string
	lab  *Lab
	args []string
	env  []string
	log  string // path

	cmd   *exec.Cmd
	ended chan struct{} // closed when cmd has ended and is reaped
	ready *net.UnixConn // receives READY=1
}

func (l *Lab) proc(name string, args ...string) *Proc {
	p := &Proc{Name: name, lab: l, args: args, log: filepath.Join(l.Dir, name+".log")}
	path := filepath.Join(l.Dir, name+".ready")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		l.t.Fatalf("%s: %v", name, err)
	}
	p.ready = conn
	p.env = []string{"NOTIFY_SOCKET=" + path, "PATH=" + os.Getenv("PATH"), "HOME=" + l.Dir}
	l.procs = append(l.procs, p)
	return p
}

// Start starts the process and waits until it is ready.
func (p *Proc) Start() {
	p.lab.t.Helper()
	p.Launch()
	p.WaitReady()
}

// Launch starts the process without waiting.
func (p *Proc) Launch() {
	p.lab.t.Helper()
	if p.Alive() {
		p.lab.t.Fatalf("start %s: it is already running", p.Name)
	}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.lab.t.Fatalf("%s: %v", p.Name, err)
	}
	defer out.Close()
	_, _ = fmt.Fprintf(out, "--- %s\n", strings.Join(p.args, " "))
	p.drain()
	cmd := exec.Command(p.args[0], p.args[1:]...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = p.env, "/", out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	spawns() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		p.lab.t.Fatalf("start %s: %v", p.Name, err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	p.cmd, p.ended = cmd, ended
}

// WaitReady waits until the process is ready.
func (p *Proc) WaitReady() {
	p.lab.t.Helper()
	if err := p.awaitReady(patience); err != nil {
		p.lab.t.Fatalf("%s: %v\n%s", p.Name, err, tail(p.log, 30))
	}
}

// TryStart starts the process and returns why it is not ready within a time. It may still run then.
func (p *Proc) TryStart(within time.Duration) error {
	p.lab.t.Helper()
	p.Launch()
	return p.awaitReady(within)
}

func (p *Proc) awaitReady(within time.Duration) error {
	_ = p.ready.SetReadDeadline(time.Now().Add(within))
	stop := make(chan struct{})
	defer close(stop)
	go func(ended <-chan struct{}) {
		select {
		case <-ended:
			_ = p.ready.SetReadDeadline(time.Now())
		case <-stop:
		}
	}(p.ended)
	buf := make([]byte, 256)
	for {
		n, err := p.ready.Read(buf)
		switch {
		case err == nil && strings.Contains(string(buf[:n]), "READY=1"):
			return nil
		case err == nil:
		case !p.Alive():
			return fmt.Errorf("it ended before it was ready: %s", p.cmd.ProcessState)
		default:
			return fmt.Errorf("it is not ready within %s", within)
		}
	}
}

// drain discards notifications of an earlier start.
func (p *Proc) drain() {
	// A deadline in the past would make reads of existing data fail, too.
	_ = p.ready.SetReadDeadline(time.Now().Add(2 * time.Millisecond))
	buf := make([]byte, 256)
	for {
		if _, err := p.ready.Read(buf); err != nil {
			return
		}
	}
}

// WaitEnd waits until the process has ended by itself and returns its exit code.
func (p *Proc) WaitEnd() int {
	p.lab.t.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		p.lab.t.Fatalf("%s did not exit in time", p.Name)
		return 0
	}
}

// Alive reports whether the process runs.
func (p *Proc) Alive() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// PID returns the process id, 0 if the process does not run.
func (p *Proc) PID() int {
	if !p.Alive() {
		return 0
	}
	return p.cmd.Process.Pid
}

// Kill9 ends the process with SIGKILL and returns when it is gone.
func (p *Proc) Kill9() { p.end(syscall.SIGKILL) }

// Stop ends the process with SIGTERM and returns when it is gone.
func (p *Proc) Stop() {
	p.lab.t.Helper()
	p.end(syscall.SIGTERM)
}

func (p *Proc) end(s syscall.Signal) {
	if !p.Alive() {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGCONT) // a paused process does not handle signals
	_ = p.cmd.Process.Signal(s)
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		p.lab.t.Errorf("%s did not exit after %s", p.Name, s)
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// Restart ends the process with SIGKILL, if it runs, and starts it again.
func (p *Proc) Restart() {
	p.lab.t.Helper()
	p.Kill9()
	p.Start()
}

// Upgrade ends the process with SIGTERM and has its next start run the program of the same name in a directory.
func (p *Proc) Upgrade(dir string) {
	p.lab.t.Helper()
	p.Stop()
	for i, a := range p.args {
		if slices.Contains(Programs(), filepath.Base(a)) {
			p.args[i] = filepath.Join(dir, filepath.Base(a))
			return
		}
	}
	p.lab.t.Fatalf("upgrade %s: %v has none of the programs", p.Name, p.args)
}

// Pause stops the process with SIGSTOP.
func (p *Proc) Pause() { _ = p.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume continues a paused process.
func (p *Proc) Resume() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }

// Log returns the output of the process since its first start.
func (p *Proc) Log() string {
	text, _ := os.ReadFile(p.log)
	return string(text)
}

// tail returns the last lines of a file.
func tail(path string, lines int) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(0, size-64<<10), io.SeekStart)
	}
	text, _ := io.ReadAll(f)
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
