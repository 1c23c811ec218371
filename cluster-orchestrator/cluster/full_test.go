package cluster

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// smallWorld has two nodes with five addresses each.
func smallWorld(t testing.TB, change func(*Config)) *world {
	w := line(t, 2, change)
	ranges := wire.DefaultNetRanges()
	ranges.Subnet = 29
	w.step(RootNet{wire.RootNet{Rev: 1, Ranges: ranges, Shares: []netip.Prefix{share}}})
	for _, id := range []api.NodeID{"n0", "n1"} {
		w.net(id)
	}
	return w
}

func (w *world) on(id api.NodeID) (n int) {
	for _, in := range w.c.Instances() {
		if in.Node == id {
			n++
		}
	}
	return n
}

func TestANodeWithoutAddressesGetsNoMore(t *testing.T) {
	w := smallWorld(t, func(*Config) {})
	w.restart() // the subnets are also known after a restart
	w.beat()
	for i := range 11 {
		w.want[web.Instance(i)] = assignment(i, 1, spec(0, 1))
	}
	w.desire()
	w.beat()
	w.checkBooks()
	if a, b := w.on("n0"), w.on("n1"); a != 5 || b != 5 {
		t.Fatalf("%d and %d instances", a, b)
	}
	last := slices.IndexFunc(w.c.Instances(), func(in api.Instance) bool { return in.Node == "" })
	id := w.c.Instances()[last].ID
	w.expect(id.Number(), api.Requested, "")
	in := w.record(id)
	if want := "0 of 2 nodes fit · 2 address (need an address on the node's network, have none left)"; in.Detail != want || !in.HandedBack {
		t.Errorf("it says %q", in.Detail)
	}
	// A process uses its node's own network.
	m := spec(0, 1)
	m.Virtualization, m.Name = "process", "tool"
	for _, n := range []api.NodeID{"n0", "n1"} {
		info := w.claims[n]
		info.Runtimes = []string{"container", "process"}
		w.step(JoinNode{Info: info})
		w.speak(n)
	}
	w.want["acme/shop.prod.tool.prod#0"] = wire.Assignment{Instance: "acme/shop.prod.tool.prod#0", Epoch: api.EpochOf(1, 0), SpecRev: 1, Spec: m}
	w.desire()
	w.beat()
	if in, _ := w.c.Instance("acme/shop.prod.tool.prod#0"); in.State != api.Running {
		t.Errorf("a process is %s: %s", in.State, in.Detail)
	}
	w.expect(id.Number(), api.Requested, "")
	// A leaving instance has its address until its node has removed it.
	gone := (id.Number() + 1) % 11
	node := w.at(gone).Node
	w.drops(web.Instance(gone))
	w.checkBooks()
	w.restart()
	w.expect(id.Number(), api.Requested, "")
	w.beat()
	w.expect(id.Number(), api.Running, node)
	w.checkBooks()
	// An update can use the instance's own address.
	next := assignment(id.Number(), 2, spec(0, 1))
	next.SpecRev = 2
	w.wants(next)
	w.beat()
	w.expect(id.Number(), api.Running, node)
	w.checkBooks()
}

// An ended instance takes no capacity, but it keeps its address until its node has removed it
// from the network.
func TestACompletedInstanceKeepsItsAddressForAWhile(t *testing.T) {
	w := smallWorld(t, func(*Config) {})
	for i := range 10 {
		a := assignment(i, 1, spec(0.5, 1))
		a.Spec.OneShot = true
		w.want[a.Instance] = a
	}
	w.desire()
	w.beat()
	for _, id := range []api.NodeID{"n0", "n1"} {
		n := w.nodes[id]
		for i, o := range n.has {
			o.State, o.Address = api.Completed, netip.MustParseAddr("10.16.0.2")
			n.has[i] = o
		}
		w.speak(id)
	}
	w.checkBooks()
	free := func() (n int64) {
		for _, c := range w.c.place.Candidates() {
			n += c.Free.MilliCPU
		}
		return n
	}
	if free() != 8000 {
		t.Errorf("%d of 8000 are free", free())
	}
	addressed := func(want int) {
		t.Helper()
		w.checkBooks()
		n := 0
		for _, node := range w.c.place.Inspect().Nodes {
			for _, k := range node.Account.Bookings() {
				if k.Address {
					n++
				}
			}
		}
		if n != want {
			t.Fatalf("%d addresses are booked, want %d", n, want)
		}
	}
	w.wants(assignment(10, 1, spec(0, 1)))
	w.expect(10, api.Requested, "")
	w.restart()
	addressed(10)
	w.beat()
	w.expect(10, api.Requested, "")
	w.checkBooks()
	freed := w.at(3).Node
	w.drops(web.Instance(3))
	w.expect(10, api.Requested, "")
	w.restart()
	w.beat()
	w.expect(10, api.Running, freed)
	w.checkBooks()
	w.wants(assignment(11, 1, spec(0, 1)))
	w.expect(11, api.Requested, "")
	leave := func(i int) {
		n := w.nodes[w.at(i).Node]
		o := n.has[web.Instance(i)]
		o.Address = netip.Addr{}
		n.has[o.Instance] = o
		w.speak(w.at(i).Node)
		w.checkBooks()
	}
	leave(4)
	w.beat()
	w.expect(4, api.Completed, w.at(4).Node)
	w.expect(11, api.Running, w.at(4).Node)
	leave(5)
	w.restart()
	addressed(9) // before its node reports, too
	w.wants(assignment(12, 1, spec(0, 1)))
	w.beat()
	w.expect(12, api.Running, w.at(5).Node)
	w.checkBooks()
}

func TestTheLastAddressGoesToTheMostUrgent(t *testing.T) {
	w := smallWorld(t, func(c *Config) { c.Preempt = true })
	for i := range 10 {
		w.want[web.Instance(i)] = classed(i, 1, "low", 0.01)
	}
	w.desire()
	w.beat()
	w.wants(classed(10, 2, "high", 0.01))
	in := w.record(web.Instance(10))
	kept := in.Reserved
	if kept == "" {
		t.Fatalf("no instance is preempted: %s", in.Detail)
	}
	w.checkBooks()
	w.pass(15 * time.Second)
	w.checkBooks()
	w.expect(10, api.Running, kept)
	if a, b := w.on("n0"), w.on("n1"); a != 5 || b != 5 {
		t.Errorf("%d and %d instances", a, b)
	}
}

// A plan counts the addresses of the instances that it plans.
func TestAPlanCountsAddresses(t *testing.T) {
	w := smallWorld(t, func(*Config) {})
	var r api.ClusterPlanRequest
	for i := range 11 {
		r.Instances = append(r.Instances, api.WhyRequest{Instance: web.Instance(i), Spec: spec(0, 1)})
	}
	for i, p := range w.c.Plan(r).Instances {
		if fits := p.Action == "place"; fits != (i < 10) {
			t.Errorf("instance %d: %+v", i, p)
		}
	}
	w.checkBooks()
}

// The address limit of a node that gets its subnet late applies from then on.
func TestASubnetThatComesLateCounts(t *testing.T) {
	w := line(t, 1, func(*Config) {})
	for i := range 6 {
		w.want[web.Instance(i)] = assignment(i, 1, spec(0, 1))
	}
	w.desire()
	w.beat()
	if n := w.on("n0"); n != 6 { // the number of addresses is unknown without a subnet
		t.Fatalf("%d instances", n)
	}
	ranges := wire.DefaultNetRanges()
	ranges.Subnet = 29
	w.step(RootNet{wire.RootNet{Rev: 1, Ranges: ranges, Shares: []netip.Prefix{share}}})
	w.net("n0")
	w.checkBooks()
	w.wants(assignment(6, 1, spec(0, 1)))
	w.expect(6, api.Requested, "")
}
