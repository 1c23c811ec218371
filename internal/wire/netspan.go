package wire

import (
	"cmp"
	"net/netip"

	"github.com/treeline-edge/treeline/api"
)

// Span is the range of names above After, up to and including To. The zero Span has all names.
//
// A complete set that exceeds one message is sent span by span. Within its span each part is
// complete: what it does not list is removed. A part does not affect names outside its span, so
// that parts may be duplicated, repeated and reordered.
type Span struct {
	After string `json:"after,omitempty"` // empty: from the first
	To    string `json:"to,omitempty"`    // empty: to the last
}

// Has reports whether the name lies in the span.
func (s Span) Has(name string) bool { return name > s.After && (s.To == "" || name <= s.To) }

// Last reports whether no names come after the span.
func (s Span) Last() bool { return s.To == "" }

// The following names order what is sent in spans: records and, between a cluster and its root,
// subscriptions and addresses in use.

func PeerName(k api.PeerKey) string     { return "peer " + k.String() }
func RefusalName(w Subscription) string { return "refusal " + w.text() }
func RouteName(s api.ServiceID) string  { return "route " + string(s) }
func SourceName(a netip.Addr) string    { return "source " + a.String() }
func (u ServiceAddress) Name() string   { return "used " + u.Address.String() }
func (w Subscription) Name() string     { return "want " + w.text() }

func (w Subscription) Compare(o Subscription) int {
	return cmp.Or(w.Address.Compare(o.Address), cmp.Compare(w.Service, o.Service), cmp.Compare(w.For, o.For))
}

func (u ServiceAddress) Compare(o ServiceAddress) int {
	return cmp.Or(u.Address.Compare(o.Address), cmp.Compare(u.Service, o.Service))
}

func (w Subscription) text() string {
	if w.Address.IsValid() {
		return w.Address.String() + " " + string(w.Service) + " " + string(w.For)
	}
	return " " + string(w.Service) + " " + string(w.For)
}

// MaxPart is the approximate maximum size of the records of one message, in bytes of JSON; the
// rest is sent in the next message. With its other fields, the message fits the bus's bound.
const MaxPart = 1 << 19

// Volume estimates the size of the records of one message. The zero Volume is empty.
type Volume struct {
	Bytes int
	peers map[api.PeerKey]uint64 // revisions of the peers that were counted
}

// Estimated sizes without variable-length fields, in bytes of JSON.
const (
	routeSize        = 200
	backendSize      = 150
	peerSize         = 500
	againSize        = 80
	subscriptionSize = 100
)

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

func (v *Volume) Source(s Source) {
	v.Bytes += routeSize + len(s.Service)
	v.Peer(s.Peer)
}

// Peer adds a node. Each revision of it is complete once per message; see RouteList.
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

// Subscription adds a subscription, a refusal or a removal.
func (v *Volume) Subscription(w Subscription) {
	v.Bytes += subscriptionSize + len(w.Service) + len(w.For)
}
