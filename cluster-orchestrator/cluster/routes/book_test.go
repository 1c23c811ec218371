package routes

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// TestWhatIsGoneTakesNoMemory has 3,000 services come, be wanted by nodes and by the
// root, and go; and others again. What the books of interest leave is tested there.
func TestWhatIsGoneLeavesNothing(t *testing.T) {
	const many = 3000
	b := New("munich")
	tells := api.RootNet{Rev: 1, Ranges: ranges, Shares: []netip.Prefix{netip.MustParsePrefix("10.16.0.0/16")}}
	b.Take(tells)
	b.SetMember("n1", api.Peer{Key: api.PeerKey{1}}, nil)
	b.SetHosted(Place{Node: "n2", Instance: client.Instance(0)}, true)
	all := func(round int, each func(Place, Spec, api.Backend, api.Want)) {
		for i := range many {
			_, spec := serviceAt(i)
			id := api.ServiceID(fmt.Sprintf("acme/shop.production.round-%d-number-%d.production", round, i))
			be := api.Backend{Instance: id.Instance(0), Address: netip.AddrFrom4([4]byte{10, 16, byte(i >> 8), byte(i)}), State: api.BackendUp}
			each(Place{Node: "n1", Instance: id.Instance(0)}, spec, be, api.Want{Service: id, For: client})
		}
	}
	tell := func(what string, want int) {
		told, reported := 0, 0
		for _, n := range b.Dirty() {
			for more := true; more; more = b.Behind(n) {
				r, _ := b.Flush(n, api.PartSize)
				told += len(r.Routes) + len(r.Gone)
			}
		}
		for b.Fresh() {
			n := b.Net(false)
			reported += len(n.Routes) + len(n.Gone)
		}
		if told != want || reported != want {
			t.Fatalf("of %d services that %s, n2 is told %d and the root %d", want, what, told, reported)
		}
	}
	for round := range 2 {
		tells.Rev++
		tells.Asked, tells.Unasked = nil, nil
		all(round, func(p Place, spec Spec, be api.Backend, w api.Want) {
			b.SetSpec(p.Instance, spec)
			b.SetHosted(p, true)
			b.SetBackend(p, be)
			b.Want("n2", w, time.Unix(100, 0))
			tells.Asked = append(tells.Asked, api.Want{Service: w.Service})
		})
		b.Take(tells)
		tell("came", many)
		all(round, func(p Place, _ Spec, _ api.Backend, w api.Want) {
			b.SetBackend(p, api.Backend{})
			b.SetHosted(p, false)
			b.DropSpec(p.Instance)
			b.Drop("n2", w)
		})
		tells.Rev++
		tells.Asked, tells.Unasked = nil, tells.Asked
		b.Take(tells)
		tell("went", many)
		left := len(b.services) + len(b.names) + len(b.owners) + len(b.places) + len(b.at) + len(b.members["n1"].places) + len(b.hosts["n1"]) + len(b.root.wants)
		if wants, _ := b.Interest(); left+wants > 0 || b.Held("n2") != 0 || b.root.exports.Held(above) != 0 || b.root.asked != 0 {
			t.Fatalf("round %d leaves %d entries and %d wants", round, left, wants)
		}
	}
}
