package routes

import (
	"encoding/binary"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// TestRemoteNodesOfARouteAreBounded: another cluster cannot fill the latency measurements with
// nodes in its routes.
func TestRemoteNodesOfARouteAreBounded(t *testing.T) {
	b := New("c1")
	route := api.Route{Service: "acme/shop.prod.web.v1"}
	for i := range 2 * MaxBackends {
		p := api.Peer{Cluster: "c2"}
		binary.BigEndian.PutUint32(p.Key[:], uint32(i))
		route.Peers = append(route.Peers, p)
	}
	b.root.foreign.Routes = map[api.ServiceID]api.Route{route.Service: route}
	if got := len(b.Remote(route.Service)); got != MaxBackends {
		t.Errorf("Remote returns %d nodes of a route with %d peers, want %d", got, len(route.Peers), MaxBackends)
	}
}
