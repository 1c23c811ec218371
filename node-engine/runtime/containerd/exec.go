package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/execs"
)

// removeRetries is how often the removal of an earlier engine's exec from its shim is tried. The next
// engine tries again.
const removeRetries = 30

// Exec implements runtime.Executor.
func (r *Runtime) Exec(ctx context.Context, k wire.Key, p runtime.Process) (runtime.Running, error) {
	e, err := r.exec(ctx, runtime.ID(k), p)
	if err != nil {
		return nil, fmt.Errorf("exec in %s: %w", k, err)
	}
	return e, nil
}

// process is a runtime.Running.
type process struct {
	r    *Runtime
	exec execs.Exec
	io   cio.IO
	ctx  context.Context // of Exec; its end kills the process
	done chan struct{}   // closed after code and err are set
	code int
	err  error
}

func (r *Runtime) exec(ctx context.Context, id string, p runtime.Process) (_ *process, err error) {
	if len(p.Args) == 0 {
		return nil, fmt.Errorf("no program is given: %w", api.ErrInvalid)
	}
	call, cancel := r.call(ctx)
	defer cancel()
	if err := r.runs(call, id); err != nil {
		return nil, err
	}
	e, err := r.execs.Begin(id)
	if err != nil {
		return nil, err
	}
	spec, err := r.processSpec(call, id, p, e)
	if err != nil {
		return nil, errors.Join(err, r.execs.End(e))
	}
	stdin := &input{Reader: p.Stdin, ended: make(chan struct{})}
	streams, err := r.streams(e, p, stdin)
	if err != nil {
		return nil, errors.Join(err, r.execs.End(e))
	}
	x := &process{r: r, exec: e, io: streams, ctx: ctx, done: make(chan struct{})}
	if err := x.start(call, spec); err != nil {
		x.discard()
		if gone := r.runs(call, id); gone != nil {
			return nil, gone
		}
		return nil, startFailure(p.Args[0], err)
	}
	if p.Width > 0 && p.Height > 0 {
		_ = x.Resize(p.Width, p.Height) // the size of the specification is ignored by earlier shims
	}
	if p.Stdin != nil {
		r.running.Go(func() { x.closeStdin(stdin.ended) })
	}
	r.running.Go(x.attend)
	return x, nil
}

// runs fails with ErrNotFound if the container does not run.
func (r *Runtime) runs(ctx context.Context, id string) error {
	task, err := r.task(ctx, id)
	if err != nil {
		return withReason(err)
	}
	if task == nil || task.Status != tasktypes.Status_RUNNING {
		return fmt.Errorf("it does not run: %w", api.ErrNotFound)
	}
	return nil
}

// processSpec returns the specification of a process. It is that of the container's first process,
// from which it takes the user, the capabilities and the limits; runc applies the container's
// system call filter and control group to it.
func (r *Runtime) processSpec(ctx context.Context, id string, p runtime.Process, e execs.Exec) (*specs.Process, error) {
	c, err := r.c.ContainerService().Get(ctx, id)
	if errdefs.IsNotFound(err) {
		return nil, fmt.Errorf("container %s: %w", id, api.ErrNotFound)
	}
	if err != nil {
		return nil, withReason(err)
	}
	var s specs.Spec
	if err := typeurl.UnmarshalTo(c.Spec, &s); err != nil {
		return nil, fmt.Errorf("decode the specification of container %s: %w", id, err)
	}
	if s.Process == nil {
		return nil, fmt.Errorf("container %s has no process: %w", id, api.ErrConflict)
	}
	out := s.Process
	out.Args, out.CommandLine, out.Terminal = p.Args, "", p.TTY
	out.Env = slices.Concat(out.Env, p.Env, []string{e.Mark()})
	if p.TTY {
		out.ConsoleSize = &specs.Box{Width: uint(p.Width), Height: uint(p.Height)}
		if !slices.ContainsFunc(out.Env, func(kv string) bool { return strings.HasPrefix(kv, "TERM=") }) {
			out.Env = append(out.Env, "TERM=xterm")
		}
	}
	return out, nil
}

// streams creates the process's streams. The names of FIFOs survive a killed engine, and the next
// one removes them.
func (r *Runtime) streams(e execs.Exec, p runtime.Process, stdin io.Reader) (cio.IO, error) {
	in, out, errs := stdin, p.Stdout, p.Stderr
	if p.Stdin == nil {
		in = nil
	}
	if out == nil {
		out = io.Discard
	}
	if errs == nil {
		errs = io.Discard
	}
	opts := []cio.Opt{cio.WithStreams(in, out, errs), cio.WithFIFODir(r.fifoDir())}
	if p.TTY {
		opts = append(opts, cio.WithTerminal, cio.WithStreams(in, out, nil))
	}
	return cio.NewCreator(opts...)(e.ID[:8])
}

func (r *Runtime) fifoDir() string { return filepath.Join(r.cfg.StateDir, "fifos") }

func (x *process) start(ctx context.Context, spec *specs.Process) error {
	text, err := typeurl.MarshalAnyToProto(spec)
	if err != nil {
		return err
	}
	cfg := x.io.Config()
	if _, err := native(x.r.c.TaskService().Exec(ctx, &tasks.ExecProcessRequest{
		ContainerID: x.exec.Workload, ExecID: x.exec.ID, Terminal: cfg.Terminal,
		Stdin: cfg.Stdin, Stdout: cfg.Stdout, Stderr: cfg.Stderr, Spec: text,
	})); err != nil {
		return err
	}
	_, err = native(x.r.c.TaskService().Start(ctx, &tasks.StartRequest{ContainerID: x.exec.Workload, ExecID: x.exec.ID}))
	return err
}

// startFailure describes why a program was not started, without the texts of the layers between.
func startFailure(program string, err error) error {
	if errdefs.IsUnavailable(err) || errdefs.IsDeadlineExceeded(err) || errors.Is(err, context.Canceled) {
		return withReason(err)
	}
	text := err.Error()
	if i := strings.LastIndex(text, "exec: "); i >= 0 {
		text = text[i+len("exec: "):]
	}
	return fmt.Errorf("start %q: %s: %w", program, strings.TrimSuffix(text, ": unknown"), api.ErrInvalid)
}

// attend waits for the end of the process, which the end of ctx or of the runtime causes, and removes
// what belongs to it.
func (x *process) attend() {
	defer close(x.done)
	ctx, cancel := context.WithCancelCause(namespaces.WithNamespace(context.WithoutCancel(x.ctx), x.r.cfg.Namespace))
	defer cancel(nil)
	kill := func() {
		x.kill(ctx)
		x.io.Cancel()
		// containerd may not answer.
		time.AfterFunc(x.r.cfg.CallTimeout, func() { cancel(context.DeadlineExceeded) })
	}
	defer context.AfterFunc(x.ctx, kill)()
	defer context.AfterFunc(x.r.ctx, kill)()
	x.code, x.err = x.wait(ctx)
	x.kill(ctx)
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		x.io.Wait()
	}()
	select {
	case <-copied:
	case <-x.ctx.Done():
		x.err = context.Cause(x.ctx)
	case <-x.r.ctx.Done():
		x.err = fmt.Errorf("the node engine is stopping: %w", api.ErrUnavailable)
	}
	x.discard()
}

// wait returns the exit code. It continues across restarts of containerd.
func (x *process) wait(ctx context.Context) (int, error) {
	for {
		resp, err := native(x.r.c.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: x.exec.Workload, ExecID: x.exec.ID}))
		switch {
		case err == nil && x.ctx.Err() != nil:
			return 0, context.Cause(x.ctx)
		case err == nil:
			return int(resp.ExitStatus), nil
		case errdefs.IsNotFound(err): // the workload was removed
			return killedExitCode, nil
		}
		select {
		case <-time.After(maxReconnectPause):
		case <-x.ctx.Done():
			return 0, context.Cause(x.ctx)
		case <-x.r.ctx.Done():
			return 0, fmt.Errorf("the node engine is stopping: %w", api.ErrUnavailable)
		}
	}
}

// kill kills the process and its descendants, without containerd, which may not answer.
func (x *process) kill(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, x.r.cfg.CallTimeout)
	defer cancel()
	if err := execs.Kill(call, x.r.group(x.exec.Workload), x.exec); err != nil {
		x.r.log.Warn("processes of an exec not killed", "container", x.exec.Workload, "err", err)
	}
}

// discard removes the process from its shim, its streams and its record.
func (x *process) discard() {
	ctx, cancel := x.r.call(context.WithoutCancel(x.ctx))
	defer cancel()
	if err := x.r.removeExec(ctx, x.exec); err != nil {
		x.r.log.Warn("exec not removed from its container", "container", x.exec.Workload, "err", err)
	}
	x.io.Cancel()
	if err := x.io.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		x.r.log.Debug("streams of an exec not closed", "container", x.exec.Workload, "err", err)
	}
}

// removeExec removes a process that has ended from its shim, and then its record.
func (r *Runtime) removeExec(ctx context.Context, e execs.Exec) error {
	_, err := native(r.c.TaskService().DeleteProcess(ctx, &tasks.DeleteProcessRequest{ContainerID: e.Workload, ExecID: e.ID}))
	if ignoreNotFound(err) != nil {
		return err
	}
	return r.execs.End(e)
}

// closeStdin closes the process's input when the reader has ended. The shim keeps it open until then.
func (x *process) closeStdin(ended <-chan struct{}) {
	select {
	case <-ended:
	case <-x.done:
		return
	}
	ctx, cancel := x.r.call(context.WithoutCancel(x.ctx))
	defer cancel()
	_, err := native(x.r.c.TaskService().CloseIO(ctx, &tasks.CloseIORequest{ContainerID: x.exec.Workload, ExecID: x.exec.ID, Stdin: true}))
	if ignoreNotFound(err) != nil {
		x.r.log.Debug("input of an exec not closed", "container", x.exec.Workload, "err", err)
	}
}

// Wait implements runtime.Running.
func (x *process) Wait(ctx context.Context) (int, error) {
	select {
	case <-x.done:
		return x.code, x.err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// Resize implements runtime.Running.
func (x *process) Resize(width, height uint16) error {
	if !x.io.Config().Terminal {
		return nil
	}
	ctx, cancel := x.r.call(x.ctx)
	defer cancel()
	_, err := native(x.r.c.TaskService().ResizePty(ctx, &tasks.ResizePtyRequest{
		ContainerID: x.exec.Workload, ExecID: x.exec.ID, Width: uint32(width), Height: uint32(height),
	}))
	if err != nil && x.ended() {
		return nil
	}
	return ignoreNotFound(err)
}

func (x *process) ended() bool {
	select {
	case <-x.done:
		return true
	default:
		return false
	}
}

// endExecs kills what an earlier engine left, at once, and removes it from the shims when containerd
// answers.
func (r *Runtime) endExecs() {
	_ = os.RemoveAll(r.fifoDir())
	for _, e := range r.execs.Left() {
		ctx, cancel := context.WithTimeout(r.ctx, r.cfg.CallTimeout)
		if err := execs.Kill(ctx, r.group(e.Workload), e); err != nil {
			r.log.Warn("processes of an earlier exec not killed", "container", e.Workload, "err", err)
		}
		cancel()
	}
	r.running.Go(func() {
		for _, e := range r.execs.Left() {
			r.endExec(e)
		}
	})
}

func (r *Runtime) endExec(e execs.Exec) {
	for range removeRetries {
		ctx, cancel := r.call(r.ctx)
		_, err := native(r.c.TaskService().Kill(ctx, &tasks.KillRequest{ContainerID: e.Workload, ExecID: e.ID, Signal: uint32(syscall.SIGKILL)}))
		if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
			r.log.Debug("earlier exec not killed", "container", e.Workload, "err", err)
		}
		err = r.removeExec(ctx, e)
		cancel()
		if err == nil {
			return
		}
		select {
		case <-time.After(maxReconnectPause):
		case <-r.ctx.Done():
			return
		}
	}
	r.log.Warn("earlier exec not removed from its container", "container", e.Workload)
}

// input closes ended when its Reader has ended.
type input struct {
	io.Reader
	once  sync.Once
	ended chan struct{}
}

// Read implements io.Reader.
func (i *input) Read(p []byte) (int, error) {
	n, err := i.Reader.Read(p)
	if err != nil {
		i.once.Do(func() { close(i.ended) })
	}
	return n, err
}
