package overlay

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/netmanager/overlay/notice"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane/planetest"
)

var (
	epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ip    = netip.MustParseAddr
	cidr  = netip.MustParsePrefix
)

type tb interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// world is a core with its store, and a plane that does what it is told.
type world struct {
	t     tb
	cfg   Config
	c     *Core
	now   time.Time
	docs  map[[2]string]store.Doc
	plane planetest.Twin
	// tunnel has the peers that the tunnel knows.
	tunnel map[api.PeerKey]api.Peer
	last   step.Effects
}

func newWorld(t tb, cfg Config) *world {
	w := &world{t: t, cfg: cfg, now: epoch, docs: map[[2]string]store.Doc{}}
	w.restart()
	return w
}

func (w *world) save(docs []store.Doc) {
	w.t.Helper()
	for _, d := range docs {
		k := [2]string{d.Kind, d.Key}
		if was := w.docs[k].Version; d.Version != was+1 && (d.Data != nil || was != 0) {
			w.t.Fatalf("%s %s: version %d follows %d", d.Kind, d.Key, d.Version, was)
		}
		if d.Data == nil {
			delete(w.docs, k)
		} else {
			w.docs[k] = d
		}
	}
}

// restart kills the netmanager and starts another on what is stored.
func (w *world) restart() {
	w.t.Helper()
	w.c = New(w.cfg)
	docs := slices.Collect(maps.Values(w.docs))
	if err := w.c.Restore(docs); err != nil {
		w.t.Fatal(err)
	}
	w.tunnel = map[api.PeerKey]api.Peer{}
	w.step(Start{})
	w.plane.Sync(w.c.Plane())
	w.step(Self{NetSelf: api.NetSelf{Key: key(0), Endpoints: []netip.AddrPort{netip.MustParseAddrPort("192.168.1.10:7000")}}, OnLink: []netip.Prefix{cidr("192.168.1.0/24")}})
}

func (w *world) step(in Input) step.Effects {
	w.t.Helper()
	w.last = w.c.Step(w.now, in)
	w.save(w.last.Save)
	w.obey(w.last.Send)
	return w.last
}

func (w *world) obey(send []api.Envelope) {
	for _, e := range send {
		switch m := e.Msg.(type) {
		case plane.Change:
			w.plane.Apply(m)
		case TunnelPeer:
			w.tunnel[m.Key] = m.Peer
		case TunnelDrop:
			delete(w.tunnel, m.Key)
		}
	}
}

// pass lets time go by, with what the core wants to be woken for.
func (w *world) pass(d time.Duration) (ups []api.NetUp) {
	w.t.Helper()
	end := w.now.Add(d)
	for {
		wake := w.c.timers.Next()
		if wake.IsZero() || wake.After(end) {
			break
		}
		w.now = later(w.now, wake)
		ups = append(ups, said(w.step(Tick{}))...)
	}
	w.now = end
	return append(ups, said(w.step(Tick{}))...)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func said(eff step.Effects) (out []api.NetUp) {
	for _, e := range eff.Send {
		if up, ok := e.Msg.(api.NetUp); ok {
			out = append(out, up)
		}
	}
	return out
}

func orders[T any](eff step.Effects) (out []T) {
	for _, e := range eff.Send {
		if m, ok := e.Msg.(T); ok {
			out = append(out, m)
		}
	}
	return out
}

// checkBooks compares what the core keeps step by step with what follows from
// scratch, and the plane with what it should be.
func (w *world) checkBooks() {
	w.t.Helper()
	c := w.c
	var held api.Digest
	refs := map[api.PeerKey]int{}
	for id, s := range c.services {
		if s.route != nil {
			held = held.Toggle(s.route.Digest())
			for _, p := range s.route.Peers {
				refs[p.Key]++
			}
		}
		if s.ident == 0 || c.known[id] != s.ident {
			w.t.Fatalf("%s is %d and %d", id, s.ident, c.known[id])
		}
	}
	for _, s := range c.sources {
		held = held.Toggle(s.Digest())
		refs[s.Peer.Key]++
	}
	for k, m := range c.measure {
		refs[k]++
		if k == c.self.Key || m.record.Key != k || !c.timers.Has(timerKey{what: timerMeasure, peer: k}) {
			w.t.Fatalf("peer %s, that is to be measured, is not", k)
		}
	}
	for k, p := range c.peers {
		if p.alone != nil {
			held = held.Toggle(p.alone.Digest())
			refs[k]++
		}
		if refs[k] != p.refs || p.refs == 0 {
			w.t.Fatalf("peer %s has %d references and not %d", k, p.refs, refs[k])
		}
		told, ok := w.tunnel[k]
		if k != key(0) && (!ok || told.Rev != p.record.Rev) {
			w.t.Fatalf("the tunnel knows revision %d of peer %s, want %d", told.Rev, k, p.record.Rev)
		}
		for _, s := range told.Subnets {
			if c.subnets[s] != k || c.lease.Ranges.CheckSubnet(s) != nil || s.Overlaps(c.lease.Subnet) {
				w.t.Fatalf("the tunnel takes packets of %s from peer %s, which does not hold it", s, k)
			}
		}
		for s, o := range c.subnets {
			if o == k && k != key(0) && !slices.Contains(told.Subnets, s) {
				w.t.Fatalf("the tunnel drops packets of %s from peer %s, which holds it", s, k)
			}
		}
	}
	for k, p := range c.peers {
		timed := c.timers.Has(timerKey{what: timerMark, peer: k})
		_, saved := w.docs[[2]string{kindMarks, k.String()}]
		if _, saved := w.docs[[2]string{kindTalk, k.String()}]; saved != p.talks {
			w.t.Fatalf("that we talk with peer %s is saved: %v", k, saved)
		}
		if n := len(p.marks); n > notice.MaxWords || n > 0 && !timed || (n > 0) != saved {
			w.t.Fatalf("of peer %s %d words are remembered; forgotten in time: %v, saved: %v", k, n, timed, saved)
		}
	}
	if n := len(c.notices.words); n >= notice.MaxWords {
		w.t.Fatalf("%d words are told", n)
	}
	if len(c.known) != len(c.services) || len(w.tunnel) > len(c.peers) {
		w.t.Fatalf("%d idents of %d services, %d tunnels to %d peers", len(c.known), len(c.services), len(w.tunnel), len(c.peers))
	}
	seen := map[netip.Addr]bool{}
	for k, a := range c.attached {
		if seen[a.Address] || c.at[a.Address] != a || a.Attach.Key != k {
			w.t.Fatalf("%s has address %s, too", k, a.Address)
		}
		seen[a.Address] = true
	}
	n := 0
	for id, a := range c.asking {
		n += len(a.wants)
		if len(a.pending) > c.cfg.MaxPending || len(a.wants) == 0 {
			w.t.Fatalf("%s has %d wants, %d of them pending", id, len(a.wants), len(a.pending))
		}
	}
	for k, x := range c.wants {
		if x.refusal != nil {
			held = held.Toggle(x.refusal.Digest())
		}
		if k.For != "" && (c.services[k.For] == nil || len(c.services[k.For].local) == 0) && !c.timers.Has(timerKey{what: timerLeft, service: k.For}) {
			w.t.Fatalf("%+v is wanted for nobody", k)
		}
		if c.outcome(x) == unanswered && c.link.up && !c.timers.Has(timerKey{what: timerAsk, want: k}) {
			w.t.Fatalf("%+v is not asked for", k)
		}
	}
	if n != len(c.wants) || n > c.cfg.MaxWants || held != c.held {
		w.t.Fatalf("%d wants of %d; held %x, from scratch %x", n, len(c.wants), c.held, held)
	}
	if diff := w.plane.Differs(c.Plane()); diff != "" {
		w.t.Fatal("the plane is not what it should be:" + diff)
	}
}

// What the tests speak of.

func key(n byte) (k api.PeerKey) {
	k[0], k[31] = n+1, n
	return k
}

func svc(name string) api.ServiceID { return api.ServiceID("acme/shop.prod." + name + ".eu") }

func attachOf(name string, n int, e api.Epoch) Attach {
	return Attach{api.Attach{Key: api.Key{Instance: svc(name).Instance(n), Epoch: e}, NetNS: "/proc/1/ns/net"}}
}

// listens says that what was attached so does.
func listens(a Attach) Ready { return Ready{a.Key, a.NetNS} }

func theLease() *api.NetLease {
	return &api.NetLease{
		Rev: 1, Node: "n0", Cluster: "c0", Ranges: api.DefaultNetRanges(), Subnet: cidr("10.16.0.0/26"),
		Clear: []netip.Prefix{cidr("192.168.0.0/16")}, Interest: 5 * time.Minute,
	}
}

// peerRecord is node n, whose subnet is 10.16.n.0/26.
func peerRecord(n byte, rev uint64) api.Peer {
	return api.Peer{
		Key: key(n), Cluster: "c0", Node: api.NodeID(fmt.Sprintf("n%d", n)), Rev: rev,
		Subnets: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 16, n, 0}), 26)},
	}
}

func instanceAt(n, host byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 16, n, host}) }

// route is a service with one backend on each of the nodes.
func route(name string, rev uint64, vip byte, nodes ...byte) api.Route {
	r := api.Route{
		Service: svc(name), Rev: rev,
		Addresses: api.ServiceAddresses{RoundRobin: netip.AddrFrom4([4]byte{10, 30, vip, 1}), Instances: map[int]netip.Addr{}},
	}
	for i, n := range nodes {
		r.Backends = append(r.Backends, api.Backend{
			Instance: r.Service.Instance(i), Epoch: 1, Address: instanceAt(n, vip), Peer: key(n), State: api.BackendUp,
		})
		r.Addresses.Instances[i] = netip.AddrFrom4([4]byte{10, 30, vip, byte(10 + i)})
		if !slices.ContainsFunc(r.Peers, func(p api.Peer) bool { return p.Key == key(n) }) {
			r.Peers = append(r.Peers, peerRecord(n, rev))
		}
	}
	return r
}

// ready is a world with a lease, a link, and a client instance.
func ready(t *testing.T) (w *world, client netip.Addr) {
	t.Helper()
	w = newWorld(t, Config{VXLAN: 7001})
	w.step(Link{true})
	w.step(Down{api.NetDown{Rev: 1, Lease: theLease()}})
	if eff := w.step(attachOf("client", 0, 1)); eff.Err != nil {
		t.Fatal(eff.Err)
	}
	a, ok := w.c.Attached(attachOf("client", 0, 1).Key)
	if !ok {
		t.Fatal("not attached")
	}
	w.checkBooks()
	return w, a.Address
}

// answer delivers a message of the cluster that has all that was said.
func (w *world) answer(d api.NetDown) step.Effects {
	d.Boot, d.Seq, d.Rev = w.c.boot, w.c.link.seq, w.c.link.rev+1
	return w.step(Down{d})
}
