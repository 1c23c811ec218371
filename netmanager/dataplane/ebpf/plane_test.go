package ebpf_test

import (
	"testing"

	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/dataplane/dataplanetest"
	"github.com/treeline-edge/treeline/netmanager/dataplane/ebpf"
)

func TestPlane(t *testing.T) {
	if err := ebpf.Available(); err != nil {
		t.Fatal(err) // CI's kernel takes it; where one does not, the wiring takes nft
	}
	dataplanetest.Run(t, func(t testing.TB) dataplane.Plane {
		p, err := ebpf.New("tl")
		if err != nil {
			t.Fatal(err)
		}
		return p
	})
}
