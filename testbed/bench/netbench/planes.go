package netbench

import (
	"errors"
	"fmt"

	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/dataplane/nft"
)

// Planes are the data planes that Parts knows.
var Planes = []string{"nft"}

func newPlane(name string) (dataplane.Plane, error) {
	switch name {
	case "nft":
		return nft.New(prefix)
	}
	return nil, fmt.Errorf("no plane is called %q: %w", name, errors.ErrUnsupported)
}
