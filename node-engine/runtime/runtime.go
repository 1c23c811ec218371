// Package runtime defines the interface of a node engine to a runtime, such as containerd or plain
// processes. Implementations pass the suite in runtimetest.
package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime/logs"
)

// Workload is one placement of an instance.
type Workload struct {
	wire.Key
	Attempt   int // counts the restarts of the placement; visible to the workload
	Spec      api.Microservice
	Addresses api.ServiceAddresses // of its service, for the overlay network
	Devices   []string             // ids of the devices allocated to it, sorted
	Mounts    []Mount              // its volumes
	Layer     string               // directory of the node for what it writes outside of them; empty: the runtime's own, without a limit
	// ImageHealth is the HEALTHCHECK of its image. The runtime sets it.
	ImageHealth *api.Health `json:",omitempty"`

	// Files are its files besides those of its image, Login the account for its image's registry. They
	// are not part of what a runtime stores.
	Files *Files `json:"-"`
	Login *Login `json:"-"`

	// Connect, which may be nil, connects the network namespace of a workload that is being created. A
	// Namespaced runtime may call it once, as soon as the namespace exists, with its path and the workload,
	// and returns from Create after it. The path is valid until then.
	Connect func(ctx context.Context, netNS string, w Workload) `json:"-"`
}

// Mount is a volume of a workload, mounted with nosuid and nodev.
type Mount struct {
	Target   string // in the container
	Source   string // directory of the node; empty: a tmpfs of SizeMB
	SizeMB   int64
	ReadOnly bool
}

// Files are directories on the node with a workload's files. They are on a file system in memory
// and outlive the node engine.
type Files struct {
	Dir    string      // to be mounted read-only at api.FilesDir
	Links  []FileLink  // to be made among the image's files
	Mounts []FileMount // to be mounted read-only
	// Own makes the user of the workload the owner of the files. It may be repeated.
	Own func(uid, gid int) error
}

// FileLink is a symbolic link.
type FileLink struct {
	Path   string // in the workload
	Target string
}

// FileMount is a directory of links for a path where an image has no files.
type FileMount struct {
	Path string // in the workload
	Dir  string // on the node
}

// Login is an account at an image registry.
type Login struct {
	Registry string // host, as in image references
	Username string
	Password string
}

// String hides the password.
func (l Login) String() string { return "login at " + l.Registry }

// GoString hides the password.
func (l Login) GoString() string { return l.String() }

// Status is the state of a workload in a runtime.
type Status struct {
	wire.Key
	Attempt  int
	Phase    wire.WorkloadPhase // created, running or exited
	PID      int                // of the first process, while the workload runs
	ExitCode int
	OOM      bool // the kernel killed it at its memory limit
	Spec     api.Microservice
	Devices  []string // that it was created with

	ImageHealth *api.Health // the HEALTHCHECK of its image
}

// Runtime runs workloads. All methods are idempotent and safe for concurrent use; callers
// do not overlap calls for one key.
//
// Create fetches the image and creates the workload without starting it. It keeps an
// existing workload of the same key, attempt and devices. It replaces one of another
// attempt or with other devices, unless that runs (ErrConflict).
//
// Start starts a created workload, and does nothing if it runs or has exited.
//
// Stop ends the workload with SIGTERM and, after grace, SIGKILL (at once if grace is 0),
// and removes everything that belongs to it before it returns. It succeeds if the workload
// does not exist.
//
// Kill ends the workload's processes like Stop and keeps what belongs to it, as if it had exited. It
// succeeds if no process of it runs.
//
// List returns all workloads, including those that an earlier process of the node engine
// created. Workloads outlive the node engine.
//
// Watch sends an Exit for every workload that exits, and for those that have exited when it
// begins, until ctx ends. It returns earlier only with an error.
//
// Logs returns the last tail lines that the workload wrote to stdout and stderr (-1: all).
// With follow, it continues until the workload exits.
//
// Info returns the supported values of `virtualization`. It fails while the runtime does
// not answer.
//
// A runtime without Info.Mounts or Info.Layers refuses to create a workload with mounts or a layer.
//
// Errors about a workload are *Error.
type Runtime interface {
	Info(ctx context.Context) (Info, error)
	Create(ctx context.Context, w Workload) error
	Start(ctx context.Context, k wire.Key) error
	Stop(ctx context.Context, k wire.Key, grace time.Duration) error
	Kill(ctx context.Context, k wire.Key, grace time.Duration) error
	List(ctx context.Context) ([]Status, error)
	Watch(ctx context.Context, exits chan<- Exit) error
	Logs(ctx context.Context, k wire.Key, tail int, follow bool) (io.ReadCloser, error)
	Close() error
}

// LogReader is a Runtime that keeps times of lines, and the output of the attempt before.
//
// ReadLogs is Logs with further conditions. The previous attempt's output is not followed; it fails
// with ErrNotFound if there is none.
type LogReader interface {
	ReadLogs(ctx context.Context, k wire.Key, q logs.Query, follow bool) (io.ReadCloser, error)
}

type Info struct {
	Version  string
	Runtimes []string // supported values of `virtualization`
	Mounts   bool     // it supports Workload.Mounts
	Layers   bool     // it supports Workload.Layer
}

type Exit struct {
	wire.Key
	Attempt  int
	ExitCode int
	OOM      bool
}

// SendExit sends the exit of an exited workload, unless ctx ends first. It sends nothing for
// a workload in another phase.
func SendExit(ctx context.Context, exits chan<- Exit, s Status) {
	if s.Phase != wire.WorkloadExited {
		return
	}
	select {
	case exits <- Exit{Key: s.Key, Attempt: s.Attempt, ExitCode: s.ExitCode, OOM: s.OOM}:
	case <-ctx.Done():
	}
}

// Error is the failure to create, start or stop a workload.
type Error struct {
	Reason api.Reason
	Err    error
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %v", e.Reason, e.Err) }

func (e *Error) Unwrap() error { return e.Err }

// Errorf returns an Error with a formatted cause.
func Errorf(reason api.Reason, format string, args ...any) error {
	return &Error{Reason: reason, Err: fmt.Errorf(format, args...)}
}

// Guarded is a Runtime whose workloads a guard can kill without the node engine.
//
// CgroupOf returns the path of the workload's cgroup below the cgroup root. It fails with
// ErrNotFound if the workload does not exist. It may be called during a Start or Stop.
type Guarded interface {
	CgroupOf(ctx context.Context, k wire.Key) (string, error)
}

// Fetcher is a Runtime whose workloads have images.
//
// Fetch fetches the image of a workload that is created soon, and creates nothing. Its errors are
// those of Create.
type Fetcher interface {
	Fetch(ctx context.Context, w Workload) error
}

// Housekeeper is a Runtime that cleans up: it trims logs and removes unused images. The
// engine calls Housekeep periodically.
type Housekeeper interface {
	Housekeep(ctx context.Context) error
}

// Namespaced is a Runtime whose workloads have network namespaces of their own, to be
// connected before the workloads start.
//
// Namespace returns the path of the workload's network namespace, and the workload as it was
// created. The path is empty if the workload has ended or shares the host's network.
// Namespace fails with ErrNotFound if the workload does not exist.
type Namespaced interface {
	Namespace(ctx context.Context, k wire.Key) (path string, w Workload, err error)
}

// Filer is a Runtime whose workloads can have files (Workload.Files).
//
// Signal sends a signal to the workload's first process. It fails with ErrNotFound if that does not
// run.
type Filer interface {
	Signal(ctx context.Context, k wire.Key, s syscall.Signal) error
}

// hints advise users, who have no access to the node, what to do about a reason.
var hints = map[api.Reason]string{
	api.ReasonImageNotFound: "check that code names an image and a tag that the registry has",
	api.ReasonImageDenied:   "create a secret of type registry (treeline create secret NAME --registry HOST), or have the node's operator configure the registry's credentials",
	api.ReasonRegistryDown:  "check that the registry runs and can be reached from this node",
}

// Detail returns the text of err to show beside its Reason: without the names of reasons,
// and with at most one hint about what to do.
func Detail(err error) string {
	text := err.Error()
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return text
	}
	for inner, ok := e, true; ok; inner, ok = errors.AsType[*Error](inner.Err) {
		text = strings.ReplaceAll(text, string(inner.Reason)+": ", "")
	}
	if h := hints[e.Reason]; h != "" && !strings.Contains(text, "operator can name it") {
		text += "; " + h
	}
	return text
}

// Reason returns the reason of the Error in err. Without one it is disk_full or start_failed.
func Reason(err error) api.Reason {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	if IsDiskFull(err) {
		return api.ReasonDiskFull
	}
	return api.ReasonStartFailed
}

// IsDiskFull reports whether the cause is a full disk. It compares the text too, because
// errors of other processes arrive as text.
func IsDiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || err != nil && strings.Contains(err.Error(), syscall.ENOSPC.Error())
}

// Artifact is an image whose files are read instead of unpacked.
type Artifact struct {
	Digest    string
	Args, Env []string // of its configuration
	// Layers calls read with each layer's files as a tar stream, the lowest layer first. The streams are
	// not bounded.
	Layers func(ctx context.Context, read func(layer io.Reader) error) error
}
