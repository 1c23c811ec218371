package wire

import (
	"cmp"
	"net/netip"

	"github.com/treeline-edge/treeline/api"
)

// Span is a part of all that one side can hold of the other's, in the order of
// names: what lies after After, up to and with To. The zero Span is all of it.
//
// A whole that is too long for one message is told span by span. Each stands for
// itself: what lies in it and is not named is gone, about the rest it says nothing.
// So parts may be doubled, repeated and out of order, and none takes away what only
// a later one names.
type Span struct {
	After string `json:"after,omitempty"` // empty: from the first
	To    string `json:"to,omitempty"`    // empty: to the last
}

// Has reports whether the name lies in the span.
func (s Span) Has(name string) bool { return name > s.After && (s.To == "" || name <= s.To) }

// Last reports whether nothing lies behind the span.
func (s Span) Last() bool { return s.To == "" }

// The names of what can be held, by which it is ordered: records, and, between a
// cluster and its root, wants and addresses in use.

// PeerName is the name of a node's record.
func PeerName(k api.PeerKey) string { return "peer " + k.String() }

// RefusalName is the name of a want's refusal.
func RefusalName(w Subscription) string { return "refusal " + w.text() }

// RouteName is the name of a service's route.
func RouteName(s api.ServiceID) string { return "route " + string(s) }

// SourceName is the name of an address's record.
func SourceName(a netip.Addr) string { return "source " + a.String() }

// Name is the name of an address in use.
func (u ServiceAddress) Name() string { return "used " + u.Address.String() }

// Name is the name of a subscription.
func (w Subscription) Name() string { return "want " + w.text() }

// Compare orders subscriptions.
func (w Subscription) Compare(o Subscription) int {
	return cmp.Or(w.Address.Compare(o.Address), cmp.Compare(w.Service, o.Service), cmp.Compare(w.For, o.For))
}

// Compare orders addresses in use.
func (u ServiceAddress) Compare(o ServiceAddress) int {
	return cmp.Or(u.Address.Compare(o.Address), cmp.Compare(u.Service, o.Service))
}

func (w Subscription) text() string {
	if w.Address.IsValid() {
		return w.Address.String() + " " + string(w.Service) + " " + string(w.For)
	}
	return " " + string(w.Service) + " " + string(w.For)
}

// MaxPart is about how long the records of one message are at most, in bytes of
// JSON, where a single one is not longer: with what else it says it is one message
// of a bus.
const MaxPart = 1 << 19

// Volume estimates how long records are that travel together. The zero Volume is
// of none.
type Volume struct {
	Bytes int
	peers map[api.PeerKey]uint64 // revisions of those that were written
}

// About what JSON writes of each beside its texts.
const (
	routeSize        = 200
	backendSize      = 150
	peerSize         = 500
	againSize        = 80
	subscriptionSize = 100
)

// Route counts a route in, Source, Peer and Want the like; a removal is a Want of
// what it names.
func (v *Volume) Route(r api.Route) {
	v.Bytes += routeSize + len(r.Service) + 25*len(r.Addresses.Instances) + 60*len(r.Ports)
	for _, list := range [][]string{r.Access.Callers, r.Access.Calls} {
		for _, s := range list {
			v.Bytes += len(s) + 3
		}
	}
	for _, b := range r.Backends {
		v.Bytes += backendSize + len(b.Instance)
	}
	for _, p := range r.Peers {
		v.Peer(p)
	}
}

// Source counts a source in.
func (v *Volume) Source(s Source) {
	v.Bytes += routeSize + len(s.Service)
	v.Peer(s.Peer)
}

// Peer counts a node in.
func (v *Volume) Peer(p api.Peer) {
	if v.peers == nil {
		v.peers = map[api.PeerKey]uint64{}
	}
	if rev, ok := v.peers[p.Key]; ok && rev == p.Rev {
		v.Bytes += againSize
		return
	}
	v.peers[p.Key] = p.Rev
	v.Bytes += peerSize + 30*(len(p.Endpoints)+len(p.Subnets)) + len(p.Proof)*4/3
	for _, c := range p.Chain {
		v.Bytes += len(c)*4/3 + 3
	}
}

// Want counts a want or a refusal in.
func (v *Volume) Subscription(w Subscription) {
	v.Bytes += subscriptionSize + len(w.Service) + len(w.For)
}
