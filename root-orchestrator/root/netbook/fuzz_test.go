package netbook

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/treeline-edge/treeline/internal/wire"
)

// FuzzClusterNet has a hostile cluster send arbitrary network reports while another one subscribes
// to it.
func FuzzClusterNet(f *testing.F) {
	f.Add([]byte(`{"whole":true,"subnets":3,"shares":["10.16.0.0/20","::/0","10.16.0.0/20"],"in_use":[{"address":"10.30.0.1","service":"acme/a.b.c.d"},{}],
		"wants":[{"service":"acme/shop.prod.web.prod","for":"acme/shop.prod.web.prod"},{"address":"10.16.0.64"},{"address":"fe80::1%x"},{}],
		"routes":[{"service":"acme/shop.prod.web.prod","rev":1,"backends":[{"instance":"x","address":"10.16.0.9","peer":"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE"}],"peers":[{"subnets":["10.16.0.0/26"]}]}],
		"sources":[{"address":"10.16.0.2","service":"acme/shop.prod.web.prod"}],"peers":[{"subnets":["10.16.0.64/26","0.0.0.0/0"]}],"refused":[{"service":"acme/shop.prod.web.prod"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var n wire.ClusterNet
		if err := json.Unmarshal(text, &n); err != nil {
			t.Skip(err)
		}
		w := spread(t)
		want := wire.Subscription{Service: web, For: web}
		listen := wire.ClusterNet{Whole: true, Subnets: 1, Subscribe: []wire.Subscription{want, {Address: netip.MustParseAddr("10.16.0.64")}}, Subscribed: want.Digest()}
		w.net("b", listen)
		w.net("a", n)
		w.net("b", listen)
		w.net("a", n)
		cl := w.book.clusters["a"]
		x, asked := &cl.published, len(cl.asked.List())
		if len(x.Routes)+len(x.Sources)+len(x.Refused) > 3*asked || len(x.Peers) > len(n.Peers) {
			t.Errorf("asked for %d records, the book keeps %d routes, %d sources and %d refusals", asked, len(x.Routes), len(x.Sources), len(x.Refused))
		}
		for _, r := range x.Routes {
			if len(r.Backends) > spareBackends+2 || len(r.Peers) > len(r.Backends) {
				t.Errorf("the book keeps %d backends and %d peers of a route, want few and no more peers than backends", len(r.Backends), len(r.Peers))
			}
		}
		w.last = nil
		w.remove("a")
		for _, e := range w.last {
			if _, err := json.Marshal(e.Msg); err != nil {
				t.Errorf("encode a message: %v", err)
			}
		}
	})
}
