package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/pkg/cio"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// logWriter is the argument with which a shim starts this program to append the output of a terminal
// to a log. The shim appends to files by itself only without a terminal.
const logWriter = "treeline-log-writer"

// endOfInput is the character that means the end of the input of a terminal.
const endOfInput = "\x04"

// LogWriterMain runs a log writer and exits, if a shim started this process as one. Programs that use
// the runtime call it first in main.
//
// A log writer belongs to its shim: it has no connection to the engine, and ends when the workload's
// output does.
func LogWriterMain() {
	if len(os.Args) != 3 || os.Args[1] != logWriter {
		return
	}
	out, ready := os.NewFile(3, "output"), os.NewFile(5, "ready") // 4 is stderr, which a terminal has not
	to, err := os.OpenFile(os.Args[2], os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_, _ = ready.Write([]byte{0})
	_ = ready.Close()
	_, _ = io.Copy(lossy{to}, out)
	os.Exit(0)
}

// lossy hides errors of a full disk, so that the workload goes on without its log.
type lossy struct{ io.Writer }

// Write implements io.Writer.
func (l lossy) Write(p []byte) (int, error) {
	_, _ = l.Writer.Write(p)
	return len(p), nil
}

// output returns where the shim of a handler writes what a workload writes to stdout and to stderr, as a path or a URI.
//
// The shims of runc and gVisor that get one name for both open the file once, and close it when stdout ends: what a
// workload writes to stderr as the last thing is then lost (copyPipes in containerd 1.6). So they get two names of it.
func output(path, handler string, tty bool) (stdout, stderr string, err error) {
	if !tty && (handler == runcV2 || handler == runscV1) {
		return path, filepath.Dir(path) + "/./" + filepath.Base(path), nil
	}
	if !tty {
		uri, err := cio.LogURIGenerator("file", path, nil)
		if err != nil {
			return "", "", err
		}
		return uri.String(), uri.String(), nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", "", fmt.Errorf("find the path of this program: %w", err)
	}
	uri, err := cio.LogURIGenerator("binary", self, map[string]string{logWriter: path})
	if err != nil {
		return "", "", err
	}
	return uri.String(), "", nil // a terminal has one output
}

// inputPath returns the path of the FIFO for a workload's input. Its shim keeps it open for writing, so
// that the end of an engine is not the end of the input.
func (r *Runtime) inputPath(id string) string { return filepath.Join(r.cfg.StateDir, "inputs", id) }

// openInput creates the FIFO, and returns its path; empty if the service has no input.
func (r *Runtime) openInput(id string, spec api.Microservice) (string, error) {
	if !spec.Stdin && !spec.TTY {
		return "", nil
	}
	path := r.inputPath(id)
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		if err = unix.Mkfifo(path, 0o600); errors.Is(err, os.ErrExist) {
			err = nil
		}
	}
	if err != nil {
		return "", fmt.Errorf("create the input of %s: %w", id, err)
	}
	return path, nil
}

// Attach implements runtime.Attacher.
func (r *Runtime) Attach(ctx context.Context, k wire.Key, terminal bool) (runtime.Input, error) {
	in, err := r.attach(ctx, runtime.ID(k), terminal)
	if err != nil {
		return nil, fmt.Errorf("attach to %s: %w", k, err)
	}
	return in, nil
}

// workloadInput is a runtime.Input.
type workloadInput struct {
	*os.File
	r   *Runtime
	id  string
	tty bool
}

func (r *Runtime) attach(ctx context.Context, id string, terminal bool) (*workloadInput, error) {
	call, cancel := r.call(ctx)
	defer cancel()
	if err := r.runs(call, id); err != nil {
		return nil, err
	}
	rec, err := r.find(call, id)
	if err != nil {
		return nil, err
	}
	switch {
	case !rec.Spec.Stdin && !rec.Spec.TTY:
		return nil, fmt.Errorf("its service has no input; attach without -i and -t, or set stdin: true, and tty: true for a terminal: %w", api.ErrConflict)
	case terminal && !rec.Spec.TTY:
		return nil, fmt.Errorf("its service has no terminal; attach without -t, or set tty: true: %w", api.ErrConflict)
	}
	f, err := os.OpenFile(r.inputPath(id), os.O_WRONLY|syscall.O_NONBLOCK, 0) // with the runtime's poller, so that Close ends a Write
	if errors.Is(err, syscall.ENXIO) || errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("its input has ended: %w", api.ErrConflict)
	}
	if err != nil {
		return nil, err
	}
	return &workloadInput{f, r, id, rec.Spec.TTY}, nil
}

// End implements runtime.Input.
func (i *workloadInput) End(ctx context.Context) error {
	if i.tty {
		_, err := i.Write([]byte(endOfInput))
		return err
	}
	ctx, cancel := i.r.call(ctx)
	defer cancel()
	_, err := native(i.r.c.TaskService().CloseIO(ctx, &tasks.CloseIORequest{ContainerID: i.id, Stdin: true}))
	return errors.Join(ignoreNotFound(err), i.Close())
}

// Resize implements runtime.Input.
func (i *workloadInput) Resize(width, height uint16) error {
	if !i.tty || width == 0 || height == 0 {
		return nil
	}
	ctx, cancel := i.r.call(i.r.ctx)
	defer cancel()
	_, err := native(i.r.c.TaskService().ResizePty(ctx, &tasks.ResizePtyRequest{ContainerID: i.id, Width: uint32(width), Height: uint32(height)}))
	return ignoreNotFound(err)
}
