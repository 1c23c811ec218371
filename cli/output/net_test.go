package output_test

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cli/output"
)

var peers = api.Page[api.PeerStatus]{Items: []api.PeerStatus{
	{
		Key: api.PeerKey{1}, Node: "n2", Cluster: "munich", Path: api.PathVXLAN, Endpoint: netip.MustParseAddrPort("192.168.1.7:51820"),
		RTT: 180 * time.Microsecond, Measured: noon.Add(-3 * time.Second), MTU: 1450,
		Tunnel: api.Carried{Sent: 1 << 30, Received: 200}, Kernel: &api.Carried{Sent: 2 << 30, Received: 500}, Handshake: noon.Add(-time.Minute),
	},
	{
		Key: api.PeerKey{2}, Cluster: "osaka", Path: api.PathRelay, Reason: "symmetric NAT on both sides: punching failed 5 times, next try in 4m",
		RTT: 212400 * time.Microsecond, Loss: 0.013, MTU: 1400, Tunnel: api.Carried{Sent: 1536, Received: 5 << 20}, Dropped: 3,
	},
	{Key: api.PeerKey{3}, Path: api.PathNone, Reason: "no answer"},
	{Key: api.PeerKey{4}, Node: "n4", Cluster: "munich", Path: api.PathRoute, Tunnel: api.Carried{Sent: 400}}, // a kernel path that was not measured yet
}}

func TestPeers(t *testing.T) {
	for _, f := range []output.Format{output.Text, output.Wide} {
		var b bytes.Buffer
		if err := output.List(printer(&b, f), output.Peers, peers); err != nil {
			t.Fatal(err)
		}
		golden(t, "peers."+string(f), b.Bytes())
	}
}

func TestRoutesAndTraces(t *testing.T) {
	var b bytes.Buffer
	p := printer(&b, output.Wide)
	at := netip.MustParseAddr
	err := output.List(p, output.Routes, api.Page[api.RouteStatus]{Items: []api.RouteStatus{
		{
			Route: api.Route{
				Service: "acme/shop.prod.web.v1", Rev: 7, Access: api.Access{Callers: []string{"app"}},
				Addresses: api.ServiceAddresses{RoundRobin: at("10.30.0.1"), Closest: at("10.30.0.2"), Instances: map[int]netip.Addr{0: at("10.30.0.9"), 1: at("10.30.0.10")}},
				Backends: []api.Backend{
					{Instance: "acme/shop.prod.web.v1#0", Address: at("10.16.0.3"), State: api.BackendUp},
					{Instance: "acme/shop.prod.web.v1#1", Address: at("10.16.0.67"), State: api.BackendDraining},
				},
			},
			Idle:  3 * time.Second,
			Pairs: []api.PairStatus{{Local: "acme/shop.prod.front.v1", Remote: "acme/shop.prod.web.v1", RTT: 310 * time.Microsecond}, {Local: "acme/blog.x.y.z", RTT: 20 * time.Millisecond}},
		},
		{Route: api.Route{Service: "umbrella/lab.x.probe.y", Access: api.Access{Closed: true}}, Refused: "its callers do not include this node's services"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	p.Format = output.Text
	if err := output.Trace(p, api.NetTrace{Steps: []api.TraceStep{
		{What: "name", Detail: "any.rr.web is 10.30.0.1", OK: true},
		{What: "access", Detail: "acme/blog.prod.front.v1 is not among the callers", OK: false},
	}}); err != nil {
		t.Fatal(err)
	}
	golden(t, "routes.txt", b.Bytes())
}
