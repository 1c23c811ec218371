package relations

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

const (
	web  = api.ServiceID("acme/shop.prod.web.prod")
	data = api.ServiceID("acme/shop.prod.data.prod")
)

func at(node api.NodeID, ms float64) api.Position {
	c := vivaldi.New()
	c.Vec[0], c.Height = ms/1000, 1e-5
	return api.Position{Node: node, Coord: &c}
}

func link(to string, ms time.Duration) sched.Link {
	return sched.Link{Service: to, RTT: ms * time.Millisecond}
}

// TestLinksAreThoseOfTheInstances changes nodes and instances at random, and compares which
// instances have no instance of the linked service near.
func TestLinksAreThoseOfTheInstances(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 11))
		m, placed := New("munich"), map[api.InstanceID]api.NodeID{}
		node := func() api.NodeID { return api.NodeID(fmt.Sprintf("n%d", rng.IntN(5))) }
		for i := range 5 {
			id := api.NodeID(fmt.Sprintf("n%d", i))
			m.SetNode(id, Node{Position: at(id, float64(10*i)), Areas: []string{"munich"}})
		}
		for range 150 {
			id := []api.ServiceID{web, data}[rng.IntN(2)].Instance(rng.IntN(5))
			on, known := placed[id]
			switch k := rng.IntN(8); {
			case !known:
				sla := SLA{}
				if id.Service() == web {
					sla.Links = []sched.Link{link("data.prod", time.Duration(5+rng.IntN(2)*20))}
				}
				m.SetInstance(id, sla, nil)
				placed[id] = ""
			case k == 0:
				n := node()
				m.SetNode(n, Node{Position: at(n, float64(rng.IntN(60))), Areas: []string{"munich", "de"}[:rng.IntN(3)]})
			case k == 1:
				n := node()
				_, undo := m.CountTentatively(data, n, +1)
				m.InboundBounds(data.Instance(99), "", false)
				undo()
			case k == 2:
				m.SetTargets(id, []api.Target{{Service: data, Positions: []api.Position{at("", float64(rng.IntN(60)))}}})
			case on == "":
				placed[id] = node()
				m.Place(id, placed[id])
			case k < 6:
				m.Unplace(id)
				placed[id] = ""
			default:
				m.Unplace(id)
				m.Remove(id)
				delete(placed, id)
			}
			checkLinks(t, m, placed)
			checkAreas(t, m)
		}
	}
}

func checkLinks(t *testing.T, m *Machine, placed map[api.InstanceID]api.NodeID) {
	t.Helper()
	peers := map[string]int{}
	for id, on := range placed {
		if id.Service() == data && on != "" {
			peers[string(on)]++
		}
	}
	if got := m.Peers(data); !maps.Equal(got, peers) {
		t.Fatalf("%s is on %v, want %v", data, got, peers)
	}
	for _, w := range m.inboundOf(data) {
		open := map[api.InstanceID]bool{}
		for id, on := range placed {
			in := m.instances[id]
			if on == "" || id.Service() != web || keyOf(web, in.sla.Links[0]) != keyOf(web, w.link) {
				continue
			}
			near := m.nearTarget(w.link, in, data)
			for name := range peers {
				near = near || within(w.link, m.nodes[on].Position, m.nodes[api.NodeID(name)].Position)
			}
			if !near {
				open[id] = true
			}
		}
		if !maps.Equal(w.unserved, open) || w.places.Len() != len(open) {
			t.Fatalf("%v have none near by %v, want %v", w.unserved, w.link, open)
		}
	}
}

func checkAreas(t *testing.T, m *Machine) {
	t.Helper()
	for _, area := range []string{"munich", "de"} {
		var want []api.Position
		for _, id := range slices.Sorted(maps.Keys(m.nodes)) {
			if slices.Contains(m.nodes[id].Areas, area) {
				want = append(want, m.nodes[id].Position)
			}
		}
		b, _ := m.Bound(web, sched.Link{Area: area, RTT: time.Millisecond}, nil)
		if got := b.All(); !slices.Equal(got, want) {
			t.Fatalf("nodes in %s are at %v, want %v", area, got, want)
		}
	}
}

func TestSpreadAndAntiAffinityCloseDomains(t *testing.T) {
	m := New("munich")
	for node, zone := range map[api.NodeID]string{"n0": "a", "n1": "a", "n2": "b"} {
		m.SetNode(node, Node{Labels: map[string]string{"zone": zone}})
	}
	sla := SLA{Spreads: []sched.Spread{{By: "zone", Limit: 1}}}
	m.SetInstance(web.Instance(0), sla, nil)
	m.Place(web.Instance(0), "n0")
	if got, want := m.Domains(web.Instance(1), "", &sla), (sched.Domain{By: "zone", Name: "a", Have: 1, Limit: 1}); len(got) != 1 || got[0] != want {
		t.Errorf("domains %v are closed for the next instance, want %v", got, want)
	}
	if got := m.Domains(web.Instance(0), "n0", &sla); len(got) != 0 {
		t.Errorf("domains %v are closed for the instance itself, want none", got)
	}
	apart := SLA{AntiAffinities: []sched.AntiAffinity{{By: "node", Services: []string{"web.prod"}}}}
	m.SetInstance(data.Instance(0), apart, nil)
	if got, want := m.Domains(data.Instance(0), "", &apart), (sched.Domain{By: "node", Name: "n0", Have: 1, AntiAffinity: "web.prod"}); len(got) != 1 || got[0] != want {
		t.Errorf("domains %v are closed, want %v", got, want)
	}
	m.SetInstance(web.Instance(1), sla, nil)
	m.Place(web.Instance(1), "n2")
	m.SetNode("n2", Node{Labels: map[string]string{"zone": "a"}})
	if got, want := m.LabelViolations(web.Instance(1)), (sched.Domain{By: "zone", Name: "a", Have: 2, Limit: 1}); len(got) != 1 || got[0] != want {
		t.Errorf("after a change of labels %v is shared, want %v", got, want)
	}
	m.KeptOut()
	m.Unplace(web.Instance(0))
	if got, want := m.KeptOut(), map[api.ServiceID]bool{web: true, data: true}; !maps.Equal(got, want) || m.HasDepartures() {
		t.Errorf("the instance that left kept out %v, want %v", got, want)
	}
}
