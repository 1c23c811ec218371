package root

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

const monday = api.SnapshotID("acme/shop.prod.web.prod#0:data@monday")

func ofDriver(sizeMB int64, snapshot string) func(*api.Microservice) {
	return func(m *api.Microservice) {
		m.Exclusive = true
		m.Volumes = []api.Volume{{Name: "data", Type: api.VolumeCSI, Driver: "csi.example.org", MountPath: "/data", SizeMB: sizeMB, Snapshot: snapshot}}
	}
}

func newDriverWorld(t *testing.T, clusters ...api.ClusterID) *world {
	w := newWorld(t)
	for _, id := range clusters {
		tw := w.enter(id, 10)
		tw.volumes, tw.features = true, []string{api.FeatureOfCSI("csi.example.org"), api.FeatureVolumeSnapshot}
	}
	w.settle()
	return w
}

// TestServiceIsPlacedWhereItsSnapshotIs, also when the snapshot's volume is gone.
func TestServiceIsPlacedWhereItsSnapshotIs(t *testing.T) {
	w := newDriverWorld(t, "munich", "oslo")
	w.apply(1, ofDriver(64, ""))
	w.settle()
	home := w.record(web.Instance(0)).Cluster
	name := strings.TrimPrefix(string(monday), "acme/")
	if err := w.do(Apply{Tenant: "acme", Spec: application(1, ofDriver(64, name))}).Err; !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), "there is no snapshot") {
		t.Errorf("apply with a snapshot that does not exist: got %v, want ErrInvalid", err)
	}
	w.must(BeginSnapshot{ID: monday})
	w.must(BeginSnapshot{ID: monday}) // its answer was lost
	if err := w.do(Apply{Tenant: "acme", Spec: application(1, ofDriver(64, name))}).Err; !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), "not ready") {
		t.Errorf("apply with a snapshot that is not ready: got %v, want ErrInvalid", err)
	}
	if err := w.do(SnapshotTaken{ID: monday, SnapshotState: api.SnapshotState{Ready: true, SizeMB: -1}}).Err; err == nil {
		t.Error("a snapshot of -1 MiB is accepted")
	}
	w.must(SnapshotTaken{ID: monday, SnapshotState: api.SnapshotState{Ready: true, SizeMB: 70}, By: "alice"})
	if err := w.do(BeginSnapshot{ID: monday}).Err; !errors.Is(err, api.ErrConflict) {
		t.Errorf("take it again: got %v, want ErrConflict", err)
	}
	w.must(DeleteApp{App: shop})
	w.settle()
	w.must(DeleteVolume{ID: first, By: "alice"})
	w.restart()
	if s, ok := w.c.Snapshot(monday); !ok || !s.Ready || s.SizeMB != 70 || s.Cluster != home || s.Driver != "csi.example.org" {
		t.Fatalf("snapshot after a restart: got %+v, %v", s, ok)
	}
	for want, spec := range map[string]api.Application{
		"at least 70 MiB": application(1, ofDriver(69, name)),
		"one of CSI driver": application(1, func(m *api.Microservice) {
			ofDriver(70, name)(m)
			m.Volumes[0].Driver = "other.example.org"
		}),
	} {
		if err := w.do(Apply{Tenant: "acme", Spec: spec}).Err; !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("apply: got %v, want %q", err, want)
		}
		if _, err := w.c.Plan(w.now, "acme", []api.Application{spec}, nil); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("plan: got %v, want ErrInvalid", err)
		}
	}
	if err := w.do(Apply{Tenant: "evil", Spec: application(1, ofDriver(70, name))}).Err; !errors.Is(err, api.ErrInvalid) {
		t.Errorf("apply of another tenant: got %v, want ErrInvalid", err)
	}
	for range 3 { // whichever cluster the scheduler prefers
		w.apply(1, ofDriver(70, name))
		w.settle()
		if in := w.record(web.Instance(0)); in.Cluster != home || in.State != api.Running {
			t.Fatalf("it is %s on %q, want %s, which has the snapshot", in.State, in.Cluster, home)
		}
		if err := w.do(DeleteSnapshot{ID: monday}).Err; !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "is created from it") {
			t.Errorf("delete a snapshot that an SLA names: got %v, want ErrConflict", err)
		}
		w.must(DeleteApp{App: shop})
		w.settle()
		w.must(DeleteVolume{ID: first, By: "alice"})
	}
	w.must(RemoveCluster{ID: home})
	if all := w.c.Snapshots(""); len(all) > 0 {
		t.Errorf("snapshots of a removed cluster: %+v", all)
	}
}

func TestATenantHasABoundedNumberOfSnapshots(t *testing.T) {
	w := newDriverWorld(t, "munich")
	w.apply(1, ofDriver(64, ""))
	w.must(Apply{Tenant: "other", Spec: application(1, ofDriver(64, ""))})
	w.settle()
	for i := range api.MaxSnapshots {
		w.must(BeginSnapshot{ID: first.Snapshot(fmt.Sprintf("s%d", i))})
	}
	if err := w.do(BeginSnapshot{ID: monday}).Err; !errors.Is(err, api.ErrTooMany) {
		t.Errorf("one more: got %v, want ErrTooMany", err)
	}
	w.must(BeginSnapshot{ID: "other/shop.prod.web.prod#0:data@monday"})
	w.must(DeleteSnapshot{ID: first.Snapshot("s0"), By: "alice"})
	w.must(BeginSnapshot{ID: monday})
	if err := w.do(BeginSnapshot{ID: "acme/shop.prod.web.prod#0:none@x"}).Err; !errors.Is(err, api.ErrNotFound) {
		t.Errorf("snapshot of a volume that does not exist: got %v, want ErrNotFound", err)
	}
}
