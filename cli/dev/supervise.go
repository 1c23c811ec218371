//go:build linux

package dev

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// The limits of the pause between a daemon's exit and its restart, and the uptime after which the
// pause is minPause again.
const (
	minPause = 200 * time.Millisecond
	maxPause = 10 * time.Second
	lived    = 30 * time.Second
)

// usageExit is the exit code of daemons with an invalid configuration. They are not restarted.
const usageExit = 2

// child is a process to run.
type child struct {
	name, binary, log string
	token             string // join token; passed in the environment, which other users cannot read
	netns             string // path of its network namespace; empty: the current one
	host              string // its address in netns
	args              func() []string
}

// process is a child that is restarted when it exits.
type process struct {
	child
	sup   *supervisor
	pid   atomic.Int64
	stop  chan struct{} // closed to stop the process
	done  chan struct{} // closed when it has stopped and is not restarted
	broke chan struct{} // closed when its configuration is invalid
}

// PID returns the process id, 0 while the process is not running.
func (p *process) PID() int { return int(p.pid.Load()) }

// supervisor runs children and restarts them.
type supervisor struct {
	step  func(format string, args ...any)
	spawn chan func()

	mu  sync.Mutex // guards all
	all []*process
}

func newSupervisor(step func(string, ...any)) *supervisor {
	s := &supervisor{step: step, spawn: make(chan func())}
	// Pdeathsig signals a child when the thread that created it ends, so that no child survives if
	// this process is killed. Use one thread that does not end.
	go func() {
		runtime.LockOSThread()
		for fn := range s.spawn {
			fn()
		}
	}()
	return s
}

func (s *supervisor) start(c child) *process {
	p := &process{child: c, sup: s, stop: make(chan struct{}), done: make(chan struct{}), broke: make(chan struct{})}
	s.mu.Lock()
	s.all = append(s.all, p)
	s.mu.Unlock()
	go p.keep()
	return p
}

func (s *supervisor) children() []*process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all)
}

// end stops all children: first nodes, then netmanagers, clusters, the root, and what they use.
func (s *supervisor) end() {
	order := []string{nodeBinary, netBinary, clusterBinary, rootBinary}
	rank := func(p *process) int {
		i := slices.Index(order, filepath.Base(p.binary))
		return (i + len(order) + 1) % (len(order) + 1) // others are last
	}
	all := s.children()
	for turn := range len(order) + 1 {
		for _, p := range all {
			if rank(p) == turn {
				close(p.stop)
			}
		}
		for _, p := range all {
			if rank(p) == turn {
				<-p.done
			}
		}
	}
	close(s.spawn)
}

// keep runs and restarts the child until it is stopped.
func (p *process) keep() {
	defer close(p.done)
	pause := minPause
	for {
		begun := time.Now()
		again, err := p.live()
		if !again {
			return
		}
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() == usageExit {
			close(p.broke)
			return
		}
		if time.Since(begun) > lived {
			pause = minPause
		}
		p.sup.step("%s exited (%v); restarting it in %s, see %s", p.name, err, pause, p.log)
		select {
		case <-time.After(pause):
			pause = min(2*pause, maxPause)
		case <-p.stop:
			return
		}
	}
}

// live runs the child once. again says that it exited without a request to stop.
func (p *process) live() (again bool, err error) {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return true, err
	}
	defer log.Close()
	cmd := exec.Command(p.binary, p.args()...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = environment(p.token)
	// Use a process group per child, so that Ctrl-C does not stop the daemons out of order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	started := make(chan error, 1)
	p.sup.spawn <- func() {
		var failed error
		if err := within(p.netns, func() { failed = cmd.Start() }); err != nil {
			failed = err
		}
		started <- failed
	}
	if err := <-started; err != nil {
		return true, err
	}
	p.pid.Store(int64(cmd.Process.Pid))
	defer p.pid.Store(0)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		return true, cmp.Or(err, errors.New("exit status 0"))
	case <-p.stop:
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err = <-ended:
	case <-time.After(stopTime):
		p.sup.step("%s does not stop; killing it", p.name)
		_ = cmd.Process.Kill()
		err = <-ended
	}
	return false, err
}

// environment returns the environment for a daemon without this program's TREELINE_ variables: a
// daemon would use TREELINE_TOKEN as a join token.
func environment(token string) []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "TREELINE_") && !strings.HasPrefix(e, "NOTIFY_SOCKET=") {
			env = append(env, e)
		}
	}
	if token != "" {
		env = append(env, "TREELINE_TOKEN="+token)
	}
	return env
}

// awaitFile waits until the child has written a file, and returns its content.
func (p *process) awaitFile(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		text, err := os.ReadFile(path)
		if err == nil && len(text) > 0 {
			return strings.TrimSpace(string(text)), nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("start %s: %w", p.name, err)
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-p.broke:
			return "", fmt.Errorf("start %s: invalid configuration:\n%s", p.name, tail(p.log))
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return "", fmt.Errorf("%s is not ready after %s: %w\n%s", p.name, startTime, api.ErrTimeout, tail(p.log))
			}
			return "", ctx.Err()
		}
	}
}

// tail returns the last lines of a log, for an error message.
func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return "  " + strings.Join(lines[max(0, len(lines)-5):], "\n  ")
}
