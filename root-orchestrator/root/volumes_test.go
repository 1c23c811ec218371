package root

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

func disk(sizeMB int64) func(*api.Microservice) {
	return func(m *api.Microservice) {
		m.Volumes = []api.Volume{{Name: "data", Type: api.VolumeLocal, MountPath: "/data", SizeMB: sizeMB}}
	}
}

const first = api.VolumeID("acme/shop.prod.web.prod#0:data")

func newDiskWorld(t *testing.T, clusters ...api.ClusterID) *world {
	w := newWorld(t)
	for _, id := range clusters {
		w.enter(id, 10).volumes = true
	}
	w.settle()
	return w
}

func TestInstanceStaysInTheClusterWithItsVolume(t *testing.T) {
	w := newDiskWorld(t, "munich", "oslo")
	w.apply(1, disk(64))
	w.settle()
	home := w.record(web.Instance(0)).Cluster
	v, ok := w.c.Volume(first)
	if !ok || v.Cluster != home || v.SizeMB != 64 || v.Tenant != "acme" || !v.InUse {
		t.Fatalf("volume: got %+v, %v, want it in %s", v, ok, home)
	}
	tw := w.twins[home]
	for _, fails := range []func(bool){
		func(yes bool) { tw.off = yes }, // the cluster is silent
		func(yes bool) { // it hands the instance back
			tw.full = yes
			if yes {
				clear(tw.known)
			}
		},
	} {
		fails(true)
		w.pass(5 * time.Minute)
		if in := w.record(web.Instance(0)); in.Cluster != "" && in.Cluster != home || in.Next != nil {
			t.Fatalf("it is on %s, its volume is in %s", in.Cluster, home)
		}
		w.restart()
		fails(false)
		w.pass(5 * time.Minute)
		if in := w.record(web.Instance(0)); in.Cluster != home || in.State != api.Running {
			t.Fatalf("it is %s on %q (%s), want it to run on %s again", in.State, in.Cluster, in.Detail, home)
		}
	}
	tw.full = true
	clear(tw.known)
	w.pass(time.Minute)
	why, _ := w.c.Why(web.Instance(0), w.now)
	text := ""
	for _, c := range why.Root.Causes {
		text += c.Constraint + ": " + c.Detail + "; "
	}
	if !strings.Contains(text, "volume: its volume is on "+string(home)) {
		t.Errorf("why: got %q, want that its volume is on %s", text, home)
	}
}

func TestVolumeOutlivesItsApplicationAndIsDeletedOnce(t *testing.T) {
	w := newDiskWorld(t, "munich", "oslo")
	w.apply(1, disk(64))
	w.settle()
	home := w.record(web.Instance(0)).Cluster
	if err := w.do(DeleteVolume{ID: first}).Err; !errors.Is(err, api.ErrConflict) {
		t.Errorf("delete a volume in use: got %v, want ErrConflict", err)
	}
	w.must(DeleteApp{App: shop})
	w.settle()
	w.restart()
	v, ok := w.c.Volume(first)
	if !ok || v.InUse || v.Cluster != home {
		t.Fatalf("volume without its application: got %+v, %v, want it in %s", v, ok, home)
	}
	w.settle()
	if err := w.do(Apply{Tenant: "acme", Spec: application(1, disk(65))}).Err; !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), "64 MiB") {
		t.Errorf("apply with another size: got %v, want ErrInvalid", err)
	}
	if _, err := w.c.Plan(w.now, "acme", []api.Application{application(1, disk(65))}, nil); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("plan with another size: got %v, want ErrInvalid", err)
	}
	for range 3 { // whichever cluster the scheduler prefers
		w.apply(1, disk(64))
		w.settle()
		if in := w.record(web.Instance(0)); in.Cluster != home || in.State != api.Running {
			t.Fatalf("applied again, it is %s on %q, want %s", in.State, in.Cluster, home)
		}
		w.must(DeleteApp{App: shop})
		w.settle()
	}
	w.must(DeleteVolume{ID: first, By: "alice"})
	if err := w.do(DeleteVolume{ID: first}).Err; !errors.Is(err, api.ErrNotFound) {
		t.Errorf("delete it again: got %v, want ErrNotFound", err)
	}
	w.restart()
	if _, ok := w.c.Volume(first); ok {
		t.Error("the deleted volume is back after a restart")
	}
	w.apply(1, disk(65))
	w.settle()
	if v, _ := w.c.Volume(first); v.SizeMB != 65 {
		t.Errorf("new volume: got %+v, want 65 MiB", v)
	}
}

// TestVolumeOfAnotherTenantIsNotGiven: another tenant has an application of the same name.
func TestVolumeOfAnotherTenantIsNotGiven(t *testing.T) {
	w := newDiskWorld(t, "munich", "oslo")
	w.apply(1, disk(64))
	w.settle()
	w.must(DeleteApp{App: shop})
	w.settle()
	w.must(Apply{Tenant: "evil", Spec: application(1, disk(128))})
	w.settle()
	other := api.VolumeID("evil/shop.prod.web.prod#0:data")
	if v, ok := w.c.Volume(other); !ok || v.SizeMB != 128 {
		t.Errorf("volume of the other tenant: got %+v, %v, want its own", v, ok)
	}
	if got := w.c.Volumes("evil"); len(got) != 1 || got[0].ID != other {
		t.Errorf("volumes that the other tenant sees: got %+v, want its own", got)
	}
}

// TestHostileClusterGetsNoVolumes: it reports volumes of instances that it does not have, and of a
// service without volumes.
func TestHostileClusterGetsNoVolumes(t *testing.T) {
	w := newDiskWorld(t, "munich", "evil")
	w.must(SetGrant{ID: "evil", Grant: api.Grant{Tenants: []api.Tenant{"evil"}}})
	w.apply(1, disk(64))
	w.settle()
	evil := w.twins["evil"]
	for _, id := range []api.InstanceID{web.Instance(0), web.Instance(7), "acme/shop.prod.db.prod#0"} {
		evil.local[id] = api.Observed{Instance: id, Epoch: api.EpochOf(9, 1), State: api.Running, Volumes: true, Local: id != web.Instance(0)}
	}
	w.settle()
	if all := w.c.Volumes(""); len(all) != 1 || all[0].Cluster != "munich" {
		t.Errorf("volumes: got %+v, want the one in munich", all)
	}
	plain := application(1)
	plain.Name = "plain"
	w.must(Apply{Tenant: "acme", Spec: plain})
	w.settle()
	if all := w.c.Volumes(""); len(all) != 1 {
		t.Errorf("volumes with a service without any: got %+v, want one", all)
	}
}

func TestATenantHasABoundedNumberOfVolumes(t *testing.T) {
	w := newDiskWorld(t, "munich")
	few := func(m *api.Microservice) {
		disk(16)(m)
		m.VCPUs, m.Memory = 0, 0
	}
	if err := w.do(Apply{Tenant: "acme", Spec: application(4097, few)}).Err; !errors.Is(err, api.ErrTooMany) {
		t.Errorf("4097 volumes: got %v, want ErrTooMany", err)
	}
	w.must(Apply{Tenant: "acme", Spec: application(4090, few)})
	other := application(7, few)
	other.Name = "other"
	if err := w.do(Apply{Tenant: "acme/lab", Spec: other}).Err; !errors.Is(err, api.ErrTooMany) {
		t.Errorf("4097 volumes of two applications: got %v, want ErrTooMany", err)
	}
	if err := w.do(Scale{Service: web, Replicas: 4097}).Err; !errors.Is(err, api.ErrTooMany) {
		t.Errorf("scale to 4097 volumes: got %v, want ErrTooMany", err)
	}
	w.must(Apply{Tenant: "bolt", Spec: other})
	w.must(Apply{Tenant: "acme", Spec: application(4090, few)})
}

func TestRemovedClusterTakesItsVolumesWithIt(t *testing.T) {
	w := newDiskWorld(t, "munich", "oslo")
	w.apply(1, disk(64))
	w.settle()
	home := w.record(web.Instance(0)).Cluster
	w.must(RemoveCluster{ID: home})
	delete(w.twins, home)
	w.settle()
	if v, ok := w.c.Volume(first); !ok || v.Cluster == home {
		t.Errorf("volume: got %+v, %v, want a new one in the other cluster", v, ok)
	}
}

func TestClusterWithoutVolumesIsLeftOut(t *testing.T) {
	w := newWorld(t, "old")
	w.apply(1, disk(64))
	w.settle()
	if in := w.record(web.Instance(0)); in.Cluster != "" {
		t.Errorf("it is on %s, which does not announce volumes", in.Cluster)
	}
}

func TestCSIVolumesMayGrow(t *testing.T) {
	of := func(driver string, sizeMB int64) func(*api.Microservice) {
		return func(m *api.Microservice) {
			m.Exclusive = true
			m.Volumes = []api.Volume{{Name: "data", Type: api.VolumeCSI, Driver: driver, MountPath: "/data", SizeMB: sizeMB}}
		}
	}
	w := newDiskWorld(t, "munich")
	w.twins["munich"].features = []string{api.FeatureOfCSI("csi.example.org")}
	w.pass(time.Minute)
	w.apply(1, of("csi.example.org", 64))
	w.settle()
	if v, ok := w.c.Volume(first); !ok || v.Driver != "csi.example.org" || v.SizeMB != 64 {
		t.Fatalf("volume: got %+v, %v", v, ok)
	}
	for _, refused := range []func(*api.Microservice){of("csi.example.org", 32), of("csi.example.com", 64), disk(64)} {
		if err := w.do(Apply{Tenant: "acme", Spec: application(1, refused)}).Err; !errors.Is(err, api.ErrInvalid) {
			t.Errorf("smaller, or of another driver: got %v, want ErrInvalid", err)
		}
	}
	w.apply(1, of("csi.example.org", 128))
	w.settle()
	if v, _ := w.c.Volume(first); v.SizeMB != 128 {
		t.Errorf("size after the volume has grown: got %d MiB, want 128", v.SizeMB)
	}
}
