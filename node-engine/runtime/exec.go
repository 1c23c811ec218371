package runtime

import (
	"context"
	"io"

	"github.com/treeline-edge/treeline/internal/wire"
)

// Executor is a Runtime that can run further processes in a workload.
//
// Exec starts a process in a running workload, with the workload's user, capabilities, limits,
// namespaces and control group, and never with more. It fails with ErrNotFound if the workload does
// not run, and with ErrInvalid if the program cannot be started.
//
// The process is killed when ctx ends, when the workload ends, and when the runtime closes; a
// runtime that opens after its engine was killed kills those of the earlier engine. Processes that
// the process leaves behind are killed when it ends.
type Executor interface {
	Exec(ctx context.Context, k wire.Key, p Process) (Running, error)
}

// Attacher is a Runtime whose workloads can have an input and a terminal.
//
// Attach opens the input of a running workload. It fails with ErrNotFound if the workload does not run,
// and with ErrConflict if its service has neither stdin nor tty, if it has no tty although terminal is
// true, and if the input has ended. The input stays open after Close, and across the end of the node
// engine and of the runtime's daemons.
type Attacher interface {
	Attach(ctx context.Context, k wire.Key, terminal bool) (Input, error)
}

// Input is the input of a workload. Its methods are safe for concurrent use. Write blocks while the
// workload does not read, until Close.
//
// End ends the input for good: the workload reads its end. In a terminal it sends the character that
// means the end. Resize changes the size of the terminal; it does nothing without one.
type Input interface {
	io.WriteCloser
	End(ctx context.Context) error
	Resize(width, height uint16) error
}

// Process is a process to run in a workload.
type Process struct {
	Args          []string
	Env           []string // in addition to the workload's; name=value
	TTY           bool     // run it in a terminal, whose output is Stdout
	Width, Height uint16   // of the terminal; 0: the kernel's default
	// Stdin is read until it or the process ends; a Read in progress may outlast the process.
	// nil: no input.
	Stdin io.Reader
	// Stdout and Stderr may block, which blocks the process. nil: the output is discarded. They
	// are not called after Wait has returned without ctx's error.
	Stdout, Stderr io.Writer
}

// Running is a process that Exec started. Its methods are safe for concurrent use.
//
// Wait returns the exit code when the process has ended and its output has been copied; 128 plus
// the signal if one killed the process. It fails with the cause of Exec's context if that ended
// first, and with the cause of its own ctx.
//
// Resize changes the size of the terminal. It does nothing without a terminal, or after the end.
type Running interface {
	Wait(ctx context.Context) (code int, err error)
	Resize(width, height uint16) error
}
