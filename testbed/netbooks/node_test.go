package netbooks

import (
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// node is a model of a node engine and its netmanager. It runs its desired set at once, and does the
// minimum that the protocol of the network requires.
type node struct {
	w       *world
	id      api.NodeID
	cluster api.ClusterID
	info    api.NodeInfo
	off     bool

	seq, beats uint64
	gen        api.Generation
	want       map[api.InstanceID]wire.Assignment
	has        map[api.InstanceID]api.Observed
	next       time.Time // heartbeat

	boot, upSeq uint64
	rev         uint64
	unanswered  uint64 // the NetUp that must be answered
	again       time.Time
	renew       time.Time
	lease       *wire.NetLease
	used        int // of its subnet
	wants       map[wire.Subscription]bool
	held        interest.Replica
	measure     []api.Peer
	told        int // what to measure
}

func (w *world) join(c api.ClusterID, id api.NodeID) {
	n := &node{
		w: w, id: id, cluster: c, boot: 1,
		info: api.NodeInfo{ID: id, Arch: "amd64", OS: "linux", Capacity: api.Resources{MilliCPU: 8000, MemoryMB: 8000}, Runtimes: []string{"container"}, Network: api.NetworkOverlay},
		want: map[api.InstanceID]wire.Assignment{}, has: map[api.InstanceID]api.Observed{}, wants: map[wire.Subscription]bool{},
	}
	w.nodes[id] = n
	check(w.t, w.clusters[c].step(w.t, w.now, cluster.JoinNode{Info: n.info}))
	n.report()
	n.up(true, nil, nil, true)
}

func (n *node) tell(in cluster.Input) {
	if n.off {
		return
	}
	n.w.say(func() { check(n.w.t, n.w.clusters[n.cluster].step(n.w.t, n.w.now, in)) })
}

func (n *node) desired(d wire.Desired) {
	if n.off || d.Gen < n.gen || d.From != 0 && d.From != n.gen {
		return
	}
	if d.From == 0 {
		clear(n.want)
	}
	for _, a := range d.Put {
		n.want[a.Instance] = a
	}
	for _, id := range d.Drop {
		delete(n.want, id)
	}
	n.gen = d.Gen
	n.settle()
}

// settle runs the desired set as soon as the node has addresses.
func (n *node) settle() {
	for id := range n.has {
		if _, ok := n.want[id]; !ok {
			delete(n.has, id)
		}
	}
	for _, id := range step.Keys(n.want) {
		if o := n.has[id]; o.Epoch != n.want[id].Epoch && n.lease != nil {
			n.has[id] = api.Observed{Instance: id, Epoch: n.want[id].Epoch, State: api.Running, Address: n.address(), Ready: true}
		}
	}
	n.report()
}

func (n *node) address() netip.Addr {
	for {
		n.used++
		a := n.lease.Subnet.Addr().As4()
		a[3] += byte(2 + n.used%60)
		addr := netip.AddrFrom4(a)
		taken := false
		for _, o := range n.has {
			taken = taken || o.Address == addr
		}
		if !taken {
			return addr
		}
	}
}

func (n *node) report() {
	n.seq++
	r := wire.NodeReport{Node: n.id, Boot: 1, Seq: n.seq, Gen: n.gen, Whole: true, Info: &n.info}
	for _, id := range step.Keys(n.has) {
		r.Observed = append(r.Observed, n.has[id])
	}
	n.tell(cluster.NodeReport{NodeReport: through(n.w.t, r)})
}

func (n *node) tick() {
	if n.off {
		return
	}
	if !n.next.After(n.w.now) {
		n.next = n.w.now.Add(2 * time.Second)
		n.beats++
		a := wire.Alive{Boot: 1, Seq: n.beats, Gen: n.gen, Observed: n.info.Digest()}
		for _, as := range n.want {
			a.Desired = a.Desired.Toggle(as.Digest())
		}
		for _, o := range n.has {
			a.Observed = a.Observed.Toggle(o.Digest())
		}
		n.tell(cluster.NodeAlive{Node: n.id, Alive: a})
	}
	if n.unanswered != 0 && !n.again.After(n.w.now) {
		n.up(true, nil, nil, true)
	}
	if n.lease != nil && !n.renew.After(n.w.now) {
		n.up(true, nil, nil, true)
	}
}

func (n *node) self() *wire.NetSelf {
	s := &wire.NetSelf{Chain: [][]byte{[]byte(n.id)}, Proof: []byte("by " + n.id)}
	copy(s.Key[:], n.id)
	s.Endpoints = []netip.AddrPort{netip.MustParseAddrPort("192.168.1.2:7000"), netip.MustParseAddrPort("203.0.113.9:7000")}
	s.Mapped = s.Endpoints[1:]
	return s
}

// up sends a message to the cluster; a message with more than Held must be answered.
func (n *node) up(whole bool, add, drop []wire.Subscription, self bool) {
	n.upSeq++
	u := wire.NetUp{Boot: n.boot, Seq: n.upSeq, Whole: whole, Subscribe: add, Unsubscribe: drop, Held: n.held.Digest(), Rev: n.rev}
	for _, p := range n.measure {
		u.Measure = u.Measure.Toggle(p.Digest())
	}
	if self {
		u.Self = n.self()
	}
	if whole {
		for w := range n.wants {
			u.Subscribe = append(u.Subscribe, w)
		}
		slices.SortFunc(u.Subscribe, wire.Subscription.Compare)
		n.renew = n.w.now.Add(4 * time.Minute)
	}
	if n.lease != nil {
		u.Lease = n.lease.Digest()
	}
	if whole || self || len(add)+len(drop) > 0 {
		n.unanswered, n.again = u.Seq, n.w.now.Add(time.Second)
	}
	n.w.sent++
	n.tell(cluster.NetUp{Node: n.id, NetUp: through(n.w.t, u)})
}

func (n *node) down(d wire.NetDown) {
	if n.off || d.Rev <= n.rev || d.Boot != 0 && d.Boot != n.boot {
		return
	}
	n.rev = d.Rev
	if d.Lease != nil {
		if n.lease == nil || n.lease.Subnet != d.Lease.Subnet {
			clear(n.has) // renumbered: attach everything again
		}
		n.lease = d.Lease
		n.settle()
	}
	rec := wire.Records{
		Routes: d.Routes, Sources: d.Sources, Peers: d.Peers, Refused: d.Refused,
		RemovedRoutes: d.RemovedRoutes, RemovedSources: d.RemovedSources, RemovedPeers: d.RemovedPeers, RemovedRefusals: d.RemovedRefusals,
	}
	if d.Whole {
		n.held.TakeAll(rec, d.Of)
	} else {
		n.held.Take(rec)
	}
	if d.Measure != nil {
		n.measure, n.told = d.Measure, n.told+1
	}
	if d.Boot == n.boot && d.Seq >= n.unanswered {
		n.unanswered = 0
	}
	switch {
	case d.RequestWhole:
		n.up(true, nil, nil, true)
	case d.RequestHeld, d.Held != 0 && d.Seq == n.upSeq && d.Held != n.held.Digest():
		n.up(false, nil, nil, false)
	}
}

// restart restarts the netmanager, which loses its state or has it on disk.
func (n *node) restart(keeps bool) {
	n.boot++
	n.upSeq, n.rev, n.unanswered, n.measure = 0, 0, 0, nil
	if !keeps {
		n.held = interest.Replica{}
	}
	n.up(true, nil, nil, true)
}

func (n *node) ask(w wire.Subscription) {
	if !n.wants[w] {
		n.wants[w] = true
		n.up(false, []wire.Subscription{w}, nil, false)
	}
}

func (n *node) drop(w wire.Subscription) {
	if n.wants[w] {
		delete(n.wants, w)
		n.up(false, nil, []wire.Subscription{w}, false)
	}
}
