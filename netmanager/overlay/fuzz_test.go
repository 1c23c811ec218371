package overlay

import (
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// FuzzDown applies arbitrary messages of a cluster. The indexes must stay correct, a restart must restore
// the same state, and the plane must get only addresses of the network.
func FuzzDown(f *testing.F) {
	r := route("web", 1, 1, 1, 2)
	r.Addresses.Closest = ip("10.30.1.2")
	for _, d := range []wire.NetDown{
		{},
		{Records: wire.Records{Routes: []api.Route{r}}, Whole: true},
		{Lease: theLease(), Records: wire.Records{Sources: []wire.Source{{Address: instanceAt(4, 9), Rev: 1, Service: svc("caller"), Peer: peerRecord(4, 1)}}}},
		{Records: wire.Records{Peers: []api.Peer{peerRecord(1, 1), peerRecord(7, 1)}, RemovedRoutes: []api.ServiceID{svc("web")}, RemovedPeers: []api.PeerKey{key(1)}}},
		{Records: wire.Records{Refused: []wire.Refusal{{Subscription: wire.Subscription{Address: vip(1), For: svc("client")}, Denied: true}}}, Held: 4711},
		{Records: wire.Records{RemovedRefusals: []wire.Subscription{{Address: vip(1), For: svc("client")}}, RemovedSources: []netip.Addr{instanceAt(4, 9)}}, RequestWhole: true, RequestHeld: true},
	} {
		b, err := json.Marshal(d)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, b)
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		w := newWorld(t, Config{Node: plane.Node{VXLAN: 7001}})
		w.step(Link{true})
		w.step(Down{wire.NetDown{Rev: 1, Lease: theLease()}})
		w.step(attachOf("client", 0, 1))
		at, _ := w.c.View().Attached(attachOf("client", 0, 1).Key)
		w.step(Miss{Local: at.Address, Remote: vip(1)})
		w.step(Query{Local: at.Address, Name: "web.treeline."})
		for _, raw := range [][]byte{a, b} {
			var d wire.NetDown
			if json.Unmarshal(raw, &d) != nil {
				return
			}
			for _, ch := range orders[plane.Change](w.answer(d)) {
				for _, e := range ch.End {
					if !e.Is4() {
						t.Fatalf("flows to %s end", e)
					}
				}
				for _, p := range ch.SetPeers {
					for _, s := range p.Subnets {
						if !s.IsValid() || s.Overlaps(w.c.lease.Subnet) {
							t.Fatalf("peer %s has %s", p.Key, s)
						}
					}
				}
				for _, s := range ch.SetServices {
					if !w.c.lease.Ranges.Services.Contains(s.Address) {
						t.Fatalf("%s is a service", s.Address)
					}
				}
			}
			w.checkIndexes()
		}
		w.c.View().Routes()
		_, _, _ = w.c.View().Trace(svc("client").Instance(0), "10.30.1.1")
		w.pass(time.Minute)
		w.checkIndexes()
		w.restart()
		w.checkIndexes()
	})
}
