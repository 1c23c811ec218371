package cluster

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

const csiDriver = "csi.example.org"

func withCSI() api.Microservice {
	m := spec(1, 100)
	m.Exclusive = true // as the parser sets it
	m.Volumes = []api.Volume{{Name: "data", Type: api.VolumeCSI, Driver: csiDriver, MountPath: "/data", SizeMB: 64}}
	return m
}

// newCSIWorld returns a world whose nodes n0, n1, … have the driver, in zones a, b, a, …
func newCSIWorld(t *testing.T, nodes int) *world {
	w := newWorld(t, nodes)
	w.cfg.CSI = []string{csiDriver}
	w.restart()
	w.pass(defaultDead)
	for i, id := range slices.Sorted(func(yield func(api.NodeID) bool) {
		for id := range w.nodes {
			if !yield(id) {
				return
			}
		}
	}) {
		w.describes(id, func(info *api.NodeInfo) {
			info.Features = []string{api.FeatureOfCSI(csiDriver)}
			info.CSI = []api.NodeCSI{{Driver: csiDriver, NodeID: "csi-" + string(id), Topology: map[string]string{"zone": string('a' + rune(i%2))}}}
		})
	}
	w.beat()
	return w
}

func wantOf(in api.Instance) wire.WantVolume {
	return wire.WantVolume{Key: wire.Key{Instance: in.ID, Epoch: in.Epoch}, Name: "data"}
}

// attached takes the steps of an adapter whose driver created the volume in the node's zone.
func (w *world) attached(in api.Instance) {
	w.t.Helper()
	want := wantOf(in)
	_, at, err := w.c.VolumeOf(in.Node, want)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, step := range []Input{
		BeginVolume{Node: in.Node, WantVolume: want},
		VolumeCreated{ID: want.Instance.Volume(want.Name), Handle: "v1", Topology: []map[string]string{at.Topology}},
		AttachVolume{Node: in.Node, WantVolume: want},
	} {
		if eff := w.step(step); eff.Err != nil {
			w.t.Fatalf("%T: %v", step, eff.Err)
		}
	}
}

// TestCSIVolumeFollowsItsInstance: the instance moves within the zone of its volume, also after a restart, and
// the volume is given to its newest placement only.
func TestCSIVolumeFollowsItsInstance(t *testing.T) {
	w := newCSIWorld(t, 3) // zones a, b, a
	w.step(Cordon{Node: "n1", On: true})
	w.wants(assignment(0, 1, withCSI()))
	w.beat()
	w.step(Cordon{Node: "n1"})
	first := w.at(0)
	w.attached(first)
	w.restart()
	w.pass(defaultDead)
	other := map[api.NodeID]api.NodeID{"n0": "n2", "n2": "n0"}[first.Node]
	w.nodes[first.Node].off = true
	w.pass(time.Minute)
	second := w.expect(0, api.Running, other)
	ex, _ := w.c.Why(web.Instance(0))
	if !slices.ContainsFunc(ex.Causes, func(c api.Cause) bool {
		return c.Constraint == sched.ConstraintVolume && strings.Contains(c.Detail, "zone=a")
	}) {
		t.Errorf("why: got %+v, want the zone of the volume for n1", ex)
	}
	r, ok := w.c.CSIVolume(first.ID.Volume("data"))
	if !ok || r.Node != first.Node || r.NodeID != "csi-"+string(first.Node) || r.Handle != "v1" {
		t.Errorf("volume before it is detached: got %+v, %v", r, ok)
	}
	if eff := w.step(AttachVolume{Node: second.Node, WantVolume: wantOf(second)}); !errors.Is(eff.Err, api.ErrConflict) {
		t.Errorf("attach it to %s while it is on %s: got %v, want ErrConflict", second.Node, first.Node, eff.Err)
	}
	w.step(VolumeDetached{ID: r.ID, Node: first.Node})
	if eff := w.step(AttachVolume{Node: second.Node, WantVolume: wantOf(second)}); eff.Err != nil {
		t.Errorf("attach: %v", eff.Err)
	}
	w.nodes[first.Node].off = false
	for _, stale := range []Input{
		BeginVolume{Node: first.Node, WantVolume: wantOf(first)},
		AttachVolume{Node: first.Node, WantVolume: wantOf(first)},
		AttachVolume{Node: first.Node, WantVolume: wantOf(second)},
		AttachVolume{Node: "n1", WantVolume: wantOf(second)},
	} {
		if eff := w.step(stale); !errors.Is(eff.Err, api.ErrNotFound) {
			t.Errorf("%+v: got %v, want ErrNotFound", stale, eff.Err)
		}
	}
	w.step(VolumeDetached{ID: r.ID, Node: first.Node}) // late
	if r, _ := w.c.CSIVolume(r.ID); r.Node != second.Node || r.Epoch != second.Epoch {
		t.Errorf("volume after stale requests: got %+v, want it on %s", r, second.Node)
	}
	if _, used := w.c.Volume(r.ID); !used {
		t.Error("volume of a placed instance: got unused")
	}
	w.drops(web.Instance(0))
	w.pass(time.Minute)
	if _, used := w.c.Volume(r.ID); used {
		t.Error("volume without its instance: got used")
	}
	w.step(VolumeDeleted{ID: r.ID})
	if _, ok := w.c.CSIVolume(r.ID); ok {
		t.Error("the volume exists after its deletion")
	}
}

// TestCSIVolumeStaysAttachedUntilItsNodeHasUnmountedIt: a node that was cut off stops the instance with its lease, and
// may need longer to write back what its memory caches and to unmount the volume. Until then it is not detached,
// whether the node stays silent or returns, and `why` says so.
func TestCSIVolumeStaysAttachedUntilItsNodeHasUnmountedIt(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"the node stays silent", "the node returns and still unmounts", "the node is removed", "the cluster restarts"} {
		t.Run(way, func(t *testing.T) {
			w := newCSIWorld(t, 3)
			w.step(Cordon{Node: "n1", On: true})
			w.wants(assignment(0, 1, withCSI()))
			w.beat()
			first := w.at(0)
			w.attached(first)
			other := map[api.NodeID]api.NodeID{"n0": "n2", "n2": "n0"}[first.Node]
			volume := first.ID.Volume("data")
			kept := func() bool {
				again, why := w.c.KeptAttached(volume, other)
				if (again > 0) != (why != "") || why != "" && !strings.Contains(why, string(first.Node)) {
					t.Fatalf("got %s, %q", again, why)
				}
				ex, _ := w.c.Why(first.ID)
				if told := slices.ContainsFunc(ex.Causes, func(c api.Cause) bool { return c.Constraint == sched.ConstraintVolume && c.Detail == why }); told != (why != "") {
					t.Errorf("why: got %+v, want the cause %q", ex.Causes, why)
				}
				return why != ""
			}
			w.nodes[first.Node].off = true
			for n := 0; w.at(0).Node != other; n++ {
				if n > 15 {
					t.Fatalf("the instance is not placed on %s", other)
				}
				w.pass(2 * time.Second)
			}
			if !kept() {
				t.Error("the volume may be detached as soon as its node is dead")
			}
			switch way {
			case "the node stays silent":
				w.pass(w.c.cfg.DetachAfter - 10*time.Second)
				if !kept() {
					t.Error("the volume may be detached before DetachAfter")
				}
				w.pass(11 * time.Second)
			case "the node returns and still unmounts":
				n := w.nodes[first.Node]
				n.off, n.hangs = false, true
				w.pass(w.c.cfg.DetachAfter + 10*time.Second)
				if !kept() {
					t.Error("the volume may be detached while its node reports the instance")
				}
				n.hangs = false
				w.pass(10 * time.Second)
			case "the node is removed":
				w.step(RemoveNode{Node: first.Node})
			case "the cluster restarts":
				w.restart()
				if !kept() {
					t.Error("the volume may be detached after a restart, which does not know since when the node is silent")
				}
				w.pass(w.c.cfg.DetachAfter + 20*time.Second)
			}
			if kept() {
				t.Error("the volume is not detached")
			}
		})
	}
}

func TestNodesWithADriverThatTheClusterLacksAreLeftOut(t *testing.T) {
	w := newWorld(t, 1)
	w.describes("n0", func(info *api.NodeInfo) { info.Features = []string{api.FeatureOfCSI(csiDriver)} })
	w.wants(assignment(0, 1, withCSI()))
	w.beat()
	if in := w.at(0); in.Node != "" {
		t.Errorf("it is on %s, whose driver the cluster cannot call", in.Node)
	}
	ex, _ := w.c.Why(web.Instance(0))
	if len(ex.Causes) != 1 || ex.Causes[0].Constraint != sched.ConstraintFeatures || !strings.Contains(ex.Causes[0].Detail, csiDriver) {
		t.Errorf("why: got %+v, want the driver", ex)
	}
}

func withSharedCSI() api.Microservice {
	m := spec(1, 100)
	m.Volumes = []api.Volume{{Name: "data", Type: api.VolumeCSI, Driver: csiDriver, MountPath: "/data", SizeMB: 64, Access: api.AccessManyWriters}}
	return m
}

func newSharingWorld(t *testing.T, nodes int) *world {
	w := newCSIWorld(t, nodes)
	for id := range w.nodes {
		w.describes(id, func(info *api.NodeInfo) {
			info.Features = []string{api.FeatureOfCSI(csiDriver), api.FeatureCSIShared}
		})
	}
	w.beat()
	return w
}

func (w *world) attaches(in api.Instance) error {
	return w.step(AttachVolume{Node: in.Node, WantVolume: wantOf(in)}).Err
}

// TestSharedVolumeIsAttachedForItsInstances: for those that a node has, and no others, also after a restart.
func TestSharedVolumeIsAttachedForItsInstances(t *testing.T) {
	w := newSharingWorld(t, 4)
	w.wants(assignment(0, 1, withSharedCSI()), assignment(1, 1, withSharedCSI()), assignment(2, 1, withSharedCSI()))
	w.beat()
	first, second, third := w.at(0), w.at(1), w.at(2)
	if first.Node == "" || second.Node == "" || first.Node == second.Node {
		t.Fatalf("instances are on %q and %q, want them on two nodes at once", first.Node, second.Node)
	}
	id := web.Volume("data")
	for _, step := range []Input{
		BeginVolume{Node: first.Node, WantVolume: wantOf(first)},
		BeginVolume{Node: second.Node, WantVolume: wantOf(second)},
		VolumeCreated{ID: id, Handle: "v1"},
	} {
		if err := w.step(step).Err; err != nil {
			t.Fatalf("%T: %v", step, err)
		}
	}
	for _, in := range []api.Instance{first, second, third} {
		if err := w.attaches(in); err != nil {
			t.Fatalf("attach for %s: %v", in.ID, err)
		}
	}
	for n := range 3 {
		if o, _ := w.c.place.Observed(web.Instance(n)); !o.Volumes {
			t.Errorf("instance %d: it is not reported to have volumes", n)
		}
	}
	w.restart()
	w.pass(defaultDead)
	if r, ok := w.c.CSIVolume(id); !ok || r.Nodes[first.Node].For[first.ID] != first.Epoch || r.Nodes[second.Node].NodeID != "csi-"+string(second.Node) || r.Node != "" {
		t.Errorf("volume after a restart: got %+v", r)
	}
	var idle api.NodeID
	for n := range w.nodes {
		if n != first.Node && n != second.Node && n != third.Node {
			idle = n
		}
	}
	stranger := wantOf(first)
	stranger.Instance = "evil/shop.prod.web.prod#0"
	older := wantOf(first)
	older.Epoch--
	for what, in := range map[string]Input{
		"a node without an instance":     AttachVolume{Node: idle, WantVolume: wantOf(first)},
		"a node with another instance":   AttachVolume{Node: second.Node, WantVolume: wantOf(first)},
		"an instance of another tenant":  AttachVolume{Node: first.Node, WantVolume: stranger},
		"the beginning of another's one": BeginVolume{Node: idle, WantVolume: stranger},
		"an earlier placement":           AttachVolume{Node: first.Node, WantVolume: older},
	} {
		if err := w.step(in).Err; !errors.Is(err, api.ErrNotFound) {
			t.Errorf("%s: got %v, want ErrNotFound", what, err)
		}
	}
	if err := w.c.DeletableCSI(id); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "service") {
		t.Errorf("delete it while it is in use: got %v, want ErrConflict", err)
	}

	// A release of an earlier placement is late, and one of another node is a lie.
	w.step(VolumeReleased{ID: id, Node: first.Node, Key: older.Key})
	w.step(VolumeReleased{ID: id, Node: second.Node, Key: wantOf(first).Key})
	if r, _ := w.c.CSIVolume(id); r.Unused(first.Node) || r.Nodes[first.Node].For[first.ID] != first.Epoch {
		t.Errorf("volume after releases that are not due: got %+v", r)
	}
	w.step(VolumeReleased{ID: id, Node: first.Node, Key: wantOf(first).Key})
	if r, _ := w.c.CSIVolume(id); r.Nodes[first.Node].For[first.ID] != 0 || r.Unused(second.Node) {
		t.Errorf("volume after a release: got %+v", r)
	}
	w.step(VolumeDetached{ID: id, Node: first.Node})
	if r, _ := w.c.CSIVolume(id); len(r.Nodes) == 0 || r.Nodes[first.Node].NodeID != "" {
		t.Errorf("volume after it is detached from one node: got %+v", r)
	}
	if gone := w.c.GoneFrom(id); len(gone) > 0 {
		t.Errorf("attached to nodes that are gone: %v", gone)
	}

	w.drops(web.Instance(0), web.Instance(1), web.Instance(2))
	w.pass(time.Minute)
	if err := w.c.DeletableCSI(id); err != nil {
		t.Errorf("delete it without instances: %v", err)
	}
}

// TestSharedVolumesNeedNodesThatMountThem: a node of an earlier release would stage the volume twice.
func TestSharedVolumesNeedNodesThatMountThem(t *testing.T) {
	w := newCSIWorld(t, 1)
	w.wants(assignment(0, 1, withSharedCSI()))
	w.beat()
	if in := w.at(0); in.Node != "" {
		t.Errorf("it is on %s, whose node cannot share volumes", in.Node)
	}
	ex, _ := w.c.Why(web.Instance(0))
	if len(ex.Causes) != 1 || ex.Causes[0].Constraint != sched.ConstraintFeatures || !strings.Contains(ex.Causes[0].Detail, "several instances share") {
		t.Errorf("why: got %+v, want the feature", ex)
	}
}

// TestADriverCannotGiveOneVolumeToTwoServices: its answer has the id of another volume.
func TestADriverCannotGiveOneVolumeToTwoServices(t *testing.T) {
	w := newCSIWorld(t, 2)
	w.wants(assignment(0, 1, withCSI()), assignment(1, 1, withCSI()))
	w.beat()
	w.attached(w.at(0))
	other := wantOf(w.at(1))
	w.step(BeginVolume{Node: w.at(1).Node, WantVolume: other})
	if err := w.step(VolumeCreated{ID: other.Instance.Volume("data"), Handle: "v1"}).Err; !errors.Is(err, api.ErrConflict) {
		t.Errorf("a second volume with the same id: got %v, want ErrConflict", err)
	}
}
