package overlay

import (
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/balance"
	"github.com/treeline-edge/treeline/netmanager/overlay/endpoints"
	"github.com/treeline-edge/treeline/netmanager/overlay/kernelpath"
	"github.com/treeline-edge/treeline/netmanager/overlay/measure"
	"github.com/treeline-edge/treeline/netmanager/overlay/notice"
	"github.com/treeline-edge/treeline/netmanager/overlay/peers"
	"github.com/treeline-edge/treeline/netmanager/overlay/services"
	"github.com/treeline-edge/treeline/netmanager/overlay/subscriptions"
)

// state is what the core changes and a View reads.
type state struct {
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

// View answers questions about a core, of which most need several machines. Its methods change nothing
// that can be observed. It always shows the present state, and is for the goroutine that owns the core.
type View struct{ *state }

// View returns the view of the core.
func (c *Core) View() View { return View{&c.state} }

// held is the digest of all records.
func (v View) held() api.Digest {
	return v.services.Held().Toggle(v.peers.Held()).Toggle(v.subs.Held())
}

// heldRecords lists all records, in no order.
func (v View) heldRecords(yield func(interest.Key) bool) {
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

func (v View) outcome(k wire.Subscription) subscriptions.Outcome {
	return v.outcomeWith(k, v.subs.Refusal(k))
}

// outcomeWith is outcome for a subscription that may not exist; refusal is its refusal or nil.
func (v View) outcomeWith(k wire.Subscription, refusal *wire.Refusal) subscriptions.Outcome {
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

// leadsTo returns the known service to which a subscription leads.
func (v View) leadsTo(k wire.Subscription) (id api.ServiceID, ok bool) {
	if k.Service != "" {
		id, ok = v.services.ByName(k.Service)
		if id != k.Service && v.subs.Refusal(subscriptions.Fold(k)) != nil {
			return "", false // the cluster has several services whose names differ only in case
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
func (v View) subscriptionsTo(id api.ServiceID) []wire.Subscription {
	return v.subs.To(id, v.services.Addresses(id))
}

// otherUser returns a service on this node that may use a subscription of another one, or "".
func (v View) otherUser(k wire.Subscription) api.ServiceID {
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

// subnetOf returns the subnet, of any node, to which an address belongs.
func (v View) subnetOf(a netip.Addr) netip.Prefix {
	if v.lease == nil {
		return netip.Prefix{}
	}
	p, _ := a.Prefix(v.lease.Ranges.Subnet)
	return p
}

// backends lists the reachable backends of a service. Instances on this node come from the attachments,
// not from the route. A peer's notice about its instances takes precedence over the route.
func (v View) backends(id api.ServiceID) (out []balance.Backend) {
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
		if a.Serving() {
			k := a.Attach.Key
			out = append(out, balance.Backend{Instance: k.Instance, Epoch: k.Epoch, Address: a.Address, Local: true, Draining: a.Draining, Load: loads[k]})
		}
	}
	balance.Resolve(out)
	return out
}

func (v View) distance(p peers.Peer) time.Duration {
	estimate := balance.Unknown
	if c := p.Record.Coord; vivaldi.Valid(c) {
		estimate = vivaldi.Distance(v.measure.Coordinate(), *c)
	}
	return balance.Distance(p.Path.Kind, p.Path.RTT, p.Path.Loss, estimate)
}

// reachable lists the peers with a path through the tunnel or the kernel. silent includes peers that do
// not answer. A message starts a session if there is none.
func (v View) reachable(silent bool) (keys []api.PeerKey) {
	for _, k := range v.peers.Keys() {
		p, _ := v.peers.Get(k)
		session := p.Path.Kind != "" && p.Path.Kind != api.PathNone
		if k != v.self.Key && (session || v.kernel.Status(k).Path != "") && (silent || !p.Path.Silent) {
			keys = append(keys, k)
		}
	}
	return keys
}

// sample finds the services at the ends of a flow, and returns the remote address in IPv4.
func (v View) sample(f Flow) (x measure.Sample, remote netip.Addr, ok bool) {
	if v.lease == nil || f.Sockets <= 0 || f.RTT <= 0 || f.Least <= 0 {
		return x, remote, false
	}
	a, here := v.endpoints.At(v.lease.Ranges.To4(f.Local))
	remote = v.lease.Ranges.To4(f.Remote)
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

// remoteEnd returns the service and node at the remote end of a flow. For a semantic address, known is
// true only if all its instances are on one node of another cluster. Within the cluster, the other end
// reports the flow, because it sees which instance calls.
func (v View) remoteEnd(local, remote api.ServiceID, address netip.Addr) (e measure.End, known bool) {
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
