package routes

import (
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
)

// uplink is what the cluster and its root owe each other.
type uplink struct {
	rev     uint64 // of the newest message of the root
	foreign interest.Holder
	routes  map[api.ServiceID]api.ServiceAddresses // of foreign, as they are in the index
	at      map[netip.Prefix]api.PeerKey           // foreign peers by their subnets
	asked   api.Digest

	wants   map[api.Want]map[api.NodeID]bool // that the root is to answer, and for whom
	wanted  api.Digest                       // of them
	added   map[api.Want]bool                // since the last report
	dropped map[api.Want]bool
	exports *interest.Book[string] // of the one subscriber above
}

// above is the root, as a subscriber of exports.
const above = "root"

// forever is when what the root asked for expires: when it says so.
var forever = time.Unix(1<<62, 0)

func newUplink() uplink {
	return uplink{
		routes: map[api.ServiceID]api.ServiceAddresses{}, at: map[netip.Prefix]api.PeerKey{},
		wants: map[api.Want]map[api.NodeID]bool{}, added: map[api.Want]bool{}, dropped: map[api.Want]bool{},
		exports: interest.New[string](),
	}
}

// needed notes that a node's want is the root's to answer, or to add to.
func (u *uplink) needed(r ref) {
	of := u.wants[r.Want]
	if of[r.Sub] {
		return
	}
	if of == nil {
		of = map[api.NodeID]bool{}
		u.wants[r.Want] = of
		u.wanted = u.wanted.Toggle(r.Want.Digest())
		u.turn(r.Want, u.added, u.dropped)
	}
	of[r.Sub] = true
}

func (u *uplink) unneeded(r ref) {
	of := u.wants[r.Want]
	if !of[r.Sub] {
		return
	}
	if delete(of, r.Sub); len(of) == 0 {
		delete(u.wants, r.Want)
		u.wanted = u.wanted.Toggle(r.Want.Digest())
		u.turn(r.Want, u.dropped, u.added)
	}
}

// turn notes a change for the root; with the opposite that it was not told of
// there is nothing to tell.
func (u *uplink) turn(w api.Want, to, from map[api.Want]bool) {
	if from[w] {
		delete(from, w)
		return
	}
	to[w] = true
}

func (u *uplink) peerWith(a netip.Addr) (api.PeerKey, bool) {
	for p, k := range u.at {
		if p.Contains(a) {
			return k, true
		}
	}
	return api.PeerKey{}, false
}

// resolve answers what the root asked for, from the cluster's own.
func (u *uplink) resolve(b *Book, refs []interest.Ref[string]) {
	for _, r := range refs {
		w := r.Want
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

// Take takes in what the root says, and reports whether it was news: an older
// message than one that was taken is not.
func (b *Book) Take(m api.RootNet) bool {
	u := &b.root
	if m.Rev <= u.rev {
		return false
	}
	u.rev = m.Rev
	if b.ranges != m.Ranges || !slices.Equal(b.shares, m.Shares) {
		b.SetRanges(m.Ranges, slices.Clone(m.Shares))
		for _, n := range b.nodes.Subscribers() {
			for _, w := range b.nodes.Wants(n) {
				b.resolve(ref{Sub: n, Want: w})
			}
		}
	}
	for _, k := range u.foreign.Take(m.Records, m.Whole) {
		b.foreignChanged(k)
	}
	if m.Whole {
		asked := map[api.Want]bool{}
		for _, w := range m.Asked {
			asked[w] = true
		}
		for _, w := range u.exports.Wants(above) {
			if !asked[w] {
				m.Unasked = append(m.Unasked, w)
			}
		}
	}
	for _, w := range m.Unasked {
		if u.exports.Drop(above, w) {
			u.asked = u.asked.Toggle(w.Digest())
		}
	}
	for _, w := range m.Asked {
		if u.exports.Add(above, w, forever) {
			u.asked = u.asked.Toggle(w.Digest())
			u.resolve(b, []interest.Ref[string]{{Sub: above, Want: w}})
		}
	}
	return true
}

// foreignChanged brings up to date what depends on a record of the root's.
func (b *Book) foreignChanged(k interest.Key) {
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
		b.saysOtherwise(k.Service)
		b.routeChanged(k.Service, false)
	case interest.Source:
		b.touch(k)
		b.resolveAll(b.nodes.Of(api.Want{Address: k.Address}))
	case interest.Peer:
		for sub, key := range u.at {
			if key == k.Peer {
				delete(u.at, sub)
				b.resolveAll(b.nodes.Of(api.Want{Address: sub.Addr()}))
			}
		}
		for _, sub := range u.foreign.Peers[k.Peer].Subnets {
			u.at[sub] = k.Peer
			b.resolveAll(b.nodes.Of(api.Want{Address: sub.Addr()}))
		}
		b.touch(k)
	case interest.Refused:
		b.resolveAll(b.nodes.Of(k.Refusal.Want))
	}
}

// Fresh reports whether there is something to tell the root.
func (b *Book) Fresh() bool {
	u := &b.root
	return len(u.added)+len(u.dropped)+len(u.exports.Dirty()) > 0
}

// Net is what the root is to be told: what changed since the last call, or all.
func (b *Book) Net(whole bool) api.ClusterNet {
	u := &b.root
	n := api.ClusterNet{Whole: whole, Shares: b.shares}
	n.Records, _ = u.exports.Flush(above, whole, outside{b})
	if whole {
		n.Wants = sortedWants(u.wants)
		for a, of := range b.owners {
			for id := range of {
				if s := b.services[id]; len(s.specs) > 0 {
					n.InUse = append(n.InUse, api.ServiceAddress{Address: a, Service: id})
				}
			}
		}
		slices.SortFunc(n.InUse, func(x, y api.ServiceAddress) int { return x.Address.Compare(y.Address) })
	} else {
		n.Wants, n.Dropped = sortedWants(u.added), sortedWants(u.dropped)
	}
	clear(u.added)
	clear(u.dropped)
	n.Rev = u.rev
	n.Wanted, n.Said = u.wanted, u.exports.Held(above)
	n.Held = u.foreign.Digest() ^ u.asked ^ api.RootNet{Ranges: b.ranges, Shares: b.shares}.ShareDigest()
	return n
}

func sortedWants[V any](m map[api.Want]V) []api.Want {
	out := make([]api.Want, 0, len(m))
	for w := range m {
		out = append(out, w)
	}
	slices.SortFunc(out, interest.CompareWants)
	return out
}
