package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/runc/options"
	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
	"github.com/treeline-edge/treeline/node-engine/runtime/execs"
	"github.com/treeline-edge/treeline/node-engine/runtime/logs"
	"golang.org/x/sync/singleflight"
	"google.golang.org/protobuf/types/known/anypb"
)

const (
	// extension is the container's extension with its record, which is too long for a label.
	extension = "treeline.workload"
	typeURL   = "treeline.dev/workload"

	appLabel = "treeline.app" // of containers

	maxReconnectPause = 2 * time.Second
)

type Runtime struct {
	cfg       Config
	c         *client.Client
	cg        cgroup.FS
	logs      *logs.Dir
	archives  archives
	pulls     singleflight.Group
	unpacked  cache[unpacked]
	execs     *execs.Dir
	running   sync.WaitGroup // attends execs
	stops     *fairshare.Turns
	starts    *fairshare.Turns // for the creation of tasks
	log       *slog.Logger
	diskUsed  func(dir string) (percent int, err error)
	bundles   atomic.Value    // string, the directory of containerd's bundles; nil: unknown
	openFiles atomic.Int64    // the last limit of open files that was logged
	ctx       context.Context // ends with Close
	end       context.CancelFunc
}

// record is the content of the extension.
type record struct {
	runtime.Workload
	Parent string // the snapshot of the image's files
}

// New creates the runtime. containerd need not run yet: calls fail with runtime_unavailable
// until it does.
func New(cfg Config, log *slog.Logger) (*Runtime, error) {
	r, err := open(cfg, log)
	if err != nil {
		return nil, fmt.Errorf("containerd runtime: %w", err)
	}
	return r, nil
}

func open(cfg Config, log *slog.Logger) (*Runtime, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	cfg.appArmor = loadAppArmor(log, appArmorEnabled, loadDefaultProfile)
	cg, err := cgroup.Mounted()
	if err != nil {
		return nil, err
	}
	l, err := logs.Open(filepath.Join(cfg.StateDir, "logs"), logLimit)
	if err != nil {
		return nil, err
	}
	x, err := execs.Open(filepath.Join(cfg.StateDir, "execs"))
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	c, err := client.New(cfg.Address, client.WithDefaultNamespace(cfg.Namespace), client.WithTimeout(maxReconnectPause))
	if err != nil {
		return nil, errors.Join(err, l.Close(), x.Close())
	}
	r := &Runtime{
		cfg: cfg, c: c, cg: cg, logs: l, execs: x, log: log, diskUsed: diskUsed, archives: archives{dirs: cfg.ImageDirs},
		stops: fairshare.NewTurns(taskTurns, stopsInTotal, stopsPerShim), starts: fairshare.NewTurns(taskTurns, startsInTotal, startsPerShim),
	}
	r.ctx, r.end = context.WithCancel(namespaces.WithNamespace(context.Background(), cfg.Namespace))
	r.endExecs()
	return r, nil
}

// Close ends all execs, and closes the logs and the connection to containerd. The workloads keep
// running.
func (r *Runtime) Close() error {
	r.end()
	r.running.Wait()
	return errors.Join(r.logs.Close(), r.execs.Close(), r.c.Close())
}

// call returns the context of one call of containerd.
func (r *Runtime) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(namespaces.WithNamespace(ctx, r.cfg.Namespace), r.cfg.CallTimeout)
}

func (r *Runtime) group(id string) cgroup.Group {
	return r.cg.Group(filepath.Join(r.cfg.CgroupParent, id))
}

// native converts the error of a gRPC call to one of errdefs.
func native[T any](resp T, err error) (T, error) { return resp, errgrpc.ToNative(err) }

func ignoreNotFound(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

func (r *Runtime) Info(ctx context.Context) (runtime.Info, error) {
	ctx, cancel := r.call(ctx)
	defer cancel()
	v, err := r.c.Version(ctx)
	if err != nil {
		return runtime.Info{}, withReason(fmt.Errorf("get the version of containerd at %s: %w", r.cfg.Address, err))
	}
	return runtime.Info{Version: "containerd " + v.Version, Runtimes: r.cfg.installed(), Mounts: r.cfg.mounts(), Layers: r.cfg.Snapshotter == defaultSnapshotter}, nil
}

func (r *Runtime) Create(ctx context.Context, w runtime.Workload) error {
	return failure("create", w.Key, r.create(ctx, w))
}

// Fetch implements runtime.Fetcher.
func (r *Runtime) Fetch(ctx context.Context, w runtime.Workload) error {
	_, err := r.image(namespaces.WithNamespace(ctx, r.cfg.Namespace), w)
	return failure("fetch the image of", w.Key, err)
}

func (r *Runtime) Start(ctx context.Context, k wire.Key) error {
	return failure("start", k, r.start(ctx, runtime.ID(k)))
}

// Stop implements runtime.Runtime. The number of concurrent stops is limited, in total and per
// shim; ctx ends the wait for a slot too. A workload that does not end soon after SIGTERM
// releases its slot for the rest of its grace.
func (r *Runtime) Stop(ctx context.Context, k wire.Key, grace time.Duration) error {
	id := runtime.ID(k)
	err := r.endProcesses(ctx, id, r.cfg.shimGroup(k.Instance), grace, r.remove)
	if err == nil {
		err = r.logs.Remove(id)
	}
	if err != nil && grace <= 0 { // the workload must end even if containerd does not answer
		err = errors.Join(err, r.group(id).Kill(ctx))
	}
	return failure("stop", k, err)
}

// Kill implements runtime.Runtime. The number of concurrent kills is limited like that of stops.
func (r *Runtime) Kill(ctx context.Context, k wire.Key, grace time.Duration) error {
	return failure("kill", k, r.endProcesses(ctx, runtime.ID(k), r.cfg.shimGroup(k.Instance), grace, r.killAll))
}

func (r *Runtime) CgroupOf(ctx context.Context, k wire.Key) (string, error) {
	g := r.group(runtime.ID(k))
	if g.Exists() {
		return g.Path(), nil // even if containerd does not answer
	}
	ctx, cancel := r.call(ctx)
	defer cancel()
	_, err := r.find(ctx, runtime.ID(k))
	return g.Path(), failure("find the cgroup of", k, err)
}

// Housekeep implements runtime.Housekeeper: it trims logs, and removes unused images while the
// disk is too full.
func (r *Runtime) Housekeep(ctx context.Context) error {
	ctx, cancel := r.call(ctx)
	defer cancel()
	return errors.Join(r.logs.Trim(), r.collect(ctx))
}

func (r *Runtime) Logs(ctx context.Context, k wire.Key, tail int, follow bool) (io.ReadCloser, error) {
	return r.ReadLogs(ctx, k, logs.Query{Tail: tail}, follow)
}

// ReadLogs implements runtime.LogReader.
func (r *Runtime) ReadLogs(ctx context.Context, k wire.Key, q logs.Query, follow bool) (io.ReadCloser, error) {
	id := runtime.ID(k)
	if !follow {
		return r.logs.Read(ctx, id, q)
	}
	return r.logs.Follow(ctx, id, q, func(ctx context.Context) {
		ctx = namespaces.WithNamespace(ctx, r.cfg.Namespace)
		for ctx.Err() == nil { // across restarts of containerd
			_, err := native(r.c.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: id}))
			if ignoreNotFound(err) == nil {
				return
			}
			select {
			case <-time.After(maxReconnectPause):
			case <-ctx.Done():
			}
		}
	})
}

func (r *Runtime) create(ctx context.Context, w runtime.Workload) error {
	exists, err := r.removeEarlier(ctx, w)
	if exists || err != nil {
		return err
	}
	h, ok := r.cfg.handler(w.Spec.Virtualization)
	if !ok {
		return runtime.Errorf(api.ReasonNoRuntime, "virtualization %q is not available, want one of %q", w.Spec.Virtualization, r.cfg.installed())
	}
	if w.Spec.Privileged && !r.cfg.AllowPrivileged {
		return runtime.Errorf(api.ReasonPrivilege, "this node's operator does not allow privileged containers")
	}
	if len(w.Mounts) > 0 && h.Runtime != runcV2 {
		return runtime.Errorf(api.ReasonNoRuntime, "volumes are not supported with the handler %s", h.Runtime)
	}
	if w.Spec.TTY && h.Runtime == runscV1 {
		return runtime.Errorf(api.ReasonNoRuntime, "a terminal is not supported with the handler %s", h.Runtime)
	}
	for retried := false; ; retried = true {
		img, err := r.image(namespaces.WithNamespace(ctx, r.cfg.Namespace), w)
		if err != nil {
			return err
		}
		w.ImageHealth = img.health
		err = r.createContainer(ctx, w, h, img)
		if !errors.Is(err, errNoFiles) || retried {
			return err
		}
		r.unpacked.forget(img.key) // another program removed the files
	}
}

// errNoFiles is the error for an image whose unpacked files are missing.
var errNoFiles = errors.New("the image's files are not unpacked")

// removeEarlier removes another attempt of the workload that does not run. It reports whether
// this attempt exists already.
func (r *Runtime) removeEarlier(ctx context.Context, w runtime.Workload) (exists bool, err error) {
	ctx, cancel := r.call(ctx)
	defer cancel()
	id := runtime.ID(w.Key)
	old, err := r.find(ctx, id)
	if err != nil {
		if errors.Is(err, api.ErrNotFound) {
			err = nil
		}
		return false, err
	}
	if sameCreation(old.Workload, w) {
		return true, nil
	}
	task, err := r.task(ctx, id)
	if err != nil {
		return false, err
	}
	if alive(task) {
		return false, fmt.Errorf("attempt %d still runs: %w", old.Attempt, api.ErrConflict)
	}
	return false, errors.Join(r.remove(ctx, id), r.logs.Next(id))
}

// createContainer creates the container, its files and its task. The container is created first and
// names its snapshot, which protects the snapshot from containerd's garbage collector. This needs two
// fsyncs less than a lease.
func (r *Runtime) createContainer(ctx context.Context, w runtime.Workload, h Handler, img unpacked) error {
	ctx, cancel := r.call(ctx)
	defer cancel()
	if err := r.writeNames(w); err != nil {
		return err
	}
	c, user, err := r.container(ctx, w, h, img)
	if err != nil {
		return err
	}
	if w.Files != nil {
		if err := w.Files.Own(int(user.UID), int(user.GID)); err != nil {
			return runtime.Errorf(api.ReasonNoFiles, "%w", err)
		}
	}
	if _, err := r.c.ContainerService().Create(ctx, c); err != nil {
		return err
	}
	files, err := r.files(ctx, c.ID, img.parent)
	if err == nil {
		files, err = layered(files, w.Layer)
	}
	if err == nil && w.Files != nil {
		err = linkFiles(ctx, files, w.Files.Links)
	}
	if err == nil {
		err = r.newTask(ctx, c.ID, w, files)
	}
	if err != nil {
		return errors.Join(err, r.remove(context.WithoutCancel(ctx), c.ID))
	}
	return nil
}

// container returns the container's metadata, and the user that it runs as.
func (r *Runtime) container(ctx context.Context, w runtime.Workload, h Handler, img unpacked) (c containers.Container, user specs.User, err error) {
	id := runtime.ID(w.Key)
	c = containers.Container{
		ID: id, Image: img.Name(), Snapshotter: r.cfg.Snapshotter, SnapshotKey: id,
		Runtime: containers.RuntimeInfo{Name: h.Runtime},
		Labels:  map[string]string{appLabel: string(w.Instance.Service().App())},
	}
	if h.Runtime == runcV2 && h.Binary != "" {
		if c.Runtime.Options, err = typeurl.MarshalAny(&options.Options{BinaryName: h.Binary}); err != nil {
			return c, user, err
		}
	}
	rec, err := json.Marshal(record{w, img.parent})
	if err != nil {
		return c, user, err
	}
	c.Extensions = map[string]typeurl.Any{extension: &anypb.Any{TypeUrl: typeURL, Value: rec}}
	cfg := r.cfg
	cfg.OpenFiles = r.limitOpenFiles()
	s, err := oci.GenerateSpec(ctx, r.c, &c, cfg.specOpts(w, img.setProcess)...)
	if err != nil {
		return c, user, err
	}
	c.Spec, err = typeurl.MarshalAny(s)
	return c, s.Process.User, err
}

// files creates the container's snapshot from that of its image. It replaces a snapshot that
// a crash left.
func (r *Runtime) files(ctx context.Context, id, parent string) ([]mount.Mount, error) {
	s := r.c.SnapshotService(r.cfg.Snapshotter)
	files, err := s.Prepare(ctx, id, parent)
	if errdefs.IsAlreadyExists(err) {
		if err = ignoreNotFound(s.Remove(ctx, id)); err == nil {
			files, err = s.Prepare(ctx, id, parent)
		}
	}
	if errdefs.IsNotFound(err) {
		err = fmt.Errorf("%w: %w", errNoFiles, err)
	}
	return files, err
}

// layerDirs are the directories in a layer, by the option of the overlay that names them.
var layerDirs = map[string]string{"upperdir": "upper", "workdir": "work"}

// layered returns the mounts of a container's files with another directory for what it writes. It
// creates that directory's content.
func layered(files []mount.Mount, layer string) ([]mount.Mount, error) {
	if layer == "" {
		return files, nil
	}
	if len(files) != 1 || files[0].Type != "overlay" {
		return nil, fmt.Errorf("the snapshotter's files are no overlay, so that storage cannot be limited: %w", api.ErrUnavailable)
	}
	m := files[0]
	m.Options = slices.Clone(m.Options)
	for i, o := range m.Options {
		key, _, _ := strings.Cut(o, "=")
		name, own := layerDirs[key]
		if !own {
			continue
		}
		dir := filepath.Join(layer, name)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // users of the container read it
			return nil, err
		}
		if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // despite the umask
			return nil, err
		}
		m.Options[i] = key + "=" + dir
	}
	return []mount.Mount{m}, nil
}

// find returns the record of a container. It fails with api.ErrNotFound if there is no container,
// and with api.ErrConflict if it has no valid record.
func (r *Runtime) find(ctx context.Context, id string) (rec record, err error) {
	c, err := r.c.ContainerService().Get(ctx, id)
	if errdefs.IsNotFound(err) {
		return rec, fmt.Errorf("container %s: %w", id, api.ErrNotFound)
	}
	if err != nil {
		return rec, err
	}
	return recordOf(c)
}

func recordOf(c containers.Container) (rec record, err error) {
	ext, ok := c.Extensions[extension]
	if !ok {
		return rec, fmt.Errorf("container %s belongs to another program: %w", c.ID, api.ErrConflict)
	}
	if err := json.Unmarshal(ext.GetValue(), &rec); err != nil {
		return rec, fmt.Errorf("decode the workload of container %s: %w: %w", c.ID, err, api.ErrConflict)
	}
	return rec, nil
}
