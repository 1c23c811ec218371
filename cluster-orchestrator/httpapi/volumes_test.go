package httpapi_test

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/frames"
	"github.com/treeline-edge/treeline/internal/wire"
)

func TestVolumesAreDeletedOnTheirNode(t *testing.T) {
	r := newRig(t)
	const id = api.VolumeID("acme/shop.prod.db.v1#0:data")
	info := api.NodeInfo{
		ID: "n1", Arch: "amd64", Runtimes: []string{"container"}, Features: []string{api.FeatureOfVolume(api.VolumeLocal)},
		Capacity: api.Resources{MilliCPU: 2000, MemoryMB: 1024, StorageMB: 100},
	}
	r.step(cluster.JoinNode{Info: info})
	r.step(cluster.NodeReport{NodeReport: wire.NodeReport{Node: "n1", Boot: 1, Seq: 1, Whole: true, Info: &info}})
	r.step(cluster.NodeAlive{Node: "n1", Alive: wire.Alive{Boot: 1, Seq: 1}})
	with := instance(id.Instance(), 10)
	with.Spec.Volumes = []api.Volume{{Name: "data", Type: api.VolumeLocal, MountPath: "/data", SizeMB: 64}}
	r.want(1, with)
	info.Volumes = []api.NodeVolume{{ID: id, SizeMB: 64, Epoch: 1}}
	r.step(cluster.NodeReport{NodeReport: wire.NodeReport{Node: "n1", Boot: 1, Seq: 2, Whole: true, Info: &info}})
	without := instance(id.Instance(), 10)
	without.Epoch, without.SpecRev = api.EpochOf(2, 0), 2
	r.want(2, without)
	path := "/v1/volumes/" + api.PathOf(id)
	for who, want := range map[string]int{"": http.StatusUnauthorized, "rival": http.StatusNotFound, "operator": http.StatusNotFound} {
		if w := r.raw(who, http.MethodDelete, path, ""); w.Code != want {
			t.Errorf("delete as %q: got %d, want %d: %s", who, w.Code, want, w.Body)
		}
	}
	if r.asked.Kind != "" {
		t.Fatalf("the node was asked: %+v", r.asked)
	}
	for _, bad := range []string{"acme~shop.prod.db.v1~1:data", "acme~shop.prod.db.v1~0:other"} {
		if w := r.raw("alice", http.MethodDelete, "/v1/volumes/"+bad, ""); w.Code != http.StatusNotFound {
			t.Errorf("delete %s: got %d, want 404: %s", bad, w.Code, w.Body)
		}
	}
	if w := r.raw("alice", http.MethodDelete, "/v1/volumes/acme~shop.prod.db.v1~0:..", ""); w.Code < 400 || w.Code >= 500 {
		t.Errorf("delete a volume without a valid name: got %d, want a refusal", w.Code)
	}
	for _, who := range []string{"alice", "otto"} {
		r.asked = wire.StreamRequest{}
		if w := r.raw(who, http.MethodDelete, path, ""); w.Code != http.StatusNoContent {
			t.Errorf("delete as %s: got %d, want 204: %s", who, w.Code, w.Body)
		}
		if q := r.asked; q.Kind != "volume" || q.Method != http.MethodDelete || q.Path != string(id) || !strings.HasPrefix(q.For, "acme ") {
			t.Errorf("request to the node: got %+v", q)
		}
	}
}

const pages = api.VolumeID("acme/shop.prod.db.v1#0:pages")

// withVolume returns a rig in which a node has the volume pages, which its instance has if used, and its TLS server.
func withVolume(t *testing.T, used bool) (*rig, *httptest.Server) {
	t.Helper()
	r := newRig(t)
	info := api.NodeInfo{
		ID: "n1", Arch: "amd64", Runtimes: []string{"container"}, Features: []string{api.FeatureOfVolume(api.VolumeLocal)},
		Capacity: api.Resources{MilliCPU: 2000, MemoryMB: 1024, StorageMB: 150},
	}
	r.step(cluster.JoinNode{Info: info})
	r.step(cluster.NodeReport{NodeReport: wire.NodeReport{Node: "n1", Boot: 1, Seq: 1, Whole: true, Info: &info}})
	r.step(cluster.NodeAlive{Node: "n1", Alive: wire.Alive{Boot: 1, Seq: 1}})
	with := instance(pages.Instance(), 10)
	with.Spec.Volumes = []api.Volume{{Name: "pages", Type: api.VolumeLocal, MountPath: "/data", SizeMB: 64}}
	r.want(1, with)
	info.Volumes = []api.NodeVolume{{ID: pages, SizeMB: 64, Epoch: 1}}
	r.step(cluster.NodeReport{NodeReport: wire.NodeReport{Node: "n1", Boot: 1, Seq: 2, Whole: true, Info: &info}})
	if !used { // a new version without the volume
		without := instance(pages.Instance(), 10)
		without.Epoch, without.SpecRev = api.EpochOf(2, 0), 2
		r.want(2, without)
	}
	srv := httptest.NewTLSServer(r.web.Handler())
	t.Cleanup(srv.Close)
	return r, srv
}

func TestVolumesAreCopiedAtTheClustersOwnPort(t *testing.T) {
	r, srv := withVolume(t, false)
	for who, want := range map[string]error{"rival": api.ErrNotFound, "otto": api.ErrForbidden, "operator": api.ErrNotFound, "nobody": api.ErrUnauthenticated} {
		for _, kind := range []string{"snapshot", "restore"} {
			if _, err := dialTo(t, srv, who, client.AccessPath(client.Volumes, pages, kind), nil); !errors.Is(err, want) {
				t.Errorf("%s by %s: got %v, want %v", kind, who, err, want)
			}
		}
	}
	for _, bad := range []api.VolumeID{pages.Instance().Volume("other"), "acme/shop.prod.db.v1#7:pages"} {
		if _, err := dialTo(t, srv, "alice", client.AccessPath(client.Volumes, bad, "snapshot"), nil); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("snapshot %s: got %v, want not found", bad, err)
		}
	}
	if r.asked.Kind != "" {
		t.Fatalf("the node was asked: %+v", r.asked)
	}
	for _, kind := range []string{"snapshot", "restore"} {
		node, far := net.Pipe()
		r.both = node
		conn, err := dialTo(t, srv, "alice", client.AccessPath(client.Volumes, pages, kind), nil)
		check(t, err)
		go func() {
			defer far.Close()
			_ = frames.NewWriter(far).Exit(0)
		}()
		if k, _, err := frames.NewReader(conn).Next(); k != frames.Exit || err != nil {
			t.Errorf("%s: got frame %d, %v, want the exit code", kind, k, err)
		}
		if q := r.asked; q.Kind != kind || q.Path != string(pages) || q.Token != "" || !strings.HasPrefix(q.For, "acme ") {
			t.Errorf("the node was asked for %+v", q)
		}
		_ = conn.Close()
		r.records("admin", pages.Name(), "^"+kind+" by .*alice$", "^"+kind+" by .*alice ended after .* with exit code 0$")
	}
}

// TestVolumeInUseIsNotRestored: the root and users of the cluster's own port are refused.
func TestVolumeInUseIsNotRestored(t *testing.T) {
	r, srv := withVolume(t, true)
	_, err := dialTo(t, srv, "alice", client.AccessPath(client.Volumes, pages, "restore"), nil)
	if !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "treeline scale acme/shop.prod.db.v1 0") {
		t.Errorf("restore a volume in use: got %v, want a conflict that says what to do", err)
	}
	q := wire.StreamRequest{Kind: "restore", Instance: pages.Instance(), Path: string(pages)}
	q.Token = "alice for " + q.CallObject()
	if _, err := r.web.AccessFromRoot(t.Context(), q); !errors.Is(err, api.ErrConflict) {
		t.Errorf("restore for the root: got %v, want a conflict", err)
	}
	other := q
	other.Path = "rival/shop.prod.db.v1#0:pages"
	if _, err := r.web.AccessFromRoot(t.Context(), other); !errors.Is(err, api.ErrForbidden) {
		t.Errorf("a token for another volume: got %v, want ErrForbidden", err)
	}
	other.Token = "alice for " + other.CallObject()
	if _, err := r.web.AccessFromRoot(t.Context(), other); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("a volume of another tenant beside an instance of one's own: got %v, want ErrInvalid", err)
	}
	if r.asked.Kind != "" {
		t.Errorf("the node was asked: %+v", r.asked)
	}
}

// TestRestoreTakesDiskUntilItEnds: the cluster places nothing meanwhile that would take the disk.
func TestRestoreTakesDiskUntilItEnds(t *testing.T) {
	r, srv := withVolume(t, false)
	free := func() (out int64) {
		check(t, r.loop.Read(t.Context(), func() {
			n, _ := r.core.Node("n1")
			out = n.Capacity.StorageMB - n.Allocated.StorageMB
		}))
		return out
	}
	was := free()
	restore := func() (net.Conn, error) {
		node, far := net.Pipe()
		t.Cleanup(func() { _ = far.Close() })
		r.both = node
		return dialTo(t, srv, "alice", client.AccessPath(client.Volumes, pages, "restore"), nil)
	}
	conn, err := restore()
	check(t, err)
	if got := free(); got != was-64 {
		t.Errorf("free disk during the restore: got %d MiB, want %d", got, was-64)
	}
	if _, err := restore(); !errors.Is(err, api.ErrConflict) {
		t.Errorf("second restore: got %v, want ErrConflict", err)
	}
	_ = conn.Close()
	for deadline := time.Now().Add(time.Minute); free() != was; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("free disk after the restore: got %d MiB, want %d", free(), was)
		}
	}
	if err := r.loop.Do(t.Context(), cluster.BeginRestore{ID: pages, At: "n1"}, nil); err != nil {
		t.Errorf("restore after it: %v", err)
	}
	info := api.NodeInfo{
		ID: "n1", Arch: "amd64", Runtimes: []string{"container"}, Capacity: api.Resources{MilliCPU: 2000, MemoryMB: 1024, StorageMB: 100},
		Features: []string{api.FeatureOfVolume(api.VolumeLocal)}, Volumes: []api.NodeVolume{{ID: pages, SizeMB: 64, Epoch: 1}},
	}
	r.step(cluster.EndRestore{ID: pages, At: "n1"})
	r.step(cluster.NodeReport{NodeReport: wire.NodeReport{Node: "n1", Boot: 1, Seq: 3, Whole: true, Info: &info}})
	if _, err := restore(); !errors.Is(err, api.ErrFull) {
		t.Errorf("restore without the disk for it: got %v, want ErrFull", err)
	}
}
