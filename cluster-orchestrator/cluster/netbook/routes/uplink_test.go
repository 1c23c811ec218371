package routes

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/internal/wire"
)

const client api.ServiceID = "acme/shop.production.client.production"

var ranges = wire.DefaultNetRanges()

func serviceAt(i int) (api.ServiceID, Spec) {
	id := api.ServiceID(fmt.Sprintf("acme/shop.production.service-number-%d.production", i))
	return id, Spec{Rev: 1, Addresses: api.ServiceAddresses{RoundRobin: netip.AddrFrom4([4]byte{10, 30, byte(i >> 8), byte(i)})}}
}

// rootTwin is the part of the root that receives reports.
type rootTwin struct {
	held  interest.Replica
	wants map[wire.Subscription]bool
	inUse map[wire.ServiceAddress]bool
}

func (r *rootTwin) take(n wire.ClusterNet) {
	take := r.held.Take
	if n.Whole {
		take = func(rec wire.Records) []interest.Key { return r.held.TakeAll(rec, n.Of) }
		for w := range r.wants {
			if n.Of.Has(w.Name()) {
				delete(r.wants, w)
			}
		}
	}
	take(n.Records)
	for _, w := range n.Unsubscribe {
		delete(r.wants, w)
	}
	for _, w := range n.Subscribe {
		r.wants[w] = true
	}
	for _, u := range n.InUse {
		r.inUse[u] = true
	}
}

func (r *rootTwin) wanted() (d api.Digest) {
	for w := range r.wants {
		d = d.Toggle(w.Digest())
	}
	return d
}

// TestResyncWithTheRootIncludesChangesMeanwhile: subscriptions, exports and addresses that fill several
// reports change between the reports, and some reports are lost.
func TestResyncWithTheRootIncludesChangesMeanwhile(t *testing.T) {
	const many = 4000
	rng := rand.New(rand.NewPCG(3, 4))
	b := New("munich")
	b.SetHosted(Place{Node: "n1", Instance: client.Instance(0)}, true)
	asks := wire.RootNet{Rev: 1, Ranges: ranges, Shares: []netip.Prefix{netip.MustParsePrefix("10.16.0.0/20")}}
	wantAt := func(i int) wire.Subscription {
		return wire.Subscription{Service: api.ServiceID(fmt.Sprintf("acme/shop.production.elsewhere-%d.production", i)), For: client}
	}
	for i := range many {
		id, spec := serviceAt(i)
		if i%2 == 0 {
			b.SetSpec(id.Instance(0), spec)
		}
		asks.Subscribe = append(asks.Subscribe, wire.Subscription{Service: id})
		b.Subscribe("n1", wantAt(2*i), time.Unix(100, 0))
	}
	b.ApplyRoot(asks)
	above := &rootTwin{wants: map[wire.Subscription]bool{}, inUse: map[wire.ServiceAddress]bool{}}
	for round := range 3 {
		b.Resync()
		reports, again := 0, false
		for b.HasChanges() || again {
			n := b.Net(again)
			if again = rng.IntN(4) == 0; !again {
				above.take(n)
			}
			if reports++; reports > 100 {
				t.Fatal("it does not come to an end")
			} else if reports > 12 {
				continue
			}
			for range 20 {
				i := rng.IntN(many)
				if rng.IntN(2) == 0 {
					b.Subscribe("n1", wantAt(2*i+1), time.Unix(100, 0))
				} else {
					b.Unsubscribe("n1", []wire.Subscription{wantAt(2 * i)})
				}
				if id, spec := serviceAt(i); rng.IntN(2) == 0 {
					b.SetSpec(id.Instance(0), spec)
				} else {
					b.DropSpec(id.Instance(0))
				}
			}
		}
		n := b.Net(false)
		if above.held.Digest() != n.Published || above.wanted() != n.Subscribed || len(above.wants) != len(b.root.needs) {
			t.Fatalf("round %d, after %d reports: the root holds %x of %x, and has %d of %d wants",
				round, reports, above.held.Digest(), n.Published, len(above.wants), len(b.root.needs))
		}
		if reports < 5 {
			t.Errorf("%d reports", reports)
		}
		above.wants, above.held = map[wire.Subscription]bool{wantAt(-1): true}, interest.Replica{} // the root restarts with outdated state
	}
	if len(above.inUse) < many/3 {
		t.Errorf("%d addresses are in use", len(above.inUse))
	}
}

// TestANodeOfAnotherClusterIsFoundByItsNewAddress: nodes of other clusters come, get other subnets, swap
// them and go, while a node subscribes to an address.
func TestANodeOfAnotherClusterIsFoundByItsNewAddress(t *testing.T) {
	b := New("munich")
	here, there := netip.MustParsePrefix("10.17.0.0/26"), netip.MustParsePrefix("10.17.0.64/26")
	one, other := api.PeerKey{1}, api.PeerKey{2}
	w := wire.Subscription{Address: here.Addr()}
	rev := uint64(0)
	says := func(r wire.Records, want api.PeerKey) {
		t.Helper()
		rev++
		b.ApplyRoot(wire.RootNet{Rev: rev, Ranges: ranges, Shares: []netip.Prefix{netip.MustParsePrefix("10.16.0.0/16")}, Records: r})
		if got := b.Nodes.AnswerOf("n1", w); got.Peer != want {
			t.Fatalf("after %+v it is %+v", r, got)
		}
	}
	peer := func(k api.PeerKey, rev uint64, subs ...netip.Prefix) api.Peer {
		return api.Peer{Key: k, Cluster: "berlin", Rev: rev, Subnets: subs}
	}
	says(wire.Records{}, api.PeerKey{})
	b.Subscribe("n1", w, time.Unix(100, 0))
	says(wire.Records{Peers: []api.Peer{peer(one, 1, here)}}, one)
	says(wire.Records{Peers: []api.Peer{peer(one, 2, there)}}, one) // until another node has the subnet
	says(wire.Records{Peers: []api.Peer{peer(other, 1, here)}}, other)
	says(wire.Records{Peers: []api.Peer{peer(other, 2)}}, other)
	says(wire.Records{Peers: []api.Peer{peer(one, 3, there, here)}}, one)
	says(wire.Records{Peers: []api.Peer{peer(other, 4, here)}}, other) // the other record still has the subnet
	says(wire.Records{RemovedPeers: []api.PeerKey{one}}, other)
	says(wire.Records{Peers: []api.Peer{peer(one, 5, here)}}, one)
	says(wire.Records{RemovedPeers: []api.PeerKey{one}}, other)
	says(wire.Records{RemovedPeers: []api.PeerKey{other}}, api.PeerKey{})
	if n := len(b.root.subnets); n > 0 {
		t.Errorf("%d subnets of nobody", n)
	}
}

// BenchmarkForeignNode changes one node of another cluster, among few and among many.
func BenchmarkForeignNode(b *testing.B) {
	for _, many := range []int{100, 10_000} {
		book, m := New("munich"), wire.RootNet{Rev: 1, Ranges: ranges}
		for i := range many {
			sub := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 16 + byte(i>>10), byte(i >> 2), byte(i << 6)}), 26)
			m.Peers = append(m.Peers, api.Peer{Key: api.PeerKey{byte(i >> 8), byte(i)}, Rev: 1, Subnets: []netip.Prefix{sub}})
		}
		book.ApplyRoot(m)
		book.Subscribe("n1", wire.Subscription{Address: m.Peers[0].Subnets[0].Addr()}, time.Unix(100, 0))
		m.Peers = m.Peers[:1]
		b.Run(fmt.Sprint(many), func(b *testing.B) {
			for b.Loop() {
				m.Rev++
				m.Peers[0].Rev++
				book.ApplyRoot(m)
			}
		})
	}
}
