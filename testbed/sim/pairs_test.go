package sim

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// The round trips of connections decide whether a link is violated: an instance with a
// measured latency above its bound moves, and stays where the measured latency is below it,
// in the cluster of the other end or in another. Reports of a node that runs neither end
// have no effect. Cluster and netmanagers are restarted in between.
func TestMeasuredPairsMoveWhatTheyBreak(t *testing.T) {
	const (
		store, web = api.ServiceID("acme/shop.prod.store.prod"), api.ServiceID("acme/shop.prod.web.prod")
		bound      = 200 * time.Millisecond // more than any two nodes are apart here
	)
	for seed := range uint64(6) {
		across := seed >= 4
		t.Run(fmt.Sprint("seed ", seed, ", across clusters ", across), func(t *testing.T) {
			t.Parallel()
			w := NewWorld(seed, Settings{Network: true, Restless: seed > 0}, Options{})
			w.addRoot()
			c := w.addCluster("c1")
			there := c // where the store is
			if across {
				there = w.addCluster("c2")
			}
			for i := range 5 {
				in := c
				if i > 2 { // two, which measure each other
					in = there
				}
				in.addNode(api.NodeID(fmt.Sprintf("s%d-n%d", seed, i)), api.NodeInfo{
					Arch: "amd64", OS: "linux", Runtimes: []string{"container"}, Capacity: api.Resources{MilliCPU: 4000, MemoryMB: 4000},
				})
			}
			c.join()
			if across {
				there.join()
			}
			w.Run(2 * time.Minute) // until their coordinates are settled
			one := 1
			service := func(name string, cs ...api.Constraint) api.Microservice {
				return api.Microservice{Name: name, Namespace: "prod", Virtualization: "container", Code: image("acme", name, "v1"), VCPUs: 0.5, Memory: 64, Replicas: &one, Constraints: cs}
			}
			near := api.Constraint{Type: api.ConstrainLatency, Service: "store.prod", Threshold: float64(bound.Milliseconds()), Rigidness: 60}
			apart := api.Constraint{Type: api.ConstrainAntiAffinity, By: "node", Services: []string{"store.prod"}}
			address := netip.MustParseAddr("10.30.7.7")
			in := func(m *ClusterMachine) api.Constraint {
				return api.Constraint{Type: api.ConstrainDirect, Cluster: string(m.id)}
			}
			stored := service("store", in(there))
			stored.Addresses = &api.Addresses{RoundRobin: address.String()}
			if got := w.root.proc.give(root.Apply{Tenant: "acme", Spec: api.Application{
				Name: "shop", Namespace: "prod", Services: []api.Microservice{stored, service("web", near, apart, in(c))},
			}}); got.err != nil {
				t.Fatal(got.err)
			}
			first, second := store.Instance(0), web.Instance(0)
			at := func(id api.InstanceID) api.Instance {
				m := c
				if id == first {
					m = there
				}
				in, _ := m.core.Instance(id)
				return in
			}
			until := func(what string, so func() bool) {
				t.Helper()
				if !w.RunUntil(so, 5*time.Minute) {
					t.Fatalf("%s: %+v, %+v, %v", what, at(first), at(second), w.violation)
				}
			}
			runs := func() bool { return at(first).State == api.Running && at(second).State == api.Running }
			until("both run", runs)
			// Within a cluster the called end sees the caller's own address and reports for it. Across
			// clusters only the calling end reports, by the node that the address leads to.
			teller := func() *NetMachine {
				if across {
					return c.node(at(second).Node).net
				}
				return c.node(at(first).Node).net
			}
			far := map[api.NodeID]bool{at(second).Node: true}
			var look func()
			look = func() {
				w.after(15*time.Second, look)
				a, b := at(first), at(second)
				if !runs() || !b.Address.IsValid() || !teller().proc.running() {
					return
				}
				f := overlay.Flow{Local: a.Address, Remote: b.Address, Sockets: 3, RTT: 20 * time.Millisecond, Least: 20 * time.Millisecond}
				if across {
					f.Local, f.Remote = b.Address, address
				}
				if far[b.Node] {
					f.RTT, f.Least = 2*bound, 2*bound
				}
				teller().proc.give(overlay.Miss{Local: f.Local, Remote: f.Remote})
				teller().proc.give(overlay.Sampled{Flows: []overlay.Flow{f}})
			}
			was := at(second)
			var stranger *NetMachine
			for _, n := range c.nodes {
				if n.id != was.Node && n.id != at(first).Node {
					stranger = n.net
				}
			}
			stranger.lies = []wire.NetPair{
				{Local: store, Remote: web, Node: was.Node, Least: 3 * bound, Connections: 9},
				{Local: web, Remote: store, Node: at(first).Node, Least: 3 * bound, Connections: 9},
			}
			if across {
				there := there.node(at(first).Node).net.key().String()
				stranger.lies = []wire.NetPair{{Local: web, Remote: store, Node: api.NodeID(there), Cluster: "c2", Least: 3 * bound, Connections: 9}}
			}
			stranger.crash() // it reports everything again, including the lies
			stranger.start()
			w.Run(3 * time.Minute)
			if in := at(second); in.Epoch != was.Epoch || in.Violated != "" {
				t.Fatalf("after false reports of a node without either end, the instance is on %s, violated: %q; want no effect", in.Node, in.Violated)
			}
			if across {
				stranger.lies = nil // if the instance moves there, the node may report about it
			}
			look()
			w.Run(20 * time.Second)
			c.crash()
			c.start()
			teller().crash()
			teller().start()
			until("it moves", func() bool { in := at(second); return in.Node != "" && in.Node != was.Node && runs() })
			until("its SLA is kept", func() bool { return at(second).Violated == "" && runs() })
			moved := at(second)
			w.Run(5 * time.Minute)
			if in := at(second); in.Epoch != moved.Epoch || in.Violated != "" || w.violation != nil {
				t.Errorf("the instance is on %s as %s, was as %s, violated: %q, violation: %v; want it unmoved", in.Node, in.Epoch, moved.Epoch, in.Violated, w.violation)
			}
		})
	}
}
