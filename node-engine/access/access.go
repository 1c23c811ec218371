// Package access serves the streams by which users reach the workloads of a node (exec, attach and
// port-forward) and their volumes (snapshot and restore). The cluster has checked the user's rights; the runtime bounds what a process can do,
// and the workload's network namespace bounds what a port-forward can reach.
//
//	a := access.New(access.Options{Runtime: rt, Log: log})
//	serve, err := a.Open(ctx, request)   // of the cluster
//	err = serve(ctx, conn)               // until the process or the stream ends
package access

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/forward"
	"github.com/treeline-edge/treeline/internal/frames"
	"github.com/treeline-edge/treeline/internal/streams"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// Options are the options of an Access.
type Options struct {
	Runtime runtime.Runtime
	Volumes Volumes      // nil: the node has none on its disk
	Log     *slog.Logger // default slog.Default
}

// Access serves streams. It is safe for concurrent use.
type Access struct {
	opt     Options
	forward *fairshare.Pool
	stall   time.Duration // stallTime, except in tests
	dial    func(ctx context.Context, namespace string, to forward.Target) (net.Conn, error)
}

// New returns an Access.
func New(o Options) *Access {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &Access{opt: o, forward: fairshare.NewPool(forwarded, fairshare.Policy{Fixed: true}), stall: stallTime, dial: dial}
}

// Open returns the function that serves a request. Errors: ErrInvalid (the request is malformed),
// ErrUnavailable (the runtime does not support it).
func (a *Access) Open(_ context.Context, r wire.StreamRequest) (streams.Serve, error) {
	k := wire.Key{Instance: r.Instance, Epoch: r.Epoch}
	switch r.Kind {
	case "exec":
		x, ok := a.opt.Runtime.(runtime.Executor)
		if !ok {
			return nil, fmt.Errorf("the runtime of this node cannot run processes in a workload: %w", api.ErrUnavailable)
		}
		if r.Exec == nil {
			return nil, fmt.Errorf("exec: no program is given: %w", api.ErrInvalid)
		}
		if err := r.Exec.Validate(); err != nil {
			return nil, fmt.Errorf("exec: %w", err)
		}
		return func(ctx context.Context, conn *streams.Conn) error { return execute(ctx, x, k, *r.Exec, conn) }, nil
	case "attach":
		return func(ctx context.Context, conn *streams.Conn) error { return a.attach(ctx, k, r.Exec, conn) }, nil
	case "portforward":
		ns, ok := a.opt.Runtime.(runtime.Namespaced)
		if !ok {
			return nil, fmt.Errorf("workloads of this node's runtime have no network of their own to forward to: %w", api.ErrUnavailable)
		}
		return func(ctx context.Context, conn *streams.Conn) error { return a.portForward(ctx, ns, k, r, conn) }, nil
	case "snapshot", "restore":
		return a.openVolume(r)
	}
	return nil, fmt.Errorf("access of kind %q: want exec, attach, portforward, snapshot or restore: %w", r.Kind, api.ErrInvalid)
}

// errLeft is the cause of an exec's end when its user's stream has ended.
var errLeft = errors.New("the user's stream has ended")

// execute runs a process, connected to the stream. The end of the stream kills it.
func execute(ctx context.Context, x runtime.Executor, k wire.Key, e api.Exec, conn io.ReadWriteCloser) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out := frames.NewWriter(conn)
	p := runtime.Process{Args: e.Args, TTY: e.TTY, Width: e.Width, Height: e.Height, Stdout: out.Stream(frames.Stdout), Stderr: out.Stream(frames.Stderr)}
	in, keys := io.Pipe()
	defer in.Close()
	if e.Stdin {
		p.Stdin = in
	}
	run, err := x.Exec(ctx, k, p)
	if err != nil {
		return out.Fail(err)
	}
	go func() {
		_ = keys.CloseWithError(input(conn, keys, run, e.Stdin))
		cancel(errLeft)
	}()
	code, err := run.Wait(context.WithoutCancel(ctx)) // ends with ctx, after the process was killed
	switch {
	case err == nil:
		err = out.Exit(code)
	case errors.Is(err, errLeft):
		err = nil
	case ctx.Err() != nil: // nobody reads the stream any more
	default:
		err = out.Fail(err)
	}
	_ = in.Close() // input may wait for the process to read
	return err
}

// input passes the user's frames to the process, until the stream ends. It blocks while the process
// does not read.
func input(conn io.Reader, keys *io.PipeWriter, run runtime.Running, stdin bool) error {
	from := frames.NewReader(conn)
	for {
		kind, payload, err := from.Next()
		if err != nil {
			return err
		}
		switch kind {
		case frames.Stdin:
			if stdin {
				_, _ = keys.Write(payload) // an error means that the process has closed its input
			}
		case frames.EOF:
			_ = keys.Close()
		case frames.Resize:
			if w, h, err := frames.Size(payload); err == nil {
				_ = run.Resize(w, h)
			}
		}
	}
}

// attach sends what the workload writes from now on, until it ends, and its exit code. With a terminal
// or input, it passes the user's.
func (a *Access) attach(ctx context.Context, k wire.Key, terminal *api.Exec, conn io.ReadWriteCloser) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := frames.NewWriter(conn)
	from, err := a.opt.Runtime.Logs(ctx, k, 0, true)
	if err != nil {
		return out.Fail(err)
	}
	defer from.Close()
	in, err := a.openInput(ctx, k, terminal) // after the output, so that none of a new size is missed
	if err != nil {
		return out.Fail(err)
	}
	defer in.Close()
	defer context.AfterFunc(ctx, func() { _ = in.Close() })() // ends a Write to a workload that does not read
	go func() {
		a.passInput(ctx, conn, in, terminal) // until the user's stream ends
		cancel()
	}()
	if _, err := io.Copy(out.Stream(frames.Stdout), from); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return nil
	}
	all, err := a.opt.Runtime.List(ctx)
	if err != nil {
		return out.Fail(err)
	}
	for _, s := range all {
		if s.Key == k && s.Phase == wire.WorkloadExited {
			return out.Exit(s.ExitCode)
		}
	}
	return out.Fail(fmt.Errorf("%s has ended: %w", k, api.ErrGone))
}

// openInput opens the workload's input, if the user wants it.
func (a *Access) openInput(ctx context.Context, k wire.Key, terminal *api.Exec) (runtime.Input, error) {
	if terminal == nil || !terminal.Stdin && !terminal.TTY {
		return noInput{}, nil
	}
	x, ok := a.opt.Runtime.(runtime.Attacher)
	if !ok {
		return nil, fmt.Errorf("workloads of this node's runtime have no input; attach without -i and -t: %w", api.ErrUnavailable)
	}
	in, err := x.Attach(ctx, k, terminal.TTY)
	if err == nil && terminal.TTY {
		_ = in.Resize(terminal.Width, terminal.Height)
	}
	return in, err
}

// passInput passes the user's frames to the workload, until the stream ends. It blocks while the
// workload does not read.
func (a *Access) passInput(ctx context.Context, conn io.Reader, in runtime.Input, terminal *api.Exec) {
	from := frames.NewReader(conn)
	for {
		kind, payload, err := from.Next()
		if err != nil {
			return
		}
		switch {
		case kind == frames.Stdin && terminal != nil && terminal.Stdin:
			_, _ = in.Write(payload) // an error means that the workload has closed its input
		case kind == frames.EOF && terminal != nil && terminal.Stdin:
			if err := in.End(ctx); err != nil && ctx.Err() == nil {
				a.opt.Log.Debug("input of a workload not ended", "err", err)
			}
		case kind == frames.Resize:
			if w, h, err := frames.Size(payload); err == nil {
				_ = in.Resize(w, h)
			}
		}
	}
}

// noInput is the input of a workload to which the user passes none.
type noInput struct{}

// Write implements io.Writer.
func (noInput) Write(p []byte) (int, error) { return len(p), nil }

// Close implements io.Closer.
func (noInput) Close() error { return nil }

// End implements runtime.Input.
func (noInput) End(context.Context) error { return nil }

// Resize implements runtime.Input.
func (noInput) Resize(uint16, uint16) error { return nil }
