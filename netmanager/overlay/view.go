package overlay

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/balance"
	"github.com/treeline-edge/treeline/netmanager/overlay/endpoints"
	"github.com/treeline-edge/treeline/netmanager/overlay/kernelpath"
	"github.com/treeline-edge/treeline/netmanager/overlay/measure"
	"github.com/treeline-edge/treeline/netmanager/overlay/names"
	"github.com/treeline-edge/treeline/netmanager/overlay/notice"
	"github.com/treeline-edge/treeline/netmanager/overlay/peers"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
	"github.com/treeline-edge/treeline/netmanager/overlay/services"
	"github.com/treeline-edge/treeline/netmanager/overlay/subscriptions"
)

// view answers questions that need several machines. Its methods change nothing that
// can be observed.
type view struct {
	cfg       Config
	now       time.Time
	boot      uint64 // number of this process
	self      Self
	described bool // self is set
	lease     *wire.NetLease

	endpoints  *endpoints.Machine
	services   *services.Machine
	subs       *subscriptions.Machine
	balance    *balance.Machine
	peers      *peers.Machine
	kernel     *kernelpath.Machine
	measure    *measure.Machine
	received   *notice.Receiver
	notices    *notice.Sender
	roundTrips *measure.Services
}

// held is the digest of all records.
func (v *view) held() api.Digest {
	return v.services.Held().Toggle(v.peers.Held()).Toggle(v.subs.Held())
}

// heldRecords lists all records, in no order.
func (v *view) heldRecords(yield func(interest.Key) bool) {
	for id := range v.services.Routes {
		if !yield(interest.RouteOf(id)) {
			return
		}
	}
	for a := range v.services.Sources {
		if !yield(interest.SourceOf(a)) {
			return
		}
	}
	for k := range v.peers.Own {
		if !yield(interest.PeerOf(k)) {
			return
		}
	}
	for k := range v.subs.Refused {
		if !yield(interest.RefusalOf(k, false)) {
			return
		}
	}
}

// outcome says where a subscription leads.
func (v *view) outcome(k wire.Subscription) subscriptions.Outcome {
	return v.outcomeWith(k, v.subs.Refusal(k))
}

// outcomeWith is outcome for a subscription that need not exist, with its refusal.
func (v *view) outcomeWith(k wire.Subscription, refusal *wire.Refusal) subscriptions.Outcome {
	if k.For == "" {
		if _, ok := v.peers.At(k.Address); ok {
			return subscriptions.Answered
		}
	} else if id, ok := v.leadsTo(k); ok {
		if v.services.MayCall(k.For, id) || k.Address.IsValid() && v.services.MayCall(id, k.For) {
			return subscriptions.Answered
		}
		return subscriptions.Denied
	}
	switch {
	case refusal == nil:
		return subscriptions.Unanswered
	case refusal.Denied:
		return subscriptions.Denied
	}
	return subscriptions.Nowhere
}

// leadsTo returns the known service that a subscription is about.
func (v *view) leadsTo(k wire.Subscription) (id api.ServiceID, ok bool) {
	if k.Service != "" {
		id, ok = v.services.ByName(k.Service)
		if id != k.Service && v.subs.Refusal(subscriptions.Fold(k)) != nil {
			return "", false // the cluster knows several such names
		}
		return id, ok && v.services.Route(id) != nil
	}
	if a, ok := v.endpoints.At(k.Address); ok {
		return a.Service(), true
	}
	if id, ok = v.services.Owner(k.Address); ok {
		return id, true
	}
	id, ok = v.services.Semantic(k.Address)
	return id, ok && v.services.Route(id) != nil
}

// subscriptionsTo lists the subscriptions that lead to a service's route.
func (v *view) subscriptionsTo(id api.ServiceID) []wire.Subscription {
	return v.subs.To(id, v.services.Addresses(id))
}

// heir returns a service on this node that may use a subscription of another one, or
// "".
func (v *view) heir(k wire.Subscription) api.ServiceID {
	id, ok := v.leadsTo(k)
	if !ok {
		return ""
	}
	for _, o := range v.endpoints.Services() {
		if o != k.For && (v.services.MayCall(o, id) || v.services.MayCall(id, o)) {
			return o
		}
	}
	return ""
}

// subnetOf returns the node's subnet that an address belongs to.
func (v *view) subnetOf(a netip.Addr) netip.Prefix {
	if v.lease == nil {
		return netip.Prefix{}
	}
	p, _ := a.Prefix(v.lease.Ranges.Subnet)
	return p
}

// backends lists the backends of a service that packets can reach. For instances of
// this node the attachments count, not what the cluster knows of them. What a node
// sent about its instances outweighs older records.
func (v *view) backends(id api.ServiceID) (out []balance.Backend) {
	local := v.endpoints.Of(id)
	var loads map[wire.Key]uint8
	if len(local) > 0 {
		loads = map[wire.Key]uint8{}
	}
	if r := v.services.Route(id); r != nil {
		for _, b := range r.Backends {
			key := wire.Key{Instance: b.Instance, Epoch: b.Epoch}
			if len(local) > 0 {
				if _, ok := loads[key]; !ok {
					loads[key] = b.Load
				}
			}
			p, ok := v.peers.Get(b.Peer)
			if !ok || v.endpoints.Has(b.Address) || b.Instance.Service() != id {
				continue
			}
			if k, ok := v.peers.At(b.Address); !ok || k != b.Peer {
				continue
			}
			if o, _ := v.services.Owner(b.Address); o != id {
				continue
			}
			mark, marked := v.received.Mark(b.Peer, b.Address, key)
			if marked && mark.Gone && mark.Named {
				continue
			}
			out = append(out, balance.Backend{
				Instance: b.Instance, Epoch: b.Epoch, Address: b.Address, Peer: b.Peer, Load: b.Load,
				Draining: b.State == api.BackendDraining || marked, Gone: marked && mark.Gone,
				Silent: p.Path.Silent, Lossy: p.Lossy(), Distance: v.distance(p), Updated: p.Reported,
			})
		}
	}
	for _, a := range local {
		if a.Ready {
			k := a.Attach.Key
			out = append(out, balance.Backend{Instance: k.Instance, Epoch: k.Epoch, Address: a.Address, Local: true, Draining: a.Draining, Load: loads[k]})
		}
	}
	balance.Resolve(out)
	return out
}

func (v *view) distance(p peers.Peer) time.Duration {
	estimate := balance.Unknown
	if c := p.Record.Coord; vivaldi.Valid(c) {
		estimate = vivaldi.Distance(v.measure.Coordinate(), *c)
	}
	return balance.Distance(p.Path.Kind, p.Path.RTT, p.Path.Loss, estimate)
}

// reachable lists the peers that have or had a session or a kernel path, which follows
// from one. A session begins for a message if there is none.
func (v *view) reachable(silent bool) (keys []api.PeerKey) {
	for _, k := range v.peers.Keys() {
		p, _ := v.peers.Get(k)
		session := p.Path.Kind != "" && p.Path.Kind != api.PathNone
		if k != v.self.Key && (session || v.kernel.Status(k).Path != "") && (silent || !p.Path.Silent) {
			keys = append(keys, k)
		}
	}
	return keys
}

// sample finds the ends of a flow, and the remote address in IPv4.
func (v *view) sample(f Flow) (x measure.Sample, remote netip.Addr, ok bool) {
	if v.lease == nil || f.Sockets <= 0 || f.RTT <= 0 || f.Least <= 0 {
		return x, remote, false
	}
	a, here := v.endpoints.At(v.lease.Ranges.Untwin(f.Local))
	remote = v.lease.Ranges.Untwin(f.Remote)
	if !here || !remote.IsValid() {
		return x, remote, false
	}
	other, ok := v.services.Semantic(remote)
	if !ok {
		other, ok = v.services.Owner(remote)
	}
	if o, here := v.endpoints.At(remote); here {
		other, ok = o.Service(), true
	}
	if s, known := v.services.Source(remote); known && !ok {
		other, ok = s.Service, true
	}
	x = measure.Sample{Flow: f, Local: a.Service(), Remote: other}
	if v.roundTrips.Reports(x.Local) && x.Local.App() == other.App() {
		x.To, x.Known = v.remoteEnd(x.Local, other, remote)
	}
	return x, remote, ok
}

// remoteEnd returns the service and node at the far end of a flow. A semantic address
// counts where it can lead to one node of another cluster only. Within the cluster the
// other end reports the flow, because it sees which instance calls.
func (v *view) remoteEnd(local, remote api.ServiceID, address netip.Addr) (e measure.End, known bool) {
	e = measure.End{Service: remote, Node: v.lease.Node}
	if v.endpoints.Has(address) {
		return e, remote != local
	}
	k, direct := v.peers.At(address)
	if !direct {
		k = v.services.OnlyPeer(remote, address)
	}
	p, _ := v.peers.Get(k)
	switch {
	case p.Record.Cluster == "":
		return e, false
	case p.Record.Cluster != v.lease.Cluster:
		e.Node, e.Cluster = api.NodeID(k.String()), p.Record.Cluster
		return e, true
	}
	e.Node = p.Record.Node
	return e, direct && e.Node != ""
}

func (v *view) planeNode() plane.Node {
	n := v.cfg.Node
	if v.lease != nil {
		n.Ranges, n.Subnet = v.lease.Ranges, v.lease.Subnet
	}
	return n
}

func (v *view) planeEndpoint(addr netip.Addr) (plane.Endpoint, bool) {
	a, ok := v.endpoints.At(addr)
	if !ok {
		return plane.Endpoint{}, false
	}
	return plane.Endpoint{
		Address: addr, Ident: v.services.Ident(a.Service()), Device: plane.Device(v.cfg.Prefix, addr), Ports: slices.Clone(a.Attach.Ports),
	}, true
}

func (v *view) planeSource(a netip.Addr) (plane.Source, bool) {
	id, _ := v.services.Owner(a)
	ident := v.services.Ident(id)
	return plane.Source{Address: a, Ident: ident}, ident != 0 && !v.endpoints.Has(a)
}

// planeServices returns what the plane should have of a service's semantic addresses.
// Without a route it has only the addresses to which somebody subscribes, so that
// others cause a subscription.
func (v *view) planeServices(id api.ServiceID) []plane.Service {
	routed := v.services.Route(id) != nil
	if !routed && v.endpoints.Count(id) == 0 {
		return nil
	}
	return v.balance.Services(id, v.services.Ident(id), v.services.Advertised(id), v.backends(id), func(a netip.Addr) bool {
		o, _ := v.services.Semantic(a)
		return o == id && (routed || v.subs.Wanted(a))
	})
}

func (v *view) planePeer(k api.PeerKey) (plane.Peer, bool) {
	q, ok := v.peers.Get(k)
	if !ok || k == v.self.Key {
		return plane.Peer{}, false
	}
	st := v.kernel.Status(k)
	p := plane.Peer{Key: k, Path: api.PathDirect, MTU: q.Path.MTU, Subnets: v.peers.Subnets(k), Accepts: st.Accepts}
	if p.Accepts != (plane.Paths{}) {
		p.Via = st.Via
	}
	if st.Path != "" {
		p.Path, p.Via, p.MTU = st.Path, st.Via, 0
	}
	return p, true
}

// named returns the name of an address, as the query that would return it.
func (v *view) named(a netip.Addr) (names.Query, bool) {
	if at, ok := v.endpoints.At(a); ok {
		return names.Query{Service: at.Service(), Policy: names.Instance, Number: at.Attach.Instance.Number()}, true
	}
	return v.services.Name(a)
}

// Twin is the IPv6 address that belongs to an IPv4 address of the network.
func (v *view) Twin(a netip.Addr) netip.Addr {
	if v.lease == nil {
		return netip.Addr{}
	}
	return v.lease.Ranges.Twin(a)
}

// Covers reports whether the core answers for a PTR name: an address of the network.
func (v *view) Covers(name string) bool {
	a, ok := names.Reverse(name)
	return ok && v.lease != nil && v.lease.Ranges.Untwin(a).IsValid()
}

// subject is what a look-up is about.
type subject struct {
	key   wire.Subscription // what the asking service subscribes to for it
	query names.Query
	proto string // "_name._tcp.web" is about the service's ports of a protocol
	below bool   // SRV records are below the name, and none at it
	ours  bool   // the name cannot be one from outside
}

// about parses a name. ok is false if nothing can be subscribed to for it.
func (v *view) about(asker api.ServiceID, name string) (s subject, ok bool) {
	if a, is := names.Reverse(name); is {
		a = v.lease.Ranges.Untwin(a)
		if !a.IsValid() || v.services.IsInstance(a) && !v.endpoints.Has(a) && (v.lease.Subnet.Contains(a) || a == v.subnetOf(a).Addr()) {
			return s, false // it is a node's address, or a free one of this node
		}
		return subject{key: wire.Subscription{Address: a, For: asker}, ours: true}, true
	}
	rest, proto, below := protocol(name)
	q, err := names.Parse(rest, asker)
	return subject{
		key: wire.Subscription{Service: q.Service, For: asker}, query: q, proto: proto, below: below,
		ours: q.Policy != names.Any || proto != "" || q.Service.Tenant() != asker.Tenant(),
	}, err == nil
}

// protocol splits "_name._tcp.rest", and "_tcp.rest" above it.
func protocol(name string) (rest, proto string, below bool) {
	p := strings.SplitN(name, ".", 3)
	for _, proto := range []string{"tcp", "udp", "sctp"} {
		switch {
		case len(p) == 3 && len(p[0]) > 1 && p[0][0] == '_' && strings.EqualFold(p[1], "_"+proto):
			return p[2], proto, false
		case len(p) > 1 && strings.EqualFold(p[0], "_"+proto) && !strings.HasPrefix(p[1], "_"):
			return name[len(p[0])+1:], proto, true
		}
	}
	return name, "", false
}
