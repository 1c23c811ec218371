package cluster

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
)

// TestANodesRoutesAreToldInParts has a node want a thousand routes, of nine
// backends each, and lose every fifth message; then it begins anew with what it had.
func TestANodesRoutesAreToldInParts(t *testing.T) {
	const many = 1000
	w := netWorld(t, 1)
	w.wants(addressedAt(0, rr))
	w.run("n0")
	w.step(RootNet{api.RootNet{Rev: 2, Ranges: api.DefaultNetRanges(), Shares: []netip.Prefix{share}, Records: foreign(many)}})
	wants := make([]api.Want, many)
	for i := range wants {
		wants[i] = api.Want{Service: foreignService(i), For: web}
	}
	held, lossy := interest.Holder{}, true
	boot, seq, rev := uint64(1), w.c.nodes["n0"].net.seq, uint64(0)
	messages, largest := 0, 0
	lease, _ := w.c.Lease("n0")
	var take func([]any)
	up := func(add []api.Want) {
		seq++
		take(w.said("n0", w.step(NetUp{"n0", api.NetUp{Boot: boot, Seq: seq, Whole: seq == 1, Add: add, Held: held.Digest(), Rev: rev, Lease: lease.Digest()}}).Send))
	}
	take = func(queue []any) {
		for len(queue) > 0 {
			d, ok := queue[0].(api.NetDown)
			if queue = queue[1:]; !ok || d.Rev <= rev {
				continue
			}
			text, _ := json.Marshal(d)
			largest = max(largest, len(text))
			if messages++; lossy && messages%5 == 2 {
				continue
			}
			if rev = d.Rev; d.Whole {
				held.TakeAll(recordsOf(d), d.Of)
			} else {
				held.Take(recordsOf(d))
			}
			if d.WantHeld {
				seq++
				queue = append(queue, w.said("n0", w.step(NetUp{"n0", api.NetUp{Boot: boot, Seq: seq, Held: held.Digest(), Rev: rev, Lease: lease.Digest()}}).Send)...)
			}
		}
	}
	until := func(what string) {
		t.Helper()
		for range 200 {
			if len(held.Routes) == many && held.Digest() == w.c.net.book.Held("n0") && !w.c.nodes["n0"].net.all.on {
				return
			}
			w.now = w.now.Add(time.Second)
			take(w.said("n0", w.step(w.nodes["n0"].alive()).Send))
		}
		t.Fatalf("%s: it holds %d of %d after %d messages", what, len(held.Routes), many, messages)
	}
	up(wants)
	until("at first")
	first := messages
	// It begins anew, with half of it and with what is no more.
	boot, seq, rev = 2, 0, 0
	for i := range many / 2 {
		held.Take(api.Records{Gone: []api.ServiceID{foreignService(2 * i)}})
	}
	held.Take(api.Records{Routes: []api.Route{{Service: "acme/old.prod.old.prod", Rev: 7}}})
	up(wants)
	until("after a restart")
	if largest > 1<<20 || first < 3 {
		t.Errorf("%d messages, the largest has %d bytes", first, largest)
	}
	// With nothing lost, each part is told once.
	lossy, messages, boot, seq, rev = false, 0, 3, 0, 0
	held.Take(api.Records{Gone: []api.ServiceID{foreignService(1)}})
	up(wants)
	until("without loss")
	if messages > first+2 {
		t.Errorf("%d messages, %d with loss", messages, first)
	}
	t.Logf("%d messages with loss, %d without, the largest of %d bytes", first, messages, largest)
}

func foreignService(i int) api.ServiceID {
	return api.ServiceID(fmt.Sprintf("acme/shop.production.service-number-%d.production", i))
}

// foreign are the routes of that many services elsewhere, of nine backends each.
func foreign(many int) (r api.Records) {
	for i := range many {
		id := foreignService(i)
		route := api.Route{Service: id, Rev: 1}
		for j := range 9 {
			p := api.Peer{Key: api.PeerKey{byte(1 + (i+j)%100)}, Cluster: "c2", Chain: [][]byte{make([]byte, 470), make([]byte, 430)}, Proof: make([]byte, 71), Rev: 1}
			route.Peers = append(route.Peers, p)
			route.Backends = append(route.Backends, api.Backend{Instance: id.Instance(j), Epoch: 1 << 25, Address: netip.AddrFrom4([4]byte{10, 17, byte(i >> 6), byte(i << 2)}), Peer: p.Key, State: api.BackendUp})
		}
		r.Routes = append(r.Routes, route)
	}
	return r
}

func recordsOf(d api.NetDown) api.Records {
	return api.Records{
		Routes: d.Routes, Sources: d.Sources, Peers: d.Peers, Refused: d.Refused,
		Gone: d.Gone, GoneSources: d.GoneSources, GonePeers: d.GonePeers, Answered: d.Answered,
	}
}
