package csi

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/testbed/csidriver"
)

var identity = []api.Volume{{
	Name: "id", Type: api.VolumeCSIEphemeral, Driver: driverName, MountPath: "/id",
	Config: map[string]string{"class": "fast", "csi.storage.k8s.io/pod.namespace": "evil"},
}}

// newEphemeralRig returns a node whose driver has no controller.
func newEphemeralRig(t *testing.T) *rig {
	r := newRigOf(t, time.Minute, csidriver.Options{NodeOnly: true})
	r.cut = true // the cluster is not asked
	return r
}

// identified fails the test unless the volume is mounted once, for the placement.
func (r *rig) identified(k wire.Key) {
	r.t.Helper()
	mounts, err := r.Prepare(r.t.Context(), k, identity)
	if err != nil {
		r.t.Fatalf("prepare: %v", err)
	}
	if err := r.Started(k); err != nil {
		r.t.Errorf("started: %v", err)
	}
	for name, want := range map[string]string{
		"class": "fast", "csi.storage.k8s.io_ephemeral": "true",
		"csi.storage.k8s.io_pod.namespace": "acme", "csi.storage.k8s.io_pod.name": "shop.prod.db.prod#0", "csi.storage.k8s.io_pod.uid": k.String(),
	} {
		if text, err := os.ReadFile(filepath.Join(mounts[0].Source, name)); err != nil || string(text) != want {
			r.t.Errorf("context of the volume: %s is %q (%v), want %q", name, text, err, want)
		}
	}
	if got := mountsUnder(r.t, r.dir); len(got) != 1 {
		r.t.Errorf("mounts: got %v, want one", got)
	}
}

// forgotten fails the test unless nothing of the volume is left.
func (r *rig) forgotten() {
	r.t.Helper()
	r.left()
	if all := r.storage.Volumes(); len(all) > 0 {
		r.t.Errorf("volumes of the driver: got %v, want none", all)
	}
	for _, method := range []string{"NodeStageVolume", "NodeUnstageVolume", "NodeExpandVolume"} {
		if n := r.server.Calls(method); n > 0 {
			r.t.Errorf("%s was called %d times, want never", method, n)
		}
	}
}

// TestEphemeralVolume mounts a volume without the cluster, for one placement after the other.
func TestEphemeralVolume(t *testing.T) {
	r := newEphemeralRig(t)
	stop := r.work()
	r.identified(k1)
	r.identified(k1) // repeated
	if _, err := r.Prepare(t.Context(), k2, identity); err == nil || !strings.Contains(err.Error(), "has it") {
		t.Errorf("a second placement: got %v, want that the first one has the volume", err)
	}
	if err := r.Release(t.Context(), k1); err != nil {
		t.Fatal(err)
	}
	r.identified(k2)
	stop()
	r.start() // after kill -9
	defer r.work()()
	r.identified(k2)
	if err := r.Release(t.Context(), k2); err != nil {
		t.Fatal(err)
	}
	r.forgotten()
}

func TestKill9OfAnEphemeralVolume(t *testing.T) {
	for _, method := range []string{"NodePublishVolume", "NodeUnpublishVolume"} {
		for _, late := range []bool{false, true} {
			for _, needed := range []bool{false, true} {
				r := newEphemeralRig(t)
				ctx, kill := context.WithCancel(t.Context())
				call := func() { _, _ = r.Prepare(ctx, k1, identity) }
				if method == "NodeUnpublishVolume" {
					r.identified(k1)
					call = func() { _ = r.Release(ctx, k1) }
				}
				r.server.Set(method, csidriver.Fault{Hang: true, Late: late})
				done := make(chan struct{})
				go func() {
					defer close(done)
					call()
				}()
				for r.server.Hanging(method) == 0 {
					time.Sleep(time.Millisecond)
				}
				kill()
				<-done
				r.server.Set(method, csidriver.Fault{})
				r.start()
				stop := r.work()
				if needed {
					r.identified(k1)
					if err := r.Release(t.Context(), k1); err != nil {
						t.Fatalf("%s, late %t: %v", method, late, err)
					}
				} else {
					r.Sweep(nil)
				}
				r.forgotten()
				stop()
			}
		}
	}
}

// TestEphemeralVolumesNeedPermission: their parameters are a tenant's, so that the operator of the node decides.
func TestEphemeralVolumesNeedPermission(t *testing.T) {
	r := newEphemeralRig(t)
	r.opt.Ephemeral = nil
	if _, err := r.Prepare(t.Context(), k1, identity); err == nil || !strings.Contains(err.Error(), "csi_ephemeral") {
		t.Errorf("got %v, want an error that names the key", err)
	}
	if n := r.server.Calls("NodePublishVolume"); n > 0 {
		t.Errorf("the driver was asked %d times, want never", n)
	}
	r.forgotten()
}

// TestVolumeChangesItsType: an SLA gives a volume's name to an ephemeral one. The cluster detaches the former first.
func TestVolumeChangesItsType(t *testing.T) {
	r := newRig(t, time.Minute)
	defer r.work()()
	r.mounted(k1)
	r.start() // k1 is not of this process
	defer r.work()()
	other := []api.Volume{{Name: "data", Type: api.VolumeCSIEphemeral, Driver: driverName, MountPath: "/data"}}
	if _, err := r.Prepare(t.Context(), k2, other); err == nil || !strings.Contains(err.Error(), "another type") {
		t.Errorf("got %v, want that the former is not detached yet", err)
	}
	r.left()
	if _, err := r.Prepare(t.Context(), k2, other); err == nil || !strings.Contains(err.Error(), "is ephemeral: true") {
		t.Errorf("got %v, want that the driver is asked for an ephemeral volume and refuses", err)
	}
	if err := r.Release(t.Context(), k2); err != nil {
		t.Fatal(err)
	}
	r.left()
}
