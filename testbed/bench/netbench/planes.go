package netbench

import (
	"errors"
	"fmt"

	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/dataplane/ebpf"
	"github.com/treeline-edge/treeline/netmanager/dataplane/nft"
)

// newPlane returns the data plane of this name.
func newPlane(name string) (dataplane.Plane, error) {
	switch name {
	case "nft":
		return nft.New(prefix)
	case "ebpf":
		return ebpf.New(prefix)
	}
	return nil, fmt.Errorf("unknown data plane %q: %w", name, errors.ErrUnsupported)
}
