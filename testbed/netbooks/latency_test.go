package netbooks

import (
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// TestANewRouteTakesNoLongerThanItsMessages: no tier delays changes between the node of an instance
// and a subscribed node. A message takes up to 20 ms here.
func TestANewRouteTakesNoLongerThanItsMessages(t *testing.T) {
	w := newWorld(t, 1, 2, 2)
	w.pass(3 * time.Second)
	w.apply("acme", app("client", 16))
	w.apply("acme", app("web", 0))
	w.pass(5 * time.Second)
	web := service("acme", "web")
	for _, id := range step.Keys(w.nodes) {
		n := w.nodes[id]
		if len(n.has) == 0 {
			t.Fatalf("service %s has no client", id)
		}
		n.ask(wire.Subscription{Service: web, For: service("acme", "client")})
	}
	w.pass(2 * time.Second)
	w.agree("before")
	worst := map[bool]time.Duration{} // by whether it is across clusters
	for replicas := 1; replicas <= 12; replicas++ {
		check(t, w.root.step(t, w.now, root.Scale{Service: web, Replicas: replicas}))
		var ran time.Time
		var on *node
		waits := map[*node]bool{}
		for range 300 {
			w.pass(10 * time.Millisecond)
			for _, n := range w.nodes {
				if _, runs := n.has[web.Instance(replicas-1)]; runs && on == nil {
					on, ran = n, w.now
					for _, other := range w.nodes {
						waits[other] = true
					}
				}
			}
			for n := range waits {
				if n.leadsTo(web, replicas) {
					delete(waits, n)
					across := n.cluster != on.cluster
					worst[across] = max(worst[across], w.now.Sub(ran))
				}
			}
			if on != nil && len(waits) == 0 {
				break
			}
		}
		if on == nil || len(waits) > 0 {
			t.Fatalf("the route of replica %d has not reached all clients", replicas)
		}
		w.pass(time.Second)
	}
	t.Logf("within a cluster %s, across %s", worst[false], worst[true])
	if worst[false] > 60*time.Millisecond || worst[true] > 250*time.Millisecond {
		t.Errorf("a new route took %s within a cluster and %s across clusters, which exceeds the bound", worst[false], worst[true])
	}
}

func (n *node) leadsTo(s api.ServiceID, backends int) bool {
	up := 0
	for _, be := range n.held.Routes[s].Backends {
		if be.State == api.BackendUp {
			up++
		}
	}
	return up == backends
}
