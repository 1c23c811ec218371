package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/uplink"
	"github.com/treeline-edge/treeline/internal/wire"
)

func TestTheRootCannotExceedItsShare(t *testing.T) {
	w := line(t, 2, func(c *Config) { c.Offer.Share = 0.5 }) // the share is 4 of 8 vCPUs
	for i := range 6 {
		w.wants(assignment(i, api.Revision(i+1), spec(1, 100)))
	}
	for i := range 6 {
		if in := w.at(i); (in.Node != "") != (i < 4) {
			t.Errorf("instance %d is on %q", i, in.Node)
		}
	}
	v := w.observed(web.Instance(5))
	if !v.HandedBack || v.Why.Causes[0].Constraint != placement.ConstraintShare || v.Why.Causes[0].Count != 2 || v.Why.Considered != 2 {
		t.Errorf("the root is told %+v", v.Why)
	}
	if a := w.c.Aggregate(); a.Capacity.MilliCPU != 4000 || a.Free.MilliCPU != 0 || a.Largest.MilliCPU != 0 || a.Slots[0].Free.MilliCPU != 0 {
		t.Errorf("it is offered %+v", a)
	}
	w.beat()
	w.drops(web.Instance(0))
	w.beat()
	w.pass(3 * time.Second)
	if a, b := w.at(4).Node, w.at(5).Node; (a == "") == (b == "") {
		t.Errorf("of two that waited for one place they are on %q and %q", a, b)
	}
	w.checkBooks()
}

// TestFreedShareIsUsedAtOnce: an instance beyond the share fits on a node that does not
// change.
func TestFreedShareIsUsedAtOnce(t *testing.T) {
	w := line(t, 2, func(c *Config) { c.Offer.Share = 0.5 }) // the share is 4 of 8 vCPUs
	on := func(n int, node api.NodeID, alone bool) wire.Assignment {
		a := of(web, n, api.Revision(n+1), onNode(node))
		a.Spec.VCPUs, a.Spec.Exclusive = 3, alone
		return a
	}
	w.wants(on(0, "n0", false))
	w.beat()
	w.wants(on(1, "n1", false), on(2, "n1", true))
	w.pass(10 * time.Second)
	if a, b := w.at(1), w.at(2); a.Node != "" || b.Node != "" || !w.record(web.Instance(2)).AwaitsOffer {
		t.Fatalf("beyond the share they are on %q and %q", a.Node, b.Node)
	}
	w.drops(web.Instance(0))
	w.nodes["n0"].settle()
	acks := func() {
		for waits(w.c) {
			w.ack()
		}
	}
	acks()
	told := func() bool {
		w.step(w.nodes["n0"].whole())
		return len(w.reports()) > 0 && w.reports()[0].Aggregate.Free.MilliCPU == 1000
	}
	if !told() || w.at(1).Node != "n1" {
		t.Errorf("when it is free, it is on %q, and the root is told %+v", w.at(1).Node, w.reports())
	}
	w.drops(web.Instance(1))
	w.nodes["n1"].settle()
	acks()
	if w.step(w.nodes["n1"].whole()); len(w.reports()) == 0 || w.reports()[0].Aggregate.Largest.MilliCPU != 4000 {
		t.Errorf("of room for what it alone may offer again the root is told %+v", w.reports())
	}
	w.checkBooks()
}

func TestTheOperatorLimitsTheDetailOfReports(t *testing.T) {
	told := func(o uplink.Offer) api.Aggregate {
		w := line(t, 0, func(c *Config) { c.Offer = o })
		for i, id := range []api.NodeID{"n0", "n1", "n2"} {
			info := nodeInfo(id, api.Resources{MilliCPU: 4000, MemoryMB: 4100})
			if id == "n2" {
				info.Network = api.NetworkHost
			}
			info.Location, info.Areas, info.Devices = &api.Geo{Lat: 48.1 + float64(i), Lon: 11.6}, []string{"de", "munich"}, gpus("a", "b")[:i%2+1]
			w.nodes[id] = &twin{id: id, boot: 1, has: map[api.InstanceID]api.Observed{}, want: map[api.InstanceID]wire.Assignment{}}
			w.step(JoinNode{Info: info})
			w.speak(id)
			w.stands(id, 10*float64(i))
		}
		return w.c.Aggregate()
	}
	full := told(uplink.Offer{})
	if len(full.Hull) == 0 || full.Latency == nil || full.Latency.Nodes != 3 || full.Latency.Radius < 10*time.Millisecond || full.Unplaced != 0 {
		t.Errorf("in full %+v", full)
	}
	if len(full.Slots) != 2 || !full.Slots[1].Network || full.Slots[1].Nodes != 2 || full.Slots[1].Devices[0] != (api.SlotDevice{Name: "gpu", Free: 3, Largest: 2}) || len(full.Slots[1].Areas) != 2 {
		t.Errorf("in full %+v", full.Slots)
	}
	slots := told(uplink.Offer{Detail: uplink.DetailSlots})
	if slots.Hull != nil || slots.Latency != nil || len(slots.Slots) != 2 || slots.Slots[0].Areas[0] != "*" {
		t.Errorf("by slots %+v", slots)
	}
	sums := told(uplink.Offer{Detail: uplink.DetailSums})
	if len(sums.Slots) != 0 || sums.Hull != nil || sums.StdDev != (api.Resources{}) || sums.Free.MemoryMB != 12300 {
		t.Errorf("by sums %+v", sums)
	}
	for _, a := range []api.Aggregate{full, slots, sums} {
		if a.Overlay == nil || *a.Overlay != 2 {
			t.Errorf("%+v does not say that 2 nodes have an overlay network", a)
		}
	}
	coarse := told(uplink.Offer{Round: 0.5})
	if coarse.Free.MemoryMB != 12300 && coarse.Free.MemoryMB%2050 != 0 || coarse.Largest.MemoryMB%2050 != 0 {
		t.Errorf("coarsely %+v", coarse)
	}
	for _, g := range coarse.Hull {
		if g.Lat != float64(int(g.Lat)) || g.Lon != float64(int(g.Lon)) {
			t.Errorf("coarsely it is at %v", g)
		}
	}
}

// TestWhyNamesTheBlockingReasonFirst: a node meets the instance's request.
func TestWhyNamesTheBlockingReasonFirst(t *testing.T) {
	alone := func(a wire.Assignment) wire.Assignment { a.Spec.Exclusive = true; return a }
	for hold, of := range map[string]struct {
		conf func(*Config)
		make func(w *world) api.InstanceID // the world has n0, which is small, n1 and n2
		held int
	}{
		placement.ConstraintShare: {func(c *Config) { c.Offer.Share = 0.3 }, func(w *world) api.InstanceID {
			w.wants(classed(0, 1, "normal", 2)) // the share is 2.7 vCPUs
			w.wants(classed(1, 2, "normal", 2))
			return web.Instance(1)
		}, 2},
		placement.ConstraintAwaitsOffer: {func(c *Config) { c.Offer.Share = 0.3 }, func(w *world) api.InstanceID {
			w.wants(classed(0, 1, "normal", 2))
			w.wants(alone(classed(1, 2, "normal", 2)))
			w.drops(web.Instance(0))
			w.beat()
			return web.Instance(1)
		}, 2},
		placement.ConstraintEarlier: {nil, func(w *world) api.InstanceID {
			w.wants(alone(classed(1, 1, "normal", 2)))
			w.beat()
			w.step(Drain{Node: w.at(1).Node})
			w.step(Cordon{"n1", false})
			w.step(Cordon{"n2", false})
			return web.Instance(1)
		}, 2},
		placement.ConstraintAsked: {func(c *Config) { c.Asks = "http://brain" }, func(w *world) api.InstanceID {
			w.wants(classed(1, 1, "normal", 2))
			return web.Instance(1)
		}, 2},
		placement.ConstraintReserved: {func(c *Config) { c.Preempt = true }, func(w *world) api.InstanceID {
			w.wants(classed(0, 1, "low", 4), classed(2, 1, "urgent", 4))
			w.beat()
			w.wants(classed(1, 2, "high", 2))
			return web.Instance(1)
		}, 1},
	} {
		w := line(t, 0, of.conf)
		for id, cpu := range map[api.NodeID]int64{"n0": 1000, "n1": 4000, "n2": 4000} {
			w.join(id, api.Resources{MilliCPU: cpu, MemoryMB: 4096})
		}
		id := of.make(w)
		ex, _ := w.c.Why(id)
		sum := 0
		for _, cause := range ex.Causes {
			sum += cause.Count
		}
		if first := ex.Causes[0]; first.Constraint != hold || first.Count != of.held || first.Detail == "" || sum != 3 || len(ex.Candidates) != 3 {
			t.Errorf("%s: %+v", hold, ex)
		}
	}
}

// TestARoundedOfferExcludesNoInstanceThatFits: with steps as large as half a node, the root offers
// instances that fit into less, and a full cluster is still reported as full.
func TestARoundedOfferExcludesNoInstanceThatFits(t *testing.T) {
	w := line(t, 4, func(c *Config) { c.Offer.Round, c.Preempt = 0.5, true })
	for i := range 4 {
		w.wants(classed(i, api.Revision(i+1), "normal", 2.2)) // nodes have 4 vCPUs
	}
	w.beat()
	a := w.c.Aggregate()
	for what, got := range map[string]int64{
		"the largest place":           a.Largest.MilliCPU,
		"the largest of its kind":     a.Slots[0].Largest.MilliCPU,
		"half of the largest to come": a.Preemptible[0].Largest.MilliCPU / 2,
		"a quarter of all":            a.Free.MilliCPU / 4,
		"a quarter of its kind":       a.Slots[0].Free.MilliCPU / 4,
	} {
		if got != 2000 {
			t.Errorf("%s: the root is told %d", what, got)
		}
	}
	if a.Mean.MilliCPU != 0 || a.Capacity.MilliCPU != 16_000 || a.Free.MemoryMB > a.Capacity.MemoryMB {
		t.Errorf("the root is told %+v", a)
	}
	w.wants(classed(4, 5, "normal", 1.8), classed(5, 5, "normal", 1.8), classed(6, 5, "normal", 1.8), classed(7, 5, "normal", 1.8))
	if a := w.c.Aggregate(); a.Free.MilliCPU != 0 || a.Largest.MilliCPU != 0 || a.Slots[0].Largest.MilliCPU != 0 {
		t.Errorf("full, the root is told %+v", a)
	}
}

func TestAPlanReservesNothing(t *testing.T) {
	w := line(t, 2, nil)
	var req api.ClusterPlanRequest
	for i := range 9 {
		m := spec(1, 100)
		req.Instances = append(req.Instances, api.WhyRequest{Instance: web.Instance(i), Spec: m})
	}
	p := w.c.Plan(req)
	on := map[api.NodeID]int{}
	for i, in := range p.Instances {
		if want := map[bool]string{true: "place", false: "wait"}[i < 8]; in.Action != want || i < 8 && len(in.Headroom) != 2 || i == 8 && in.Why == nil {
			t.Errorf("%d: %+v", i, in)
		}
		on[in.Node]++
	}
	if on["n0"] != 4 || on["n1"] != 4 {
		t.Errorf("they go to %v", on)
	}
	w.checkBooks()
	if w.c.place.Inspect().Size+w.c.latency.Size().Users != 0 {
		t.Error("a plan leaves something behind")
	}
	near := of(web, 0, 1, near("pre.prod", 5))
	p = w.c.Plan(api.ClusterPlanRequest{Instances: []api.WhyRequest{
		{Instance: pre.Instance(0), Spec: of(pre, 0, 1, onNode("n1")).Spec}, {Instance: web.Instance(0), Spec: near.Spec},
	}})
	if p.Instances[1].Node != "n1" {
		t.Errorf("near what is planned before it: %+v", p.Instances)
	}
	w.checkBooks()
}

func TestAPlanNamesTheInstancesToPreempt(t *testing.T) {
	for _, may := range []bool{true, false} {
		w := line(t, 2, func(c *Config) { c.Preempt = may })
		w.wants(classed(0, 1, "low", 2), classed(1, 1, "low", 2), classed(2, 1, "normal", 4))
		w.beat()
		low := w.at(0).Node
		ask := func(i int, cpu float64) api.WhyRequest {
			return api.WhyRequest{Instance: far.Instance(i), Spec: classed(0, 1, "high", cpu).Spec}
		}
		req := api.ClusterPlanRequest{Instances: []api.WhyRequest{ask(0, 2), ask(1, 2), ask(2, 4), ask(3, 4)}}
		before := fmt.Sprintf("%+v", w.c.Nodes())
		got := w.c.Plan(req).Instances
		w.checkBooks()
		if after := fmt.Sprintf("%+v", w.c.Nodes()); after != before {
			t.Errorf("a plan leaves something behind:\n%s\n%s", before, after)
		}
		if !may {
			if got[0].Action != "wait" || got[0].Why == nil {
				t.Errorf("without leave: %+v", got[0])
			}
			continue
		}
		ways := map[api.InstanceID]bool{}
		for i, v := range got[:3] {
			if v.Action != "place" || !v.Preempts || len(v.Preempted) != 1 || v.Node == "" || (v.Node == low) != (i < 2) || len(v.Headroom) != 2 {
				t.Errorf("%d: %+v", i, v)
			}
			for _, id := range v.Preempted {
				ways[id] = true
			}
		}
		if len(ways) != 3 {
			t.Errorf("some are preempted twice: %v", ways)
		}
		if got[0].Headroom[0] != "vcpus 0" || got[3].Action != "wait" {
			t.Errorf("%+v, the last %+v", got[0].Headroom, got[3])
		}
		// The result agrees with the plan.
		m := req.Instances[0]
		w.wants(wire.Assignment{Instance: m.Instance, Epoch: api.EpochOf(2, 0), SpecRev: 2, Spec: m.Spec})
		if in := w.record(m.Instance); in.Reserved != got[0].Node || w.nodeOf(got[0].Preempted[0]) != "" {
			t.Errorf("planned %+v, done: reserved on %q", got[0], in.Reserved)
		}
	}
}

func TestIdleNodesKeepMeasuringAFew(t *testing.T) {
	w := netWorld(t, 8)
	peers := map[api.NodeID][]api.Peer{}
	told := 0
	note := func() {
		for id, n := range w.nodes {
			for _, m := range n.got {
				if d, ok := m.(wire.NetDown); ok && d.Measure != nil {
					peers[id], told = d.Measure, told+1
				}
			}
			n.got = nil
		}
	}
	w.pass(20 * time.Second)
	note()
	for id := range w.nodes {
		if n := len(peers[id]); n < 2 || n > 4 {
			t.Errorf("%s measures %d", id, n)
		}
		for _, p := range peers[id] {
			if p.Node == id || p.Key == (api.PeerKey{}) {
				t.Errorf("%s measures %+v", id, p)
			}
		}
	}
	told = 0
	w.pass(time.Minute)
	if note(); told != 0 {
		t.Errorf("they are told %d times of what did not change", told)
	}
}
