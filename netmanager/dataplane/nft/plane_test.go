package nft_test

import (
	"testing"

	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/dataplane/dataplanetest"
	"github.com/treeline-edge/treeline/netmanager/dataplane/nft"
)

func TestPlane(t *testing.T) { dataplanetest.Run(t, open) }

func BenchmarkPlane(b *testing.B) { dataplanetest.Bench(b, open) }

func open(t testing.TB) dataplane.Plane {
	p, err := nft.New("tl")
	if err != nil {
		t.Fatal(err)
	}
	return p
}
func BenchmarkThroughput(b *testing.B) { dataplanetest.Throughput(b, open) }
