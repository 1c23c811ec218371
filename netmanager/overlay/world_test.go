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
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/notice"
	"github.com/treeline-edge/treeline/netmanager/overlay/peermsg"
	"github.com/treeline-edge/treeline/netmanager/overlay/peers"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane/planetest"
	"github.com/treeline-edge/treeline/netmanager/overlay/services"
	"github.com/treeline-edge/treeline/netmanager/overlay/subscriptions"
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

// world is a core with its store and a plane that applies its orders.
type world struct {
	t     tb
	cfg   Config
	c     *Core
	now   time.Time
	docs  map[[2]string]store.Doc
	plane planetest.Model
	// tunnel has the peers in the tunnel.
	tunnel map[api.PeerKey]api.Peer
	last   step.Effects
	sent   map[api.PeerKey]uint64 // serial of the last terms to each peer
	heard  uint64                 // serial of the last terms from any peer
}

func newWorld(t tb, cfg Config) *world {
	w := &world{t: t, cfg: cfg, now: epoch, docs: map[[2]string]store.Doc{}, sent: map[api.PeerKey]uint64{}}
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

// restart kills the netmanager and starts another one with its store.
func (w *world) restart() {
	w.t.Helper()
	w.c = New(w.cfg)
	docs := slices.Collect(maps.Values(w.docs))
	if err := w.c.Restore(docs); err != nil {
		w.t.Fatal(err)
	}
	w.tunnel = map[api.PeerKey]api.Peer{}
	w.step(Start{})
	w.plane.Sync(w.c.View().Plane())
	w.step(Self{NetSelf: wire.NetSelf{Key: key(0), Endpoints: []netip.AddrPort{netip.MustParseAddrPort("192.168.1.10:7000")}}, OnLink: []netip.Prefix{cidr("192.168.1.0/24")}})
}

func (w *world) step(in Input) step.Effects {
	w.t.Helper()
	w.last = w.c.Step(w.now, in)
	w.save(w.last.Save)
	w.carryOut(w.last.Send)
	return w.last
}

func (w *world) carryOut(send []wire.Envelope) {
	for _, e := range send {
		switch m := e.Msg.(type) {
		case plane.Change:
			w.plane.Apply(m)
		case TunnelPeer:
			w.tunnel[m.Key] = m.Peer
		case TunnelDrop:
			delete(w.tunnel, m.Key)
		case TunnelTerms:
			w.sent[m.Key] = m.Serial
		}
	}
}

// pass lets time pass, with a Tick at each Wake.
func (w *world) pass(d time.Duration) (ups []wire.NetUp) {
	w.t.Helper()
	end := w.now.Add(d)
	for {
		wake := w.last.Wake
		if wake.IsZero() || wake.After(end) {
			break
		}
		w.now = later(w.now, wake)
		ups = append(ups, messages(w.step(Tick{}))...)
	}
	w.now = end
	return append(ups, messages(w.step(Tick{}))...)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func messages(eff step.Effects) (out []wire.NetUp) {
	for _, e := range eff.Send {
		if up, ok := e.Msg.(wire.NetUp); ok {
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

// checkIndexes compares the machines' indexes with their records, and the plane with its desired state.
func (w *world) checkIndexes() {
	w.t.Helper()
	c := w.c
	var held api.Digest
	refs := map[api.PeerKey]int{}
	for _, id := range c.services.IDs() {
		if r := c.services.Route(id); r != nil {
			held = held.Toggle(r.Digest())
			for _, p := range r.Peers {
				refs[p.Key]++
			}
		}
		if c.services.Ident(id) == 0 {
			w.t.Fatalf("service %s has no ident", id)
		}
	}
	for a := range c.services.Sources {
		s, _ := c.services.Source(a)
		held = held.Toggle(s.Digest())
		refs[s.Peer.Key]++
	}
	for _, k := range c.measure.Peers() {
		refs[k]++
	}
	for k, p := range c.peers.Own {
		held = held.Toggle(p.Digest())
		refs[k]++
	}
	for _, k := range c.peers.Keys() {
		p, _ := c.peers.Get(k)
		if n := c.peers.References(k); refs[k] != n || n == 0 {
			w.t.Fatalf("peer %s has %d references, want %d", k, n, refs[k])
		}
		reported, ok := w.tunnel[k]
		if k != key(0) && (!ok || reported.Rev != p.Record.Rev) {
			w.t.Fatalf("the tunnel knows revision %d of peer %s, want %d", reported.Rev, k, p.Record.Rev)
		}
		for _, s := range reported.Subnets {
			if o, _ := c.peers.At(s.Addr()); o != k || c.lease.Ranges.CheckSubnet(s) != nil || s.Overlaps(c.lease.Subnet) {
				w.t.Fatalf("the tunnel takes packets of %s from peer %s, which does not hold it", s, k)
			}
		}
		if holds := c.peers.Subnets(k); k != key(0) && !slices.Equal(holds, reported.Subnets) {
			w.t.Fatalf("the tunnel takes packets of %v from peer %s, which holds %v", reported.Subnets, k, holds)
		}
		_, saved := w.docs[[2]string{notice.Kind, k.String()}]
		if n := c.received.Count(k); n > peermsg.MaxEntries || (n > 0) != saved {
			w.t.Fatalf("peer %s has %d marks, saved: %v", k, n, saved)
		}
		if _, saved := w.docs[[2]string{peers.KindInUse, k.String()}]; saved != c.peers.InUse(k) {
			w.t.Fatalf("a session with peer %s is in use: %v, saved: %v", k, c.peers.InUse(k), saved)
		}
	}
	if n := c.notices.Len(); n >= peermsg.MaxEntries {
		w.t.Fatalf("%d entries for peers, want fewer than %d", n, peermsg.MaxEntries)
	}
	idents := 0
	for k := range w.docs {
		if k[0] == services.KindIdent {
			idents++
		}
	}
	if idents != len(c.services.IDs()) || len(w.tunnel) > len(c.peers.Keys()) {
		w.t.Fatalf("%d idents of %d services, %d tunnels to %d peers", idents, len(c.services.IDs()), len(w.tunnel), len(c.peers.Keys()))
	}
	seen := map[netip.Addr]bool{}
	for _, a := range c.endpoints.All() {
		if at, ok := c.endpoints.At(a.Address); seen[a.Address] || !ok || at.Attach.Key != a.Attach.Key {
			w.t.Fatalf("%s and another attachment have address %s", a.Attach.Key, a.Address)
		}
		seen[a.Address] = true
	}
	n := 0
	for _, id := range c.subs.Subscribers() {
		all, open := c.subs.Of(id), c.subs.OpenOf(id)
		n += len(all)
		if len(open) > c.cfg.MaxOpen || len(all) == 0 {
			w.t.Fatalf("%s has %d subscriptions, %d of them open", id, len(all), len(open))
		}
		for _, k := range all {
			if r := c.subs.Refusal(k); r != nil {
				held = held.Toggle(r.Digest())
			}
			if id != "" && c.endpoints.Count(id) == 0 && !c.subs.InQuarantine(id) {
				w.t.Fatalf("subscription %+v belongs to a service that is not here", k)
			}
			if st, _ := c.subs.Get(k); c.View().outcome(k) == subscriptions.Unanswered && c.subs.Up() && !st.Scheduled {
				w.t.Fatalf("subscription %+v is unanswered and will not be requested again", k)
			}
		}
	}
	if n != c.subs.Len() || n > c.cfg.MaxSubscriptions || held != c.View().held() {
		w.t.Fatalf("%d subscriptions of %d; digest of the records is %x, want %x", n, c.subs.Len(), c.View().held(), held)
	}
	if diff := w.plane.Differs(c.View().Plane()); diff != "" {
		w.t.Fatal("the plane is not what it should be:" + diff)
	}
}

func (w *world) subscriptions() (all []wire.Subscription) {
	for _, id := range w.c.subs.Subscribers() {
		all = append(all, w.c.subs.Of(id)...)
	}
	return all
}

// Test data.

func key(n byte) (k api.PeerKey) {
	k[0], k[31] = n+1, n
	return k
}

func svc(name string) api.ServiceID { return api.ServiceID("acme/shop.prod." + name + ".eu") }

func attachOf(name string, n int, e api.Epoch) Attach {
	return Attach{wire.Attach{Key: wire.Key{Instance: svc(name).Instance(n), Epoch: e}, NetNS: "/proc/1/ns/net"}}
}

// listens returns the input that an attached workload listens.
func listens(a Attach) Ready { return Ready{a.Key, a.NetNS} }

func theLease() *wire.NetLease {
	return &wire.NetLease{
		Rev: 1, Node: "n0", Cluster: "c0", Ranges: wire.DefaultNetRanges(), Subnet: cidr("10.16.0.0/26"),
		Unencrypted: []netip.Prefix{cidr("192.168.0.0/16")}, Interest: 5 * time.Minute,
	}
}

// peerRecord returns the record of node n, whose subnet is 10.16.n.0/26.
func peerRecord(n byte, rev uint64) api.Peer {
	return api.Peer{
		Key: key(n), Cluster: "c0", Node: api.NodeID(fmt.Sprintf("n%d", n)), Rev: rev,
		Subnets: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 16, n, 0}), 26)},
	}
}

func instanceAt(n, host byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 16, n, host}) }

// route returns a service with one backend on each of the nodes.
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

// ready returns a world with a lease, a link and a client instance.
func ready(t *testing.T) (w *world, client netip.Addr) {
	t.Helper()
	return readyWith(t, Config{Node: plane.Node{VXLAN: 7001}})
}

func readyWith(t *testing.T, cfg Config) (w *world, client netip.Addr) {
	t.Helper()
	w = newWorld(t, cfg)
	w.step(Link{true})
	w.step(Down{wire.NetDown{Rev: 1, Lease: theLease()}})
	if eff := w.step(attachOf("client", 0, 1)); eff.Err != nil {
		t.Fatal(eff.Err)
	}
	a, ok := w.c.View().Attached(attachOf("client", 0, 1).Key)
	if !ok {
		t.Fatal("not attached")
	}
	w.checkIndexes()
	return w, a.Address
}

// answer delivers a message of the cluster that acknowledges all messages.
func (w *world) answer(d wire.NetDown) step.Effects {
	d.Boot = w.c.boot
	d.Seq, d.Rev = w.c.subs.Position()
	d.Rev++
	return w.step(Down{d})
}
