package routes

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/internal/wire"
)

// uplink is what the cluster and its root owe each other.
type uplink struct {
	rev        uint64 // of the newest message of the root
	foreign    interest.Replica
	routes     map[api.ServiceID]api.ServiceAddresses // of foreign, as they are in the index
	subnets    map[api.PeerKey][]netip.Prefix         // of foreign peers, as wants were answered last
	subscribed api.Digest
	listing    *interest.Cursor[wire.Subscription] // through what is asked for, while it is told part by part

	needs       map[wire.Subscription]map[api.NodeID]bool // that the root is to answer, and for whom
	needsDigest api.Digest                                // of them
	added       map[wire.Subscription]bool                // since the last report
	dropped     map[wire.Subscription]bool
	exports     *interest.Subscriptions[string] // of the one subscriber above
	all         *recount                        // all is being told; nil: only what changes
}

// recount is how far all was told, part by part.
type recount struct {
	part wire.Span // the last one
	said bool      // there was one
	rest *interest.Cursor[entry]
}

// entry is what all consists of beside exports: an address in use and who has it,
// or a want.
type entry struct {
	used wire.ServiceAddress
	want wire.Subscription
}

func (e entry) name() string {
	if e.used.Address.IsValid() {
		return wire.UsedName(e.used.Address)
	}
	return wire.SubscriptionName(e.want)
}

func compareEntries(x, y entry) int {
	return cmp.Or(x.used.Address.Compare(y.used.Address), cmp.Compare(x.used.Service, y.used.Service), interest.CompareSubscriptions(x.want, y.want))
}

// above is the root, as a subscriber of exports.
const above = "root"

// forever is when what the root asked for expires: when it says so.
var forever = time.Unix(1<<62, 0)

func newUplink() uplink {
	return uplink{
		routes: map[api.ServiceID]api.ServiceAddresses{}, subnets: map[api.PeerKey][]netip.Prefix{},
		needs: map[wire.Subscription]map[api.NodeID]bool{}, added: map[wire.Subscription]bool{}, dropped: map[wire.Subscription]bool{},
		exports: interest.New[string](),
	}
}

// needed notes that a node's want is the root's to answer, or to add to.
func (u *uplink) needed(r ref) {
	of := u.needs[r.Subscription]
	if of[r.Subscriber] {
		return
	}
	if of == nil {
		of = map[api.NodeID]bool{}
		u.needs[r.Subscription] = of
		u.needsDigest = u.needsDigest.Toggle(r.Subscription.Digest())
		u.turn(r.Subscription, u.added, u.dropped)
		if u.all != nil {
			u.all.rest.Add(entry{want: r.Subscription})
		}
	}
	of[r.Subscriber] = true
}

func (u *uplink) unneeded(r ref) {
	of := u.needs[r.Subscription]
	if !of[r.Subscriber] {
		return
	}
	if delete(of, r.Subscriber); len(of) == 0 {
		delete(u.needs, r.Subscription)
		u.needsDigest = u.needsDigest.Toggle(r.Subscription.Digest())
		u.turn(r.Subscription, u.dropped, u.added)
	}
}

// turn notes a change for the root; with the opposite that it was not told of
// there is nothing to tell.
func (u *uplink) turn(w wire.Subscription, to, from map[wire.Subscription]bool) {
	if from[w] {
		delete(from, w)
		return
	}
	to[w] = true
}

// resolve answers what the root asked for, from the cluster's own.
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
			if id, ok := b.subnets[netip.PrefixFrom(w.Address, b.ranges.Subnet)]; ok { // its first alone
				k = interest.PeerOf(b.members[id].peer.Key)
			}
		}
		u.exports.Answer(above, w, k)
	}
}

// Take takes a message of the root. ok is false if it is not newer than the last one that
// was taken. routes are the services of which the root's route changed; see Remote.
func (b *Registry) Take(m wire.RootNet) (routes []api.ServiceID, ok bool) {
	u := &b.root
	if m.Rev <= u.rev {
		return nil, false
	}
	u.rev = m.Rev
	if b.ranges != m.Ranges || !slices.Equal(b.shares, m.Shares) {
		b.SetRanges(m.Ranges, slices.Clone(m.Shares))
		for _, n := range b.nodes.Subscribers() {
			for _, w := range b.nodes.List(n) {
				b.resolve(ref{Subscriber: n, Subscription: w})
			}
		}
	}
	take := u.foreign.Take
	if m.Whole {
		take = func(r wire.Records) []interest.Key { return u.foreign.TakeAll(r, m.Of) }
		asked := map[wire.Subscription]bool{}
		for _, w := range m.Subscribe {
			asked[w] = true
		}
		if u.listing == nil {
			u.listing = interest.NewCursor(wire.SubscriptionName, interest.CompareSubscriptions)
		}
		u.listing.Within(m.Of, u.exports.Each(above), len(asked), func(w wire.Subscription) bool {
			if !asked[w] {
				m.Unsubscribe = append(m.Unsubscribe, w)
			}
			return asked[w]
		})
		if m.Of.Last() {
			u.listing = nil
		}
	}
	for _, k := range take(m.Records) {
		b.foreignChanged(k)
		if k.Kind == interest.Route {
			routes = append(routes, k.Service)
		}
	}
	for _, w := range m.Unsubscribe {
		if u.exports.Unsubscribe(above, w) {
			u.subscribed = u.subscribed.Toggle(w.Digest())
		}
	}
	for _, w := range m.Subscribe {
		if u.exports.Subscribe(above, w, forever) {
			u.listing.Add(w)
			u.subscribed = u.subscribed.Toggle(w.Digest())
			u.resolve(b, []interest.Ref[string]{{Subscriber: above, Subscription: w}})
		}
	}
	return routes, true
}

// Remote returns the nodes of other clusters that the root's route to a service names: the
// text of each node's key, and its cluster. It reads at most MaxBackends peers: other
// clusters decide how many a route names.
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

// foreignChanged brings up to date what depends on a record of the root's.
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
		b.nodes.Changed(k)
		b.resolveAll(b.nodes.Of(wire.Subscription{Address: k.Address}))
	case interest.Peer:
		was := u.subnets[k.Peer]
		if p, ok := u.foreign.Peers[k.Peer]; ok {
			u.subnets[k.Peer] = p.Subnets
		} else {
			delete(u.subnets, k.Peer)
		}
		for _, sub := range slices.Concat(was, u.subnets[k.Peer]) {
			b.resolveAll(b.nodes.Of(wire.Subscription{Address: sub.Addr()}))
		}
		b.nodes.Changed(k)
	case interest.Refused:
		b.resolveAll(b.nodes.Of(k.Refusal.Subscription))
	}
}

// Fresh reports whether there is something to tell the root.
func (b *Registry) Fresh() bool {
	u := &b.root
	if u.all != nil && !(u.all.said && u.all.part.Last()) {
		return true
	}
	return len(u.added)+len(u.dropped)+len(u.exports.Dirty()) > 0 || u.exports.Pending(above)
}

// NetAnew has the root told all, from the first part on.
func (b *Registry) NetAnew() {
	u := &b.root
	u.exports.BeginResync(above)
	clear(u.added)
	clear(u.dropped)
	u.all = &recount{rest: interest.NewCursor(entry.name, compareEntries)}
}

// Net is what the root is to be told: what changed since the last call, or, after
// NetAnew, the next part of all. What changes between two parts waits for the last.
// again says that what the last call gave is lost.
func (b *Registry) Net(again bool) wire.ClusterNet {
	u := &b.root
	switch a := u.all; {
	case a == nil && again:
		b.NetAnew()
	case a != nil && a.said && !again && a.part.Last():
		u.all = nil
		u.exports.EndResync(above)
	case a != nil && a.said && !again:
		a.part = wire.Span{After: a.part.To}
	}
	n := wire.ClusterNet{Shares: b.shares}
	if a := u.all; a != nil {
		n.Whole = true
		b.part(&n, a)
		a.part, a.said = n.Of, true
	} else {
		n.Records, _ = u.exports.Flush(above, wire.MaxPart, outside{b})
		n.Subscribe, n.Unsubscribe = some(u.added), some(u.dropped)
	}
	n.Rev = u.rev
	n.Subscribed, n.Published = u.needsDigest, u.exports.Held(above)
	n.Held = u.foreign.Digest() ^ u.subscribed ^ wire.RootNet{Ranges: b.ranges, Shares: b.shares}.ShareDigest()
	return n
}

// part is the next part of all: exports, then the addresses in use, then the wants.
func (b *Registry) part(n *wire.ClusterNet, a *recount) {
	u := &b.root
	var vol wire.Volume
	n.Records, n.Of, vol = u.exports.Part(above, a.part.After, wire.MaxPart, outside{b})
	if !n.Of.Last() {
		return
	}
	n.Of = a.rest.Part(a.part.After, b.rest, func(e entry) bool {
		switch {
		case b.inUse(e.used):
			n.InUse = append(n.InUse, e.used)
			vol.Subscription(wire.Subscription{Service: e.used.Service})
		case u.needs[e.want] != nil:
			n.Subscribe = append(n.Subscribe, e.want)
			vol.Subscription(e.want)
		}
		return vol.Bytes < wire.MaxPart
	})
}

// rest lists the addresses in use and the wants. An address that is given while all
// is told the root knows of: it gave it.
func (b *Registry) rest(yield func(entry) bool) {
	for a, of := range b.owners {
		for id := range of {
			if used := (wire.ServiceAddress{Address: a, Service: id}); b.inUse(used) && !yield(entry{used: used}) {
				return
			}
		}
	}
	for w := range b.root.needs {
		if !yield(entry{want: w}) {
			return
		}
	}
}

// inUse reports whether an instance here has the address of its service.
func (b *Registry) inUse(u wire.ServiceAddress) bool {
	return b.owners[u.Address][u.Service] > 0 && len(b.services[u.Service].specs) > 0
}

// some takes as many wants out of a set as find room in a part.
func some(set map[wire.Subscription]bool) []wire.Subscription {
	all := sortedWants(set)
	var vol wire.Volume
	for i, w := range all {
		if vol.Bytes >= wire.MaxPart {
			return all[:i]
		}
		vol.Subscription(w)
		delete(set, w)
	}
	return all
}

func sortedWants[V any](m map[wire.Subscription]V) []wire.Subscription {
	out := make([]wire.Subscription, 0, len(m))
	for w := range m {
		out = append(out, w)
	}
	slices.SortFunc(out, interest.CompareSubscriptions)
	return out
}
