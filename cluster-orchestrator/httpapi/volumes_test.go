package httpapi_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
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
