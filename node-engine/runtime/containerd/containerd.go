package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/runc/options"
	tasktypes "github.com/containerd/containerd/api/types/task"
	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
	"github.com/treeline-edge/treeline/node-engine/runtime/logs"
	"golang.org/x/sync/singleflight"
	"google.golang.org/protobuf/types/known/anypb"
)

const (
	// extension holds a workload beside its container; labels are too short for it.
	extension = "treeline.workload"
	typeURL   = "treeline.dev/workload"

	unknownExit   = 255
	killedExit    = 128 + int(syscall.SIGKILL)
	reconnectWait = 2 * time.Second // at most, before containerd is dialled again
)

// Runtime is a runtime.Runtime of containers.
type Runtime struct {
	cfg      Config
	c        *client.Client
	cg       cgroup.FS
	logs     *logs.Dir
	archives archives
	fetching singleflight.Group
	known    library
	stops    *slots
	starts   *slots // of tasks
	log      *slog.Logger
	diskUsed func(dir string) (percent int, err error)
	openMost atomic.Int64    // the limit of open files that was logged last
	ctx      context.Context // ends with Close
	end      context.CancelFunc
	lives    sync.WaitGroup
}

// record is what extension holds.
type record struct {
	runtime.Workload
	Parent string // the snapshot that its files begin with
}

// New makes the runtime. containerd need not answer yet: calls fail with
// runtime_unavailable until it does.
func New(cfg Config, log *slog.Logger) (*Runtime, error) {
	if err := setDefaults(&cfg); err != nil {
		return nil, err
	}
	cfg.appArmor = loadAppArmor(log, appArmorEnabled, loadDefaultProfile)
	cg, err := cgroup.Mounted()
	if err != nil {
		return nil, fmt.Errorf("containerd runtime: %w", err)
	}
	l, err := logs.Open(filepath.Join(cfg.StateDir, "logs"), cfg.LogLimit)
	if err != nil {
		return nil, fmt.Errorf("containerd runtime: %w", err)
	}
	c, err := client.New(cfg.Address, client.WithDefaultNamespace(cfg.Namespace), client.WithTimeout(reconnectWait))
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("containerd runtime: %w", err)
	}
	r := &Runtime{cfg: cfg, c: c, cg: cg, logs: l, log: log, diskUsed: diskUsed, archives: archives{dirs: cfg.ImageDirs}, stops: newSlots(stopsPerShim, stopsAtOnce), starts: newSlots(startsPerShim, startsAtOnce)}
	r.ctx, r.end = context.WithCancel(namespaces.WithNamespace(context.Background(), cfg.Namespace))
	return r, nil
}

// Close ends what the engine does here; the workloads run on.
func (r *Runtime) Close() error {
	r.end()
	r.lives.Wait()
	return errors.Join(r.c.Close(), r.logs.Close())
}

// call bounds one exchange with containerd.
func (r *Runtime) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(namespaces.WithNamespace(ctx, r.cfg.Namespace), r.cfg.CallTimeout)
}

// Info implements runtime.Runtime.
func (r *Runtime) Info(ctx context.Context) (runtime.Info, error) {
	ctx, cancel := r.call(ctx)
	defer cancel()
	v, err := r.c.Version(ctx)
	if err != nil {
		return runtime.Info{}, reasoned(fmt.Errorf("ask containerd at %s for its version: %w", r.cfg.Address, err))
	}
	return runtime.Info{Version: "containerd " + v.Version, Runtimes: r.cfg.installed()}, nil
}

// Create implements runtime.Runtime.
func (r *Runtime) Create(ctx context.Context, w runtime.Workload) error {
	if err := r.create(ctx, w); err != nil {
		return reasoned(fmt.Errorf("create %s: %w", w.Key, err))
	}
	return nil
}

func (r *Runtime) create(ctx context.Context, w runtime.Workload) error {
	id := runtime.ID(w.Key)
	done, err := r.makeRoom(ctx, id, w)
	if done || err != nil {
		return err
	}
	h, ok := r.cfg.handler(w.Spec.Virtualization)
	if !ok {
		return because(api.ReasonNoRuntime, "virtualization %q is not offered here, only %q", w.Spec.Virtualization, r.cfg.installed())
	}
	if w.Spec.Privileged && !r.cfg.AllowPrivileged {
		return because(api.ReasonPrivilege, "this node's operator allows no privileged containers")
	}
	img, err := r.image(namespaces.WithNamespace(ctx, r.cfg.Namespace), w.Spec)
	if err != nil {
		return err
	}
	err = r.make(ctx, w, h, img)
	if errors.Is(err, errNoFiles) { // somebody removed what had been unpacked
		r.known.forget(img.key)
		if img, err = r.image(namespaces.WithNamespace(ctx, r.cfg.Namespace), w.Spec); err == nil {
			err = r.make(ctx, w, h, img)
		}
	}
	return err
}

// errNoFiles says that an image's files are gone.
var errNoFiles = errors.New("the image's files are not unpacked")

// make creates the container, its files and its task. The container comes first
// and names its snapshot: that keeps the snapshot from containerd's garbage
// collector, where a lease would cost two more syncs.
func (r *Runtime) make(ctx context.Context, w runtime.Workload, h Handler, img known) error {
	ctx, cancel := r.call(ctx)
	defer cancel()
	if err := r.writeNames(w); err != nil {
		return err
	}
	c, err := r.container(ctx, w, h, img)
	if err != nil {
		return err
	}
	if _, err := r.c.ContainerService().Create(ctx, c); err != nil {
		return err
	}
	files, err := r.files(ctx, c.ID, img.parent)
	if err == nil {
		err = r.newTask(ctx, c.ID, r.cfg.group(w.Instance), files)
	}
	if err != nil {
		// The next attempt starts afresh, and nothing is left meanwhile.
		return errors.Join(err, r.remove(context.WithoutCancel(ctx), c.ID))
	}
	return nil
}

// container is the container's record.
func (r *Runtime) container(ctx context.Context, w runtime.Workload, h Handler, img known) (containers.Container, error) {
	id := runtime.ID(w.Key)
	c := containers.Container{
		ID: id, Image: img.Name(), Snapshotter: r.cfg.Snapshotter, SnapshotKey: id,
		Runtime: containers.RuntimeInfo{Name: h.Runtime},
		Labels:  map[string]string{"treeline.app": string(w.Instance.Service().App())},
	}
	if o := runtimeOptions(h); o != nil {
		packed, err := typeurl.MarshalAny(o)
		if err != nil {
			return c, err
		}
		c.Runtime.Options = packed
	}
	kept, err := json.Marshal(record{w, img.parent})
	if err != nil {
		return c, err
	}
	c.Extensions = map[string]typeurl.Any{extension: &anypb.Any{TypeUrl: typeURL, Value: kept}}
	cfg := r.cfg
	cfg.OpenFiles = r.openFiles()
	s, err := oci.GenerateSpec(ctx, r.c, &c, cfg.specOpts(w, img.asks)...)
	if err != nil {
		return c, err
	}
	c.Spec, err = typeurl.MarshalAny(s)
	return c, err
}

// files prepares the container's own files on those of its image. What a crash
// left under the same name is not taken.
func (r *Runtime) files(ctx context.Context, id, parent string) ([]mount.Mount, error) {
	s := r.c.SnapshotService(r.cfg.Snapshotter)
	files, err := s.Prepare(ctx, id, parent)
	if errdefs.IsAlreadyExists(err) {
		if err = r.removeSnapshot(ctx, id); err == nil {
			files, err = s.Prepare(ctx, id, parent)
		}
	}
	if errdefs.IsNotFound(err) {
		err = fmt.Errorf("%w: %w", errNoFiles, err)
	}
	return files, err
}

// makeRoom removes an earlier attempt that does not run. It reports whether
// this attempt exists already.
func (r *Runtime) makeRoom(ctx context.Context, id string, w runtime.Workload) (done bool, err error) {
	ctx, cancel := r.call(ctx)
	defer cancel()
	c, err := r.c.ContainerService().Get(ctx, id)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	old, err := recordOf(c)
	if err != nil {
		return false, err
	}
	if old.Attempt == w.Attempt && slices.Equal(old.Devices, w.Devices) {
		return true, nil
	}
	task, err := r.task(ctx, id)
	if err != nil {
		return false, err
	}
	if task != nil && task.Status != tasktypes.Status_STOPPED && task.Status != tasktypes.Status_CREATED {
		return false, fmt.Errorf("attempt %d still runs: %w", old.Attempt, api.ErrConflict)
	}
	return false, r.remove(ctx, id)
}

// newTask makes the task of a container, one of a shim at a time.
func (r *Runtime) newTask(ctx context.Context, id, shim string, files []mount.Mount) error {
	path, err := r.logs.Create(id)
	if err != nil {
		return err
	}
	leave, err := r.starts.enter(ctx, shim)
	if err != nil {
		return err
	}
	defer leave()
	out, err := cio.LogURIGenerator("file", path, nil)
	if err != nil {
		return err
	}
	create := func() error {
		_, err := r.c.TaskService().Create(ctx, &tasks.CreateTaskRequest{
			ContainerID: id, Rootfs: mount.ToProto(files), Stdout: out.String(), Stderr: out.String(),
		})
		return errgrpc.ToNative(err)
	}
	err = create()
	for range socketRetries {
		if !socketWent(err) {
			break
		}
		err = create()
	}
	if stale := staleBundle(err, r.cfg.Namespace, id); stale != "" {
		if task, terr := r.task(ctx, id); terr != nil || task != nil {
			return err
		}
		r.log.Warn("remove what containerd left behind of an earlier task", "container", id, "path", stale)
		if rerr := removeBundle(stale); rerr != nil {
			return errors.Join(err, rerr)
		}
		err = create()
	}
	return err
}

func runtimeOptions(h Handler) any {
	if h.Runtime != runcV2 || h.Binary == "" {
		return nil
	}
	return &options.Options{BinaryName: h.Binary}
}

func recordOf(c containers.Container) (rec record, err error) {
	ext, ok := c.Extensions[extension]
	if !ok {
		return rec, fmt.Errorf("container %s is not ours: %w", c.ID, api.ErrConflict)
	}
	if err := json.Unmarshal(ext.GetValue(), &rec); err != nil {
		return rec, fmt.Errorf("container %s: its workload is damaged: %w", c.ID, err)
	}
	return rec, nil
}

// task is what containerd knows of the container's process, nil when nothing.
func (r *Runtime) task(ctx context.Context, id string) (*tasktypes.Process, error) {
	resp, err := r.c.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: id})
	if err = errgrpc.ToNative(err); errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return resp.Process, nil
}

// Start implements runtime.Runtime.
func (r *Runtime) Start(ctx context.Context, k wire.Key) error {
	if err := r.start(ctx, runtime.ID(k)); err != nil {
		return reasoned(fmt.Errorf("start %s: %w", k, err))
	}
	return nil
}

func (r *Runtime) start(ctx context.Context, id string) error {
	ctx, cancel := r.call(ctx)
	defer cancel()
	if err := r.logs.Mark(id); err != nil {
		return err
	}
	err := r.startTask(ctx, id)
	if err == nil {
		return nil
	}
	// Hardly ever: it runs already, or there is no task.
	task, err2 := r.task(ctx, id)
	switch {
	case err2 != nil:
		return err2
	case task == nil:
		if err := r.makeTask(ctx, id); err != nil {
			return err
		}
		return r.startTask(ctx, id)
	case task.Status != tasktypes.Status_CREATED:
		return nil
	}
	return err
}

func (r *Runtime) startTask(ctx context.Context, id string) error {
	_, err := r.c.TaskService().Start(ctx, &tasks.StartRequest{ContainerID: id})
	return errgrpc.ToNative(err)
}

// makeTask makes the task of a container when the engine or the machine fell
// between the two.
func (r *Runtime) makeTask(ctx context.Context, id string) error {
	c, err := r.c.ContainerService().Get(ctx, id)
	if err != nil {
		return err
	}
	rec, err := recordOf(c)
	if err != nil {
		return err
	}
	files, err := r.c.SnapshotService(r.cfg.Snapshotter).Mounts(ctx, id)
	if errdefs.IsNotFound(err) {
		files, err = r.files(ctx, id, rec.Parent)
	}
	if err != nil {
		return err
	}
	return r.newTask(ctx, id, r.cfg.group(rec.Workload.Instance), files)
}

// Stop implements runtime.Runtime. A few stops are carried out at once, fewer of
// one shim; the others wait, and ctx bounds that wait too. A workload that does
// not end soon after SIGTERM gives its slot back for the rest of its grace.
func (r *Runtime) Stop(ctx context.Context, k wire.Key, grace time.Duration) error {
	id := runtime.ID(k)
	err := r.stop(ctx, id, r.cfg.group(k.Instance), grace)
	if err == nil {
		err = r.logs.Remove(id)
	}
	if err != nil {
		if grace <= 0 { // it must end although containerd does not answer
			err = errors.Join(err, r.cg.Group(filepath.Join(r.cfg.CgroupParent, id)).Kill(ctx))
		}
		return reasoned(fmt.Errorf("stop %s: %w", k, err))
	}
	return nil
}

const (
	// promptly is how long a workload that was asked to end has its stop's slot: most
	// end within it, so that few end at once.
	promptly = 300 * time.Millisecond
	// killAfter is how long a stop without grace waits for a slot before it kills
	// the workload past containerd.
	killAfter = time.Second
)

func (r *Runtime) stop(ctx context.Context, id, shim string, grace time.Duration) error {
	if grace <= 0 {
		kill := time.AfterFunc(killAfter, func() {
			if err := r.cg.Group(filepath.Join(r.cfg.CgroupParent, id)).Kill(ctx); err != nil && ctx.Err() == nil {
				r.log.Warn("workload not killed by its control group", "container", id, "err", err)
			}
		})
		defer kill.Stop()
	}
	leave, err := r.stops.enter(ctx, shim)
	if err != nil {
		return err
	}
	if grace > 0 {
		var ended <-chan error
		if ended, err = r.ask(ctx, id, grace); err != nil {
			leave()
			return err
		}
		soon := time.NewTimer(promptly)
		defer soon.Stop()
		select {
		case <-ended:
		case <-soon.C:
			leave()
			<-ended
			if leave, err = r.stops.enter(ctx, shim); err != nil {
				return err
			}
		}
	}
	defer leave()
	return r.remove(ctx, id)
}

// remove ends the container at once and removes all of it but its log.
func (r *Runtime) remove(ctx context.Context, id string) error {
	ctx, cancel := r.call(ctx)
	defer cancel()
	if err := r.kill(ctx, id); err != nil {
		return err
	}
	if err := r.cg.Group(filepath.Join(r.cfg.CgroupParent, id)).Kill(ctx); err != nil {
		return err
	}
	if err := r.c.ContainerService().Delete(ctx, id); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	if err := r.removeSnapshot(ctx, id); err != nil {
		return err
	}
	if err := r.logs.Unmark(id); err != nil {
		return err
	}
	if err := os.RemoveAll(r.cfg.namesDir(id)); err != nil {
		return err
	}
	return r.cg.Group(filepath.Join(r.cfg.CgroupParent, id)).Remove()
}

// over is a closed channel: the workload has ended.
var over = func() <-chan error {
	c := make(chan error)
	close(c)
	return c
}()

// ask sends SIGTERM. The returned channel delivers when the workload has ended or grace is
// over.
func (r *Runtime) ask(ctx context.Context, id string, grace time.Duration) (<-chan error, error) {
	short, cancel := r.call(ctx)
	defer cancel()
	task, err := r.task(short, id)
	if err != nil || task == nil || task.Status != tasktypes.Status_RUNNING {
		return over, err
	}
	_, err = r.c.TaskService().Kill(short, &tasks.KillRequest{ContainerID: id, Signal: uint32(syscall.SIGTERM)})
	switch err = errgrpc.ToNative(err); {
	case errdefs.IsNotFound(err):
		return over, nil
	case err != nil:
		return nil, err
	}
	ended := make(chan error, 1)
	gentle, cancelWait := context.WithTimeout(namespaces.WithNamespace(ctx, r.cfg.Namespace), grace)
	go func() {
		defer cancelWait()
		_, err := r.c.TaskService().Wait(gentle, &tasks.WaitRequest{ContainerID: id})
		ended <- err
	}()
	return ended, nil
}

// kill ends the container's processes and forgets its task.
func (r *Runtime) kill(ctx context.Context, id string) error {
	task, err := r.task(ctx, id)
	if err != nil || task == nil {
		return err
	}
	if task.Status != tasktypes.Status_STOPPED {
		_, err := r.c.TaskService().Kill(ctx, &tasks.KillRequest{ContainerID: id, Signal: uint32(syscall.SIGKILL), All: true})
		if err = errgrpc.ToNative(err); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		if err == nil {
			if _, err := r.c.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: id}); err != nil {
				if err = errgrpc.ToNative(err); !errdefs.IsNotFound(err) {
					return err
				}
			}
		}
	}
	_, err = r.c.TaskService().Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: id})
	if err = errgrpc.ToNative(err); errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

func (r *Runtime) removeSnapshot(ctx context.Context, id string) error {
	err := r.c.SnapshotService(r.cfg.Snapshotter).Remove(ctx, id)
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// List implements runtime.Runtime.
func (r *Runtime) List(ctx context.Context) ([]runtime.Status, error) {
	ctx, cancel := r.call(ctx)
	defer cancel()
	all, err := r.list(ctx)
	if err != nil {
		return nil, reasoned(fmt.Errorf("list containers: %w", err))
	}
	return all, nil
}

func (r *Runtime) list(ctx context.Context) ([]runtime.Status, error) {
	found, err := r.c.ContainerService().List(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := r.c.TaskService().List(ctx, &tasks.ListTasksRequest{})
	if err != nil {
		return nil, errgrpc.ToNative(err)
	}
	byID := make(map[string]*tasktypes.Process)
	for _, t := range resp.Tasks {
		byID[t.ID] = t
	}
	var out []runtime.Status
	for _, c := range found {
		w, err := recordOf(c)
		if err != nil {
			r.log.Warn("container passed over", "container", c.ID, "err", err)
			continue
		}
		out = append(out, r.status(c.ID, w.Workload, byID[c.ID]))
	}
	slices.SortFunc(out, func(a, b runtime.Status) int { return compare(a.Key, b.Key) })
	return out, nil
}

func compare(a, b wire.Key) int {
	switch x, y := a.String(), b.String(); {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

func (r *Runtime) status(id string, w runtime.Workload, t *tasktypes.Process) runtime.Status {
	st := runtime.Status{Key: w.Key, Attempt: w.Attempt, Spec: w.Spec, Devices: w.Devices, Phase: wire.WorkloadCreated}
	switch {
	case t == nil && r.logs.Marked(id) && r.alive(id):
		// containerd's list lacks tasks whose shim does not answer in time.
		st.Phase = wire.WorkloadRunning
	case t == nil && r.logs.Marked(id):
		// It had been started, and its shim is gone: the machine was started anew,
		// or somebody killed the shim.
		st.Phase, st.ExitCode = wire.WorkloadExited, unknownExit
	case t == nil, t.Status == tasktypes.Status_CREATED:
	case t.Status == tasktypes.Status_STOPPED:
		st.Phase, st.ExitCode = wire.WorkloadExited, int(t.ExitStatus)
		st.OOM = r.outOfMemory(id, st.ExitCode)
	default:
		st.Phase, st.PID = wire.WorkloadRunning, int(t.Pid)
	}
	return st
}

// alive reports whether processes of the container run, as the kernel knows.
func (r *Runtime) alive(id string) bool {
	pids, err := r.cg.Group(filepath.Join(r.cfg.CgroupParent, id)).Procs()
	return err != nil || len(pids) > 0
}

// outOfMemory reads the kernel's own count, which is there until the task is
// deleted and does not depend on anybody having listened.
func (r *Runtime) outOfMemory(id string, code int) bool {
	return code == killedExit && r.cg.Group(filepath.Join(r.cfg.CgroupParent, id)).OOMKills() > 0
}

// Logs implements runtime.Runtime.
func (r *Runtime) Logs(ctx context.Context, k wire.Key, tail int, follow bool) (io.ReadCloser, error) {
	id := runtime.ID(k)
	if !follow {
		return r.logs.Read(ctx, id, tail, nil)
	}
	ended := make(chan struct{})
	rd, err := r.logs.Read(ctx, id, tail, ended)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(namespaces.WithNamespace(ctx, r.cfg.Namespace))
	r.lives.Go(func() {
		defer close(ended)
		defer cancel()
		defer context.AfterFunc(r.ctx, cancel)()
		r.waitEnd(ctx, id)
	})
	return &follower{ReadCloser: rd, cancel: cancel}, nil
}

// waitEnd returns when the container has exited or is gone, across restarts of
// containerd, or when ctx ends.
func (r *Runtime) waitEnd(ctx context.Context, id string) {
	for ctx.Err() == nil {
		_, err := r.c.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: id})
		if err == nil || errdefs.IsNotFound(errgrpc.ToNative(err)) {
			return
		}
		pause(ctx, reconnectWait)
	}
}

// follower also ends the wait for the workload when its reader is closed.
type follower struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (f *follower) Close() error {
	f.cancel()
	return f.ReadCloser.Close()
}

// CgroupOf implements runtime.Guarded.
func (r *Runtime) CgroupOf(ctx context.Context, k wire.Key) (runtime.Target, error) {
	id := runtime.ID(k)
	if path := filepath.Join(r.cfg.CgroupParent, id); r.cg.Group(path).Exists() {
		return runtime.Target{Cgroup: path}, nil // while containerd is away, too
	}
	ctx, cancel := r.call(ctx)
	defer cancel()
	if _, err := r.c.ContainerService().Get(ctx, id); err != nil {
		if errdefs.IsNotFound(err) {
			return runtime.Target{}, fmt.Errorf("cgroup of %s: %w", k, api.ErrNotFound)
		}
		return runtime.Target{}, reasoned(fmt.Errorf("cgroup of %s: %w", k, err))
	}
	return runtime.Target{Cgroup: filepath.Join(r.cfg.CgroupParent, id)}, nil
}

// Housekeep implements runtime.Housekeeper: it bounds the logs and removes
// images that nobody uses while the disk is filling up.
func (r *Runtime) Housekeep(ctx context.Context) error {
	ctx, cancel := r.call(ctx)
	defer cancel()
	return errors.Join(r.logs.Trim(), r.collect(ctx))
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
