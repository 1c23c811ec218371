package ebpf_test

import (
	"testing"

	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/dataplane/dataplanetest"
	"github.com/treeline-edge/treeline/netmanager/dataplane/ebpf"
)

func TestPlane(t *testing.T) {
	if err := ebpf.Available(); err != nil {
		t.Fatal(err) // CI's kernel supports it; on a kernel that does not, the netmanager uses nft
	}
	dataplanetest.Run(t, func(t testing.TB) dataplane.Plane {
		p, err := ebpf.New("tl")
		if err != nil {
			t.Fatal(err)
		}
		return p
	})
}
