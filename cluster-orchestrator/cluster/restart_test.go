package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/membership"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/netbook"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// TestLargeClusterRestarts: with many nodes the timing has grown. The core must neither save nor
// apply it before the documents are restored.
func TestLargeClusterRestarts(t *testing.T) {
	w := newWorld(t, 0)
	for i := range membership.NodesAtBase + 1 {
		w.step(JoinNode{Info: nodeInfo(api.NodeID(fmt.Sprintf("n%d", i)), api.Resources{MilliCPU: 1000, MemoryMB: 1024})})
	}
	was := w.c.members.Timing()
	w.restart()
	if got := w.c.members.Timing(); got != was {
		t.Errorf("the timing is %v, was %v", got, was)
	}
}

// records is what the netmanager of a node has of the cluster.
type records struct {
	w     *world
	id    api.NodeID
	seq   uint64
	rev   uint64
	wants []wire.Subscription
	holds interest.Replica
}

// says sends all subscriptions at first, and later the digest of what is held, as a netmanager does when it connects
// again. It takes the answers, and repeats this until nothing is requested. check is called after each
// answer.
func (r *records) says(check func(wire.NetDown)) {
	r.w.t.Helper()
	for whole, again := r.seq == 0, true; again; {
		if again = false; r.seq > 20 {
			r.w.t.Fatalf("%s and the cluster do not agree", r.id)
		}
		r.seq++
		up := wire.NetUp{Boot: 2, Seq: r.seq, Held: r.holds.Digest(), Rev: r.rev, Whole: whole}
		if whole {
			self := wire.NetSelf{Chain: [][]byte{{1}}, Proof: []byte{2}}
			copy(self.Key[:], r.id)
			up.Self, up.Subscribe = &self, r.wants
		}
		if lease, ok := r.w.c.Lease(r.id); ok {
			up.Lease, up.Subnet = lease.Digest(), lease.Subnet
		}
		whole = false
		for _, msg := range r.w.said(r.id, r.w.step(NetUp{r.id, up}).Send) {
			d, ok := msg.(wire.NetDown)
			if !ok {
				continue
			}
			if r.rev = d.Rev; d.Whole {
				r.holds.TakeAll(d.Records, d.Of)
			} else {
				r.holds.Take(d.Records)
			}
			check(d)
			whole, again = whole || d.RequestWhole, again || d.RequestHeld || d.RequestWhole
		}
	}
}

// connectsAgain restarts the cluster. Then the netmanager of n2, which subscribes to web, connects before nodes have reported.
// At no time may it lose what it holds about web.
func (r *records) connectsAgain() {
	r.w.t.Helper()
	state := func() (out []string) {
		for _, be := range r.holds.Routes[web].Backends {
			out = append(out, fmt.Sprint(be.Instance.Number(), " ", be.Epoch, " at ", be.Address, " ", be.State))
		}
		for a := range r.holds.Sources {
			out = append(out, "source "+a.String())
		}
		slices.Sort(out)
		return out
	}
	before := state()
	if len(before) == 0 {
		r.w.t.Fatal("it holds nothing")
	}
	r.w.restart()
	r.says(func(d wire.NetDown) {
		if now := state(); !slices.Equal(now, before) {
			r.w.t.Fatalf("after the message %+v it holds\n%s, want\n%s", d, strings.Join(now, "\n"), strings.Join(before, "\n"))
		}
	})
}

// TestNodesKeepTheirRecordsWhenTheClusterRestarts: a restarted cluster knows neither the subscriptions of nodes nor what they
// run. It must not remove or narrow records until it does: flows to the instances would end.
func TestNodesKeepTheirRecordsWhenTheClusterRestarts(t *testing.T) {
	for what, prepare := range map[string]func(w *world, node api.NodeID){
		"all run":                       func(*world, api.NodeID) {},
		"others run in another cluster": func(w *world, _ api.NodeID) { w.has(2, web, 9) },
		"one does not listen yet": func(w *world, node api.NodeID) {
			w.says(node, 0, func(o *api.Observed) { o.Ready = false })
		},
		"one has not started its program yet": func(w *world, node api.NodeID) {
			w.says(node, 0, func(o *api.Observed) { o.State, o.Ready = api.Created, false })
		},
		"one is moved, and its next placement is not ready": func(w *world, node api.NodeID) {
			w.step(Drain{Node: node})
			to := w.at(0).Node
			w.nodes[to].slow = true
			w.run(to)
		},
		"one was moved, and its earlier placement ends": func(w *world, node api.NodeID) {
			w.nodes[node].hangs = true
			w.step(Drain{Node: node})
			w.run(w.at(0).Node)
			w.run(node)
		},
		"one is no longer desired, and ends": func(w *world, node api.NodeID) {
			w.nodes[node].hangs = true
			w.drops(web.Instance(0))
			w.run(node)
		},
		"one is updated on its node, which fetches the image": func(w *world, node api.NodeID) {
			was := w.nodes[node].has[web.Instance(0)]
			next := w.want[web.Instance(0)]
			next.SpecRev, next.Epoch = 2, next.Epoch+1<<20
			w.wants(next)
			w.keeps(node, was, api.ReasonNone)
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := netWorld(t, 3)
			for n := range 3 {
				w.want[web.Instance(n)] = addressedAt(n, rr)
			}
			w.desire()
			for _, id := range step.Keys(w.nodes) {
				w.run(id)
			}
			r := &records{w: w, id: "n2", wants: []wire.Subscription{{Address: rr, For: web}}}
			for _, be := range w.route().Backends {
				r.wants = append(r.wants, wire.Subscription{Address: be.Address, For: web})
			}
			prepare(w, w.at(0).Node)
			r.says(func(wire.NetDown) {})
			r.connectsAgain()
		})
	}
}

// TestARestartedClusterKeepsItsSubscriptionAtTheRoot: the root withdraws what the cluster does not subscribe to.
func TestARestartedClusterKeepsItsSubscriptionAtTheRoot(t *testing.T) {
	w := netWorld(t, 1)
	w.wants(addressedAt(0, rr))
	w.run("n0")
	root := func(rev uint64, of wire.Records) {
		w.step(RootNet{wire.RootNet{Rev: rev, Ranges: wire.DefaultNetRanges(), Shares: []netip.Prefix{share}, Records: of}})
	}
	root(2, wire.Records{Routes: []api.Route{{Service: web, Rev: 2, Addresses: api.ServiceAddresses{RoundRobin: rr}}}})
	w.restart()
	subscribed := func() []wire.Subscription {
		n, _ := w.c.netbook.Report(1, true)
		return n.Subscribe
	}
	if got, want := subscribed(), (wire.Subscription{Address: rr, For: web}); !slices.Contains(got, want) {
		t.Errorf("after a restart it subscribes to %+v, want %+v", got, want)
	}
	w.pass(w.cfg.Return + time.Minute)
	if got := subscribed(); len(got) > 0 {
		t.Errorf("it still subscribes to %+v, and no node does", got)
	}
	// Another cluster may change its route with each of its reports.
	saves := 0
	for rev := uint64(3); rev < 103; rev++ {
		root(rev, wire.Records{Routes: []api.Route{{Service: web, Rev: rev, Addresses: api.ServiceAddresses{RoundRobin: rr}}}})
		for _, d := range w.last.Save {
			if d.Kind == netbook.RouteKind {
				saves++
			}
		}
	}
	if saves > 1 {
		t.Errorf("100 changes at once are saved %d times, want once", saves)
	}
	w.pass(10 * time.Second)
	if d := w.disk[netbook.RouteKind+"\x00"+string(web)]; !strings.Contains(string(d.Data), `"rev":102`) {
		t.Errorf("after the changes %s is saved, want the last one", d.Data)
	}
	root(103, wire.Records{RemovedRoutes: []api.ServiceID{web}})
	w.pass(10 * time.Second)
	for _, d := range w.disk {
		if d.Kind == netbook.RouteKind {
			t.Errorf("the removed route is still saved: %s", d.Data)
		}
	}
}

func (w *world) route() api.Route {
	r, _ := w.c.netbook.Route(web)
	return r
}
