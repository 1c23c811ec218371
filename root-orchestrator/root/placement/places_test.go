package placement

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/rom"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newMachine() *Machine {
	m := New(Config{RetryMin: 2 * time.Second, RetryMax: time.Minute, Plugin: rom.Plugin{}, MovesPerHour: 4})
	m.Begin(step.Clock{}, epoch, epoch)
	return m
}

func position(ms, lon float64) *api.Position {
	return &api.Position{Geo: &api.Geo{Lon: lon}, Coord: &api.Coordinate{Vec: []float64{ms / 1000, 0, 0, 0, 0, 0, 0, 0}, Height: 1e-5}}
}

const (
	front = api.ServiceID("acme/shop.prod.front.prod")
	back  = api.ServiceID("acme/shop.prod.back.prod")
)

// services returns two services that must be within some milliseconds of each other.
func services(ms float64) []Service {
	near := func(name, other string) *api.Microservice {
		return &api.Microservice{
			Name: name, Namespace: "prod", Virtualization: "container",
			Constraints: []api.Constraint{{Type: api.ConstrainLatency, Service: other, Threshold: ms}},
		}
	}
	return []Service{{ID: back, Spec: near("back", "front.prod"), Rev: 1}, {ID: front, Spec: near("front", "back.prod"), Rev: 1}}
}

// checkPlaces compares the stored positions with a computation from scratch.
func checkPlaces(t *testing.T, m *Machine, all map[api.InstanceID]Instance) {
	t.Helper()
	for id, s := range m.services {
		unknown, spots := map[api.ClusterID]int{}, map[*spot]int{}
		for _, in := range all {
			if in.ID.Service() != id {
				continue
			}
			it := m.instances[in.ID]
			switch {
			case in.Leaving || in.Cluster == "":
				if it.countedIn != "" || it.spot != nil {
					t.Fatalf("%s has no place and is counted in %q", in.ID, it.countedIn)
				}
			case it.countedIn != in.Cluster || (it.spot == nil) != (in.Position == nil):
				t.Fatalf("%s is on %s at %v and is counted in %q at %v", in.ID, in.Cluster, in.Position, it.countedIn, it.spot)
			case it.spot == nil:
				unknown[in.Cluster]++
			default:
				spots[it.spot]++
			}
		}
		p := &s.places
		if fmt.Sprint(p.unknown) != fmt.Sprint(unknown) && len(p.unknown)+len(unknown) > 0 {
			t.Fatalf("%s has instances at unknown positions in %v, want %v", id, p.unknown, unknown)
		}
		if len(p.spots) != len(spots) || len(p.at) != len(spots) {
			t.Fatalf("%s has %d positions in %d cells, want %d", id, len(p.spots), len(p.at), len(spots))
		}
		for _, at := range p.spots {
			sum := 0
			for _, n := range at.in {
				sum += n
			}
			if at.all != spots[at] || sum != at.all || p.at[at.cell] != at {
				t.Fatalf("%s has %d instances at %v, %d by cluster, want %d", id, at.all, at.Position, sum, spots[at])
			}
		}
		for _, k := range s.links.relations {
			for _, r := range k.in {
				checkReach(t, r)
			}
		}
	}
}

func checkReach(t *testing.T, r *reach) {
	t.Helper()
	open, all := 0, 0
	for _, s := range r.from.spots {
		if !measures(r.link, &s.found) {
			continue
		}
		all++
		n := 0
		for _, o := range r.to.spots {
			if measures(r.link, &o.found) && within(r.link, s.found, o.found) {
				n++
			}
		}
		if got, ok := r.near[s]; !ok || got != n {
			t.Fatalf("%d positions are near %v, want %d", got, s.found, n)
		}
		if n == 0 {
			open++
		}
	}
	if r.open != open || len(r.near) != all {
		t.Fatalf("%d of %d positions have none near, want %d of %d", r.open, len(r.near), open, all)
	}
}

func TestPlacesAreThoseOfTheInstances(t *testing.T) {
	clusters := []api.ClusterID{"", "a", "b", "c"}
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 3))
		m, all := newMachine(), map[api.InstanceID]Instance{}
		m.SetApp(services(20), nil)
		spec := services(20)[0].Spec
		for range 150 {
			id := []api.ServiceID{front, back}[rng.IntN(2)].Instance(rng.IntN(8))
			in, known := all[id]
			switch k := rng.IntN(10); {
			case !known:
				in = Instance{ID: id, Spec: spec}
				m.Add(id)
			case k == 0:
				in.Cluster, in.Position = "", nil
				m.Locate(in)
				m.Remove(id)
				delete(all, id)
				checkPlaces(t, m, all)
				continue
			case k == 1:
				in.Leaving = true
			case k == 2:
				m.SetApp(services(float64(10+20*rng.IntN(3))), nil)
			case k < 5:
				in.Cluster, in.Position = clusters[rng.IntN(len(clusters))], nil
			case in.Cluster != "":
				in.Position = position(float64(rng.IntN(80)), rng.Float64()*90)
				if rng.IntN(5) == 0 {
					in.Position.Coord = nil
				}
			}
			m.Locate(in)
			all[id] = in
			checkPlaces(t, m, all)
		}
	}
}

// A refusal that siblings share is stored once.
func TestSiblingsShareARefusal(t *testing.T) {
	m := newMachine()
	v := services(20)[1]
	m.SetApp([]Service{v}, nil)
	m.SetFacts("a", Facts{Live: true})
	for n := range 5 {
		in := Instance{ID: front.Instance(n), Spec: v.Spec, SpecRev: 1, State: api.ClusterScheduled, Cluster: "a"}
		m.Add(in.ID)
		m.Refused(in, "a", api.Observed{Instance: in.ID, HandedBack: true, Reason: api.ReasonNoCapacity})
		if own := len(m.instances[in.ID].refusals); own != 0 {
			t.Errorf("%s keeps %d refusals of its own, want none", in.ID, own)
		}
		if all := m.refusedBy(in, "a"); len(all) != 1 {
			t.Errorf("%d refusals apply to %s, want the shared one", len(all), in.ID)
		}
	}
}
