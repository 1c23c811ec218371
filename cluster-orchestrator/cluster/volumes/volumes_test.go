package volumes_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/volumes"
)

// A shared volume has a bounded number of placements. Those that have it keep it, and a place that one gives back is
// free for another one.
func TestPlacementsOfASharedVolumeAreBounded(t *testing.T) {
	m := volumes.New(new(effects.Sink))
	service := api.Tenant("acme").App("shop", "prod").Service("web", "v1")
	v := api.Volume{Name: "data", Type: api.VolumeCSI, Driver: "nfs.example.org", Access: api.AccessManyWriters, SizeMB: 64}
	id := v.IDFor(service.Instance(0))
	if err := m.Begin(id, v); err != nil {
		t.Fatal(err)
	}
	attach := func(n int) error {
		node := fmt.Sprintf("n%d", n%100)
		return m.Attach(id, api.NodeID(node), "at-"+node, service.Instance(n), api.EpochOf(1, 0))
	}
	for n := range volumes.MaxPlacements {
		if err := attach(n); err != nil {
			t.Fatalf("placement %d: %v", n, err)
		}
	}
	if err := attach(volumes.MaxPlacements); !errors.Is(err, api.ErrFull) {
		t.Errorf("one more placement: %v, want ErrFull", err)
	}
	if err := attach(5); err != nil {
		t.Errorf("a placement that has the volume asks again: %v", err)
	}
	m.Released(id, "n5", service.Instance(5), api.EpochOf(1, 0))
	if err := attach(volumes.MaxPlacements); err != nil {
		t.Errorf("after one was released: %v", err)
	}
}
