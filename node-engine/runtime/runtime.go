// Package runtime is what a node engine asks of whatever runs workloads:
// containerd, plain processes, later others. Implementations pass runtimetest.
package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Workload is one placement of one instance, to be run.
type Workload struct {
	wire.Key
	Attempt   int // counts restarts of the placement; visible to the workload
	Spec      api.Microservice
	Addresses api.ServiceAddresses // of its service, for the overlay network
	Devices   []string             // ids of those that it has to itself, sorted
}

// Status is what a runtime finds of a workload.
type Status struct {
	wire.Key
	Attempt  int
	Phase    wire.WorkloadPhase // created, running or exited
	PID      int                // of the workload's first process while it runs
	ExitCode int
	OOM      bool // the kernel killed it at its memory limit
	Spec     api.Microservice
	Devices  []string // that it was created with
}

// Runtime runs workloads. Everything may be asked twice, and answers as if it
// had been asked once. Methods are safe for concurrent use; calls for one key
// do not overlap.
//
// Create fetches the image and creates the workload, not started. A workload
// of the same key, attempt and devices that exists is left as it is; one of another
// attempt, or with other devices, that does not run is replaced.
//
// Start starts a created workload; one that runs is left as it is.
//
// Stop ends the workload with SIGTERM and, after grace, SIGKILL (at once for a
// grace of 0), removes what is left of it, and returns when nothing is.
// Stopping what does not exist succeeds.
//
// List finds every workload of ours, those of an earlier life of the node
// engine included. A runtime never ends a workload because the engine ends.
//
// Watch sends an Exit for every workload that exits, those that it found
// included, until ctx ends. An exit that happened while nobody watched is found
// by List. It returns early only with an error that says why.
//
// Logs yields what the workload wrote to stdout and stderr, the last tail
// lines (-1: all), and with follow what it writes from now on until it exits.
//
// Info says what `virtualization` may name here; it fails while the runtime
// does not answer.
//
// Errors that concern a workload are *Error with a reason that a person can read.
type Runtime interface {
	Info(ctx context.Context) (Info, error)
	Create(ctx context.Context, w Workload) error
	Start(ctx context.Context, k wire.Key) error
	Stop(ctx context.Context, k wire.Key, grace time.Duration) error
	List(ctx context.Context) ([]Status, error)
	Watch(ctx context.Context, exits chan<- Exit) error
	Logs(ctx context.Context, k wire.Key, tail int, follow bool) (io.ReadCloser, error)
	Close() error
}

// Info is what a runtime offers.
type Info struct {
	Version  string
	Runtimes []string // values of `virtualization` that it can run
}

// Exit is the end of a workload.
type Exit struct {
	wire.Key
	Attempt  int
	ExitCode int
	OOM      bool
}

// Error is why a workload could not be created, started or stopped.
type Error struct {
	Reason api.Reason
	Err    error
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %v", e.Reason, e.Err) }

func (e *Error) Unwrap() error { return e.Err }

// Target is what has to be killed so that nothing of a workload runs any more:
// every process of its cgroup.
type Target struct {
	Cgroup string `json:"cgroup"` // path below the cgroup root, "/treeline/dev/3f2a…"
}

// Guarded is a Runtime whose workloads can be killed by something that outlives
// the node engine. A workload that does not exist is api.ErrNotFound. It is asked
// while a start or a stop is under way, too.
type Guarded interface {
	CgroupOf(ctx context.Context, k wire.Key) (Target, error)
}

// Housekeeper is a Runtime that has something to tidy: logs that have grown
// past their bound, images that nobody uses. The engine calls it now and then.
type Housekeeper interface {
	Housekeep(ctx context.Context) error
}

// Namespaced is a Runtime whose workloads have network namespaces of their own,
// which somebody else connects before they start.
//
// Namespace is the path of a created or running workload's, and what it was
// created as. The path is empty for a workload that has ended, and for one that
// shares the machine's network. A workload that does not exist is api.ErrNotFound.
type Namespaced interface {
	Namespace(ctx context.Context, k wire.Key) (path string, w Workload, err error)
}

// hints are what to do about a reason, for users who do not see the node.
var hints = map[api.Reason]string{
	api.ReasonImageNotFound: "check that code names an image and a tag that the registry has",
	api.ReasonImageDenied:   "the node's operator gives it the registry's credentials",
	api.ReasonRegistryDown:  "check that the registry runs and can be reached from this node",
}

// Detail returns the text of err to show beside its Reason: without the names of reasons,
// and with one hint about what to do.
func Detail(err error) string {
	text := err.Error()
	if e, ok := errors.AsType[*Error](err); ok {
		for inner := e; inner != nil; {
			text = strings.ReplaceAll(text, string(inner.Reason)+": ", "")
			next, ok := errors.AsType[*Error](inner.Err)
			if !ok {
				break
			}
			inner = next
		}
		if h := hints[e.Reason]; h != "" && !strings.Contains(text, "operator can name it") {
			text += "; " + h
		}
	}
	return text
}

// Reason is the reason within err, or start_failed for an error that has none.
func Reason(err error) api.Reason {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return api.ReasonStartFailed
}
