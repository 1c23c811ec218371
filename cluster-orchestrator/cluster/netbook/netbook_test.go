package netbook

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/netbook/routes"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/internal/wire"
)

var (
	epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	share = netip.MustParsePrefix("10.16.0.0/20")
	rr    = netip.MustParseAddr("10.30.0.7")
)

const web = api.ServiceID("acme/shop.prod.web.prod")

// rig drives a machine as the core does.
type rig struct {
	t        *testing.T
	fx       *effects.Sink
	m        *Machine
	now      time.Time
	down     map[api.NodeID][]wire.NetDown // sent in the last call
	toRelay  []any
	result   Result
	doc      []byte
	measures map[api.NodeID]Measures
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, now: epoch, measures: map[api.NodeID]Measures{}}
	r.start(1)
	return r
}

// start begins a process lifetime with the saved documents.
func (r *rig) start(boot uint64, nodes ...func(*Machine)) {
	r.fx = &effects.Sink{Boot: boot}
	r.m = New(r.fx, Config{Cluster: "munich", Seed: []byte{1}, Relay: "relay:1", Interest: 10 * time.Minute, Return: 6 * time.Second})
	if r.doc != nil {
		if err := r.m.Restore(r.doc); err != nil {
			r.t.Fatal(err)
		}
	}
	for _, restore := range nodes {
		restore(r.m)
	}
	r.do(func() Result { return r.m.Start() })
}

// do makes a call in its own step.
func (r *rig) do(call func() Result) {
	r.t.Helper()
	r.fx.Begin(r.now)
	for {
		k, ok := r.fx.Timers.Pop(r.fx.Now)
		if !ok {
			break
		}
		switch k.Kind {
		case effects.Ack:
			r.m.AckDue(k.Node)
		case effects.Interest:
			r.m.InterestDue(k.Node)
		case effects.Lease:
			r.m.LeasesDue()
		}
	}
	r.result = call()
	for _, id := range r.result.Members {
		for other, ms := range r.measures {
			if slices.Contains(ms.Peers, id) {
				r.m.MarkDue(other)
			}
		}
	}
	r.m.Flush(func(id api.NodeID) Measures { return r.measures[id] })
	eff := r.fx.End()
	for _, d := range eff.Save {
		r.doc = d.Data
	}
	r.down, r.toRelay = map[api.NodeID][]wire.NetDown{}, nil
	for _, e := range eff.Send {
		if e.To == ToRelay {
			r.toRelay = append(r.toRelay, e.Msg)
			continue
		}
		for _, id := range []api.NodeID{"n0", "n1", "n2"} {
			if e.To == id.Addr() {
				r.down[id] = append(r.down[id], e.Msg.(wire.NetDown))
			}
		}
	}
}

// pass advances the time and keeps the messages. It wakes the core in time, because a late step
// would count as a pause of the process.
func (r *rig) pass(d time.Duration) {
	r.t.Helper()
	sent := map[api.NodeID][]wire.NetDown{}
	for end := r.now.Add(d); r.now.Before(end); {
		next := r.fx.Real(r.fx.Timers.Next())
		if r.now = r.now.Add(time.Second); next.After(r.fx.Now) && next.Before(r.now) {
			r.now = next
		}
		if r.now.After(end) {
			r.now = end
		}
		r.do(func() Result { return Result{} })
		for id, d := range r.down {
			sent[id] = append(sent[id], d...)
		}
	}
	r.down = sent
}

func (r *rig) up(id api.NodeID, up wire.NetUp) {
	r.t.Helper()
	r.do(func() Result {
		res, _ := r.m.Up(id, up)
		return res
	})
}

func selfOf(key string) *wire.NetSelf {
	self := wire.NetSelf{Chain: [][]byte{{1}}, Proof: []byte{2}}
	copy(self.Key[:], key)
	return &self
}

// speaks sends the first message of a netmanager.
func (r *rig) speaks(id api.NodeID, wants ...wire.Subscription) {
	r.up(id, wire.NetUp{Boot: 1, Seq: 1, Self: selfOf(string(id)), Whole: true, Subscribe: wants})
}

func (r *rig) shares(rev uint64, shares ...netip.Prefix) {
	r.fromRoot(wire.RootNet{Rev: rev, Shares: shares})
}

func (r *rig) fromRoot(msg wire.RootNet) {
	msg.Ranges = wire.DefaultNetRanges()
	r.do(func() Result {
		_, res := r.m.FromRoot(msg)
		return res
	})
}

// hosts makes a node host an instance of web that takes flows at an address of its subnet.
func (r *rig) hosts(id api.NodeID) api.Backend {
	a := r.m.Subnet(id).Addr().As4()
	a[3] += 2
	be := api.Backend{Instance: web.Instance(0), Epoch: 1, Address: netip.AddrFrom4(a), State: api.BackendUp}
	r.do(func() Result {
		r.m.SetInstance(be.Instance, routes.Spec{Rev: 1, Addresses: api.ServiceAddresses{RoundRobin: rr}})
		r.m.SetPlace(routes.Place{Node: id, Instance: be.Instance}, true, be)
		return Result{}
	})
	return be
}

func TestNodeWaitsForAShare(t *testing.T) {
	r := newRig(t)
	r.speaks("n0")
	if !r.result.Report || r.m.Subnet("n0").IsValid() {
		t.Fatalf("a node without a share to lease from: %+v, subnet %s; want a report to the root", r.result, r.m.Subnet("n0"))
	}
	if net, _ := r.m.Report(1, false); net == nil || net.Subnets != 1 {
		t.Fatalf("the root is told %+v, want that 1 subnet is needed", net)
	}
	r.shares(1, share)
	res := r.result
	if !slices.Equal(res.Leased, []api.NodeID{"n0"}) || !slices.Contains(res.Save, "n0") || !slices.Contains(res.Members, "n0") {
		t.Errorf("once there is a share: %+v, want n0 to be leased, saved and a member", res)
	}
	lease, ok := r.m.Lease("n0")
	if d := r.down["n0"]; !ok || len(d) != 1 || d[0].Lease == nil || d[0].Lease.Digest() != lease.Digest() || !share.Contains(lease.Subnet.Addr()) {
		t.Fatalf("the node is told %+v, want its lease %+v", d, lease)
	}
	if s, ok := r.toRelay[0].(SetSlot); !ok || s.Slot != lease.Relay.Slot || s.Ticket != lease.Relay.Ticket || len(s.Secret) != 32 {
		t.Errorf("the relay is told %+v, want the slot of %+v", r.toRelay, lease)
	}
	// It is repeated until the node reports that it has it.
	if r.pass(ackWait); len(r.down["n0"]) != 1 || r.down["n0"][0].Lease == nil {
		t.Errorf("without an answer the node is told %+v, want its lease again", r.down["n0"])
	}
	r.up("n0", wire.NetUp{Boot: 1, Seq: 2, Lease: lease.Digest(), Subnet: lease.Subnet})
	if r.pass(ackWaitMax); len(r.down["n0"]) > 0 {
		t.Errorf("a node that has its lease is told %+v", r.down["n0"])
	}
}

func TestLeaseSurvivesRestartAndRestsAfterRemoval(t *testing.T) {
	r := newRig(t)
	r.shares(1, share)
	r.speaks("n0")
	r.speaks("n1")
	a, _ := r.m.Lease("n0")
	b, _ := r.m.Lease("n1")
	if a.Subnet == b.Subnet || a.Relay.Slot == b.Relay.Slot || a.Relay.Ticket == b.Relay.Ticket {
		t.Fatalf("two nodes share a lease: %+v and %+v", a, b)
	}
	r.do(func() Result { return r.m.Remove("n1") })
	if d, ok := r.toRelay[0].(DropSlot); !ok || d.Slot != b.Relay.Slot {
		t.Errorf("the relay is told %+v, want the end of slot %d", r.toRelay, b.Relay.Slot)
	}
	r.start(2, func(m *Machine) { m.RestoreNode("n0", selfOf("n0"), a.Subnet) })
	if again, _ := r.m.Lease("n0"); again.Digest() != a.Digest() {
		t.Errorf("after a restart the lease is %+v, want %+v", again, a)
	}
	// Soon after a start, a free subnet may belong to a node that was not heard yet. A node gets
	// it only if it proves that it had it.
	r.speaks("n2")
	if p := r.m.Subnet("n2"); p.IsValid() {
		t.Errorf("soon after the start a node that names no subnet gets %s", p)
	}
	r.pass(7 * time.Second)
	if p := r.m.Subnet("n2"); !p.IsValid() || p == b.Subnet {
		t.Errorf("later it gets %s, want one that is not the removed node's %s", p, b.Subnet)
	}
}

func TestNodeThatJoinsAgainAfterItsFirstMessageIsGivenItsLease(t *testing.T) {
	r := newRig(t)
	r.up("n0", wire.NetUp{Boot: 7, Seq: 1, Self: selfOf("n0"), Whole: true})
	r.do(func() Result { r.m.Rejoined("n0"); return Result{} })
	if d := r.down["n0"]; len(d) != 1 || !d[0].RequestWhole || d[0].Boot != 0 {
		t.Fatalf("after another join the node is told %+v, want a request for all that it needs, in any boot", d)
	}
	r.shares(1, share) // the first answer is lost
	r.pass(ackWaitMax)
	if d := r.down["n0"]; len(d) == 0 || !d[len(d)-1].RequestWhole {
		t.Fatalf("later the node is told %+v, want the request again", d)
	}
	r.up("n0", wire.NetUp{Boot: 7, Seq: 2, Whole: true})
	if d := r.down["n0"]; len(d) != 1 || d[0].Lease == nil || d[0].RequestWhole {
		t.Errorf("its answer gets %+v, want its lease", d)
	}
}

func TestNetmanagerWithALowerBootNumberIsToldTheHigherOne(t *testing.T) {
	r := newRig(t)
	r.up("n0", wire.NetUp{Boot: 7, Seq: 1, Self: selfOf("n0"), Whole: true})
	r.up("n0", wire.NetUp{Boot: 5, Seq: 1, Self: selfOf("n0"), Whole: true})
	if d := r.down["n0"]; len(d) != 1 || d[0].Boot != 7 {
		t.Fatalf("it is told %+v, want boot number 7", d)
	}
	r.up("n0", wire.NetUp{Boot: 8, Seq: 1, Self: selfOf("n0"), Whole: true})
	if d := r.down["n0"]; len(d) != 1 || d[0].Boot != 8 || d[0].Seq != 1 {
		t.Errorf("with a higher number it is told %+v, want an answer", d)
	}
}

func TestLeaseIsTakenBackWithItsShare(t *testing.T) {
	r := newRig(t)
	r.shares(1, share)
	r.speaks("n0")
	old := r.m.Subnet("n0")
	next := netip.MustParsePrefix("10.16.16.0/20")
	r.shares(2, next)
	if p := r.m.Subnet("n0"); !next.Contains(p.Addr()) || p == old {
		t.Errorf("the node has %s, want a subnet of the new share %s", p, next)
	}
	if len(r.down["n0"]) != 1 || r.down["n0"][0].Lease == nil {
		t.Errorf("the node is told %+v, want its new lease", r.down["n0"])
	}
}

func TestForgedAddressesAndKeysAreIgnored(t *testing.T) {
	r := newRig(t)
	r.shares(1, share)
	r.speaks("n0")
	r.speaks("n1")
	be := r.hosts("n0")
	be.Address = r.m.Subnet("n1").Addr().Next()
	r.m.SetPlace(routes.Place{Node: "n0", Instance: be.Instance}, true, be)
	if route, _ := r.m.Route(web); len(route.Backends) != 0 {
		t.Errorf("an address of another node's subnet is in the route: %+v", route.Backends)
	}
	r.up("n1", wire.NetUp{Boot: 2, Seq: 1, Self: selfOf("n0"), Whole: true})
	if s := r.m.Self("n1"); s != nil {
		t.Errorf("n1 has taken n0's key: %+v", s)
	}
}

func TestSubscriptionsAreBoundedAndExpire(t *testing.T) {
	r := newRig(t)
	r.shares(1, share)
	r.speaks("n0")
	r.hosts("n0")
	many := make([]wire.Subscription, routes.MaxSubscriptions+100)
	for i := range many {
		many[i] = wire.Subscription{Service: api.ServiceID(fmt.Sprintf("acme/a.b.c%d.d", i)), For: web}
	}
	r.up("n0", wire.NetUp{Boot: 1, Seq: 2, Subscribe: many})
	if n := len(r.m.Subscriptions("n0")); n != routes.MaxSubscriptions {
		t.Errorf("%d subscriptions of a node are kept, want %d", n, routes.MaxSubscriptions)
	}
	r.pass(11 * time.Minute)
	if n := len(r.m.Subscriptions("n0")); n != 0 {
		t.Errorf("%d subscriptions are left that were not repeated", n)
	}
}

func TestSilentNodeIsNotAskedAndRepeatsItsSubscriptions(t *testing.T) {
	r := newRig(t)
	r.shares(1, share)
	r.speaks("n0")
	r.hosts("n0")
	r.up("n0", wire.NetUp{Boot: 1, Seq: 2, Subscribe: []wire.Subscription{{Address: rr, For: web}}})
	r.pass(ackWait)
	if d := r.down["n0"]; len(d) != 1 || !d[0].RequestHeld {
		t.Errorf("a node that does not acknowledge is told %+v, want a question", d)
	}
	r.do(func() Result { return r.m.Silent("n0") })
	if !slices.Contains(r.result.Places, "n0") || len(r.m.Subscriptions("n0")) != 0 {
		t.Errorf("of a silent node: %+v and %d subscriptions, want its places to be set anew and none", r.result, len(r.m.Subscriptions("n0")))
	}
	if r.pass(time.Hour); len(r.down["n0"]) > 0 {
		t.Errorf("a silent node is told %+v", r.down["n0"])
	}
	r.do(func() Result { r.m.Heard("n0"); return Result{} })
	if d := r.down["n0"]; len(d) != 1 || !d[0].RequestWhole {
		t.Errorf("when it is heard again it is told %+v, want a request for all", d)
	}
}

func TestMeasuresAreSentUntilTheNodeHasThem(t *testing.T) {
	r := newRig(t)
	r.shares(1, share)
	r.speaks("n0")
	r.speaks("n1")
	r.measures["n0"] = Measures{Known: true, Peers: []api.NodeID{"n1", "n9"}, Services: []api.ServiceID{web}}
	tell := func() { r.do(func() Result { r.m.MarkDue("n0"); return Result{} }) }
	tell()
	d := r.down["n0"]
	if len(d) != 1 || len(d[0].Measure) != 1 || d[0].Measure[0].Node != "n1" || !slices.Equal(d[0].Between, []api.ServiceID{web}) {
		t.Fatalf("the node is told %+v, want to measure the member n1 and web", d)
	}
	lease, _ := r.m.Lease("n0")
	up := wire.NetUp{Boot: 1, Seq: 2, Rev: d[0].Rev, Lease: lease.Digest()}
	r.up("n0", up)
	for _, d := range r.down["n0"] {
		if d.Measure != nil {
			t.Errorf("the same is told again at once: %+v", d)
		}
	}
	r.pass(measureWait)
	if !slices.ContainsFunc(r.down["n0"], func(d wire.NetDown) bool { return d.Measure != nil }) {
		t.Errorf("a node that does not have it is told %+v, want the same again", r.down["n0"])
	}
	up.Seq, up.Measure = 3, d[0].Measure[0].Digest().Toggle(web.Digest())
	r.up("n0", up)
	r.pass(measureWaitMax)
	for _, d := range r.down["n0"] {
		if d.Measure != nil {
			t.Errorf("a node that has it is told again: %+v", d)
		}
	}
	r.up("n1", wire.NetUp{Boot: 1, Seq: 2, Self: &wire.NetSelf{Key: selfOf("n1").Key, Endpoints: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:1")}}})
	if d := r.down["n0"]; len(d) != 1 || len(d[0].Measure) != 1 {
		t.Errorf("when the record of the measured node changes the node is told %+v, want the new record", d)
	}
}

// TestRecordsAreResentInParts: a node subscribes to a thousand routes of nine backends each and
// loses every fifth message. Then it restarts with a part of its records.
func TestRecordsAreResentInParts(t *testing.T) {
	const many = 1000
	r := newRig(t)
	r.shares(1, share)
	r.speaks("n0")
	r.hosts("n0")
	r.fromRoot(wire.RootNet{Rev: 2, Shares: []netip.Prefix{share}, Records: foreign(many)})
	wants := make([]wire.Subscription, many)
	for i := range wants {
		wants[i] = wire.Subscription{Service: foreignService(i), For: web}
	}
	held, lossy := interest.Replica{}, true
	boot, seq, rev := uint64(1), uint64(1), uint64(0)
	messages, largest := 0, 0
	lease, _ := r.m.Lease("n0")
	var take func([]wire.NetDown)
	up := func(add []wire.Subscription) {
		seq++
		r.up("n0", wire.NetUp{Boot: boot, Seq: seq, Whole: seq == 1, Subscribe: add, Held: held.Digest(), Rev: rev, Lease: lease.Digest()})
		take(r.down["n0"])
	}
	take = func(queue []wire.NetDown) {
		for len(queue) > 0 {
			d := queue[0]
			if queue = queue[1:]; d.Rev <= rev {
				continue
			}
			text, _ := json.Marshal(d)
			largest = max(largest, len(text))
			if messages++; lossy && messages%5 == 2 {
				continue
			}
			if rev = d.Rev; d.Whole {
				held.TakeAll(recordsOf(d), d.Of)
			} else {
				held.Take(recordsOf(d))
			}
			if d.RequestHeld {
				seq++
				r.up("n0", wire.NetUp{Boot: boot, Seq: seq, Held: held.Digest(), Rev: rev, Lease: lease.Digest()})
				queue = append(queue, r.down["n0"]...)
			}
		}
	}
	until := func(what string) {
		t.Helper()
		for range 200 {
			if len(held.Routes) == many && held.Digest() == r.m.Held("n0") && !r.m.nodes["n0"].resync.On() {
				return
			}
			r.now = r.now.Add(time.Second)
			r.do(func() Result { return Result{} })
			take(r.down["n0"])
		}
		t.Fatalf("%s: the node holds %d of %d routes after %d messages", what, len(held.Routes), many, messages)
	}
	up(wants)
	until("at first")
	first := messages
	// The node restarts with half of its records and a route that no longer exists.
	boot, seq, rev = 2, 0, 0
	for i := range many / 2 {
		held.Take(wire.Records{RemovedRoutes: []api.ServiceID{foreignService(2 * i)}})
	}
	held.Take(wire.Records{Routes: []api.Route{{Service: "acme/old.prod.old.prod", Rev: 7}}})
	up(wants)
	until("after a restart")
	if largest > 1<<20 || first < 3 {
		t.Errorf("%d messages, the largest of %d bytes; want several of at most 1 MiB", first, largest)
	}
	// Without losses, each part is sent once.
	lossy, messages, boot, seq, rev = false, 0, 3, 0, 0
	held.Take(wire.Records{RemovedRoutes: []api.ServiceID{foreignService(1)}})
	up(wants)
	until("without loss")
	if messages > first+2 {
		t.Errorf("%d messages without loss, %d with loss", messages, first)
	}
	t.Logf("%d messages with loss, %d without, the largest of %d bytes", first, messages, largest)
}

func foreignService(i int) api.ServiceID {
	return api.ServiceID(fmt.Sprintf("acme/shop.production.service-number-%d.production", i))
}

// foreign returns routes of the given number of services of another cluster, of nine backends
// each.
func foreign(many int) (r wire.Records) {
	for i := range many {
		id := foreignService(i)
		route := api.Route{Service: id, Rev: 1}
		for j := range 9 {
			p := api.Peer{Key: api.PeerKey{byte(1 + (i+j)%100)}, Cluster: "c2", Chain: [][]byte{make([]byte, 470), make([]byte, 430)}, Proof: make([]byte, 71), Rev: 1}
			route.Peers = append(route.Peers, p)
			route.Backends = append(route.Backends, api.Backend{Instance: id.Instance(j), Epoch: 1 << 25, Address: netip.AddrFrom4([4]byte{10, 17, byte(i >> 6), byte(i << 2)}), Peer: p.Key, State: api.BackendUp})
		}
		r.Routes = append(r.Routes, route)
	}
	return r
}

func recordsOf(d wire.NetDown) wire.Records {
	return wire.Records{
		Routes: d.Routes, Sources: d.Sources, Peers: d.Peers, Refused: d.Refused,
		RemovedRoutes: d.RemovedRoutes, RemovedSources: d.RemovedSources, RemovedPeers: d.RemovedPeers, RemovedRefusals: d.RemovedRefusals,
	}
}
