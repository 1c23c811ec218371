package cluster

import (
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// withDisk is a service with a local volume of a size.
func withDisk(sizeMB int64) api.Microservice {
	m := spec(1, 100)
	m.Volumes = []api.Volume{{Name: "data", Type: api.VolumeLocal, MountPath: "/data", SizeMB: sizeMB}}
	return m
}

// newDiskWorld returns a world whose nodes n0, n1, … have 1000 MiB of disk and support local volumes.
func newDiskWorld(t *testing.T, nodes int) *world {
	w := newWorld(t, nodes)
	for id := range w.nodes {
		w.hasVolumes(id)
	}
	w.beat()
	return w
}

// hasVolumes makes a node report its local volumes.
func (w *world) hasVolumes(id api.NodeID, volumes ...api.NodeVolume) {
	n := w.nodes[id]
	r := n.whole()
	info := w.claims[id]
	info.Capacity.StorageMB, info.Volumes = 1000, volumes
	info.Features = []string{api.FeatureStorage, api.FeatureOfVolume(api.VolumeLocal)}
	r.Info = &info
	w.step(r)
}

func volumeOf(n int, sizeMB int64, epoch api.Epoch) api.NodeVolume {
	return api.NodeVolume{ID: web.Instance(n).Volume("data"), SizeMB: sizeMB, Epoch: epoch}
}

func TestInstanceWaitsForTheNodeWithItsVolume(t *testing.T) {
	w := newDiskWorld(t, 3)
	w.wants(assignment(0, 1, withDisk(64)))
	w.beat()
	home := w.at(0).Node
	w.hasVolumes(home, volumeOf(0, 64, w.at(0).Epoch))
	if o := w.observed(web.Instance(0)); !o.Volumes {
		t.Errorf("observation for the root: got %+v, want that the cluster has its volumes", o)
	}
	w.nodes[home].off = true
	w.pass(time.Minute)
	in := w.at(0)
	if in.State != api.ClusterScheduled || in.Node != home {
		t.Fatalf("it is %s on %q while its node is silent, want it to wait for %s", in.State, in.Node, home)
	}
	if o := w.observed(web.Instance(0)); o.Why == nil || strings.Contains(strings.Join(texts(*o.Why), " "), string(home)) {
		t.Errorf("why for the root: got %+v, want an explanation without the name of the node", o.Why)
	}
	why, _ := w.c.Why(web.Instance(0))
	if text := strings.Join(texts(why), "; "); !strings.Contains(text, sched.ConstraintVolume+": its volume is on "+string(home)) || !strings.Contains(text, "silent") {
		t.Errorf("why: got %q, want that its volume is on %s, which is silent", text, home)
	}
	w.restart()
	w.pass(time.Minute)
	if in := w.at(0); in.State == api.Running {
		t.Fatalf("after a restart it runs on %s", in.Node)
	}
	w.nodes[home].off = false
	w.pass(20 * time.Second)
	w.expect(0, api.Running, home)
}

func texts(ex api.Explanation) (out []string) {
	for _, c := range ex.Causes {
		out = append(out, c.Constraint+": "+c.Detail)
	}
	if n := ex.Nearest; n != nil {
		out = append(out, n.Candidate, n.Need, n.Have)
	}
	return out
}

// TestUnreportedVolumeBindsToo: the node may have started the instance and be unable to report that.
func TestUnreportedVolumeBindsToo(t *testing.T) {
	w := newDiskWorld(t, 2)
	w.wants(assignment(0, 1, withDisk(64)))
	w.beat()
	home := w.at(0).Node
	w.nodes[home].off = true
	w.pass(time.Minute)
	w.wants(assignment(0, 2, withDisk(64))) // offered again
	w.pass(time.Minute)
	if in := w.at(0); in.State == api.Running {
		t.Fatalf("it runs on %s, but %s may have its volume", in.Node, home)
	}
	w.nodes[home].off = false
	w.pass(20 * time.Second)
	w.expect(0, api.Running, home)
}

func TestVolumesOutliveTheApplication(t *testing.T) {
	w := newDiskWorld(t, 3)
	w.wants(assignment(0, 1, withDisk(600)))
	w.beat()
	home := w.at(0).Node
	w.hasVolumes(home, volumeOf(0, 600, w.at(0).Epoch))
	w.drops(web.Instance(0))
	w.beat()
	if got := w.node(home).Allocated.StorageMB; got != 600 {
		t.Errorf("disk allocated for the volume: got %d MiB, want 600", got)
	}
	if at, used := w.c.Volume(web.Instance(0).Volume("data")); used || len(at) != 1 || at[0] != home {
		t.Errorf("volume: got nodes %v, used %v, want %s and unused", at, used, home)
	}
	big := spec(1, 100)
	big.Storage = 500
	w.wants(assignment(1, 2, big), assignment(2, 2, big), assignment(3, 2, big))
	w.beat()
	for n := 1; n <= 3; n++ {
		if in := w.at(n); in.Node == home {
			t.Errorf("instance %d takes the disk of the volume on %s", n, home)
		}
	}
	w.wants(assignment(0, 3, withDisk(600)))
	w.beat()
	w.expect(0, api.Running, home)
	if got := w.node(home).Allocated.StorageMB; got != 600 {
		t.Errorf("disk allocated while the instance is back: got %d MiB, want 600", got)
	}
	if _, used := w.c.Volume(web.Instance(0).Volume("data")); !used {
		t.Error("volume of a placed instance: got unused")
	}
}

// TestVolumeOfAnEndedInstanceTakesDisk: a job that has completed takes nothing, but its volume stays.
func TestVolumeOfAnEndedInstanceTakesDisk(t *testing.T) {
	w := newDiskWorld(t, 1)
	job := withDisk(600)
	job.OneShot = true
	w.wants(assignment(0, 1, job))
	w.beat()
	home := w.at(0)
	w.hasVolumes(home.Node, volumeOf(0, 600, home.Epoch))
	if got := w.node(home.Node).Allocated.StorageMB; got != 600 {
		t.Errorf("disk allocated while it runs: got %d MiB, want 600", got)
	}
	n := w.nodes[home.Node]
	n.has[web.Instance(0)] = api.Observed{Instance: web.Instance(0), Epoch: home.Epoch, State: api.Completed, Node: n.id}
	w.step(n.whole())
	if got := w.node(home.Node).Allocated.StorageMB; w.at(0).State != api.Completed || got != 600 {
		t.Errorf("disk allocated after it is %s: got %d MiB, want 600", w.at(0).State, got)
	}
	big := spec(1, 100)
	big.Storage = 500
	w.wants(assignment(0, 1, job), assignment(1, 2, big))
	w.beat()
	if in := w.at(1); in.Node != "" {
		t.Errorf("another instance takes the disk of the volume on %s", in.Node)
	}
}

// TestInventedVolumesDoNotBind: a hostile node reports volumes of instances that the cluster never
// placed there, to attract them.
func TestInventedVolumesDoNotBind(t *testing.T) {
	w := newDiskWorld(t, 2)
	w.wants(assignment(0, 1, withDisk(64)))
	w.beat()
	home := w.at(0)
	liar := api.NodeID("n0")
	if home.Node == liar {
		liar = "n1"
	}
	w.hasVolumes(home.Node, volumeOf(0, 64, home.Epoch))
	w.hasVolumes(liar, volumeOf(0, 64, home.Epoch+1), volumeOf(1, 64, 9))
	if at, _ := w.c.Volume(web.Instance(0).Volume("data")); len(at) != 1 || at[0] != home.Node {
		t.Errorf("nodes with the volume: got %v, want %s", at, home.Node)
	}
	for range 2 {
		w.drops(web.Instance(0))
		w.beat()
		w.restart()
		w.beat()
		w.wants(assignment(0, 2, withDisk(64)))
		w.beat()
		w.expect(0, api.Running, home.Node)
		w.hasVolumes(home.Node, volumeOf(0, 64, w.at(0).Epoch))
	}
	w.nodes[liar].off = true
	w.pass(time.Minute)
	w.wants(assignment(0, 2, withDisk(64)), assignment(1, 3, withDisk(64)))
	w.beat()
	w.expect(1, api.Running, home.Node) // it does not wait for the liar
	if o := w.observed(web.Instance(1)); o.Volumes {
		t.Error("observation for the root: the invented volume counts")
	}
}

// TestReturnedVolumeDoesNotCount: a node that could not start an instance had nothing of it when it moved.
// Its disk returns later, with an old volume of the instance.
func TestReturnedVolumeDoesNotCount(t *testing.T) {
	w := newDiskWorld(t, 2)
	w.wants(assignment(0, 1, withDisk(64)))
	old := w.at(0)
	n := w.nodes[old.Node]
	n.has[web.Instance(0)] = api.Observed{Instance: web.Instance(0), Epoch: old.Epoch, State: api.Failed, Reason: api.ReasonTooManyFails, Node: n.id}
	w.step(n.whole())
	w.pass(10 * time.Second)
	now := w.at(0)
	if now.Node == old.Node {
		t.Fatalf("it is %s on %s, which cannot start it", now.State, now.Node)
	}
	w.hasVolumes(now.Node, volumeOf(0, 64, now.Epoch))
	w.hasVolumes(old.Node, volumeOf(0, 64, now.Epoch+1))
	w.drops(web.Instance(0))
	w.beat()
	w.wants(assignment(0, 2, withDisk(64)))
	w.beat()
	w.expect(0, api.Running, now.Node)
}

// TestVolumesOfOthersDoNotCount: a hostile node reports volumes of another tenant's instance of the
// same name, and ids that are none.
func TestVolumesOfOthersDoNotCount(t *testing.T) {
	w := newDiskWorld(t, 2)
	w.nodes["n1"].off = true
	w.pass(10 * time.Second)
	w.hasVolumes("n0",
		api.NodeVolume{ID: "evil/shop.prod.web.prod#0:data", SizeMB: 64, Epoch: 9},
		api.NodeVolume{ID: "acme/shop.prod.web.prod#0:../data", SizeMB: 64, Epoch: 9},
		api.NodeVolume{ID: "acme/shop.prod.web.prod#00:data", SizeMB: 1 << 40, Epoch: 9},
	)
	if at, _ := w.c.Volume(web.Instance(0).Volume("data")); len(at) > 0 {
		t.Errorf("nodes with the volume of %s: got %v, want none", web.Instance(0), at)
	}
	w.wants(assignment(0, 1, withDisk(64)))
	w.beat()
	w.expect(0, api.Running, "n0") // no other node is there
	if got := w.c.RefusedValues(); got == 0 {
		t.Error("refused values: got none, want those of the ids")
	}
}

func TestRemovedNodeTakesItsVolumesWithIt(t *testing.T) {
	w := newDiskWorld(t, 2)
	w.wants(assignment(0, 1, withDisk(64)))
	w.beat()
	home := w.at(0).Node
	w.hasVolumes(home, volumeOf(0, 64, w.at(0).Epoch))
	w.nodes[home].off = true
	w.pass(time.Minute)
	w.step(RemoveNode{Node: home})
	delete(w.nodes, home)
	w.pass(10 * time.Second)
	if in := w.at(0); in.State != api.Running || in.Node == home {
		t.Errorf("it is %s on %q after its node was removed, want it to begin anew elsewhere", in.State, in.Node)
	}
}

// TestUnusedVolumeDoesNotBind: the instance cannot be created on its node, so nothing was written.
func TestUnusedVolumeDoesNotBind(t *testing.T) {
	w := newDiskWorld(t, 2)
	w.wants(assignment(0, 1, withDisk(64)))
	home := w.at(0)
	n := w.nodes[home.Node]
	n.has[web.Instance(0)] = api.Observed{Instance: web.Instance(0), Epoch: home.Epoch, State: api.Failed, Reason: api.ReasonTooManyFails, Node: n.id}
	w.step(n.whole())
	w.pass(10 * time.Second)
	if in := w.at(0); in.State != api.Running || in.Node == home.Node {
		t.Errorf("it is %s on %q, want it on the other node", in.State, in.Node)
	}
}

func TestDrainedNodeKeepsInstancesWithVolumes(t *testing.T) {
	w := newDiskWorld(t, 2)
	w.wants(assignment(0, 1, withDisk(64)))
	w.beat()
	home := w.at(0).Node
	w.hasVolumes(home, volumeOf(0, 64, w.at(0).Epoch))
	w.step(Drain{Node: home})
	w.pass(10 * time.Second)
	w.expect(0, api.Running, home)
	if left := w.node(home).Remaining; len(left) != 1 || !left[0].Stuck || !strings.Contains(left[0].Why, "volume") {
		t.Errorf("remaining: got %+v, want it stuck because of its volume", left)
	}
}

func TestTmpfsCountsAsMemory(t *testing.T) {
	w := newDiskWorld(t, 1)
	m := spec(1, 100)
	m.Volumes = []api.Volume{{Name: "m", Type: api.VolumeTmpfs, MountPath: "/m", SizeMB: 50}}
	info := w.claims["n0"]
	info.Features = []string{api.FeatureOfVolume(api.VolumeTmpfs)}
	r := w.nodes["n0"].whole()
	r.Info = &info
	w.step(r)
	w.wants(assignment(0, 1, m))
	w.beat()
	w.expect(0, api.Running, "n0")
	if got := w.node("n0").Allocated.MemoryMB; got != 150 {
		t.Errorf("memory allocated: got %d MiB, want 150", got)
	}
}

func TestNodesWithoutVolumesAreLeftOut(t *testing.T) {
	w := newWorld(t, 1) // of an earlier release
	w.wants(assignment(0, 1, withDisk(64)))
	w.beat()
	if in := w.at(0); in.Node != "" {
		t.Errorf("it is on %s, which does not announce volumes", in.Node)
	}
}
