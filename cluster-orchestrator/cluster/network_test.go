package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

var (
	share = netip.MustParsePrefix("10.16.0.0/20")
	rr    = netip.MustParseAddr("10.30.0.7")
)

// netWorld returns a world with shares, whose nodes have netmanagers.
func netWorld(t testing.TB, nodes int) *world {
	w := newWorld(t, nodes)
	w.step(RootNet{wire.RootNet{Rev: 1, Ranges: wire.DefaultNetRanges(), Shares: []netip.Prefix{share}}})
	for i := range nodes {
		w.net(api.NodeID(fmt.Sprintf("n%d", i)))
	}
	return w
}

// net sends the first message of a node's netmanager in its boot.
func (w *world) net(id api.NodeID, wants ...wire.Subscription) []any {
	self := wire.NetSelf{Chain: [][]byte{{1}}, Proof: []byte{2}}
	copy(self.Key[:], id)
	w.nodes[id].said = 1
	return w.said(id, w.step(NetUp{id, wire.NetUp{Boot: 1, Seq: 1, Self: &self, Whole: true, Subscribe: wants}}).Send)
}

func (w *world) said(id api.NodeID, envs []wire.Envelope) (msgs []any) {
	for _, e := range envs {
		if e.To == id.Addr() {
			msgs = append(msgs, e.Msg)
		}
	}
	return msgs
}

// run makes the node run its desired set, with addresses of its subnet.
func (w *world) run(id api.NodeID) []wire.Envelope {
	n := w.nodes[id]
	n.settle()
	lease, _ := w.c.Lease(id)
	for i, o := range n.has {
		a := lease.Subnet.Addr().As4()
		a[3] += byte(2 + i.Number())
		o.Address = netip.AddrFrom4(a)
		n.has[i] = o
	}
	return w.step(n.whole()).Send
}

func addressedAt(n int, a netip.Addr) wire.Assignment {
	as := assignment(n, 1, spec(1, 100))
	as.Addresses.RoundRobin = a
	return as
}

func down(t testing.TB, msgs []any) wire.NetDown {
	t.Helper()
	for _, m := range msgs {
		if d, ok := m.(wire.NetDown); ok {
			return d
		}
	}
	t.Fatalf("no word of the network in %+v", msgs)
	return wire.NetDown{}
}

func TestANodeKeepsItsSubnetAndItsSecrets(t *testing.T) {
	w := netWorld(t, 2)
	a, _ := w.c.Lease("n0")
	b, _ := w.c.Lease("n1")
	if a.Subnet == b.Subnet || a.Relay.Slot == b.Relay.Slot || a.Relay.Ticket == b.Relay.Ticket || len(a.Secret) != 32 ||
		!share.Contains(a.Subnet.Addr()) || a.Subnet.Bits() != 26 || a.Interest != 10*time.Minute {
		t.Fatalf("%+v\n%+v", a, b)
	}
	w.restart()
	if again, _ := w.c.Lease("n0"); again.Digest() != a.Digest() {
		t.Errorf("after a restart %+v, was %+v", again, a)
	}
	w.nodes["n1"].off = true
	w.pass(20 * time.Second)
	w.step(RemoveNode{"n1"})
	w.restart()
	w.join("n2", api.Resources{MilliCPU: 4000, MemoryMB: 4096})
	w.net("n2")
	w.pass(7 * time.Second) // time for nodes that have a subnet to report it
	if c, _ := w.c.Lease("n2"); c.Subnet == b.Subnet || !c.Subnet.IsValid() {
		t.Errorf("a removed node's subnet goes to the next: %s", c.Subnet)
	}
	if n, _ := w.c.Node("n2"); !n.Subnet.IsValid() {
		t.Errorf("the operator is not shown: %+v", n)
	}
}

// TestNewFlowsAvoidAnInstanceBeforeItsNodeIsToldToStopIt checks the order of messages in one
// step.
func TestNewFlowsAvoidAnInstanceBeforeItsNodeIsToldToStopIt(t *testing.T) {
	w := netWorld(t, 2)
	w.wants(addressedAt(0, rr), addressedAt(1, rr))
	w.run("n0")
	w.run("n1")
	d := down(t, w.net2("n1", wire.Subscription{Address: rr, For: web}))
	if len(d.Routes) != 1 || len(d.Routes[0].Backends) != 2 || d.Routes[0].Addresses.RoundRobin != rr || len(d.Routes[0].Peers) != 2 || !d.RequestHeld {
		t.Fatalf("told %+v", d)
	}
	on := w.at(0).Node
	delete(w.want, web.Instance(0))
	w.gen++
	eff := w.step(Desired{wire.Desired{Gen: w.gen, Put: []wire.Assignment{w.want[web.Instance(1)]}, Digest: w.want[web.Instance(1)].Digest()}})
	route, stop := -1, -1
	for i, e := range eff.Send {
		switch m := e.Msg.(type) {
		case wire.NetDown:
			for _, be := range m.Routes[0].Backends {
				if be.Instance == web.Instance(0) && be.State == api.BackendDraining {
					route = i
				}
			}
		case wire.Desired:
			if e.To == on.Addr() {
				stop = i
			}
		}
	}
	if route < 0 || stop < 0 || route > stop {
		t.Fatalf("the route is message %d, the stop %d of %+v", route, stop, eff.Send)
	}
	gone := down(t, w.said("n1", w.run(on)))
	if len(gone.Routes) != 1 || len(gone.Routes[0].Backends) != 1 || gone.Routes[0].Backends[0].State != api.BackendUp {
		t.Errorf("when it is gone: %+v", gone)
	}
}

// net2 sends a further message of a node's netmanager with subscriptions.
func (w *world) net2(id api.NodeID, wants ...wire.Subscription) []any {
	n := w.nodes[id]
	n.said++
	return w.said(id, w.step(NetUp{id, wire.NetUp{Boot: 1, Seq: n.said, Subscribe: wants, Held: w.c.netbook.Held(id)}}).Send)
}

func TestADeadNodesBackendsLeaveInTheStepThatFindsIt(t *testing.T) {
	w := netWorld(t, 3)
	for n := range 3 {
		w.want[web.Instance(n)] = addressedAt(n, rr)
	}
	w.desire()
	for _, id := range []api.NodeID{"n0", "n1", "n2"} {
		w.run(id)
	}
	w.net2("n0", wire.Subscription{Service: web, For: web})
	w.nodes["n1"].off = true
	w.nodes["n2"].has = map[api.InstanceID]api.Observed{} // otherwise heartbeats would lose the addresses
	for range 20 {
		w.now = w.now.Add(time.Second)
		for _, id := range []api.NodeID{"n0", "n2"} {
			w.step(w.nodes[id].alive())
		}
		eff := w.step(Tick{})
		if n, _ := w.c.Node("n1"); n.Status != api.NodeSilent {
			continue
		}
		r, ok := w.c.netbook.Route(web)
		if !ok || slices.ContainsFunc(r.Backends, func(be api.Backend) bool { return be.Peer == api.PeerKey{'n', '1'} }) {
			t.Errorf("the route leads to %+v, told %+v", r.Backends, eff.Send)
		}
		// The node may only be cut off from the cluster: its sources stay known.
		at := w.nodes["n1"].whole().Observed[0].Address
		if d := down(t, w.net2("n0", wire.Subscription{Service: web, For: web}, wire.Subscription{Address: at, For: web})); len(d.Sources) != 1 || d.Sources[0].Service != web {
			t.Errorf("asked for %s, told %+v", at, d)
		}
		return
	}
	t.Fatal("it is not found")
}

// An idle node reports a load of at least 1. 0 means unknown, which gets the average.
func TestIdleNodesReportRarely(t *testing.T) {
	w := netWorld(t, 2)
	for n := range 2 {
		w.want[web.Instance(n)] = addressedAt(n, rr)
	}
	w.desire()
	loads := map[api.NodeID]uint8{"n0": 90, "n1": 3}
	for id, cpu := range loads {
		w.run(id)
		beat := w.nodes[id].alive()
		beat.CPUUsed = cpu
		w.step(beat)
	}
	r, _ := w.c.netbook.Route(web)
	got := map[api.PeerKey]uint8{}
	for _, be := range r.Backends {
		got[be.Peer] = be.Load
	}
	if got[api.PeerKey{'n', '0'}] != 90 || got[api.PeerKey{'n', '1'}] == 0 || got[api.PeerKey{'n', '1'}] >= 20 {
		t.Errorf("the route has loads %v", got)
	}
}

// TestRoutesAreCompleteBeforeNodesReportAgain restarts the cluster and checks routes at once.
func TestRoutesAreCompleteBeforeNodesReportAgain(t *testing.T) {
	w := netWorld(t, 3)
	for n := range 3 {
		w.want[web.Instance(n)] = addressedAt(n, rr)
	}
	w.desire()
	for _, id := range []api.NodeID{"n0", "n1", "n2"} {
		w.nodes[id].slow = true // at first no instance listens
		w.run(id)
		w.nodes[id].slow = false
		clear(w.nodes[id].has)
		w.run(id)
	}
	w.restart()
	d := down(t, w.net("n2", wire.Subscription{Address: rr, For: web}))
	if len(d.Routes) != 1 || len(d.Routes[0].Backends) != 3 || d.Routes[0].Backends[0].State != api.BackendUp {
		t.Fatalf("told %+v", d)
	}
}

func TestAccessDecidesAboutSubscriptions(t *testing.T) {
	w := netWorld(t, 2)
	closed := addressedAt(0, rr)
	closed.Spec.Callers = []string{"none"}
	w.wants(closed)
	host := w.at(0).Node
	w.run(host)
	other := map[api.NodeID]api.NodeID{"n0": "n1", "n1": "n0"}[host]
	inst := w.at(0).Address
	lease, _ := w.c.Lease(other)
	for _, c := range []struct {
		node api.NodeID
		want wire.Subscription
		is   string
	}{
		{other, wire.Subscription{Address: rr, For: web}, "denied"}, // it does not host the service
		{host, wire.Subscription{Address: rr, For: web}, "denied"},  // no service may call it
		{host, wire.Subscription{Address: rr}, "denied"},
		{host, wire.Subscription{Service: web}, "denied"},
		{host, wire.Subscription{For: web}, "refused"},
		{host, wire.Subscription{Address: rr, Service: web, For: web}, "refused"},
		{host, wire.Subscription{Address: netip.MustParseAddr("192.0.2.1"), For: web}, "refused"},
		{host, wire.Subscription{Address: lease.Subnet.Addr().Next(), For: web}, "refused"}, // no instance has the address
		{host, wire.Subscription{Address: inst, For: web}, "denied"},
		{host, wire.Subscription{Address: lease.Subnet.Addr()}, "peer"},
		{host, wire.Subscription{Service: "rival/a.b.c.d", For: web}, "nothing"}, // only the root can answer
	} {
		d := wire.NetDown{}
		if msgs := w.net2(c.node, c.want); len(msgs) > 0 {
			d = down(t, msgs)
		}
		got := "nothing"
		switch {
		case len(d.Refused) == 1 && d.Refused[0].Subscription == c.want && d.Refused[0].Denied:
			got = "denied"
		case len(d.Refused) == 1 && d.Refused[0].Subscription == c.want:
			got = "refused"
		case len(d.Peers) == 1:
			got = "peer"
		case len(d.Routes)+len(d.Sources) > 0:
			got = fmt.Sprintf("%+v", d)
		}
		if got != c.is {
			t.Errorf("%s wants %+v: %s, want %s", c.node, c.want, got, c.is)
		}
	}
}

// TestAChangeIsSentToItsSubscribersOnly counts the messages after the start of one instance in a
// cluster with many services and nodes.
func TestAChangeIsSentToItsSubscribersOnly(t *testing.T) {
	w := netWorld(t, 40)
	for n := range 40 {
		w.want[web.Instance(n)] = addressedAt(n, rr)
	}
	w.desire()
	for id := range w.nodes {
		w.run(id)
	}
	for _, id := range []api.NodeID{"n3", "n7"} {
		w.net2(id, wire.Subscription{Address: rr, For: web})
	}
	n := w.nodes["n9"]
	for i, o := range n.has {
		o.State, o.Reason = api.Failed, api.ReasonExited
		n.has[i] = o
	}
	var to []string
	for _, e := range w.step(n.whole()).Send {
		if _, ok := e.Msg.(wire.NetDown); ok {
			to = append(to, strings.TrimPrefix(string(e.To), "node/"))
		}
	}
	if !slices.Equal(to, []string{"n3", "n7"}) {
		t.Errorf("told: %v", to)
	}
}

// BenchmarkOneRouteOfMany measures a step in which one instance starts or ends, among many
// unrelated services.
func BenchmarkOneRouteOfMany(b *testing.B) {
	for _, services := range []int{10, 1000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			w := netWorld(b, 20)
			w.deaf = true
			for i := range services {
				m := spec(0.01, 1)
				m.Name = fmt.Sprintf("s%d", i)
				a := wire.Assignment{Instance: api.ServiceID("acme/shop.prod." + m.Name + ".prod").Instance(0), Epoch: api.EpochOf(1, 0), SpecRev: 1, Spec: m}
				a.Addresses.RoundRobin = netip.AddrFrom4([4]byte{10, 30, byte(i / 250), byte(1 + i%250)})
				w.want[a.Instance] = a
			}
			w.deaf = false
			w.desire()
			for id := range w.nodes {
				w.run(id)
			}
			id := api.ServiceID("acme/shop.prod.s1.prod")
			node := w.record(id.Instance(0)).Node
			w.net2(node, wire.Subscription{Service: id, For: id})
			n := w.nodes[node]
			o := n.has[id.Instance(0)]
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				o.State = []api.State{api.Failed, api.Running}[i%2]
				n.seq++
				w.c.Step(w.now, NodeReport{wire.NodeReport{Node: node, Boot: 1, Seq: n.seq, Gen: n.gen, Observed: []api.Observed{o}}})
			}
		})
	}
}

// TestAnInstanceThatDoesNotListenIsASourceOnly: an instance that does not listen may call others.
func TestAnInstanceThatDoesNotListenIsASourceOnly(t *testing.T) {
	w := netWorld(t, 2)
	w.wants(addressedAt(0, rr), addressedAt(1, rr))
	from := w.at(0).Node
	other := map[api.NodeID]api.NodeID{"n0": "n1", "n1": "n0"}[from]
	w.run(other)
	w.nodes[from].slow = true
	w.run(from)
	d := down(t, w.net2(other, wire.Subscription{Address: rr, For: web}, wire.Subscription{Address: w.at(0).Address, For: web}))
	if len(d.Routes) != 1 || len(d.Routes[0].Backends) != 1 || d.Routes[0].Backends[0].Instance != web.Instance(1) || len(d.Sources) != 1 || d.Sources[0].Service != web {
		t.Fatalf("told %+v", d)
	}
	w.nodes[from].slow = false
	clear(w.nodes[from].has)
	d = down(t, w.said(other, w.run(from)))
	if len(d.Routes) != 1 || len(d.Routes[0].Backends) != 2 || d.Routes[0].Backends[0].State != api.BackendUp {
		t.Fatalf("when it listens, told %+v", d)
	}
}

// TestRoutesNameThePublishedPorts: SRV records are made of them.
func TestRoutesNameThePublishedPorts(t *testing.T) {
	w := netWorld(t, 2)
	a := addressedAt(0, rr)
	a.Spec.Port = "6080:80;5353:53/udp"
	w.wants(a)
	host := w.at(0).Node
	w.run(host)
	want := a.Spec.Ports()
	d := down(t, w.net2(host, wire.Subscription{Address: rr, For: web}))
	if len(d.Routes) != 1 || !slices.Equal(d.Routes[0].Ports, want) {
		t.Errorf("a node is told %+v, want ports %v", d.Routes, want)
	}
	newer := a
	newer.SpecRev, newer.Epoch, newer.Spec.Port = 2, a.Epoch+1<<20, "6080:8080"
	w.wants(newer)
	if r, _ := w.c.netbook.Route(web); !slices.Equal(r.Ports, newer.Spec.Ports()) {
		t.Errorf("with the newer SLA, ports %v", r.Ports)
	}
}
