package containerd

import (
	"context"
	"fmt"
	"time"

	apievents "github.com/containerd/containerd/api/events"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// Watch implements runtime.Runtime. It ends when containerd goes away; the next
// Watch reports what exited meanwhile. An exit may be reported twice.
func (r *Runtime) Watch(ctx context.Context, exits chan<- runtime.Exit) error {
	ctx, cancel := context.WithCancel(namespaces.WithNamespace(ctx, r.cfg.Namespace))
	defer cancel()
	defer context.AfterFunc(r.ctx, cancel)()
	if err := r.watchOnce(ctx, exits); ctx.Err() == nil {
		return reasoned(fmt.Errorf("watch containerd at %s: %w", r.cfg.Address, err))
	}
	return nil
}

// watchOnce watches until the connection breaks.
func (r *Runtime) watchOnce(ctx context.Context, exits chan<- runtime.Exit) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	told, errs := r.c.EventService().Subscribe(ctx,
		fmt.Sprintf(`namespace==%q,topic=="/tasks/exit"`, r.cfg.Namespace),
		fmt.Sprintf(`namespace==%q,topic=="/tasks/delete"`, r.cfg.Namespace),
		fmt.Sprintf(`namespace==%q,topic==%q`, r.cfg.Namespace, hereTopic))
	if err := subscribed(ctx, r.c.EventService(), told, errs); err != nil {
		return err
	}
	found, err := r.List(ctx) // after subscribing: nobody falls between
	if err != nil {
		return err
	}
	for _, s := range found {
		if s.Phase == wire.WorkloadExited {
			send(ctx, exits, s)
		}
	}
	for {
		select {
		case env := <-told:
			v, err := typeurl.UnmarshalAny(env.Event)
			if err != nil {
				continue
			}
			switch e := v.(type) {
			case *apievents.TaskExit:
				if e.ID == e.ContainerID { // not something executed inside
					err = r.exited(ctx, exits, e.ContainerID, e.Pid, int(e.ExitStatus))
				}
			case *apievents.TaskDelete:
				// Of a shim that died this is all that is heard.
				if e.ID == "" || e.ID == e.ContainerID {
					err = r.exited(ctx, exits, e.ContainerID, e.Pid, int(e.ExitStatus))
				}
			}
			if err != nil {
				return err // an exit that is not passed on is found by the next watch
			}
		case err := <-errs:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// hereTopic is of what we say ourselves, every hereAgain until we hear it.
const (
	hereTopic = "/treeline/here"
	hereAgain = 50 * time.Millisecond
)

// subscribed returns once events are heard. containerd takes a subscription without a
// word, and begins it when it likes: of a busy one we would see what ran before that,
// and never hear that it ended. What comes meanwhile may be dropped.
func subscribed(ctx context.Context, say events.Publisher, told <-chan *events.Envelope, errs <-chan error) error {
	for {
		if err := say.Publish(ctx, hereTopic, &apievents.TaskResumed{}); err != nil {
			return err
		}
		select {
		case <-told:
			return nil
		case err := <-errs:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(hereAgain):
		}
	}
}

// exited reports the exit of a container's process. Events come late: one of a task
// that was replaced meanwhile is of an earlier attempt, and no exit of the present
// one. A container that is gone was being stopped.
func (r *Runtime) exited(ctx context.Context, exits chan<- runtime.Exit, id string, pid uint32, code int) error {
	short, cancel := r.call(ctx)
	defer cancel()
	c, err := r.c.ContainerService().Get(short, id)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up container %s, which exited: %w", id, err)
	}
	w, err := recordOf(c)
	if err != nil {
		return nil // it is not ours
	}
	task, err := r.task(short, id)
	if err != nil {
		return fmt.Errorf("look up the task of container %s, which exited: %w", id, err)
	}
	switch {
	case task == nil && !r.logs.Marked(id): // it is being made, and was not started yet
		return nil
	case task != nil && task.Status != tasktypes.Status_STOPPED && task.Pid != pid:
		return nil
	}
	send(ctx, exits, runtime.Status{Key: w.Key, Attempt: w.Attempt, ExitCode: code, OOM: r.outOfMemory(id, code)})
	return nil
}

func send(ctx context.Context, exits chan<- runtime.Exit, s runtime.Status) {
	select {
	case exits <- runtime.Exit{Key: s.Key, Attempt: s.Attempt, ExitCode: s.ExitCode, OOM: s.OOM}:
	case <-ctx.Done():
	}
}
