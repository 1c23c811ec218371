package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// What connections measure judges a link, from the kernel to the move: an instance that
// is measured too far from what it is to be near to moves, and stays where it is
// measured near enough. What a node says that runs neither end moves nobody. Cluster and
// netmanagers are restarted in between.
func TestMeasuredPairsMoveWhatTheyBreak(t *testing.T) {
	const (
		store, web = api.ServiceID("acme/shop.prod.store.prod"), api.ServiceID("acme/shop.prod.web.prod")
		bound      = 200 * time.Millisecond // more than any two nodes are apart here
	)
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			w := NewWorld(seed, Settings{Network: true, Restless: seed > 0}, Options{})
			w.addRoot()
			c := w.addCluster("c1")
			for i := range 4 {
				c.addNode(api.NodeID(fmt.Sprintf("s%d-n%d", seed, i)), api.NodeInfo{
					Arch: "amd64", OS: "linux", Runtimes: []string{"container"}, Capacity: api.Resources{MilliCPU: 4000, MemoryMB: 4000},
				})
			}
			c.join()
			w.Run(2 * time.Minute) // they know where they are
			one := 1
			service := func(name string, cs ...api.Constraint) api.Microservice {
				return api.Microservice{Name: name, Namespace: "prod", Virtualization: "container", Code: image("acme", name, "v1"), VCPUs: 0.5, Memory: 64, Replicas: &one, Constraints: cs}
			}
			near := api.Constraint{Type: api.ConstrainLatency, Service: "store.prod", Threshold: float64(bound.Milliseconds()), Rigidness: 60}
			apart := api.Constraint{Type: api.ConstrainApart, By: "node", Services: []string{"store.prod"}}
			if got := w.root.proc.give(root.Apply{Tenant: "acme", Spec: api.Application{
				Name: "shop", Namespace: "prod", Services: []api.Microservice{service("store"), service("web", near, apart)},
			}}); got.err != nil {
				t.Fatal(got.err)
			}
			at := func(id api.InstanceID) api.Instance {
				in, _ := c.core.Instance(id)
				return in
			}
			first, second := store.Instance(0), web.Instance(0)
			until := func(what string, so func() bool) {
				t.Helper()
				if !w.RunUntil(so, 5*time.Minute) {
					t.Fatalf("%s: %+v, %+v, %v", what, at(first), at(second), w.violation)
				}
			}
			runs := func() bool { return at(first).State == api.Running && at(second).State == api.Running }
			until("both run", runs)
			// Who is called sees the caller's own address, and so tells where it is.
			far := map[api.NodeID]bool{at(second).Node: true}
			var look func()
			look = func() {
				w.after(15*time.Second, look)
				a, b := at(first), at(second)
				n := c.node(a.Node)
				if n == nil || n.net == nil || !n.net.proc.running() || !b.Address.IsValid() {
					return
				}
				f := overlay.Flow{Local: a.Address, Remote: b.Address, Sockets: 3, RTT: 20 * time.Millisecond, Least: 20 * time.Millisecond}
				if far[b.Node] {
					f.RTT, f.Least = 2*bound, 2*bound
				}
				n.net.proc.give(overlay.Miss{Local: f.Local, Remote: f.Remote})
				n.net.proc.give(overlay.Sampled{Flows: []overlay.Flow{f}})
			}
			was := at(second)
			var stranger *NetMachine
			for _, n := range c.nodes {
				if n.id != was.Node && n.id != at(first).Node {
					stranger = n.net
				}
			}
			stranger.lies = []api.NetPair{
				{Local: store, Remote: web, Node: was.Node, Least: 3 * bound, Connections: 9},
				{Local: web, Remote: store, Node: at(first).Node, Least: 3 * bound, Connections: 9},
			}
			stranger.crash() // it says all anew, and these with it
			stranger.start()
			w.Run(3 * time.Minute)
			if in := at(second); in.Epoch != was.Epoch || in.Violated != "" {
				t.Fatalf("what a stranger says has it on %s, %q", in.Node, in.Violated)
			}
			look()
			w.Run(20 * time.Second)
			c.crash()
			c.start()
			c.node(at(first).Node).net.crash()
			c.node(at(first).Node).net.start()
			until("it moves", func() bool { in := at(second); return in.Node != "" && in.Node != was.Node && runs() })
			until("its SLA is kept", func() bool { return at(second).Violated == "" && runs() })
			moved := at(second)
			w.Run(5 * time.Minute)
			if in := at(second); in.Epoch != moved.Epoch || in.Violated != "" || w.violation != nil {
				t.Errorf("it is on %s as %s, was as %s: %q, %v", in.Node, in.Epoch, moved.Epoch, in.Violated, w.violation)
			}
		})
	}
}
