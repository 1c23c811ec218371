package overlay

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/internal/wire"
)

// record is a record that a cluster may send.
type record struct {
	key    interest.Key
	digest api.Digest
	add    func(*wire.NetDown)
	gone   func(*wire.NetDown)
}

// recordAt returns record n. The four kinds alternate.
func recordAt(n byte) record {
	name := fmt.Sprintf("s%d", n)
	switch n % 4 {
	case 0:
		r := route(name, 1, n, 1)
		return record{
			interest.RouteOf(r.Service), r.Digest(),
			func(d *wire.NetDown) { d.Routes = append(d.Routes, r) }, func(d *wire.NetDown) { d.RemovedRoutes = append(d.RemovedRoutes, r.Service) },
		}
	case 1:
		s := wire.Source{Address: instanceAt(2, n), Rev: 1, Service: svc(name), Peer: peerRecord(2, 1)}
		return record{
			interest.SourceOf(s.Address), s.Digest(),
			func(d *wire.NetDown) { d.Sources = append(d.Sources, s) }, func(d *wire.NetDown) { d.RemovedSources = append(d.RemovedSources, s.Address) },
		}
	case 2:
		p := peerRecord(n, 1)
		return record{
			interest.PeerOf(p.Key), p.Digest(),
			func(d *wire.NetDown) { d.Peers = append(d.Peers, p) }, func(d *wire.NetDown) { d.RemovedPeers = append(d.RemovedPeers, p.Key) },
		}
	}
	r := wire.Refusal{Subscription: wire.Subscription{Address: vip(n), For: svc("client")}}
	return record{
		interest.RefusalOf(r.Subscription, false), r.Digest(),
		func(d *wire.NetDown) { d.Refused = append(d.Refused, r) }, func(d *wire.NetDown) { d.RemovedRefusals = append(d.RemovedRefusals, r.Subscription) },
	}
}

// TestRecordsMissingFromAPartAreRemoved sends parts in any order, twice, with other bounds and with changes in
// between, and compares the result with a set that applies each part.
func TestRecordsMissingFromAPartAreRemoved(t *testing.T) {
	const many = 32
	rapid.Check(t, func(rt *rapid.T) {
		w, client := ready(t)
		var names []string
		for n := range byte(many) {
			if r := recordAt(n); r.key.Kind == interest.Refused {
				w.step(Miss{Local: client, Remote: vip(n)})
			} else {
				names = append(names, r.key.Name())
			}
		}
		held := map[byte]bool{}
		some := rapid.SliceOfDistinct(rapid.ByteRange(0, many-1), rapid.ID[byte])
		edge := rapid.SampledFrom(append(names, "", "", "", "refusal", "s"))
		for range rapid.IntRange(1, 20).Draw(rt, "messages") {
			var d wire.NetDown
			come := some.Draw(rt, "come")
			if d.Whole = rapid.Bool().Draw(rt, "a part"); d.Whole {
				d.Of = wire.Span{After: edge.Draw(rt, "after"), To: edge.Draw(rt, "to")}
				come = slices.DeleteFunc(come, func(n byte) bool { return !d.Of.Has(recordAt(n).key.Name()) })
				for n := range held {
					if d.Of.Has(recordAt(n).key.Name()) {
						delete(held, n)
					}
				}
			} else {
				for _, n := range some.Draw(rt, "gone") {
					recordAt(n).gone(&d)
					delete(held, n)
				}
			}
			for _, n := range come {
				if r := recordAt(n); d.Whole || r.key.Kind != interest.Refused || !slices.Contains(d.RemovedRefusals, r.key.Subscription) {
					r.add(&d)
					held[n] = true
				}
			}
			w.answer(d)
			want := api.Digest(0)
			for n := range held {
				want = want.Toggle(recordAt(n).digest)
			}
			if w.c.View().held() != want {
				var is []string
				for k := range w.c.View().heldRecords {
					is = append(is, k.Name())
				}
				rt.Fatalf("after %+v it holds %q, should %v", d, is, held)
			}
		}
		w.answer(wire.NetDown{Whole: true, Of: wire.Span{After: "z"}}) // the last
		w.checkIndexes()
	})
}

// TestCostOfPartsIsProportionalToTheirSize sends a large state in few parts and in many. The total cost must be the
// same.
func TestCostOfPartsIsProportionalToTheirSize(t *testing.T) {
	const many = 4000
	w, _ := ready(t)
	var all []wire.Source
	for i := range many {
		n := byte(1 + i/50)
		all = append(all, wire.Source{Address: instanceAt(n, byte(2+i%50)), Rev: 1, Service: svc("web"), Peer: peerRecord(n, 1)})
	}
	name := func(s wire.Source) string { return wire.SourceName(s.Address) }
	slices.SortFunc(all, func(a, b wire.Source) int { return compare(name(a), name(b)) })
	tell := func(each int) {
		of := wire.Span{}
		for i := 0; i < many; i += each {
			of = wire.Span{After: of.To, To: name(all[i+each-1])}
			if i+each == many {
				of.To = ""
			}
			seq, rev := w.c.subs.Position()
			w.c.Step(w.now, Down{wire.NetDown{Boot: w.c.boot, Seq: seq, Rev: rev + 1, Whole: true, Of: of, Records: wire.Records{Sources: all[i : i+each]}}})
		}
		if n := len(slices.Collect(w.c.services.Sources)); n != many || w.c.whole.Begun() {
			t.Fatalf("it holds %d sources, want %d, and expects more parts: %v", n, many, w.c.whole.Begun())
		}
	}
	tell(many)
	cost := func(each int) float64 { return testing.AllocsPerRun(1, func() { tell(each) }) / many }
	few := cost(many / 4)
	if much := cost(many / 80); much > 2*few+2 {
		t.Errorf("a record costs %.1f allocations in 4 parts, %.1f in 80", few, much)
	}
}
