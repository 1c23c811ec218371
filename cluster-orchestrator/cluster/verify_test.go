package cluster

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/account"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/relations"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// checkPlacement recomputes the incrementally updated state of placement from the instances.
func (w *world) checkPlacement() {
	w.t.Helper()
	place := w.c.place
	state, records := place.Inspect(), w.records()
	pending := 0
	var placed [8]int
	for id, in := range records {
		if in.Node != "" {
			placed[in.Desired.Spec.Urgency()]++
		}
		if n, ok := state.Nodes[in.Reserved]; in.Reserved != "" && (!ok || !n.Has(id) || in.Node == in.Reserved || in.Node != "" && in.Desired.Spec.Exclusive) {
			w.t.Fatalf("%s on %q has capacity reserved on %q, which does not know", id, in.Node, in.Reserved)
		}
		if state.Questions.Open(id) && state.Questions.Waits(id) {
			w.t.Fatalf("%s has an open question and waits for one", id)
		}
		if state.Questions.Pending(id) {
			pending++
		}
	}
	for id := range state.AboveShare {
		if in, ok := records[id]; !ok || in.Node != "" {
			w.t.Fatalf("%s exceeds the share, and is placed on %q or not here", id, in.Node)
		}
	}
	if open, waiting := state.Questions.Size(); open+waiting != pending {
		w.t.Fatalf("%d questions are open and %d instances wait, but %d instances have one", open, waiting, pending)
	}
	if placed != state.Placed {
		w.t.Fatalf("placement counts %v placed instances by urgency, want %v", state.Placed, placed)
	}
	if len(state.Nodes) != len(place.Candidates()) {
		w.t.Fatalf("there are %d candidates of %d nodes", len(place.Candidates()), len(state.Nodes))
	}
	var capacity, used api.Resources
	for _, cand := range place.Candidates() {
		n := state.Nodes[api.NodeID(cand.ID)]
		w.checkNode(&n, &cand, records)
		if !n.Facts.Silent {
			capacity, used = capacity.Plus(n.Facts.Info.Capacity), used.Plus(n.Account.Used())
		}
	}
	if s := place.Sums(); s.Capacity != capacity || s.Used != used {
		w.t.Fatalf("placement counts %v used of %v, want %v of %v", s.Used, s.Capacity, used, capacity)
	}
	w.checkRelations(&state, records)
}

func (w *world) checkNode(n *placement.NodeInspection, cand *sched.Candidate, records map[api.InstanceID]placement.Record) {
	w.t.Helper()
	id := api.NodeID(cand.ID)
	assigned, leased := 0, 0
	var wanted, known api.Digest
	for _, a := range n.Assigned {
		wanted = wanted.Toggle(a.Digest())
	}
	for _, in := range records {
		if in.Node == id {
			assigned++
			if in.Desired.Spec.StopsWhenCutOff() {
				leased++
			}
		}
		for _, v := range in.OldPlacements {
			if v.Kept != nil && v.Node == id {
				wanted = wanted.Toggle(v.Kept.Digest())
			}
			if v.Kept != nil && (in.Leaving || in.Desired.Spec.Exclusive || v.Node == in.Node) {
				w.t.Fatalf("%s continues on %s", in.Desired.Instance, v.Node)
			}
		}
	}
	given := map[api.InstanceID][]string{}
	for i, o := range n.Observed {
		known = known.Toggle(o.Digest())
		given[i] = o.Devices
	}
	var used api.Resources
	var yields [account.Urgencies]api.Resources
	addressed := 0
	for i, k := range n.Account.Bookings() {
		used = used.Plus(k.Resources)
		if k.Address {
			addressed++
		}
		if at := slices.IndexFunc(n.Assigned, func(a wire.Assignment) bool { return a.Instance == i }); at >= 0 {
			u := n.Assigned[at].Spec.Urgency()
			yields[u] = yields[u].Plus(k.Resources)
		}
		if k.Resources.Min(api.Resources{}) != (api.Resources{}) || !n.Has(i) {
			w.t.Fatalf("node %s books %v for %s, which it neither has nor had", id, k, i)
		}
	}
	published := map[sched.Port]int{}
	for i, ports := range n.Account.Ports() {
		if !n.Has(i) {
			w.t.Fatalf("node %s keeps ports %v for %s, which it neither has nor had", id, ports, i)
		}
		for _, p := range ports {
			published[p]++
		}
	}
	view, _ := w.c.Node(id)
	addresses := 0
	if view.Subnet.IsValid() && view.Network == api.NetworkOverlay {
		addresses = 1<<(32-view.Subnet.Bits()) - 3
	}
	switch left := n.Account.Left(); {
	case n.Wanted != wanted || n.Known != known || len(n.Assigned) != assigned || n.Leased != leased:
		w.t.Fatalf("node %s: wanted %x/%x known %x/%x assigned %d/%d leased %d/%d", id,
			n.Wanted, wanted, n.Known, known, len(n.Assigned), assigned, n.Leased, leased)
	case n.Account.Used() != used || n.Account.BookedByUrgency() != yields || !maps.Equal(left.Ports, published):
		w.t.Fatalf("node %s: account %+v, want used %v, yields %v, ports %v", id, n.Account, used, yields, published)
	case left.Full != (addresses > 0 && addressed >= addresses):
		w.t.Fatalf("node %s: %d of %d addresses are booked, and it counts as full: %v", id, addressed, addresses, left.Full)
	case view.Allocated.Plus(view.Reserved) != used:
		w.t.Fatalf("node %s: %s is allocated and %s reserved, want %s in sum", id, view.Allocated, view.Reserved, used)
	case cand.Free != n.Facts.Info.Capacity.Minus(used) || cand.Out != n.Out || cand.Load != len(n.Assigned) || cand.Slots[0].Free != cand.Free ||
		!maps.Equal(cand.Ports, published) || cand.Slots[0].Full != left.Full || cand.Coord != n.Relation.Position.Coord ||
		!maps.Equal(cand.Slots[0].Devices, account.DevicesOf(n.Facts.Info.Devices).Free(n.Account.Bookings(), given)):
		w.t.Fatalf("node %s is candidate %+v, used %v", id, cand, used)
	}
}

// checkRelations compares the results of relations with those of a new relations.Machine.
func (w *world) checkRelations(state *placement.Inspection, records map[api.InstanceID]placement.Record) {
	w.t.Helper()
	fresh, kept := relations.New("munich"), state.Relations
	for id, n := range state.Nodes {
		fresh.SetNode(id, n.Relation)
	}
	slas := map[api.InstanceID]*relations.SLA{}
	for id, in := range records {
		spec := in.Desired.Spec
		slas[id] = &relations.SLA{Links: sched.LinksOf(&spec), Spreads: sched.SpreadsOf(&spec), AntiAffinities: sched.AntiAffinitiesOf(&spec)}
		fresh.SetInstance(id, *slas[id], in.Desired.Targets)
		if in.Node != "" {
			fresh.Place(id, in.Node)
		}
		if in.Reserved != "" {
			fresh.Expect(id, in.Reserved)
		}
	}
	for id := range records { // the SLA received last may be of a removed instance
		last := id.Service().Instance(1 << 30)
		fresh.SetInstance(last, kept.SLA(id.Service()), nil)
		fresh.Remove(last)
	}
	domains := func(ds []sched.Domain) []sched.Domain {
		slices.SortFunc(ds, func(a, b sched.Domain) int {
			return cmp.Or(cmp.Compare(a.By, b.By), cmp.Compare(a.Name, b.Name), cmp.Compare(a.AntiAffinity, b.AntiAffinity), cmp.Compare(a.Limit, b.Limit))
		})
		return ds
	}
	for id, in := range records {
		service, sla := id.Service(), slas[id]
		if got, want := kept.Peers(service), fresh.Peers(service); !maps.Equal(got, want) {
			w.t.Fatalf("%s is on %v, want %v", service, got, want)
		}
		if got, want := domains(kept.Domains(id, in.Node, sla)), domains(fresh.Domains(id, in.Node, sla)); !slices.Equal(got, want) {
			w.t.Fatalf("%s must not enter %v, want %v", id, got, want)
		}
		if in.Node != "" {
			if got, want := domains(kept.LabelViolations(id)), domains(fresh.LabelViolations(id)); !slices.Equal(got, want) {
				w.t.Fatalf("%s shares %v, want %v", id, got, want)
			}
		}
		if got, want := asPoints(kept.InboundBounds(id, in.Node, false)), asPoints(fresh.InboundBounds(id, in.Node, false)); !reflect.DeepEqual(got, want) {
			w.t.Fatalf("%s has to be near %v, want %v", id, got, want)
		}
		for _, l := range sla.Links {
			if l.User != "" {
				continue
			}
			a, _ := kept.Bound(service, l, in.Desired.Targets)
			b, _ := fresh.Bound(service, l, in.Desired.Targets)
			if got, want := asPoints([]sched.Bound{a}), asPoints([]sched.Bound{b}); !reflect.DeepEqual(got, want) {
				w.t.Fatalf("the link of %s leads to %v, want %v", id, got, want)
			}
		}
	}
}

// asPoints replaces the Places of bounds by Points.
func asPoints(bs []sched.Bound) []sched.Bound {
	for i := range bs {
		b := &bs[i]
		b.Points, b.Places = slices.Clone(b.All()), nil
	}
	return bs
}
