package root

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

func sharedBy(access string) func(*api.Microservice) {
	return func(m *api.Microservice) {
		m.Volumes = []api.Volume{{Name: "data", Type: api.VolumeCSI, Driver: "csi.example.org", MountPath: "/data", SizeMB: 64, Access: access}}
	}
}

var shared = web.Volume("data")

func newSharingWorld(t *testing.T, clusters ...api.ClusterID) *world {
	w := newDriverWorld(t, clusters...)
	for _, tw := range w.twins {
		tw.features = append(tw.features, api.FeatureVolumeShared)
	}
	w.pass(time.Minute)
	return w
}

// TestInstancesThatShareAVolumeAreInOneCluster, which has one volume for all of them, until the last has gone.
func TestInstancesThatShareAVolumeAreInOneCluster(t *testing.T) {
	w := newSharingWorld(t, "munich", "oslo", "paris")
	w.apply(4, sharedBy(api.AccessManyWriters))
	w.settle()
	home := w.record(web.Instance(0)).Cluster
	together := func(n int) {
		t.Helper()
		for i := range n {
			if in := w.record(web.Instance(i)); in.Cluster != home || in.State != api.Running {
				t.Errorf("instance %d is %s on %q (%s), want it in %s", i, in.State, in.Cluster, in.Detail, home)
			}
		}
	}
	together(4)
	v, ok := w.c.Volume(shared)
	if all := w.c.Volumes("acme"); !ok || len(all) != 1 || v.Cluster != home || !v.InUse || v.Tenant != "acme" || v.Access != api.AccessManyWriters {
		t.Fatalf("volumes: got %+v, want one in %s", all, home)
	}
	for id := range w.twins {
		w.c.noteVolumes(web.Instance(0), id) // a cluster that claims to have it
	}
	if v, _ := w.c.Volume(shared); v.Cluster != home {
		t.Errorf("the volume is in %s after others claimed it, want %s", v.Cluster, home)
	}
	w.restart()
	w.apply(6, sharedBy(api.AccessManyWriters))
	w.settle()
	together(6)
	w.apply(1, sharedBy(api.AccessManyWriters))
	w.settle()
	together(1)
	if err := w.do(DeleteVolume{ID: shared}).Err; !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "service") {
		t.Errorf("delete a volume in use: got %v, want ErrConflict", err)
	}
	for what, spec := range map[string]func(*api.Microservice){"one writer": ofDriver(64, ""), "readers": sharedBy(api.AccessManyReaders)} {
		if err := w.do(Apply{Tenant: "acme", Spec: application(1, spec)}).Err; !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), "access_mode") {
			t.Errorf("apply with %s instead: got %v, want ErrInvalid", what, err)
		}
	}

	// The cluster is silent: nobody starts elsewhere with another volume.
	w.twins[home].off = true
	w.pass(10 * time.Minute)
	if in := w.record(web.Instance(0)); in.Cluster != home || in.Next != nil {
		t.Errorf("it is on %s while the cluster with its volume is silent", in.Cluster)
	}
	w.twins[home].off = false
	w.pass(5 * time.Minute)
	together(1)

	w.must(DeleteApp{App: shop})
	w.settle()
	w.restart()
	if v, ok := w.c.Volume(shared); !ok || v.InUse {
		t.Errorf("volume without its service: got %+v, %v", v, ok)
	}
	w.apply(2, sharedBy(api.AccessManyWriters))
	w.settle()
	together(2)
	w.must(DeleteApp{App: shop})
	w.settle()
	w.must(DeleteVolume{ID: shared, By: "alice"})
	if all := w.c.Volumes("acme"); len(all) > 0 {
		t.Errorf("volumes after the deletion: %+v", all)
	}
}

// TestClustersThatCannotShareVolumesGetNoneOfTheirInstances: they would create a volume for each.
func TestClustersThatCannotShareVolumesGetNoneOfTheirInstances(t *testing.T) {
	w := newDriverWorld(t, "munich")
	w.apply(1, sharedBy(api.AccessManyReaders))
	w.settle()
	if in := w.record(web.Instance(0)); in.Cluster != "" {
		t.Errorf("it is on %s, which cannot share volumes", in.Cluster)
	}
}
