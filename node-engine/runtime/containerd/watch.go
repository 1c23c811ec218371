package containerd

import (
	"context"
	"errors"
	"fmt"
	"time"

	apievents "github.com/containerd/containerd/api/events"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/typeurl/v2"
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// Watch implements runtime.Runtime. It returns an error when the connection to containerd breaks; the
// next Watch reports the exits in between. It may report an exit twice.
func (r *Runtime) Watch(ctx context.Context, exits chan<- runtime.Exit) error {
	ctx, cancel := context.WithCancel(namespaces.WithNamespace(ctx, r.cfg.Namespace))
	defer cancel()
	defer context.AfterFunc(r.ctx, cancel)()
	if err := r.watch(ctx, exits); ctx.Err() == nil {
		return withReason(fmt.Errorf("watch containerd at %s: %w", r.cfg.Address, err))
	}
	return nil
}

func (r *Runtime) watch(ctx context.Context, exits chan<- runtime.Exit) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	filter := func(topic string) string { return fmt.Sprintf(`namespace==%q,topic==%q`, r.cfg.Namespace, topic) }
	received, errs := r.c.EventService().Subscribe(ctx, filter("/tasks/exit"), filter("/tasks/delete"), filter(probeTopic))
	if err := awaitSubscription(ctx, r.c.EventService(), received, errs); err != nil {
		return err
	}
	found, err := r.List(ctx) // after the subscription, so that no exit is missed
	if err != nil {
		return err
	}
	for _, s := range found {
		runtime.SendExit(ctx, exits, s)
	}
	for {
		select {
		case env := <-received:
			v, err := typeurl.UnmarshalAny(env.Event)
			if err != nil {
				continue
			}
			switch e := v.(type) {
			case *apievents.TaskExit:
				if e.ID == e.ContainerID { // otherwise a process that was executed in the container ended
					err = r.exited(ctx, exits, e.ContainerID, e.Pid, int(e.ExitStatus))
				}
			case *apievents.TaskDelete:
				// The only event if the shim died.
				if e.ID == "" || e.ID == e.ContainerID {
					err = r.exited(ctx, exits, e.ContainerID, e.Pid, int(e.ExitStatus))
				}
			}
			if err != nil {
				return err // the next Watch finds the exit
			}
		case err := <-errs:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// probeTopic is the topic of events that awaitSubscription publishes.
const (
	probeTopic    = "/treeline/here"
	probeInterval = 50 * time.Millisecond
)

// awaitSubscription publishes events until it receives one, which it drops. containerd does not report
// when a subscription begins. A busy one begins it late, and earlier exits would be missed.
func awaitSubscription(ctx context.Context, to events.Publisher, received <-chan *events.Envelope, errs <-chan error) error {
	for {
		if err := to.Publish(ctx, probeTopic, &apievents.TaskResumed{}); err != nil {
			return err
		}
		select {
		case <-received:
			return nil
		case err := <-errs:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(probeInterval):
		}
	}
}

// exited reports the exit of a container's process. It drops late events: of a task that was replaced,
// because it belongs to an earlier attempt, and of a container that was removed.
func (r *Runtime) exited(ctx context.Context, exits chan<- runtime.Exit, id string, pid uint32, code int) error {
	call, cancel := r.call(ctx)
	defer cancel()
	rec, err := r.find(call, id)
	switch {
	case errors.Is(err, api.ErrNotFound), errors.Is(err, api.ErrConflict):
		return nil
	case err != nil:
		return fmt.Errorf("look up container %s, which exited: %w", id, err)
	}
	task, err := r.task(call, id)
	if err != nil {
		return fmt.Errorf("look up the task of container %s, which exited: %w", id, err)
	}
	switch {
	case task == nil && !r.logs.Marked(id): // it is being created, and was not started yet
		return nil
	case task != nil && task.Status != tasktypes.Status_STOPPED && task.Pid != pid:
		return nil
	}
	runtime.SendExit(ctx, exits, runtime.Status{
		Key: rec.Key, Attempt: rec.Attempt, Phase: wire.WorkloadExited, ExitCode: code, OOM: r.outOfMemory(id, code),
	})
	return nil
}
