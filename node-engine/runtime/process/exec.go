package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/creack/pty"
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/execs"
	"github.com/treeline-edge/treeline/node-engine/runtime/shim"
	"golang.org/x/sys/unix"
)

// Exec implements runtime.Executor. The program must be in a directory that the node's operator
// allows, as that of a workload. The process is a child of the engine in the workload's control
// group.
func (r *Runtime) Exec(ctx context.Context, k wire.Key, p runtime.Process) (runtime.Running, error) {
	x, err := r.exec(ctx, runtime.ID(k), p)
	if err != nil {
		return nil, fmt.Errorf("exec in %s: %w", k, err)
	}
	return x, nil
}

// running is a runtime.Running.
type running struct {
	r    *Runtime
	ctx  context.Context // of Exec
	exec execs.Exec
	cmd  *exec.Cmd
	tty  *os.File // the engine's end of the terminal; nil: there is none
	done chan struct{}
	code int // valid after done is closed, as err
	err  error

	mu     sync.Mutex // guards closed and the use of tty
	closed bool
}

func (r *Runtime) exec(ctx context.Context, id string, p runtime.Process) (*running, error) {
	w, err := r.runs(id)
	if err != nil {
		return nil, err
	}
	if len(p.Args) == 0 {
		return nil, fmt.Errorf("no program is given: %w", api.ErrInvalid)
	}
	// The operator's list of directories applies to every program.
	if err := r.check(api.Microservice{Virtualization: Virtualization, Code: p.Args[0]}); err != nil {
		e, _ := errors.AsType[*runtime.Error](err)
		if e.Reason == api.ReasonPrivilege {
			return nil, fmt.Errorf("%w: %w", e.Err, api.ErrForbidden)
		}
		return nil, fmt.Errorf("%w: %w", e.Err, api.ErrInvalid)
	}
	e, err := r.execs.Begin(id)
	if err != nil {
		return nil, err
	}
	x := &running{r: r, ctx: ctx, exec: e, done: make(chan struct{})}
	wait, err := x.start(w, p)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %q: %w: %w", p.Args[0], err, api.ErrInvalid), r.execs.End(e))
	}
	// If the workload ended before the process was in its control group, nothing else kills it.
	if _, err := r.runs(id); err != nil {
		x.kill()
	}
	r.running.Go(func() { x.attend(wait) })
	return x, nil
}

// runs returns the plan of a running workload.
func (r *Runtime) runs(id string) (shim.Plan, error) {
	p, phase, err := r.Find(id)
	if errors.Is(err, fs.ErrNotExist) || err == nil && phase != wire.WorkloadRunning {
		return p, fmt.Errorf("it does not run: %w", api.ErrNotFound)
	}
	return p, err
}

// start starts the process. wait returns when its output has been copied, or ctx has ended.
func (x *running) start(w shim.Plan, p runtime.Process) (wait func(), err error) {
	env := slices.Concat(w.Env, p.Env, []string{x.exec.Mark()})
	if p.TTY && !slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "TERM=") }) {
		env = append(env, "TERM=xterm")
	}
	x.cmd = &exec.Cmd{
		Path: p.Args[0], Args: p.Args, Env: env, Dir: "/",
		SysProcAttr: &syscall.SysProcAttr{
			Setsid:     true,
			Credential: &syscall.Credential{Uid: uint32(w.UID), Gid: uint32(w.GID), Groups: []uint32{}},
		},
	}
	var theirs []io.Closer
	defer func() {
		for _, c := range theirs {
			_ = c.Close()
		}
	}()
	var c copies
	if p.TTY {
		ours, tty, err := pty.Open()
		if err != nil {
			return nil, err
		}
		x.tty, theirs = ours, append(theirs, tty)
		if p.Width > 0 && p.Height > 0 {
			_ = x.Resize(p.Width, p.Height)
		}
		x.cmd.Stdin, x.cmd.Stdout, x.cmd.Stderr = tty, tty, tty
		x.cmd.SysProcAttr.Setctty = true // descriptor 0
		if p.Stdin != nil {
			c.input(p.Stdin, keepOpen{ours})
		}
		c.output(p.Stdout, ours)
	} else {
		if p.Stdin != nil {
			r, w, err := os.Pipe()
			if err != nil {
				return nil, err
			}
			x.cmd.Stdin, theirs = r, append(theirs, r)
			c.input(p.Stdin, w)
		}
		for _, o := range []struct {
			to  io.Writer
			cmd *io.Writer
		}{{p.Stdout, &x.cmd.Stdout}, {p.Stderr, &x.cmd.Stderr}} {
			if o.to == nil {
				continue // the null device
			}
			r, w, err := os.Pipe()
			if err != nil {
				c.close()
				return nil, err
			}
			*o.cmd, theirs = w, append(theirs, w)
			c.output(o.to, r)
		}
	}
	group := x.r.Group(x.exec.Workload)
	if err := group.Start(x.cmd, func() error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }); err != nil {
		c.close()
		return nil, err
	}
	score := []byte(strconv.Itoa(runtime.OOMScoreAdj))
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", x.cmd.Process.Pid), score, 0)
	return c.run(x.ctx, x.r.ctx), nil
}

// attend waits for the end of the process, which the end of ctx or of the runtime causes.
func (x *running) attend(copied func()) {
	defer close(x.done)
	defer context.AfterFunc(x.ctx, x.kill)()
	defer context.AfterFunc(x.r.ctx, x.kill)()
	_ = x.cmd.Wait()
	x.code = shim.ExitCode(x.cmd.ProcessState)
	x.kill()
	copied()
	x.mu.Lock()
	x.closed = true
	x.mu.Unlock()
	switch {
	case x.ctx.Err() != nil:
		x.err = context.Cause(x.ctx)
	case x.r.ctx.Err() != nil:
		x.err = fmt.Errorf("the node engine is stopping: %w", api.ErrUnavailable)
	}
	_ = x.r.execs.End(x.exec)
}

// kill kills the process and its descendants. A failure would leave them until the workload ends.
func (x *running) kill() {
	ctx, cancel := context.WithTimeout(context.Background(), shim.Timeout)
	defer cancel()
	_ = execs.Kill(ctx, x.r.Group(x.exec.Workload), x.exec)
}

// Wait implements runtime.Running.
func (x *running) Wait(ctx context.Context) (int, error) {
	select {
	case <-x.done:
		return x.code, x.err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// Resize implements runtime.Running.
func (x *running) Resize(width, height uint16) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.tty == nil || x.closed {
		return nil
	}
	return pty.Setsize(x.tty, &pty.Winsize{Cols: width, Rows: height})
}

// endExecs kills what an earlier engine left.
func (r *Runtime) endExecs() error {
	for _, e := range r.execs.Left() {
		ctx, cancel := context.WithTimeout(r.ctx, shim.Timeout)
		err := errors.Join(execs.Kill(ctx, r.Group(e.Workload), e), r.execs.End(e))
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// keepOpen is a writer to the terminal, which is closed only after its output was read.
type keepOpen struct{ io.Writer }

// Close implements io.Closer.
func (keepOpen) Close() error { return nil }

// copies are the streams to copy to and from a process.
type copies struct {
	in   func()
	out  []func()
	ours []io.Closer
}

func (c *copies) input(from io.Reader, to io.WriteCloser) {
	if _, terminal := to.(keepOpen); !terminal {
		c.ours = append(c.ours, to)
	}
	c.in = func() {
		_, _ = io.Copy(to, from)
		_ = to.Close()
	}
}

// output copies from a pipe or terminal. A nil to discards.
func (c *copies) output(to io.Writer, from io.ReadCloser) {
	if to == nil {
		to = io.Discard
	}
	c.ours = append(c.ours, from)
	c.out = append(c.out, func() { _, _ = io.Copy(to, from) }) // a terminal ends with EIO
}

func (c *copies) close() {
	for _, f := range c.ours {
		_ = f.Close()
	}
}

// run starts to copy. The returned function waits until all output is copied or a context ends, and
// closes the engine's ends.
func (c *copies) run(contexts ...context.Context) (wait func()) {
	if c.in != nil {
		go c.in()
	}
	var all sync.WaitGroup
	for _, f := range c.out {
		all.Go(f)
	}
	copied := make(chan struct{})
	go func() {
		all.Wait()
		close(copied)
	}()
	return func() {
		select {
		case <-copied:
		case <-contexts[0].Done():
		case <-contexts[1].Done():
		}
		c.close()
	}
}
