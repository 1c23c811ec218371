package containerd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

const (
	unknownExitCode = 255
	killedExitCode  = 128 + int(syscall.SIGKILL)

	// soon is how long a stop keeps its slot after SIGTERM. Most workloads end within it, so the slots
	// limit how many end at once.
	soon = 300 * time.Millisecond
	// slotTimeout is how long a stop without grace waits for a slot before it kills the workload's
	// control group.
	slotTimeout = time.Second
	// statePause is the pause between two questions for a state that containerd does not know.
	statePause = 100 * time.Millisecond

	// A shim of containerd 1.6 stalls when more than 32 of its processes end while it waits for a
	// runc: it then needs a second for each further one. A stop ends up to three processes: its
	// container and two runcs.
	stopsPerShim = 4
	stopsInTotal = 16

	// If two tasks are created while the socket of an earlier shim exists, both remove it. Then one of
	// them fails, or both start a shim and one of the shims stays without containers.
	startsPerShim = 1
	startsInTotal = 64
)

var taskTurns = fairshare.Bound{
	Per: "shim, which is that of one application", Attack: "TestTasksOfOneShimLeaveTurnsForOthers",
	Beyond: "16 stops at once, 4 of one shim; 64 creations at once, 1 of one shim; shims take turns, and the newest of the shim with most fails and is tried again",
}.Declare("containers to create and to stop that wait at a node", 1<<16)

func (r *Runtime) newTask(ctx context.Context, id string, w runtime.Workload, files []mount.Mount) error {
	path, err := r.logs.Create(id)
	if err != nil {
		return err
	}
	in, err := r.openInput(id, w.Spec)
	if err != nil {
		return err
	}
	done, err := r.makeNetNS(ctx, id, w)
	if err != nil {
		return err
	}
	defer done()
	leave, err := r.starts.Enter(ctx, time.Now(), []string{r.cfg.shimGroup(w.Instance)}, false)
	if err != nil {
		return err
	}
	defer leave()
	h, _ := r.cfg.handler(w.Spec.Virtualization)
	out, errs, err := output(path, h.Runtime, w.Spec.TTY)
	if err != nil {
		return err
	}
	create := func() error {
		// A request that is cancelled could leave a shim, see orphan.go. Its deadline stays.
		ctx, cancel := withoutStop(ctx)
		defer cancel()
		_, err := native(r.c.TaskService().Create(ctx, &tasks.CreateTaskRequest{
			ContainerID: id, Rootfs: mount.ToProto(files), Stdin: in, Stdout: out, Stderr: errs, Terminal: w.Spec.TTY,
		}))
		return err
	}
	err = create()
	for range socketRetries {
		if !socketMissing(err) {
			break
		}
		err = create()
	}
	if stale := staleBundle(err, r.cfg.Namespace, id); stale != "" {
		if task, terr := r.task(ctx, id); terr != nil || task != nil {
			return err
		}
		r.log.Warn("removing the bundle that containerd left of an earlier task", "container", id, "path", stale)
		if rerr := removeBundle(stale); rerr != nil {
			return errors.Join(err, rerr)
		}
		err = create()
	}
	if errdefs.IsAlreadyExists(err) {
		// containerd was killed after it had started the shim: the task is in its list, and the shim does not
		// know it.
		if task, terr := r.task(ctx, id); terr != nil || task != nil {
			return err
		}
		if derr := r.deleteTask(ctx, id); derr != nil {
			return errors.Join(err, derr)
		}
		err = create()
	}
	if err == nil {
		r.learnBundles(id)
	}
	return err
}

// withoutStop returns a context that ends at the deadline of ctx, and not when ctx is cancelled.
func withoutStop(ctx context.Context) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithDeadline(context.WithoutCancel(ctx), deadline)
	}
	return context.WithCancel(context.WithoutCancel(ctx))
}

// errNoState means that a shim did not tell containerd the state of a task within 2 s, as on a busy machine.
var errNoState = fmt.Errorf("containerd does not know the state of the task, because its shim does not answer: %w", api.ErrUnavailable)

// task returns the container's task, nil if there is none. It fails with errNoState if its state is unknown.
func (r *Runtime) task(ctx context.Context, id string) (*tasktypes.Process, error) {
	task, err := r.anyTask(ctx, id)
	if err == nil && task != nil && task.Status == tasktypes.Status_UNKNOWN {
		return nil, errNoState
	}
	return task, err
}

// anyTask is task for callers that need no state.
func (r *Runtime) anyTask(ctx context.Context, id string) (*tasktypes.Process, error) {
	resp, err := native(r.c.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: id}))
	if err != nil {
		return nil, ignoreNotFound(err)
	}
	return resp.Process, nil
}

// alive reports whether a task was started and has not exited.
func alive(t *tasktypes.Process) bool {
	return t != nil && t.Status != tasktypes.Status_STOPPED && t.Status != tasktypes.Status_CREATED
}

func (r *Runtime) start(ctx context.Context, id string) error {
	ctx, cancel := r.call(ctx)
	defer cancel()
	if err := r.logs.Mark(id); err != nil {
		return err
	}
	startTask := func() error {
		_, err := native(r.c.TaskService().Start(ctx, &tasks.StartRequest{ContainerID: id}))
		return err
	}
	err := startTask()
	if err == nil {
		return nil
	}
	// Rare: the task runs already, or does not exist.
	task, err2 := r.task(ctx, id)
	for errors.Is(err2, errNoState) && ctx.Err() == nil {
		time.Sleep(statePause)
		task, err2 = r.task(ctx, id)
	}
	switch {
	case err2 != nil:
		return err2
	case task == nil:
		if err := r.recreateTask(ctx, id); err != nil {
			return err
		}
		return startTask()
	case task.Status != tasktypes.Status_CREATED:
		return nil
	}
	return err
}

// recreateTask creates the task of a container if the engine or the machine stopped after it created
// the container.
func (r *Runtime) recreateTask(ctx context.Context, id string) error {
	rec, err := r.find(ctx, id)
	if err != nil {
		return err
	}
	files, err := r.c.SnapshotService(r.cfg.Snapshotter).Mounts(ctx, id)
	if errdefs.IsNotFound(err) {
		files, err = r.files(ctx, id, rec.Parent)
	}
	if err == nil {
		files, err = layered(files, rec.Layer)
	}
	if err != nil {
		return err
	}
	return r.newTask(ctx, id, rec.Workload, files)
}

// endProcesses ends the container with SIGTERM and, after grace, with last.
func (r *Runtime) endProcesses(ctx context.Context, id, shim string, grace time.Duration, last func(context.Context, string) error) error {
	if grace <= 0 {
		kill := time.AfterFunc(slotTimeout, func() {
			if err := r.group(id).Kill(ctx); err != nil && ctx.Err() == nil {
				r.log.Warn("control group of a workload not killed", "container", id, "err", err)
			}
		})
		defer kill.Stop()
	}
	leave, err := r.stops.Enter(ctx, time.Now(), []string{shim}, false)
	if err != nil {
		return err
	}
	defer func() { leave() }()
	if grace > 0 {
		ended, err := r.terminate(ctx, id, grace)
		if err != nil {
			return err
		}
		select {
		case <-ended:
		case <-time.After(soon):
			leave()
			<-ended
			again, err := r.stops.Enter(ctx, time.Now(), []string{shim}, false)
			if err != nil {
				return err
			}
			leave = again
		}
	}
	return last(ctx, id)
}

// terminate sends SIGTERM. It closes ended when the workload has ended or grace is over.
func (r *Runtime) terminate(ctx context.Context, id string, grace time.Duration) (ended chan struct{}, err error) {
	call, cancel := r.call(ctx)
	defer cancel()
	ended = make(chan struct{})
	task, err := r.task(call, id)
	if err == nil && task != nil && task.Status == tasktypes.Status_RUNNING {
		_, err = native(r.c.TaskService().Kill(call, &tasks.KillRequest{ContainerID: id, Signal: uint32(syscall.SIGTERM)}))
	} else {
		task = nil
	}
	if task == nil || err != nil {
		close(ended)
		return ended, ignoreNotFound(err)
	}
	go func() {
		defer close(ended)
		wait, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, r.cfg.Namespace), grace)
		defer cancel()
		_, _ = r.c.TaskService().Wait(wait, &tasks.WaitRequest{ContainerID: id})
	}()
	return ended, nil
}

// remove kills the container and removes everything of it except its log.
func (r *Runtime) remove(ctx context.Context, id string) error {
	ctx, cancel := r.call(ctx)
	defer cancel()
	group := r.group(id)
	interrupted, err := r.interrupted(ctx, id)
	if err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return r.kill(ctx, id) },
		func() error { return group.Kill(ctx) },
		func() error { return ignoreNotFound(r.c.ContainerService().Delete(ctx, id)) },
		func() error { return r.removeStale(id) },
		func() error { return ignoreNotFound(r.c.SnapshotService(r.cfg.Snapshotter).Remove(ctx, id)) },
		func() error { return r.logs.Unmark(id) },
		func() error { return os.RemoveAll(r.cfg.namesDir(id)) },
		func() error { return os.RemoveAll(r.inputPath(id)) },
		group.Remove,
		func() error { return r.endOrphan(ctx, id, interrupted) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// killAll kills the container's processes and keeps the rest.
func (r *Runtime) killAll(ctx context.Context, id string) error {
	ctx, cancel := r.call(ctx)
	defer cancel()
	task, err := r.anyTask(ctx, id)
	if err != nil || !alive(task) {
		return err
	}
	return errors.Join(r.killTask(ctx, id), r.group(id).Kill(ctx))
}

// killTask kills the processes of a task and waits for its end.
func (r *Runtime) killTask(ctx context.Context, id string) error {
	_, err := native(r.c.TaskService().Kill(ctx, &tasks.KillRequest{ContainerID: id, Signal: uint32(syscall.SIGKILL), All: true}))
	if err == nil {
		_, err = native(r.c.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: id}))
	}
	return ignoreNotFound(err)
}

// kill kills the container's processes and deletes its task.
func (r *Runtime) kill(ctx context.Context, id string) error {
	task, err := r.anyTask(ctx, id)
	if err != nil {
		return err
	}
	if task != nil && task.Status != tasktypes.Status_STOPPED {
		err := r.killTask(ctx, id)
		if err != nil { // gVisor signals no process before the start, and none of a sandbox that has just ended
			err = r.group(id).Kill(ctx)
		}
		if err != nil {
			return err
		}
	}
	return r.deleteTask(ctx, id) // even if there is none: containerd may have an entry that its shim does not know
}

func (r *Runtime) deleteTask(ctx context.Context, id string) error {
	_, err := native(r.c.TaskService().Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: id}))
	return ignoreNotFound(err)
}

func (r *Runtime) List(ctx context.Context) ([]runtime.Status, error) {
	ctx, cancel := r.call(ctx)
	defer cancel()
	all, err := r.list(ctx)
	if err != nil {
		return nil, withReason(fmt.Errorf("list containers: %w", err))
	}
	return all, nil
}

func (r *Runtime) list(ctx context.Context) ([]runtime.Status, error) {
	found, err := r.c.ContainerService().List(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := native(r.c.TaskService().List(ctx, &tasks.ListTasksRequest{}))
	if err != nil {
		return nil, err
	}
	byID := make(map[string]*tasktypes.Process)
	for _, t := range resp.Tasks {
		byID[t.ID] = t
	}
	var out []runtime.Status
	for _, c := range found {
		rec, err := recordOf(c)
		if err != nil {
			r.log.Warn("container ignored", "container", c.ID, "err", err)
			continue
		}
		out = append(out, r.status(c.ID, rec.Workload, byID[c.ID]))
	}
	slices.SortFunc(out, func(a, b runtime.Status) int { return cmp.Compare(a.Key.String(), b.Key.String()) })
	return out, nil
}

func (r *Runtime) status(id string, w runtime.Workload, t *tasktypes.Process) runtime.Status {
	st := runtime.Status{Key: w.Key, Attempt: w.Attempt, Spec: w.Spec, Devices: w.Devices, Phase: wire.WorkloadCreated, ImageHealth: w.ImageHealth}
	switch {
	case t == nil && r.logs.Marked(id) && r.hasProcesses(id):
		// containerd's list lacks tasks whose shim does not answer in time.
		st.Phase = wire.WorkloadRunning
	case t == nil && r.logs.Marked(id):
		// It was started, and its shim is gone: the machine was restarted, or the shim killed.
		st.Phase, st.ExitCode = wire.WorkloadExited, unknownExitCode
	case t == nil, t.Status == tasktypes.Status_CREATED:
	case t.Status == tasktypes.Status_UNKNOWN && !r.logs.Marked(id):
		// Its shim does not answer in time. The task is being created: nobody has tried to start it.
	case t.Status == tasktypes.Status_STOPPED:
		st.Phase, st.ExitCode = wire.WorkloadExited, int(t.ExitStatus)
		st.OOM = r.outOfMemory(id, st.ExitCode)
	default:
		st.Phase, st.PID = wire.WorkloadRunning, int(t.Pid)
	}
	return st
}

// hasProcesses reports whether processes of the container run, according to the kernel.
func (r *Runtime) hasProcesses(id string) bool {
	pids, err := r.group(id).Procs()
	return err != nil || len(pids) > 0
}

// outOfMemory reads the kernel's counter, which exists until the task is deleted, unlike
// containerd's event.
func (r *Runtime) outOfMemory(id string, code int) bool {
	return code == killedExitCode && r.group(id).OOMKills() > 0
}

func sameCreation(a, b runtime.Workload) bool {
	return a.Attempt == b.Attempt && slices.Equal(a.Devices, b.Devices)
}
