package routes

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// TestRemovedObjectsLeaveNoState: 3,000 services come, get subscriptions of nodes and the root, and
// go; then others. Package interest tests its own leftovers.
func TestRemovedObjectsLeaveNoState(t *testing.T) {
	const many = 3000
	b := New("munich")
	tells := wire.RootNet{Rev: 1, Ranges: ranges, Shares: []netip.Prefix{netip.MustParsePrefix("10.16.0.0/16")}}
	b.ApplyRoot(tells)
	b.SetMember("n1", api.Peer{Key: api.PeerKey{1}}, nil)
	b.SetHosted(Place{Node: "n2", Instance: client.Instance(0)}, true)
	all := func(round int, each func(Place, Spec, api.Backend, wire.Subscription)) {
		for i := range many {
			_, spec := serviceAt(i)
			id := api.ServiceID(fmt.Sprintf("acme/shop.production.round-%d-number-%d.production", round, i))
			be := api.Backend{Instance: id.Instance(0), Address: netip.AddrFrom4([4]byte{10, 16, byte(i >> 8), byte(i)}), State: api.BackendUp}
			each(Place{Node: "n1", Instance: id.Instance(0)}, spec, be, wire.Subscription{Service: id, For: client})
		}
	}
	tell := func(what string, want int) {
		told, reported := 0, 0
		for _, n := range b.Nodes.Dirty() {
			for more := true; more; more = b.Nodes.Pending(n) {
				r, _ := b.Flush(n, wire.MaxPart)
				told += len(r.Routes) + len(r.RemovedRoutes)
			}
		}
		for b.HasChanges() {
			n := b.Net(false)
			reported += len(n.Routes) + len(n.RemovedRoutes)
		}
		if told != want || reported != want {
			t.Fatalf("of %d services that %s, n2 is told %d and the root %d", want, what, told, reported)
		}
	}
	for round := range 2 {
		tells.Rev++
		tells.Subscribe, tells.Unsubscribe = nil, nil
		all(round, func(p Place, spec Spec, be api.Backend, w wire.Subscription) {
			b.SetSpec(p.Instance, spec)
			b.SetHosted(p, true)
			b.SetBackend(p, be)
			b.Subscribe("n2", w, time.Unix(100, 0))
			tells.Subscribe = append(tells.Subscribe, wire.Subscription{Service: w.Service})
		})
		b.ApplyRoot(tells)
		tell("came", many)
		all(round, func(p Place, _ Spec, _ api.Backend, w wire.Subscription) {
			b.SetBackend(p, api.Backend{})
			b.SetHosted(p, false)
			b.DropSpec(p.Instance)
			b.Unsubscribe("n2", []wire.Subscription{w})
		})
		tells.Rev++
		tells.Subscribe, tells.Unsubscribe = nil, tells.Subscribe
		b.ApplyRoot(tells)
		tell("went", many)
		left := len(b.services) + len(b.names) + len(b.owners) + len(b.places) + len(b.at) + len(b.members["n1"].places) + len(b.hosts["n1"]) + len(b.root.needs)
		if wants, _ := b.Nodes.Total(); left+wants > 0 || b.Nodes.Held("n2") != 0 || b.root.exports.Held(rootSubscriber) != 0 || b.root.exports.Digest(rootSubscriber) != 0 {
			t.Fatalf("round %d leaves %d entries and %d wants", round, left, wants)
		}
	}
}

// asking returns parts of a whole message in which the root subscribes to many services.
func asking(many, each int) (parts []wire.RootNet) {
	of := wire.Span{}
	var wants []wire.Subscription
	for i := range many {
		id, _ := serviceAt(i)
		wants = append(wants, wire.Subscription{Service: id})
	}
	slices.SortFunc(wants, wire.Subscription.Compare)
	for part := range slices.Chunk(wants, each) {
		of = wire.Span{After: of.To, To: part[len(part)-1].Name()}
		parts = append(parts, wire.RootNet{Ranges: ranges, Whole: true, Of: of, Subscribe: part})
	}
	parts[len(parts)-1].Of.To = ""
	return parts
}

// TestPartsCostInProportionToTheirSize: repeating all of the root's subscriptions costs the same in few
// parts as in many.
func TestPartsCostInProportionToTheirSize(t *testing.T) {
	const many = 5000
	b, rev := New("munich"), uint64(0)
	cost := func(each int) float64 {
		parts := asking(many, each)
		return testing.AllocsPerRun(1, func() {
			for _, m := range parts {
				rev++
				m.Rev = rev
				b.ApplyRoot(m)
			}
		}) / many
	}
	few := cost(many / 5)
	if much := cost(many / 100); much > 2*few+2 || b.root.exports.Count(rootSubscriber) != many {
		t.Errorf("of %d that are asked for each costs %.1f allocations in 5 parts, %.1f in 100", b.root.exports.Count(rootSubscriber), few, much)
	}
	last := asking(many, many/5)[1]
	rev++
	last.Rev, last.Subscribe = rev, last.Subscribe[:1]
	if b.ApplyRoot(last); b.root.exports.Count(rootSubscriber) != many-many/5+1 {
		t.Errorf("%d are asked for, after a part with one", b.root.exports.Count(rootSubscriber))
	}
}

// BenchmarkTakeAsked repeats the root's 50,000 subscriptions.
func BenchmarkTakeAsked(b *testing.B) {
	book, rev, parts := New("munich"), uint64(0), asking(50_000, 1000)
	take := func() {
		for _, m := range parts {
			rev++
			m.Rev = rev
			book.ApplyRoot(m)
		}
	}
	take()
	for b.Loop() {
		take()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(parts)), "ns/part")
}
