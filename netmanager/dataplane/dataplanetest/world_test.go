package dataplanetest

import (
	"context"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// no is a plane without effect: the kernel's routes forward all packets.
type no struct{}

func (no) Sync(context.Context, plane.State) error                    { return nil }
func (no) Apply(context.Context, plane.Change) error                  { return nil }
func (no) Usage(context.Context) (plane.Usage, error)                 { return plane.Usage{}, nil }
func (no) Traffic(context.Context) (map[api.PeerKey][2]uint64, error) { return nil, nil }
func (no) Remove(context.Context) error                               { return nil }
func (no) Close() error                                               { return nil }

func TestTheTestNetworkIsRoutedWithoutAPlane(t *testing.T) {
	for _, path := range []api.PathKind{api.PathRoute, api.PathVXLAN} {
		t.Run(string(path), func(t *testing.T) {
			w := NewWorld(t, func(testing.TB) dataplane.Plane { return no{} }, path)
			instancesReachEachOther(t, w)
		})
	}
}
