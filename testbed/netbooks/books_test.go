package netbooks

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

func app(name string, replicas int, change ...func(*api.Microservice)) api.Application {
	m := api.Microservice{Name: name, Namespace: "prod", Virtualization: "container", VCPUs: 0.1, Memory: 10, Replicas: &replicas}
	for _, f := range change {
		f(&m)
	}
	return api.Application{Name: name, Namespace: "prod", Services: []api.Microservice{m}}
}

func service(tenant api.Tenant, name string) api.ServiceID {
	return tenant.App(name, "prod").Service(name, "prod")
}

func (w *world) apply(tenant api.Tenant, a api.Application) {
	w.t.Helper()
	check(w.t, w.root.step(w.t, w.now, root.Apply{Tenant: tenant, Spec: a, By: "alice"}))
}

// TestEveryNodesViewBecomesTheTruth makes random changes and faults, and then waits until the
// network state has converged.
func TestEveryNodesViewBecomesTheTruth(t *testing.T) {
	seeds := uint64(24)
	if testing.Short() {
		seeds = 6
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, seed, 3, 3)
			w.pass(3 * time.Second)
			w.lossy = true
			for range 60 {
				w.anything()
				w.pass(time.Duration(w.rng.IntN(1500)) * time.Millisecond)
			}
			w.lossy = false
			w.root.off, w.root.snip = false, nil
			for _, p := range w.clusters {
				p.snip = nil
			}
			for _, id := range step.Keys(w.nodes) {
				w.nodes[id].off = false
			}
			w.pass(3 * time.Minute)
			w.agree("when it is quiet")
			before := w.sent
			for _, n := range w.nodes {
				n.renew = w.now.Add(time.Minute)
			}
			w.pass(30 * time.Second)
			if n := w.sent - before; n > 0 {
				t.Errorf("%d messages of the network without changes, want 0", n)
			}
		})
	}
}

var names = []string{"web", "db", "api", "Cart", "auth"}

func (w *world) anything() {
	rng := w.rng
	tenant := []api.Tenant{"acme", "acme", "acme", "rival"}[rng.IntN(4)]
	name := names[rng.IntN(len(names))]
	nodes, clusters := step.Keys(w.nodes), step.Keys(w.clusters)
	n := w.nodes[nodes[rng.IntN(len(nodes))]]
	snip := func(n int) int { return rng.IntN(n + 1) }
	switch rng.IntN(26) {
	case 24:
		w.root.snip = snip
	case 25:
		w.clusters[clusters[rng.IntN(len(clusters))]].snip = snip
	case 0, 1, 2, 3:
		_ = w.root.step(w.t, w.now, root.Apply{Tenant: tenant, Spec: app(name, rng.IntN(8), access(rng))})
	case 4:
		_ = w.root.step(w.t, w.now, root.Scale{Service: service(tenant, name), Replicas: rng.IntN(8)})
	case 5:
		_ = w.root.step(w.t, w.now, root.DeleteApp{App: tenant.App(name, "prod")})
	case 6:
		w.startRoot()
	case 7:
		w.startCluster(clusters[rng.IntN(len(clusters))])
	case 8:
		n.restart(rng.IntN(2) == 0)
	case 9:
		n.off = !n.off
	case 10:
		_ = w.clusters[n.cluster].step(w.t, w.now, cluster.Drain{Node: n.id})
	case 11, 12:
		_ = w.clusters[n.cluster].step(w.t, w.now, cluster.Cordon{Node: n.id})
	case 13:
		w.root.off = !w.root.off
	case 14, 15:
		for want := range n.wants {
			if rng.IntN(3) == 0 { // any one
				n.drop(want)
			}
		}
	default:
		for range 1 + rng.IntN(4) {
			n.ask(w.someWant(n))
		}
	}
}

func access(rng *rand.Rand) func(*api.Microservice) {
	return func(m *api.Microservice) {
		switch rng.IntN(6) {
		case 0:
			m.Callers = []string{"app"}
		case 1:
			m.Callers = []string{"tenant", "rival/web.prod"}
		case 2:
			m.Callers = []string{"none"}
		case 3:
			m.Calls = []string{"acme/web.prod", "acme/db.prod"}
		case 4:
			m.Addresses = &api.Addresses{Closest: "auto", Instances: []api.AddressRange{{From: 0, To: 3, Start: "auto"}}}
		}
	}
}

func (w *world) someWant(n *node) wire.Subscription {
	rng := w.rng
	var hosted []api.ServiceID
	for _, id := range step.Keys(n.has) {
		hosted = append(hosted, id.Service())
	}
	want := wire.Subscription{For: service("acme", names[rng.IntN(len(names))])}
	if len(hosted) > 0 && rng.IntN(8) > 0 {
		want.For = hosted[rng.IntN(len(hosted))]
	}
	services := w.root.core.Services("")
	nodes := step.Keys(w.nodes)
	other := w.nodes[nodes[rng.IntN(len(nodes))]]
	switch rng.IntN(6) {
	case 0:
		if other.lease != nil && other != n {
			return wire.Subscription{Address: other.lease.Subnet.Addr()}
		}
	case 1:
		for _, id := range step.Keys(other.has) {
			if other != n {
				want.Address = other.has[id].Address
				return want
			}
		}
	case 2, 3:
		if len(services) > 0 {
			a := services[rng.IntN(len(services))].Addresses
			want.Address = a.RoundRobin
			if addr, ok := a.Instances[rng.IntN(4)]; ok && rng.IntN(2) == 0 {
				want.Address = addr
			}
			return want
		}
	case 4:
		want.Service = service("rival", names[rng.IntN(len(names))])
		return want
	}
	want.Service = service("acme", names[rng.IntN(len(names))])
	return want
}
