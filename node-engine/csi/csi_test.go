package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"google.golang.org/grpc/codes"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/csi"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/testbed/csidriver"
)

const (
	driverName = "dirs.test.example"
	password   = "correct-horse-battery" // of all calls of the driver
)

var (
	k1   = wire.Key{Instance: "acme/shop.prod.db.prod#0", Epoch: 1}
	k2   = wire.Key{Instance: "acme/shop.prod.db.prod#0", Epoch: 2}
	data = []api.Volume{{Name: "data", Type: api.VolumeCSI, Driver: driverName, MountPath: "/data", SizeMB: 64}}
)

// rig is a node with one driver. The rig is its cluster, too.
type rig struct {
	*Manager
	t       *testing.T
	dir     string
	storage *csidriver.Storage
	server  *csidriver.Server
	driver  *csi.Driver
	cluster *csi.Driver // the driver as the cluster calls it

	mu     sync.Mutex // guards the fields below
	handle string
	cut    bool // the cluster does not answer
	access string
	uses   map[api.InstanceID]bool // of a shared volume
}

func newRig(t *testing.T, timeout time.Duration) *rig {
	return newRigOf(t, timeout, csidriver.Options{})
}

func newRigOf(t *testing.T, timeout time.Duration, o csidriver.Options) *rig {
	programtest.NeedRoot(t)
	dir, err := os.MkdirTemp("", "csi-") // short, for the socket
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, dir: dir}
	t.Cleanup(func() {
		r.storage.Forget("n1")
		if left := mountsUnder(t, dir); len(left) > 0 {
			t.Errorf("mounts left: %v", left)
			return
		}
		_ = os.RemoveAll(dir)
	})
	volumes := filepath.Join(dir, "volumes")
	if err := os.Mkdir(volumes, 0o700); err != nil {
		t.Fatal(err)
	}
	o.Name, o.Dir = driverName, volumes
	r.storage = csidriver.NewStorage(o)
	secrets := filepath.Join(dir, "secrets.yaml")
	if err := os.WriteFile(secrets, []byte("all: {password: "+password+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	must := map[string]map[string]string{}
	for _, m := range []string{"NodeStageVolume", "NodePublishVolume", "NodeExpandVolume"} {
		must[m] = map[string]string{"password": password}
	}
	r.storage.Require(must)
	socket := filepath.Join(dir, "d.sock")
	if r.server, err = csidriver.Serve(socket, r.storage, "n1", nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.server.Close)
	for _, d := range []**csi.Driver{&r.driver, &r.cluster} {
		if *d, err = csi.Open(csi.Options{Name: driverName, Socket: socket, Secrets: secrets, Timeout: timeout}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup((*d).Close)
	}
	r.start()
	return r
}

// start replaces the manager by one that finds what the earlier one left, as after kill -9.
func (r *rig) start() {
	r.t.Helper()
	m, err := Open(Options{
		Dir: filepath.Join(r.dir, "node"), Drivers: map[string]*csi.Driver{driverName: r.driver}, Log: slog.New(slog.DiscardHandler), Pause: 20 * time.Millisecond,
		Attach: r.attach, Detach: r.detach, Ephemeral: []string{driverName},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.Manager = m
}

func (r *rig) attach(ctx context.Context, w wire.WantVolume) (out wire.VolumeAttached, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cut {
		return out, api.ErrUnavailable
	}
	id := api.Volume{Name: w.Name, Access: r.access}.IDFor(w.Instance)
	v, err := r.cluster.Create(ctx, "acme", csi.NewVolume{Name: string(id), Bytes: 64 << 20, Access: r.access})
	if err != nil {
		return out, err
	}
	r.handle = v.Handle
	if r.access != "" {
		r.uses[w.Instance] = true
	}
	at, err := r.cluster.Attach(ctx, "acme", v, "n1", false)
	return wire.VolumeAttached{Handle: v.Handle, Context: v.Context, Attachment: at, SizeMB: 64, Expand: true}, err
}

func (r *rig) detach(ctx context.Context, w wire.WantVolume) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cut {
		return api.ErrUnavailable
	}
	if r.handle == "" {
		return nil // never attached
	}
	if delete(r.uses, w.Instance); len(r.uses) > 0 {
		return nil
	}
	return r.cluster.Detach(ctx, "acme", r.handle, "n1")
}

func mountsUnder(t *testing.T, dir string) (out []string) {
	t.Helper()
	found, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range found {
		out = append(out, m.Mountpoint)
	}
	return out
}

// mounted fails the test unless the volume is mounted once, for the placement.
func (r *rig) mounted(k wire.Key) {
	r.t.Helper()
	mounts, err := r.Prepare(r.t.Context(), k, data)
	if err != nil {
		r.t.Fatalf("prepare: %v", err)
	}
	if err := r.Started(k); err != nil {
		r.t.Errorf("started: %v", err)
	}
	if err := os.WriteFile(filepath.Join(mounts[0].Source, "page"), []byte("x"), 0o600); err != nil {
		r.t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(r.storage.Data(r.handle), "page")); err != nil {
		r.t.Errorf("what was written to %s is not in the volume: %v", mounts[0].Source, err)
	}
	if text, err := os.ReadFile(filepath.Join(r.dirOf(k.Instance.Volume("data")), recordFile)); err != nil || strings.Contains(string(text), password) {
		r.t.Errorf("record of the volume: got %v, %s; want no secret", err, text)
	}
	if got := mountsUnder(r.t, r.dir); len(got) != 2 {
		r.t.Errorf("mounts: got %v, want one staged and one published", got)
	}
}

// left fails the test unless nothing of the volume is left on the node, and its data is still there.
func (r *rig) left() {
	r.t.Helper()
	deadline := time.Now().Add(time.Minute)
	rest := func() string {
		dirs, _ := filepath.Glob(filepath.Join(r.dir, "node", "*"))
		return strings.Join(append(dirs, append(mountsUnder(r.t, r.dir), r.storage.Attached(r.handle))...), " ")
	}
	for strings.TrimSpace(rest()) != "" {
		if time.Now().After(deadline) {
			r.t.Fatalf("left on the node: %s", rest())
		}
		time.Sleep(5 * time.Millisecond)
	}
	if v := r.storage.Volumes(); len(v) > 1 {
		r.t.Errorf("volumes: got %v, want one", v)
	}
	if bad := r.storage.Violations(); len(bad) > 0 {
		r.t.Errorf("violations: %v", bad)
	}
}

// work lets the manager work in the background until the returned function is called.
func (r *rig) work() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var g sync.WaitGroup
	m := r.Manager
	g.Go(func() { _ = m.Run(ctx) })
	return func() { cancel(); g.Wait() }
}

func TestVolumeIsMountedForOnePlacementAtATime(t *testing.T) {
	r := newRig(t, time.Minute)
	defer r.work()()
	r.mounted(k2)
	r.mounted(k2) // again: nothing changes
	if n := r.server.Calls("NodePublishVolume"); n != 1 {
		t.Errorf("calls of NodePublishVolume: got %d, want 1", n)
	}
	if _, err := r.Prepare(t.Context(), k1, data); !errors.Is(err, api.ErrConflict) {
		t.Errorf("prepare for an older placement: got %v, want ErrConflict", err)
	}
	if err := r.Release(t.Context(), k2); err != nil {
		t.Fatal(err)
	}
	r.left()
}

// TestEveryFailureIsRepaired makes each call fail, before and after it is carried out, and lie.
func TestEveryFailureIsRepaired(t *testing.T) {
	for _, method := range []string{"CreateVolume", "ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume", "NodeExpandVolume"} {
		for name, f := range map[string]csidriver.Fault{
			"fails": {Code: codes.Internal, Echo: true}, "fails late": {Code: codes.Internal, Late: true}, "lies": {Lie: true},
		} {
			t.Run(method+" "+name, func(t *testing.T) {
				r := newRig(t, time.Minute)
				defer r.work()()
				r.server.Set(method, f)
				if _, err := r.Prepare(t.Context(), k1, data); err != nil && (!strings.Contains(err.Error(), driverName) || strings.Contains(err.Error(), password)) {
					t.Errorf("prepare: got %v, want the driver named, and no secret", err)
				} else if err == nil && !f.Lie {
					t.Error("prepare: got no error")
				}
				r.server.Set(method, csidriver.Fault{})
				if f.Lie && method != "NodeExpandVolume" {
					// What lied did nothing, so that the volume may not even exist. Release all of it.
					if err := r.Release(t.Context(), k1); err != nil {
						t.Fatal(err)
					}
					return
				}
				r.mounted(k1)
				if err := r.Release(t.Context(), k1); err != nil {
					t.Fatal(err)
				}
				r.left()
			})
		}
	}
	for _, method := range []string{"NodeUnpublishVolume", "NodeUnstageVolume"} {
		for name, f := range map[string]csidriver.Fault{
			"fails": {Code: codes.Internal}, "fails late": {Code: codes.Internal, Late: true}, "lies": {Lie: true},
		} {
			t.Run(method+" "+name, func(t *testing.T) {
				r := newRig(t, time.Minute)
				defer r.work()()
				r.mounted(k1)
				r.server.Set(method, f)
				if err := r.Release(t.Context(), k1); err == nil || !strings.Contains(err.Error(), method) {
					t.Errorf("release: got %v, want an error that names %s", err, method)
				}
				r.server.Set(method, csidriver.Fault{})
				if err := r.Release(t.Context(), k1); err != nil {
					t.Fatal(err)
				}
				r.left()
			})
		}
	}
}

// TestKill9InTheMiddleOfACall ends the engine while the driver carries out a call. The next one mounts the
// volume again, or releases it if no workload needs it.
func TestKill9InTheMiddleOfACall(t *testing.T) {
	for _, method := range []string{"CreateVolume", "ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume", "NodeExpandVolume", "NodeUnpublishVolume", "NodeUnstageVolume"} {
		for _, late := range []bool{false, true} {
			for _, needed := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s late=%v needed=%v", method, late, needed), func(t *testing.T) {
					r := newRig(t, time.Minute)
					ctx, kill := context.WithCancel(t.Context())
					release := strings.HasPrefix(method, "NodeUn")
					if release {
						r.mounted(k1)
					}
					r.server.Set(method, csidriver.Fault{Hang: true, Late: late})
					done := make(chan struct{})
					go func() {
						defer close(done)
						if release {
							_ = r.Release(ctx, k1)
						} else {
							_, _ = r.Prepare(ctx, k1, data)
						}
					}()
					for r.server.Hanging(method) == 0 {
						time.Sleep(time.Millisecond)
					}
					kill()
					<-done
					r.server.Set(method, csidriver.Fault{})
					r.start()
					defer r.work()()
					if needed {
						r.mounted(k1)
						if err := r.Release(t.Context(), k1); err != nil {
							t.Fatal(err)
						}
					} else {
						r.Sweep(nil)
					}
					r.left()
				})
			}
		}
	}
}

func TestReleaseDoesNotWaitForTheCluster(t *testing.T) {
	r := newRig(t, time.Minute)
	defer r.work()()
	r.mounted(k1)
	r.mu.Lock()
	r.cut = true
	r.mu.Unlock()
	if err := r.Release(t.Context(), k1); err != nil {
		t.Fatalf("release without the cluster: %v", err)
	}
	if m := mountsUnder(t, r.dir); len(m) > 0 {
		t.Errorf("mounts after the release: %v", m)
	}
	r.mu.Lock()
	r.cut = false
	r.mu.Unlock()
	r.left()
}

// TestHangingDriverCostsOnlyItsOwnInstances: the volumes of one tenant hang in the driver. Those of another
// tenant do not wait, and the errors say what hangs and for how long. A busy machine has further trials, in which
// the driver hangs for longer.
func TestHangingDriverCostsOnlyItsOwnInstances(t *testing.T) {
	var err error
	for _, limit := range []time.Duration{2 * time.Second, 10 * time.Second, 30 * time.Second} {
		if err = hangs(t, limit); err == nil {
			return
		}
		t.Logf("with a limit of %s for calls: %v", limit, err)
	}
	t.Error(err)
}

func hangs(t *testing.T, limit time.Duration) error {
	r := newRig(t, limit)
	r.server.Set("NodeStageVolume", csidriver.Fault{Hang: true, Times: 20})
	var g sync.WaitGroup
	var wrong atomic.Pointer[error]
	began := time.Now()
	for i := range 20 {
		g.Go(func() {
			k := wire.Key{Instance: api.InstanceID(fmt.Sprintf("acme/shop.prod.db.prod#%d", i)), Epoch: 1}
			_, err := r.Prepare(t.Context(), k, data)
			if err == nil || !strings.Contains(err.Error(), driverName) || !strings.Contains(err.Error(), "has not answered NodeStageVolume for") {
				err = fmt.Errorf("prepare: got %w, want that NodeStageVolume is not answered", err)
				wrong.Store(&err)
			}
		})
	}
	other := newRig(t, time.Minute) // another driver
	defer other.work()()
	other.mounted(k1)
	took := time.Since(began)
	if err := other.Release(t.Context(), k1); err != nil {
		t.Error(err)
	}
	other.left()
	g.Wait()
	if err := wrong.Load(); err != nil {
		return *err
	}
	if took > limit*3/4 {
		return fmt.Errorf("the volume of another driver took %s", took)
	}
	if took := time.Since(began); took > 5*limit {
		return fmt.Errorf("20 volumes of a driver that hangs took %s, want one timeout and some", took)
	}
	return nil
}
