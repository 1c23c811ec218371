package netbench

import (
	"errors"
	"fmt"

	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/dataplane/ebpf"
	"github.com/treeline-edge/treeline/netmanager/dataplane/nft"
)

// newPlane is a data plane of Treeline's by its name.
func newPlane(name string) (dataplane.Plane, error) {
	switch name {
	case "nft":
		return nft.New(prefix)
	case "ebpf":
		return ebpf.New(prefix)
	}
	return nil, fmt.Errorf("no plane is called %q: %w", name, errors.ErrUnsupported)
}
