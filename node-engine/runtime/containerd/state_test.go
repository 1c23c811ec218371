package containerd

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/client"
	"google.golang.org/grpc"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/logs"
)

// fakeTasks refuses to start a task, and answers the questions for its state in turn.
type fakeTasks struct {
	tasks.TasksClient
	states []tasktypes.Status
	asked  int
}

var errBusy = errors.New("the shim is busy")

func (f *fakeTasks) Start(context.Context, *tasks.StartRequest, ...grpc.CallOption) (*tasks.StartResponse, error) {
	return nil, errBusy
}

func (f *fakeTasks) Get(ctx context.Context, _ *tasks.GetRequest, _ ...grpc.CallOption) (*tasks.GetResponse, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := f.states[min(f.asked, len(f.states)-1)]
	f.asked++
	return &tasks.GetResponse{Process: &tasktypes.Process{ID: "c", Status: s}}, nil
}

// A start that failed has not succeeded because containerd does not know the state: a container would count as
// running whose process never starts.
func TestAnUnknownStateIsNoSuccess(t *testing.T) {
	const unknown, created, runs = tasktypes.Status_UNKNOWN, tasktypes.Status_CREATED, tasktypes.Status_RUNNING
	for name, try := range map[string]struct {
		states []tasktypes.Status
		want   string
	}{
		"not started": {[]tasktypes.Status{unknown, unknown, created}, errBusy.Error()},
		"started":     {[]tasktypes.Status{unknown, runs}, ""},
		"no answer":   {[]tasktypes.Status{unknown}, context.DeadlineExceeded.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeTasks{states: try.states}
			c, err := client.New("", client.WithServices(client.WithTaskClient(f)))
			if err != nil {
				t.Fatal(err)
			}
			l, err := logs.Open(t.TempDir(), 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			r := &Runtime{c: c, logs: l, log: slog.New(slog.DiscardHandler), cfg: Config{Options: Options{Namespace: "n"}, CallTimeout: 2 * time.Second}}
			if _, err := l.Create("c"); err != nil {
				t.Fatal(err)
			}
			unclear := &tasktypes.Process{ID: "c", Status: unknown}
			if got := r.status("c", runtime.Workload{}, unclear).Phase; got != wire.WorkloadCreated {
				t.Errorf("a task that nobody has started is listed as %s, want created", got)
			}
			err = r.start(t.Context(), "c")
			if (err == nil) != (try.want == "") || err != nil && !strings.Contains(err.Error(), try.want) {
				t.Errorf("start: got %v, want %q", err, try.want)
			}
			if got := r.status("c", runtime.Workload{}, unclear).Phase; got != wire.WorkloadRunning {
				t.Errorf("a task that was started is listed as %s, want running", got)
			}
			f.states = []tasktypes.Status{unknown}
			if _, err := r.task(t.Context(), "c"); !errors.Is(err, api.ErrUnavailable) || !strings.Contains(err.Error(), "shim does not answer") {
				t.Errorf("state of the task: got %v, want that the shim does not answer", err)
			}
		})
	}
}
