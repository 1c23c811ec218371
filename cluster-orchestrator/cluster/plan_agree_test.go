package cluster

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// TestAnUpdateIsPlannedAsItsReplacement: on its own node, an instance's present ports, capacity,
// devices and domains do not prevent its replacement. Nor do those of removed instances.
func TestAnUpdateIsPlannedAsItsReplacement(t *testing.T) {
	for name, tt := range map[string]struct {
		had, gets func(*api.Microservice)
	}{
		"port":   {func(m *api.Microservice) { m.Port = "8080:80" }, func(m *api.Microservice) { m.Port = "8080:81" }},
		"room":   {func(m *api.Microservice) { m.VCPUs = 3 }, func(m *api.Microservice) { m.VCPUs = 4 }},
		"spread": {func(m *api.Microservice) { m.Constraints = apart() }, func(m *api.Microservice) { m.Constraints, m.Memory = apart(), 99 }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			had, gets := assignment(0, 1, spec(0.5, 10)), assignment(0, 2, spec(0.5, 10))
			tt.had(&had.Spec)
			tt.gets(&gets.Spec)
			gets.SpecRev = 2
			if had.Spec.Port != "" {
				w.onOverlay()
			}
			w.wants(had)
			w.beat()
			w.expect(0, api.Running, "n0")
			other := assignment(1, 3, gets.Spec)
			other.SpecRev = 2
			if p := w.plans(nil, gets)[0]; p.Action != "place" || p.Node != "n0" {
				t.Errorf("the update: %+v", p)
			}
			if p := w.plans(nil, other)[0]; p.Action != "wait" {
				t.Errorf("one beside it: %+v", p)
			}
			if p := w.plans([]api.InstanceID{had.Instance}, other)[0]; p.Action != "place" {
				t.Errorf("one in its place: %+v", p)
			}
			w.checkBooks()
			w.wants(gets)
			w.beat()
			w.expect(0, api.Running, "n0")
		})
	}
}

func apart() []api.Constraint { return []api.Constraint{{Type: api.ConstrainSpread}} }

// onOverlay gives all nodes an overlay network.
func (w *world) onOverlay() {
	for _, id := range step.Keys(w.nodes) {
		w.describes(id, func(i *api.NodeInfo) { i.Network = api.NetworkOverlay })
	}
}

// plans requests a plan of assignments, as the root does.
func (w *world) plans(gone []api.InstanceID, as ...wire.Assignment) []api.InstancePlan {
	r := api.ClusterPlanRequest{Gone: gone}
	for _, a := range as {
		r.Instances = append(r.Instances, api.WhyRequest{Instance: a.Instance, Spec: a.Spec, Targets: a.Targets})
	}
	return w.c.Plan(r).Instances
}

// change is one random change to a random world.
type change struct {
	*world
	put  []wire.Assignment
	drop []api.InstanceID
}

func drawChange(t *testing.T, seed uint64) change {
	rng := rand.New(rand.NewPCG(seed, 11))
	w := newWorld(t, 0)
	for i := range 1 + rng.IntN(4) {
		w.join(api.NodeID(fmt.Sprintf("n%d", i)), api.Resources{
			// no two nodes are alike: the choice among equals depends on the epoch, which a plan
			// does not have
			MilliCPU: 1000*int64(1+rng.IntN(4)) + int64(37*i), MemoryMB: 64*int64(1+rng.IntN(8)) + int64(5*i),
		})
	}
	w.onOverlay()
	draw := func(n int, rev api.Revision) wire.Assignment {
		m := spec(float64(1+rng.IntN(8))/4, 16*int64(1+rng.IntN(6)))
		if rng.IntN(3) == 0 {
			m.Port = fmt.Sprintf("%d:80", 8000+rng.IntN(3))
		}
		if rng.IntN(5) == 0 {
			m.Constraints = []api.Constraint{{Type: api.ConstrainSpread, Limit: 1 + rng.IntN(2)}}
		}
		a := assignment(n, rev, m)
		a.Instance = api.ServiceID(fmt.Sprintf("acme/shop.prod.s%d.prod", n%3)).Instance(n / 3)
		a.SpecRev = rev
		return a
	}
	for n := range rng.IntN(10) {
		a := draw(n, api.Revision(1+n))
		w.want[a.Instance] = a
	}
	w.desire()
	w.beat()
	w.pass(5 * time.Second)
	c := change{world: w}
	for n := range 12 { // some get another SLA, some are removed, some are new
		a := draw(n, api.Revision(100+n))
		switch _, has := w.want[a.Instance]; {
		case has && rng.IntN(4) == 0:
			c.drop = append(c.drop, a.Instance)
		case rng.IntN(3) == 0:
			c.put = append(c.put, a)
		}
	}
	slices.SortFunc(c.put, func(a, b wire.Assignment) int { return strings.Compare(string(a.Instance), string(b.Instance)) })
	return c
}

// happens applies the change. The nodes answer one after the other, in order or in reverse
// order.
func (c change) happens(reverse bool) (where []api.NodeID) {
	for _, id := range c.drop {
		delete(c.want, id)
	}
	for _, a := range c.put {
		c.want[a.Instance] = a
	}
	c.desire()
	ids := step.Keys(c.nodes)
	if reverse {
		slices.Reverse(ids)
	}
	for range 4 {
		for _, id := range ids {
			c.nodes[id].settle()
			c.speak(id)
		}
	}
	c.pass(10 * time.Second)
	for _, a := range c.put {
		in, _ := c.c.Instance(a.Instance)
		where = append(where, in.Node)
	}
	return where
}

var worldsDrawn = flag.Int("worlds", 600, "how many random worlds are drawn in which a plan, what happens and its explanation must agree")

// disagreed are seeds of worlds in which a plan differed from the result. 3745: in the plan,
// removed instances kept others out of their domains until they had stopped. 4284 and 5867: an
// update took the capacity that its earlier placement left before instances with precedence.
var disagreed = []uint64{3745, 4284, 5867}

// TestPlanApplyAndWhyAgree: in random worlds, applying a change has the planned result. For an
// instance that the plan lets wait, the explanation names the same constraints. Cases in which
// the result depends on the order of the nodes' answers are left out.
func TestPlanApplyAndWhyAgree(t *testing.T) {
	worlds := *worldsDrawn
	if testing.Short() {
		worlds = min(worlds, 100)
	}
	seeds := slices.Clone(disagreed)
	for seed := range uint64(worlds) {
		seeds = append(seeds, seed)
	}
	placed, waited, replaced, open := 0, 0, 0, 0
	for _, seed := range seeds {
		c := drawChange(t, seed)
		if c.waitingBut(c.put, c.drop) > 0 {
			continue // others take the freed capacity, which is a further change
		}
		before := c.digest()
		plans := c.plans(c.drop, c.put...)
		if c.digest() != before {
			t.Fatalf("seed %d: the plan changed something", seed)
		}
		c.checkBooks()
		for _, a := range c.put {
			if in := c.record(a.Instance); in.Node != "" {
				replaced++
			}
		}
		where, other := c.happens(false), drawChange(t, seed).happens(true)
		if !slices.Equal(where, other) {
			open++
			continue
		}
		for i, p := range plans {
			id := c.put[i].Instance
			switch in, _ := c.c.Instance(id); {
			case (p.Action == "place") != (where[i] != ""):
				t.Errorf("seed %d: %s was planned to %s on %q, and is on %q (%s: %s)", seed, id, p.Action, p.Node, in.Node, in.Reason, in.Detail)
			case p.Action == "place":
				placed++
			default:
				waited++
				why, _ := c.c.Why(id)
				if got, want := constraints(&why), constraints(p.Why); !slices.Equal(got, want) {
					t.Errorf("seed %d: %s waits for %v as planned, and for %v as explained", seed, id, want, got)
				}
			}
		}
	}
	t.Logf("%d placed, %d waited, %d replaced; %d worlds were open", placed, waited, replaced, open)
	if placed < worlds/2 || waited < worlds/10 || replaced < worlds/4 || open > worlds/20 {
		t.Errorf("%d placed, %d waited, %d replaced, %d open: too few to prove anything", placed, waited, replaced, open)
	}
}

func constraints(why *api.Explanation) (names []string) {
	for _, c := range why.Causes {
		names = append(names, c.Constraint)
	}
	slices.Sort(names)
	return names
}

// waitingBut returns the number of waiting instances that a change does not concern.
func (w *world) waitingBut(put []wire.Assignment, drop []api.InstanceID) (n int) {
	for id, in := range w.records() {
		if in.Node == "" && !slices.Contains(drop, id) && !slices.ContainsFunc(put, func(a wire.Assignment) bool { return a.Instance == id }) {
			n++
		}
	}
	return n
}

// digest returns a digest of the state that a plan must not change.
func (w *world) digest() string {
	desired, observed := w.c.Digests()
	s := fmt.Sprint(desired, observed, w.c.place.Sums().Used, w.c.place.Inspect().Size)
	for _, cand := range w.c.place.Candidates() {
		s += fmt.Sprint(cand.ID, cand.Free, cand.Load, cand.Ports)
	}
	return s
}

// TestThePlanConsidersTheOverlayNetwork: if no node has an overlay network, an instance that
// does not opt out waits in the plan, after applying it, and in the explanation.
func TestThePlanConsidersTheOverlayNetwork(t *testing.T) {
	for network, node := range map[string]api.NodeID{api.NetworkOverlay: "n1", api.NetworkAny: "n0"} {
		for _, has := range []bool{true, false} {
			w := newWorld(t, 0)
			w.join("n0", api.Resources{MilliCPU: 8000, MemoryMB: 4000}) // the better one
			w.join("n1", api.Resources{MilliCPU: 2000, MemoryMB: 200})
			for id := range w.nodes {
				w.describes(id, func(i *api.NodeInfo) {
					if i.Network = api.NetworkHost; has && id == "n1" {
						i.Network = api.NetworkOverlay
					}
				})
			}
			m := spec(1, 100)
			m.Network = network
			a := assignment(0, 1, m)
			plan := w.plans(nil, a)[0]
			w.wants(a)
			in, _ := w.c.Instance(a.Instance)
			if places := has || network == api.NetworkAny; places {
				if plan.Node != node || in.Node != node {
					t.Errorf("%s: planned on %q and placed on %q, want %s", network, plan.Node, in.Node, node)
				}
				continue
			}
			why, _ := w.c.Why(a.Instance)
			if got := constraints(&why); plan.Node != "" || in.Node != "" || !slices.Equal(got, []string{"network"}) || !slices.Equal(constraints(plan.Why), got) {
				t.Errorf("%s: planned on %q for %v, placed on %q for %v", network, plan.Node, constraints(plan.Why), in.Node, got)
			}
		}
	}
}
