package containerd

import (
	"context"
	"fmt"
	"time"

	apievents "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/typeurl/v2"
	"github.com/treeline-edge/treeline/api"
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
		if s.Phase == api.WorkloadExited {
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
					r.exited(ctx, exits, e.ContainerID, int(e.ExitStatus))
				}
			case *apievents.TaskDelete:
				// Of a shim that died this is all that is heard.
				if e.ID == "" || e.ID == e.ContainerID {
					r.exited(ctx, exits, e.ContainerID, int(e.ExitStatus))
				}
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

// exited reports the exit of a container that still exists; one that is being
// stopped and removed is nobody's exit any more.
func (r *Runtime) exited(ctx context.Context, exits chan<- runtime.Exit, id string, code int) {
	short, cancel := r.call(ctx)
	defer cancel()
	c, err := r.c.ContainerService().Get(short, id)
	if err != nil {
		return // List will find it, if it is there
	}
	w, err := recordOf(c)
	if err != nil {
		return
	}
	send(ctx, exits, runtime.Status{Key: w.Key, Attempt: w.Attempt, ExitCode: code, OOM: r.outOfMemory(id, code)})
}

func send(ctx context.Context, exits chan<- runtime.Exit, s runtime.Status) {
	select {
	case exits <- runtime.Exit{Key: s.Key, Attempt: s.Attempt, ExitCode: s.ExitCode, OOM: s.OOM}:
	case <-ctx.Done():
	}
}
