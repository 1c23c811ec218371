package routes

import (
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/internal/wire"
)

// uplink is the state of the exchange with the root: the cluster's subscriptions at the root
// and the root's subscriptions at the cluster.
type uplink struct {
	rev     uint64                                 // of the newest message of the root
	foreign interest.Replica                       // resources from the root
	routes  map[api.ServiceID]api.ServiceAddresses // addresses of foreign routes that are in Registry.owners
	subnets map[api.PeerKey][]netip.Prefix         // of foreign peers, at their last change

	needs    map[wire.Subscription]map[api.NodeID]bool // nodes, by subscription that the root must answer
	requests interest.Requests                         // subscriptions at the root
	exports  *interest.Subscriptions[string]           // of the root, the only subscriber
	resync   interest.Resync
	used     interest.Cursor[wire.ServiceAddress] // through the addresses in use, during a resync
	demands  map[wire.Subscription]bool           // to be sent
	restored []wire.Subscription                  // needed by no node, see RestoreRoute
}

// rootSubscriber identifies the root as the subscriber of exports.
const rootSubscriber = "root"

// never is the expiry of the root's subscriptions.
var never = time.Unix(1<<62, 0)

func newUplink() uplink {
	return uplink{
		routes: map[api.ServiceID]api.ServiceAddresses{}, subnets: map[api.PeerKey][]netip.Prefix{},
		needs: map[wire.Subscription]map[api.NodeID]bool{}, exports: interest.New[string](), demands: map[wire.Subscription]bool{},
	}
}

// setNeeded records whether the root must answer a node's subscription or add to its answer.
func (u *uplink) setNeeded(r ref, on bool) {
	of := u.needs[r.Subscription]
	switch {
	case of[r.Subscriber] == on:
		return
	case of == nil:
		of = map[api.NodeID]bool{}
		u.needs[r.Subscription] = of
	}
	if of[r.Subscriber] = on; !on {
		if delete(of, r.Subscriber); len(of) == 0 {
			delete(u.needs, r.Subscription)
		}
	}
	u.requests.Set(r.Subscription, len(of) > 0)
}

// resolve answers subscriptions of the root with the cluster's own resources.
func (u *uplink) resolve(b *Registry, refs []interest.Ref[string]) {
	for _, r := range refs {
		w := r.Subscription
		k := interest.RefusalOf(w, false)
		switch p, found := b.at[w.Address]; {
		case w.Service != "":
			if s := b.services[w.Service]; s != nil && (s.newest != "" || len(s.backends) > 0) {
				k = interest.RouteOf(w.Service)
			}
		case found && b.members[p.Node] != nil:
			k = interest.SourceOf(w.Address)
		case b.ranges.Subnet > 0 && w.Address.Is4():
			if id, ok := b.subnets[netip.PrefixFrom(w.Address, b.ranges.Subnet)]; ok { // only the first address of a subnet
				k = interest.PeerOf(b.members[id].peer.Key)
			}
		}
		u.exports.Answer(rootSubscriber, w, k)
	}
}

// ApplyRoot applies a message of the root. ok is false if it is not newer than the last one. routes
// are the services whose route from the root changed; see Remote.
func (b *Registry) ApplyRoot(m wire.RootNet) (routes []api.ServiceID, ok bool) {
	u := &b.root
	if m.Rev <= u.rev {
		return nil, false
	}
	u.rev = m.Rev
	if b.ranges != m.Ranges || !slices.Equal(b.shares, m.Shares) {
		b.SetRanges(m.Ranges, slices.Clone(m.Shares))
		for _, n := range b.Nodes.Subscribers() {
			for _, w := range b.Nodes.List(n) {
				b.resolve(ref{Subscriber: n, Subscription: w})
			}
		}
	}
	take := u.foreign.Take
	if m.Whole {
		take = func(r wire.Records) []interest.Key { return u.foreign.TakeAll(r, m.Of) }
		m.Unsubscribe = append(m.Unsubscribe, u.exports.Absent(rootSubscriber, m.Of, m.Subscribe)...)
	}
	for _, k := range take(m.Records) {
		b.foreignChanged(k)
		if k.Kind == interest.Route {
			routes = append(routes, k.Service)
		}
	}
	for _, w := range m.Unsubscribe {
		u.exports.Unsubscribe(rootSubscriber, w)
	}
	for _, w := range m.Subscribe {
		if u.exports.Subscribe(rootSubscriber, w, never) {
			u.resolve(b, []interest.Ref[string]{{Subscriber: rootSubscriber, Subscription: w}})
		}
	}
	return routes, true
}

// Remote returns the nodes of other clusters in the root's route to a service: the cluster by
// the text of the node's key. It returns at most MaxBackends nodes, because other clusters
// decide how many a route has.
func (b *Registry) Remote(id api.ServiceID) map[api.NodeID]api.ClusterID {
	out := map[api.NodeID]api.ClusterID{}
	peers := b.root.foreign.Routes[id].Peers
	for _, p := range peers[:min(len(peers), MaxBackends)] {
		if p.Cluster != b.cluster {
			out[api.NodeID(p.Key.String())] = p.Cluster
		}
	}
	return out
}

// Foreign returns the root's route of a service.
func (b *Registry) Foreign(id api.ServiceID) (api.Route, bool) {
	r, ok := b.root.foreign.Routes[id]
	return r, ok
}

// RestoreRoute adds a route that the root sent before the cluster was restarted. Until EndRestored the cluster
// subscribes to it, as its own service may, so that the root does not withdraw it before nodes have subscribed again.
func (b *Registry) RestoreRoute(r api.Route) {
	b.root.foreign.Take(wire.Records{Routes: []api.Route{r}})
	b.foreignChanged(interest.RouteOf(r.Service))
	if a := r.Addresses.All(); len(a) > 0 {
		w := wire.Subscription{Address: a[0], For: r.Service}
		b.root.setNeeded(ref{Subscription: w}, true)
		b.root.restored = append(b.root.restored, w)
	}
}

// EndRestored ends the subscriptions of RestoreRoute that no node has by now.
func (b *Registry) EndRestored() {
	for _, w := range b.root.restored {
		b.root.setNeeded(ref{Subscription: w}, false)
	}
	b.root.restored = nil
}

func (b *Registry) foreignChanged(k interest.Key) {
	u := &b.root
	switch k.Kind {
	case interest.Route:
		r, ok := u.foreign.Routes[k.Service]
		old := u.routes[k.Service]
		if ok {
			b.service(k.Service).foreign = true
			u.routes[k.Service] = r.Addresses
			b.index(k.Service, r.Addresses, +1)
		} else if s := b.services[k.Service]; s != nil {
			s.foreign = false
			delete(u.routes, k.Service)
		}
		b.index(k.Service, old, -1)
		b.accessChanged(k.Service)
		b.routeChanged(k.Service, false)
	case interest.Source:
		b.Nodes.Changed(k)
		b.resolveAll(b.Nodes.About(wire.Subscription{Address: k.Address}))
	case interest.Peer:
		was := u.subnets[k.Peer]
		if p, ok := u.foreign.Peers[k.Peer]; ok {
			u.subnets[k.Peer] = p.Subnets
		} else {
			delete(u.subnets, k.Peer)
		}
		for _, sub := range slices.Concat(was, u.subnets[k.Peer]) {
			b.resolveAll(b.Nodes.About(wire.Subscription{Address: sub.Addr()}))
		}
		b.Nodes.Changed(k)
	case interest.Refused:
		b.resolveAll(b.Nodes.About(k.Subscription))
	}
}

// HasChanges reports whether there is something to report to the root.
func (b *Registry) HasChanges() bool {
	u := &b.root
	return len(u.demands) > 0 || u.resync.Due || u.resync.Incomplete() || u.requests.Pending() || len(u.exports.Dirty()) > 0 || u.exports.Pending(rootSubscriber)
}

// Resync makes Net return everything, beginning with the first part.
func (b *Registry) Resync() { b.root.resync = interest.Resync{Due: true} }

// Net returns the network's part of a report: the changes since the last call or, after
// Resync, the next part of everything. Changes during a resync follow its last part. lost
// means that the root did not receive the last report.
func (b *Registry) Net(lost bool) wire.ClusterNet {
	u := &b.root
	n := wire.ClusterNet{Shares: b.shares}
	if lost && !u.resync.On() {
		b.Resync()
	}
	begins := !u.resync.On()
	if u.exports.Advance(rootSubscriber, &u.resync, time.Time{}, lost, true) {
		if begins {
			u.requests.BeginResync()
			u.used.Reset()
		}
		b.addPart(&n)
	} else {
		n.Records, _ = u.exports.Flush(rootSubscriber, wire.MaxPart, rootView{b})
		n.Subscribe, n.Unsubscribe = u.requests.Changes()
	}
	for w := range u.demands {
		n.Demand = append(n.Demand, w)
	}
	slices.SortFunc(n.Demand, wire.Subscription.Compare)
	clear(u.demands)
	n.Rev = u.rev
	n.Subscribed, n.Published = u.requests.Digest(), u.exports.Held(rootSubscriber)
	n.Held = u.foreign.Digest() ^ u.exports.Digest(rootSubscriber) ^ wire.RootNet{Ranges: b.ranges, Shares: b.shares}.ShareDigest()
	return n
}

// addPart adds a part of everything: exports first, then addresses in use, then
// subscriptions.
func (b *Registry) addPart(n *wire.ClusterNet) {
	u := &b.root
	after := u.resync.Part.After
	n.Whole = true
	var vol wire.Volume
	n.Records, n.Of, vol = u.exports.Part(rootSubscriber, after, wire.MaxPart, rootView{b})
	if n.Of.Last() {
		n.Of = u.used.Part(after, b.inUse, func(a wire.ServiceAddress) bool {
			if b.isUsed(a) {
				n.InUse = append(n.InUse, a)
				vol.Subscription(wire.Subscription{Service: a.Service})
			}
			return vol.Bytes < wire.MaxPart
		})
	}
	if n.Of.Last() {
		n.Subscribe, n.Of = u.requests.Part(after, &vol)
	}
	u.resync.Part = n.Of // even if it is everything, because the report may be lost
}

// inUse yields the addresses in use. The root assigns the ones that are added later, so they
// need no report.
func (b *Registry) inUse(yield func(wire.ServiceAddress) bool) {
	for a, of := range b.owners {
		for id := range of {
			if used := (wire.ServiceAddress{Address: a, Service: id}); b.isUsed(used) && !yield(used) {
				return
			}
		}
	}
}

// isUsed reports whether an instance in the cluster has the service's address.
func (b *Registry) isUsed(u wire.ServiceAddress) bool {
	return b.owners[u.Address][u.Service] > 0 && len(b.services[u.Service].specs) > 0
}
