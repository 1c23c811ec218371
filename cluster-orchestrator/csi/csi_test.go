package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/volumes"
	"github.com/treeline-edge/treeline/internal/csi"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/testbed/csidriver"
)

const (
	driverName = "dirs.test.example"
	password   = "correct-horse-battery" // of all calls of the driver
	db         = api.InstanceID("acme/shop.prod.db.prod#0")
)

// rig is a cluster with one node and one driver. It owns the core.
type rig struct {
	*Controller
	t       *testing.T
	storage *csidriver.Storage
	server  *csidriver.Server
	driver  *csi.Driver
	secrets string // file

	mu   sync.Mutex // guards the fields below
	core *cluster.Core
	docs map[string]store.Doc
	gen  api.Generation

	seq      uint64         // of the node's reports
	gotten   api.Generation // of the node's desired set
	readOnly bool           // of the volume in the SLA
	from     string         // snapshot of the volume in the SLA
}

func (r *rig) Do(_ context.Context, in cluster.Input, after func()) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	eff := r.core.Step(time.Unix(1e9, 0), in)
	for _, d := range eff.Save {
		if strings.Contains(string(d.Data), password) {
			r.t.Errorf("the store has a secret of the driver in %s %s", d.Kind, d.Key)
		}
		if r.docs[d.Kind+"/"+d.Key] = d; d.Data == nil {
			delete(r.docs, d.Kind+"/"+d.Key)
		}
	}
	for _, e := range eff.Send {
		if d, ok := e.Msg.(wire.Desired); ok && e.To == api.NodeID("n1").Addr() {
			r.gotten = d.Gen
		}
	}
	if after != nil {
		after()
	}
	return eff.Err
}

func (r *rig) Read(_ context.Context, fn func()) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	fn()
	return nil
}

func (r *rig) do(in cluster.Input) {
	r.t.Helper()
	if err := r.Do(r.t.Context(), in, nil); err != nil {
		r.t.Fatalf("%T: %v", in, err)
	}
}

func newRig(t *testing.T, timeout time.Duration) *rig {
	return newRigOf(t, timeout, csidriver.Options{})
}

func newRigOf(t *testing.T, timeout time.Duration, o csidriver.Options) *rig {
	dir, err := os.MkdirTemp("", "csi-") // short, for the socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	o.Name, o.Dir, o.Uploads = driverName, dir, 1
	r := &rig{t: t, docs: map[string]store.Doc{}, storage: csidriver.NewStorage(o)}
	secrets := filepath.Join(dir, "secrets.yaml")
	if err := os.WriteFile(secrets, []byte("all: {password: "+password+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	must := map[string]map[string]string{}
	for _, m := range []string{"CreateVolume", "DeleteVolume", "ControllerPublishVolume", "ControllerUnpublishVolume", "ControllerExpandVolume", "CreateSnapshot", "DeleteSnapshot"} {
		must[m] = map[string]string{"password": password}
	}
	r.storage.Require(must)
	r.secrets = secrets
	socket := filepath.Join(dir, "d.sock")
	if r.server, err = csidriver.Serve(socket, r.storage, "csi-n1", nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.server.Close)
	if r.driver, err = csi.Open(csi.Options{Name: driverName, Socket: socket, Secrets: secrets, Timeout: timeout}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.driver.Close)
	r.start()
	info := api.NodeInfo{
		ID: "n1", Arch: "amd64", OS: "linux", Capacity: api.Resources{MilliCPU: 4000, MemoryMB: 4096}, Runtimes: []string{"container"}, Network: api.NetworkOverlay,
		Features: []string{api.FeatureOfCSI(driverName), api.FeatureCSIShared}, CSI: []api.NodeCSI{{Driver: driverName, NodeID: "csi-n1"}},
	}
	r.do(cluster.JoinNode{Info: info})
	r.seq++
	r.do(cluster.NodeReport{NodeReport: wire.NodeReport{Node: "n1", Boot: 1, Seq: r.seq, Whole: true, Info: &info}})
	r.do(cluster.NodeAlive{Node: "n1", Alive: wire.Alive{Boot: 1, Seq: r.seq}})
	return r
}

// report has the node report that it has its desired set and no instances yet.
func (r *rig) report() {
	r.t.Helper()
	r.seq++
	r.do(cluster.NodeReport{NodeReport: wire.NodeReport{Node: "n1", Boot: 1, Seq: r.seq, Gen: r.gotten, Whole: true}})
	r.do(cluster.NodeAlive{Node: "n1", Alive: wire.Alive{Boot: 1, Seq: r.seq, Gen: r.gotten}})
}

// start replaces the core by one that has what the earlier one saved, as after kill -9.
func (r *rig) start() {
	r.t.Helper()
	core := cluster.New(cluster.Config{ID: "munich", CSI: []string{driverName}})
	var docs []store.Doc
	for _, d := range r.docs {
		docs = append(docs, d)
	}
	if err := core.Restore(docs); err != nil {
		r.t.Fatal(err)
	}
	r.mu.Lock()
	r.core = core
	r.mu.Unlock()
	r.do(cluster.Start{})
	if r.seq > 0 {
		r.report()
	}
	r.Controller = New(Options{Cluster: "munich", Drivers: map[string]*csi.Driver{driverName: r.driver}, Core: core, Owner: r, Log: slog.New(slog.DiscardHandler)})
}

// wants has the root desire the instance with a volume of a size; 0: without the instance.
func (r *rig) wants(sizeMB int64) wire.WantVolume {
	r.t.Helper()
	r.gen++
	d := wire.Desired{Gen: r.gen}
	if sizeMB > 0 {
		a := wire.Assignment{Instance: db, Epoch: api.EpochOf(api.Revision(r.gen), 0), SpecRev: api.Revision(r.gen), Spec: api.Microservice{
			Name: "db", Namespace: "prod", Virtualization: "container", VCPUs: 1, Memory: 64, Exclusive: true,
			Volumes: []api.Volume{{Name: "data", Type: api.VolumeCSI, Driver: driverName, MountPath: "/data", SizeMB: sizeMB, ReadOnly: r.readOnly, Snapshot: r.from, Config: map[string]string{"class": "fast"}}},
		}}
		d.Put, d.Digest = []wire.Assignment{a}, a.Digest()
	}
	r.do(cluster.Desired{Desired: d})
	in, ok := r.core.Instance(db)
	if sizeMB > 0 && (!ok || in.Node != "n1") {
		r.t.Fatalf("the instance is %+v, want it on n1", in)
	}
	return wire.WantVolume{Key: wire.Key{Instance: db, Epoch: in.Epoch}, Name: "data"}
}

// faulty calls act while a method of the driver has a fault. Calls have a short limit if it hangs. On a busy machine
// that ends calls of other methods too; act is then repeated. The caller starts the core again.
func (r *rig) faulty(method string, f csidriver.Fault, act func() error) (err error) {
	r.t.Helper()
	if f.Hang {
		usual := r.driver
		if r.driver, err = csi.Open(csi.Options{Name: driverName, Socket: filepath.Join(r.storage.Data(""), "d.sock"), Secrets: r.secrets, Timeout: 300 * time.Millisecond}); err != nil {
			r.t.Fatal(err)
		}
		defer func() {
			r.driver.Close()
			r.driver = usual
		}()
		r.start()
	}
	r.server.Set(method, f)
	defer r.server.Set(method, csidriver.Fault{})
	for range 100 {
		if err = act(); !f.Hang || err == nil || strings.Contains(err.Error(), method) {
			break
		}
	}
	return err
}

// TestAttachWaitsForTheNodeThatHasTheVolume: while another node may have the volume mounted, the driver is not asked, and the error
// names the volume and the node. It goes on when the node is removed.
func TestAttachWaitsForTheNodeThatHasTheVolume(t *testing.T) {
	r := newRig(t, 5*time.Second)
	w := r.wants(64)
	r.attached(w, 64)
	r.do(cluster.JoinNode{Info: api.NodeInfo{ID: "n2", Arch: "amd64", OS: "linux", Capacity: api.Resources{MilliCPU: 1000, MemoryMB: 1024}, Runtimes: []string{"container"}}})
	id := db.Volume("data")
	key := volumes.Kind + "/" + string(id)
	doc := r.docs[key]
	var rec volumes.Record
	if err := json.Unmarshal(doc.Data, &rec); err != nil {
		t.Fatal(err)
	}
	rec.Node, rec.NodeID = "n2", "csi-n2"
	var err error
	if doc.Data, err = json.Marshal(rec); err != nil {
		t.Fatal(err)
	}
	r.docs[key] = doc
	r.start() // n2 has not reported since
	calls := r.server.Calls("ControllerUnpublishVolume") + r.server.Calls("ControllerPublishVolume")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = r.Attach(ctx, "n1", w)
	if !errors.Is(err, api.ErrUnavailable) || !strings.Contains(err.Error(), "volume data may still be mounted on node n2") {
		t.Errorf("attach while n2 may have it: got %v", err)
	}
	if n := r.server.Calls("ControllerUnpublishVolume") + r.server.Calls("ControllerPublishVolume"); n != calls {
		t.Errorf("the driver got %d calls", n-calls)
	}
	done := make(chan error, 1)
	go func() { _, err := r.Attach(t.Context(), "n1", w); done <- err }()
	r.do(cluster.RemoveNode{Node: "n2"})
	if err := <-done; err != nil {
		t.Errorf("attach after n2 was removed: %v", err)
	}
}

// TestDriverWithoutReadOnlyAttachmentsIsNotAskedForOne: the node's driver mounts the volume read-only.
func TestDriverWithoutReadOnlyAttachmentsIsNotAskedForOne(t *testing.T) {
	r := newRig(t, 5*time.Second)
	r.readOnly = true
	w := r.wants(64)
	r.attached(w, 64)
	r.deleted(w)
}

func TestDriverWithoutAControllerIsNamed(t *testing.T) {
	r := newRig(t, 5*time.Second)
	r.server.Set("ControllerGetCapabilities", csidriver.Fault{Code: codes.Unimplemented})
	w := r.wants(64)
	if _, err := r.Attach(t.Context(), "n1", w); !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), "no controller service") {
		t.Errorf("attach: got %v, want that the driver has no controller service", err)
	}
	r.server.Set("ControllerGetCapabilities", csidriver.Fault{})
	r.attached(w, 64)
	r.deleted(w)
}

// attached fails the test unless the volume is attached to the node with a size.
func (r *rig) attached(w wire.WantVolume, sizeMB int64) {
	r.t.Helper()
	got, err := r.Attach(r.t.Context(), "n1", w)
	if err != nil {
		r.t.Fatalf("attach: %v", err)
	}
	if v := r.storage.Volumes(); len(v) != 1 || v[0] != got.Handle || r.storage.Attached(v[0]) != "csi-n1" || r.storage.Capacity(v[0]) != sizeMB<<20 {
		r.t.Errorf("volumes of the driver: got %v of %d bytes, attached to %q; want %s attached with %d MiB", v, r.storage.Capacity(got.Handle), r.storage.Attached(got.Handle), got.Handle, sizeMB)
	}
	if got.Context["class"] != "fast" || got.Attachment["attached"] != "csi-n1" || got.SizeMB != sizeMB {
		r.t.Errorf("answer to the node: got %+v", got)
	}
}

// deleted fails the test unless the volume can be deleted, and nothing of it is left.
func (r *rig) deleted(w wire.WantVolume) {
	r.t.Helper()
	r.wants(0)
	r.report()
	if err := r.Delete(r.t.Context(), w.Instance.Volume(w.Name)); err != nil {
		r.t.Fatalf("delete: %v", err)
	}
	if v := r.storage.Volumes(); len(v) > 0 {
		r.t.Errorf("volumes of the driver after the deletion: %v", v)
	}
	for k := range r.docs {
		if strings.HasPrefix(k, "csi_") {
			r.t.Errorf("left in the store: %s", k)
		}
	}
}

func TestVolumeIsCreatedAttachedGrownAndDeleted(t *testing.T) {
	r := newRig(t, time.Minute)
	w := r.wants(64)
	r.attached(w, 64)
	r.attached(w, 64) // again
	if err := r.Delete(t.Context(), w.Instance.Volume(w.Name)); !errors.Is(err, api.ErrConflict) {
		t.Errorf("delete a volume in use: got %v, want ErrConflict", err)
	}
	for _, stale := range []wire.WantVolume{
		{Key: wire.Key{Instance: db, Epoch: w.Epoch + 1}, Name: "data"}, {Key: w.Key, Name: "other"}, {Key: wire.Key{Instance: "evil/shop.prod.db.prod#0", Epoch: w.Epoch}, Name: "data"},
	} {
		if _, err := r.Attach(t.Context(), "n1", stale); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("attach %+v: got %v, want ErrNotFound", stale, err)
		}
	}
	if _, err := r.Attach(t.Context(), "n2", w); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("attach to a node without the placement: got %v, want ErrNotFound", err)
	}
	if err := r.Detach(t.Context(), "n1", w); err != nil || r.storage.Attached(r.storage.Volumes()[0]) != "" {
		t.Errorf("detach: got %v, and it is attached to %q", err, r.storage.Attached(r.storage.Volumes()[0]))
	}
	w = r.wants(96)
	r.attached(w, 96)
	r.deleted(w)
}

// TestControllerFailures makes each call fail or hang, before and after it is carried out, ends the cluster,
// and repeats it.
func TestControllerFailures(t *testing.T) {
	for _, method := range []string{"CreateVolume", "ControllerPublishVolume", "ControllerExpandVolume", "ControllerUnpublishVolume", "DeleteVolume"} {
		for name, f := range map[string]csidriver.Fault{
			"fails": {Code: codes.Internal, Echo: true}, "fails late": {Code: codes.Internal, Late: true}, "hangs": {Hang: true}, "hangs late": {Hang: true, Late: true},
		} {
			t.Run(method+" "+name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, time.Minute)
				w := r.wants(64)
				size := int64(64)
				var act func() error
				switch method {
				case "ControllerExpandVolume":
					r.attached(w, 64)
					w, size = r.wants(96), 96
					fallthrough
				case "CreateVolume", "ControllerPublishVolume":
					act = func() error { _, err := r.Attach(t.Context(), "n1", w); return err }
				case "ControllerUnpublishVolume":
					r.attached(w, 64)
					act = func() error { return r.Detach(t.Context(), "n1", w) }
				case "DeleteVolume":
					r.attached(w, 64)
					r.wants(0)
					r.report()
					act = func() error { return r.Delete(t.Context(), w.Instance.Volume(w.Name)) }
				}
				if err := r.faulty(method, f, act); err == nil || !strings.Contains(err.Error(), driverName) || !strings.Contains(err.Error(), method) || strings.Contains(err.Error(), password) {
					t.Errorf("got %v, want an error that names the driver and the call, and no secret", err)
				}
				if method == "DeleteVolume" {
					r.start()
					if err := r.Delete(t.Context(), w.Instance.Volume(w.Name)); err != nil || len(r.storage.Volumes()) > 0 {
						t.Errorf("delete: got %v, volumes %v", err, r.storage.Volumes())
					}
					return
				}
				r.start()
				r.attached(w, size)
				r.deleted(w)
			})
		}
	}
}

// TestRecordsAreSavedBeforeTheDriverIsCalled: what the driver may have done is known after a crash.
func TestRecordsAreSavedBeforeTheDriverIsCalled(t *testing.T) {
	r := newRig(t, time.Minute)
	w := r.wants(64)
	saved := func() (out struct{ Handle, Node string }) {
		if d, ok := r.docs["csi_volume/"+string(w.Instance.Volume(w.Name))]; ok {
			_ = json.Unmarshal(d.Data, &out)
		}
		return out
	}
	for _, method := range []string{"CreateVolume", "ControllerPublishVolume"} {
		r.server.Set(method, csidriver.Fault{Code: codes.Internal})
		if _, err := r.Attach(t.Context(), "n1", w); err == nil {
			t.Fatal("attach succeeds")
		}
		r.server.Set(method, csidriver.Fault{})
		if _, ok := r.docs["csi_volume/"+string(w.Instance.Volume(w.Name))]; !ok || method == "ControllerPublishVolume" && saved().Node != "n1" {
			t.Errorf("record after %s failed: got %+v, %v", method, saved(), ok)
		}
	}
}

const monday = api.SnapshotID("acme/shop.prod.db.prod#0:data@monday")

// taken fails the test unless the snapshot is ready at the second request.
func (r *rig) taken(id api.SnapshotID) {
	r.t.Helper()
	for i := range 3 {
		s, err := r.Snapshot(r.t.Context(), id)
		if err != nil || s.SizeMB != 64 {
			r.t.Fatalf("snapshot: got %+v, %v, want 64 MiB", s, err)
		}
		if s.Ready {
			return
		}
		if i == 2 {
			r.t.Fatal("the snapshot is not ready after three requests")
		}
	}
}

func TestVolumeIsCreatedFromASnapshotOfADeletedOne(t *testing.T) {
	r := newRig(t, time.Minute)
	w := r.wants(64)
	if _, err := r.Snapshot(t.Context(), monday); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("snapshot of a volume that does not exist: got %v, want ErrNotFound", err)
	}
	r.attached(w, 64)
	page := filepath.Join(r.storage.Data(r.storage.Volumes()[0]), "page")
	if err := os.WriteFile(page, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := r.Snapshot(t.Context(), monday); err != nil || s.Ready {
		t.Fatalf("first request: got %+v, %v, want a snapshot that is not ready", s, err)
	}
	r.wants(0)
	r.report()
	if err := r.Delete(t.Context(), w.Instance.Volume(w.Name)); err != nil {
		t.Fatal(err)
	}
	r.from = strings.TrimPrefix(string(monday), "acme/")
	w = r.wants(64)
	if _, err := r.Attach(t.Context(), "n1", w); !errors.Is(err, api.ErrUnavailable) || !strings.Contains(err.Error(), "not ready") {
		t.Errorf("volume from a snapshot that is not ready: got %v, want ErrUnavailable", err)
	}
	r.taken(monday)
	r.start()
	w = r.wants(32)
	if _, err := r.Attach(t.Context(), "n1", w); !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), "at least 64 MiB") {
		t.Errorf("volume smaller than its snapshot: got %v, want ErrInvalid", err)
	}
	w = r.wants(64)
	r.server.Set("CreateVolume", csidriver.Fault{Code: codes.Internal, Late: true})
	if _, err := r.Attach(t.Context(), "n1", w); err == nil {
		t.Fatal("attach succeeds")
	}
	if err := r.DeleteSnapshot(t.Context(), monday); !errors.Is(err, api.ErrConflict) {
		t.Errorf("delete a snapshot that a volume is being created from: got %v, want ErrConflict", err)
	}
	r.server.Set("CreateVolume", csidriver.Fault{})
	r.start()
	r.attached(w, 64)
	if text, err := os.ReadFile(filepath.Join(r.storage.Data(r.storage.Volumes()[0]), "page")); err != nil || string(text) != "x" {
		t.Errorf("what was written before the snapshot: got %q, %v", text, err)
	}
	if err := r.DeleteSnapshot(t.Context(), monday); err != nil || len(r.storage.Snapshots()) > 0 {
		t.Errorf("delete the snapshot: got %v, and the driver has %v", err, r.storage.Snapshots())
	}
	if err := r.DeleteSnapshot(t.Context(), monday); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("delete it again: got %v, want ErrNotFound", err)
	}
	r.deleted(w)
}

// TestSnapshotFailures makes the calls of snapshots fail and hang, before and after they are carried out, ends
// the cluster, and repeats or deletes the snapshot: the driver has one, or none.
func TestSnapshotFailures(t *testing.T) {
	for _, method := range []string{"CreateSnapshot", "DeleteSnapshot"} {
		for name, f := range map[string]csidriver.Fault{
			"fails": {Code: codes.Internal, Echo: true}, "fails late": {Code: codes.Internal, Late: true}, "hangs": {Hang: true}, "hangs late": {Hang: true, Late: true}, "lies": {Lie: true},
		} {
			for _, repeat := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s %s repeat=%v", method, name, repeat), func(t *testing.T) {
					t.Parallel()
					r := newRig(t, time.Minute)
					w := r.wants(64)
					r.attached(w, 64)
					act := func() error { _, err := r.Snapshot(t.Context(), monday); return err }
					if method == "DeleteSnapshot" {
						r.taken(monday)
						act = func() error { return r.DeleteSnapshot(t.Context(), monday) }
					}
					if err := r.faulty(method, f, act); f.Lie && method == "DeleteSnapshot" {
						if err != nil {
							t.Errorf("got %v", err)
						}
						return // nothing of the driver says that it was not deleted
					} else if err == nil || !strings.Contains(err.Error(), driverName) || !f.Lie && !strings.Contains(err.Error(), method) || strings.Contains(err.Error(), password) {
						t.Errorf("got %v, want an error that names the driver and the call, and no secret", err)
					}
					r.start()
					r.report()
					if method == "CreateSnapshot" {
						r.wants(0)
						r.report()
						if err := r.Delete(t.Context(), w.Instance.Volume(w.Name)); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "not complete") {
							t.Errorf("delete the volume of a snapshot that is not complete: got %v, want ErrConflict", err)
						}
						if repeat {
							r.taken(monday)
						}
					}
					if n := len(r.storage.Snapshots()); n > 1 {
						t.Errorf("the driver has %d snapshots, want at most one", n)
					}
					if err := r.DeleteSnapshot(t.Context(), monday); err != nil && method == "CreateSnapshot" {
						t.Errorf("delete: %v", err)
					}
					if left := r.storage.Snapshots(); len(left) > 0 {
						t.Errorf("the driver has %v after the deletion", left)
					}
					r.deleted(w)
				})
			}
		}
	}
}

func TestDriverWithoutSnapshotsIsNamed(t *testing.T) {
	r := newRig(t, time.Minute)
	w := r.wants(64)
	r.attached(w, 64)
	r.server.Set("ControllerGetCapabilities", csidriver.Fault{Lie: true}) // it has none
	if _, err := r.Snapshot(t.Context(), monday); !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), "cannot take snapshots") {
		t.Errorf("snapshot: got %v, want that the driver cannot take any", err)
	}
	r.server.Set("ControllerGetCapabilities", csidriver.Fault{})
	r.deleted(w)
}

// TestClusterBoundsTheSnapshotsOfATenant fills the core: another tenant is not affected.
func TestClusterBoundsTheSnapshotsOfATenant(t *testing.T) {
	r := newRig(t, time.Minute)
	w := r.wants(64)
	r.attached(w, 64)
	for i := range api.MaxSnapshots {
		r.do(cluster.BeginSnapshot{ID: w.Instance.Volume(w.Name).Snapshot(fmt.Sprintf("s%d", i))})
	}
	if err := r.Do(t.Context(), cluster.BeginSnapshot{ID: monday}, nil); !errors.Is(err, api.ErrTooMany) {
		t.Errorf("one more: got %v, want ErrTooMany", err)
	}
}
