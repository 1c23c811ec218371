package wire

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// ResolverAddr is where every instance on an overlay network finds its node's
// DNS responder; GatewayAddr and GatewayAddr6 are its default routes. All are
// link-local, so that a container's resolv.conf holds on every node.
var (
	ResolverAddr = netip.MustParseAddr("169.254.30.53")
	GatewayAddr  = netip.MustParseAddr("169.254.30.1")
	GatewayAddr6 = netip.MustParseAddr("fe80::1")
)

// Domain ends the names of services: any.rr.web.prod.shop.prod.treeline.
const Domain = "treeline"

// NetRanges are the address ranges of an installation, the same everywhere in
// it. Instances and Services are IPv4; the other two are /64 prefixes whose
// addresses carry an IPv4 address of ours in their low 32 bits, so that one
// allocation serves both families.
type NetRanges struct {
	Instances  netip.Prefix `json:"instances"`   // 10.16.0.0/13; nodes have their subnets of it
	Services   netip.Prefix `json:"services"`    // 10.30.0.0/16; semantic addresses
	Instances6 netip.Prefix `json:"instances_6"` // /64, unique local (RFC 4193)
	Services6  netip.Prefix `json:"services_6"`  // /64, unique local
	Share      int          `json:"share_bits"`  // length of the prefixes that clusters get, 20
	Subnet     int          `json:"subnet_bits"` // length of the prefixes that nodes get, 26
}

// DefaultNetRanges are what an installation has that says nothing else.
func DefaultNetRanges() NetRanges {
	return NetRanges{
		Instances: netip.MustParsePrefix("10.16.0.0/13"), Services: netip.MustParsePrefix("10.30.0.0/16"),
		Instances6: netip.MustParsePrefix("fd74:6c6e:1::/64"), Services6: netip.MustParsePrefix("fd74:6c6e:2::/64"),
		Share: 20, Subnet: 26,
	}
}

// The addresses of a node's subnet that no instance gets: the first stands for the
// node itself where one asks for a peer, the second is kept for it, and the last is
// the kernel's for broadcasts.
const (
	SubnetFirst = 2 // so many at its beginning
	SubnetLast  = 1 // and at its end
)

// SubnetCapacity is how many instances can have addresses of a node's subnet: 61 of a
// /26, none of what is no IPv4 prefix or too small.
func SubnetCapacity(p netip.Prefix) int {
	if !p.IsValid() || !p.Addr().Is4() {
		return 0
	}
	return max(0, 1<<(32-p.Bits())-SubnetFirst-SubnetLast)
}

// CheckSubnet returns ErrInvalid if p cannot be the subnet of a node: an IPv4 prefix of
// exactly r.Subnet bits, masked, within r.Instances. Call it for each subnet that is
// received from another tier or from a peer.
func (r NetRanges) CheckSubnet(p netip.Prefix) error {
	switch {
	case !p.IsValid() || !p.Addr().Is4():
		return fmt.Errorf("subnet %s is not an IPv4 prefix: %w", p, api.ErrInvalid)
	case p.Bits() != r.Subnet:
		return fmt.Errorf("subnet %s has a length of %d bits, want %d: %w", p, p.Bits(), r.Subnet, api.ErrInvalid)
	case p != p.Masked():
		return fmt.Errorf("subnet %s has address bits beyond its length, want %s: %w", p, p.Masked(), api.ErrInvalid)
	case !r.Instances.Contains(p.Addr()):
		return fmt.Errorf("subnet %s is outside the instance network %s: %w", p, r.Instances, api.ErrInvalid)
	}
	return nil
}

// Twin is the IPv6 address that belongs to an IPv4 address of the ranges; the
// zero Addr for any other.
func (r NetRanges) Twin(a netip.Addr) netip.Addr {
	p := r.Instances6
	switch {
	case !a.Is4():
		return netip.Addr{}
	case r.Services.Contains(a):
		p = r.Services6
	case !r.Instances.Contains(a):
		return netip.Addr{}
	}
	b, low := p.Addr().As16(), a.As4()
	copy(b[12:], low[:])
	return netip.AddrFrom16(b)
}

// Untwin is the IPv4 address of the ranges that a stands for: itself, or the
// one whose twin it is; the zero Addr for an address that is none of ours.
func (r NetRanges) Untwin(a netip.Addr) netip.Addr {
	a = a.Unmap()
	if a.Is4() {
		if r.Instances.Contains(a) || r.Services.Contains(a) {
			return a
		}
		return netip.Addr{}
	}
	b := a.As16()
	v4 := netip.AddrFrom4([4]byte(b[12:]))
	if r.Twin(v4) == a {
		return v4
	}
	return netip.Addr{}
}

// ProofText is what a node signs with its certificate's key, to bind its key on
// the overlay network to its certificate.
func ProofText(k api.PeerKey) []byte {
	return append([]byte("treeline overlay key v1\x00"), k[:]...)
}

// Source says which service an instance's address belongs to, for the node that
// such an instance sends to.
type Source struct {
	Address netip.Addr    `json:"address"`
	Rev     uint64        `json:"rev"` // its author's; only grows
	Service api.ServiceID `json:"service"`
	Access  api.Access    `json:"access"`
	Peer    api.Peer      `json:"peer"`
}

// Want is a node's interest in one thing, on behalf of a service that it hosts.
// Exactly one of Address and Service is set. An address may be a semantic one or
// an instance's, and also the first of a node's subnet, which asks for the peer
// that has it and needs no For.
type Subscription struct {
	Address netip.Addr    `json:"address,omitzero"`
	Service api.ServiceID `json:"service,omitempty"` // of any tenant; by name
	For     api.ServiceID `json:"for,omitempty"`
}

// Refusal answers a Want that leads nowhere now. The want is kept, and answered
// again when that changes; For's access may be why. A want that no Refusal and no
// record answers is still being asked for.
type Refusal struct {
	Subscription
	// Denied says that the service exists and may not be reached, or that For is not
	// on the node. A service of another tenant that may not be reached does not exist.
	Denied bool `json:"denied,omitempty"`
}

// NetSelf is what a node says of itself on the overlay network.
type NetSelf struct {
	Key       api.PeerKey      `json:"key"`
	Endpoints []netip.AddrPort `json:"endpoints,omitempty"` // its own addresses, and as the relay saw it
	Mapped    []netip.AddrPort `json:"mapped,omitempty"`    // of Endpoints those that the relay saw: public
	Chain     [][]byte         `json:"chain"`
	Proof     []byte           `json:"proof"`
	Coord     *api.Coordinate  `json:"coord,omitempty"`
}

// NetUp is what a node's netmanager tells its cluster: when something changes,
// when it is asked (NetDown.RequestHeld, RequestWhole), and to renew its wants, by naming
// them again, before NetLease.Interest is over. One that says more than Held is
// answered, and said again, with a new Seq, until it is (NetDown.Seq). Whole says
// that Add is all it wants. Held is the digest of all that it holds, the XOR of the
// members' digests, by which the cluster sees what was lost.
//
// The cluster takes a Seq once, and asks for a whole NetUp where one is missing.
type NetUp struct {
	Boot        uint64         `json:"boot"`
	Seq         uint64         `json:"seq"` // within a boot, from 1
	Self        *NetSelf       `json:"self,omitempty"`
	Whole       bool           `json:"whole,omitempty"`
	Subscribe   []Subscription `json:"add,omitempty"`
	Unsubscribe []Subscription `json:"drop,omitempty"`
	Held        api.Digest     `json:"held"`
	Rev         uint64         `json:"rev"`   // of the last NetDown that was taken in in this boot: what Held is after
	Lease       api.Digest     `json:"lease"` // of the lease that it has; 0: none
	// Subnet is the lease's, which a cluster that was restored from an older copy gives
	// it again.
	Subnet netip.Prefix `json:"subnet,omitzero"`
	// Measure is the XOR of the digests of the peers and the services that it has from
	// NetDown.Measure and NetDown.Between; 0: none.
	Measure api.Digest `json:"measure,omitempty"`
	// Between is what TCP has measured of the services that NetDown.Between names: what
	// has changed, and what would be forgotten. It is not answered; all of it comes again
	// with all that the node says when the cluster asks for that.
	Between []NetPair `json:"between,omitempty"`
}

// NetPair is how far a service on the node that says so is from another one of its
// application, whichever calls.
type NetPair struct {
	Local  api.ServiceID `json:"local"`
	Remote api.ServiceID `json:"remote"`
	Node   api.NodeID    `json:"node"` // Remote's; it may be the same
	// Cluster is Remote's where that is another one. Node is no name then, for clusters
	// do not tell each other those, but the text of its PeerKey.
	Cluster api.ClusterID `json:"cluster,omitempty"`
	// Least is the least round trip that the kernels saw in the last minutes: what waits
	// for a busy process, in full queues and for late acknowledgements is none of the
	// network's. Above 0, at most MaxNetPairRTT.
	Least       time.Duration `json:"least_ns"`
	Connections int           `json:"connections"` // that were looked at, above 0
	Age         time.Duration `json:"age_ns"`      // since then, less than MaxNetPairAge
}

// Bounds of what is said of pairs.
const (
	MaxNetPairAge = 5 * time.Minute // how long one counts
	MaxNetPairRTT = time.Minute     // the longest round trip
	MaxNetPairs   = 256             // of one NetUp
)

// Valid reports whether p can be true, of whomever.
func (p NetPair) Valid() bool {
	return p.Local != "" && p.Remote != "" && p.Node != "" && p.Least > 0 && p.Least <= MaxNetPairRTT &&
		p.Connections > 0 && p.Age >= 0 && p.Age < MaxNetPairAge
}

// NetLease is a node's part in the overlay network.
type NetLease struct {
	Rev         uint64         `json:"rev"`
	Node        api.NodeID     `json:"node"`
	Cluster     api.ClusterID  `json:"cluster"`
	Ranges      NetRanges      `json:"ranges"`
	Subnet      netip.Prefix   `json:"subnet"`
	Relay       api.Relay      `json:"relay"`
	Secret      []byte         `json:"secret"`             // authenticates the node's bindings at the relay
	Unencrypted []netip.Prefix `json:"clear,omitempty"`    // networks of the operator on which nodes may talk without encryption
	Interest    time.Duration  `json:"interest,omitempty"` // how long a want lasts without being named again
}

// Digest is a fingerprint of l's content; Rev does not count.
func (l NetLease) Digest() api.Digest {
	l.Rev = 0
	b, err := json.Marshal(l)
	if err != nil {
		panic("encode a node's lease: " + err.Error()) // plain fields: our bug
	}
	return api.DigestOf("lease", string(b))
}

// NetDown is what a cluster tells a node's netmanager: the changes of what the
// node holds, or with Whole all of it, or all of a part of it. What is too much for
// one message is told in several, the next once the node has said that it has the
// one before (RequestHeld); each is good by itself. A node holds at most one Route per
// service, one Source per address, one Peer per key (that was sent by itself, not
// within another record) and one Refusal per want, and it holds each until it is
// told that it is gone or, if it likes, until it dropped the last want that led
// there.
//
// What is gone goes before what comes. A message with a lower Rev than one that was
// taken is late, and is dropped as a whole: its content comes again, for the
// digests differ.
type NetDown struct {
	Boot  uint64    `json:"boot"` // of the netmanager that it answers; 0: whoever reads it
	Seq   uint64    `json:"seq"`  // of the last NetUp that was taken in
	Rev   uint64    `json:"rev"`  // only grows, over the cluster's restarts too
	Lease *NetLease `json:"lease,omitempty"`
	Whole bool      `json:"whole,omitempty"` // all that the node's wants lead to within Of; what is absent there is gone
	Of    Span      `json:"of,omitzero"`     // with Whole; the zero Span: of all

	Records
	// Measure are the few nodes to which the node keeps measuring its round trip, so
	// that its coordinate is true even while it has no flows; nil: as before, empty:
	// none. They do not count in Held: NetUp.Measure tells whether they arrived.
	Measure []api.Peer `json:"measure,omitzero"`
	// Between comes with Measure: the services of the node whose way to others of their
	// application an SLA bounds. The node tells what TCP measures of them.
	Between []api.ServiceID `json:"between,omitempty"`

	// Held is the digest that the node has when it has taken this in, if nothing was
	// lost before; comparable where Seq is the node's last. 0 says nothing: the
	// cluster does not know yet all that the wants lead to, after a restart, or has
	// not told all of it yet.
	Held api.Digest `json:"held"`
	// RequestHeld asks for a NetUp, for what it says of Held: it acknowledges the message.
	RequestHeld bool `json:"want_held,omitempty"`
	// RequestWhole asks for a whole NetUp.
	RequestWhole bool `json:"want_whole,omitempty"`
}

// Digest is a fingerprint of s.
func (s Source) Digest() api.Digest {
	return api.DigestOf("source", s.Address.String(), strconv.FormatUint(s.Rev, 10))
}

// Digest is a fingerprint of w.
func (w Subscription) Digest() api.Digest {
	return api.DigestOf("want", w.Address.String(), string(w.Service), string(w.For))
}

// Digest is a fingerprint of r.
func (r Refusal) Digest() api.Digest {
	return api.DigestOf("refusal", r.Address.String(), string(r.Service), string(r.For), fmt.Sprint(r.Denied))
}

// Records are what a cluster and the root tell each other of the network's
// content, as a NetDown tells a node; the same is held by the same rules.
type Records struct {
	Routes  RouteList  `json:"routes,omitempty"`
	Sources SourceList `json:"sources,omitempty"`
	Peers   []api.Peer `json:"peers,omitempty"`
	Refused []Refusal  `json:"refused,omitempty"`

	RemovedRoutes   []api.ServiceID `json:"gone,omitempty"`
	RemovedSources  []netip.Addr    `json:"gone_sources,omitempty"`
	RemovedPeers    []api.PeerKey   `json:"gone_peers,omitempty"`
	RemovedRefusals []Subscription  `json:"answered,omitempty"`
}

// Empty reports whether the records say nothing.
func (r Records) Empty() bool {
	return len(r.Routes)+len(r.Sources)+len(r.Peers)+len(r.Refused)+
		len(r.RemovedRoutes)+len(r.RemovedSources)+len(r.RemovedPeers)+len(r.RemovedRefusals) == 0
}

// Append adds what more says to what r says.
func (r *Records) Append(more Records) {
	r.Routes, r.Sources = append(r.Routes, more.Routes...), append(r.Sources, more.Sources...)
	r.Peers, r.Refused = append(r.Peers, more.Peers...), append(r.Refused, more.Refused...)
	r.RemovedRoutes, r.RemovedSources = append(r.RemovedRoutes, more.RemovedRoutes...), append(r.RemovedSources, more.RemovedSources...)
	r.RemovedPeers, r.RemovedRefusals = append(r.RemovedPeers, more.RemovedPeers...), append(r.RemovedRefusals, more.RemovedRefusals...)
}

// Removals are what r says is gone, without what it names.
func (r Records) Removals() Records {
	return Records{RemovedRoutes: r.RemovedRoutes, RemovedSources: r.RemovedSources, RemovedPeers: r.RemovedPeers, RemovedRefusals: r.RemovedRefusals}
}

// ClusterNet is the network's part of a cluster's report: what changed since the
// last acknowledged one, or with Whole all, or all of a part. What is too much for
// one report is told in several, each once the one before is acknowledged. The
// records are its exports: its own part of what the root asked for (RootNet.Asked),
// without what is nobody's business elsewhere.
type ClusterNet struct {
	Whole   bool           `json:"whole,omitempty"`  // what is absent within Of is gone
	Of      Span           `json:"of,omitzero"`      // of records, Wants and InUse, with Whole; the zero Span: of all
	Subnets int            `json:"subnets"`          // that it needs, so that the root gives shares ahead of need
	Shares  []netip.Prefix `json:"shares,omitempty"` // that it has
	// Returned are those of Shares that it gives up, for it has use for fewer: it has
	// nothing of them any more, and says so until the root names them no longer.
	Returned    []netip.Prefix `json:"returned,omitempty"`
	Subscribe   []Subscription `json:"wants,omitempty"` // that it cannot answer, or not alone
	Unsubscribe []Subscription `json:"dropped,omitempty"`
	Records
	// InUse, in a whole, are the semantic addresses of the services that it has: a
	// root that was restored from an older copy gives them to nobody else.
	InUse []ServiceAddress `json:"in_use,omitempty"`
	// Wanted and Said are the digests of all its wants and of all its exports.
	Subscribed api.Digest `json:"wanted"`
	Published  api.Digest `json:"said"`
	Rev        uint64     `json:"rev"`  // of the last RootNet that was taken in in this life: what Held is after
	Held       api.Digest `json:"held"` // of all that it has from the root: records, asked wants, shares
}

// ServiceAddress is a semantic address and the service that has it.
type ServiceAddress struct {
	Address netip.Addr    `json:"address"`
	Service api.ServiceID `json:"service"`
}

// RootNet is what the root tells a cluster of the network: its shares, the
// foreign records that it wants, and what other clusters want of it. With Whole
// it is all, or all of a part, else what changed. What is too much for one message
// is told in several, each once a report has the Rev of the one before.
type RootNet struct {
	Rev    uint64         `json:"rev"`             // only grows, over the root's restarts too; lower ones are late
	Whole  bool           `json:"whole,omitempty"` // what is absent within Of is gone
	Of     Span           `json:"of,omitzero"`     // of records and Asked, with Whole; the zero Span: of all
	Ranges NetRanges      `json:"ranges"`
	Shares []netip.Prefix `json:"shares,omitempty"` // all, always
	Records
	Subscribe    []Subscription `json:"asked,omitempty"`    // what it shall export from now on
	Unsubscribe  []Subscription `json:"unasked,omitempty"`  // what nobody wants any more
	RequestWhole bool           `json:"want_net,omitempty"` // asks for a whole ClusterNet
	// RequestHeld asks for a report soon, for what it says of Rev and Held: there is more to tell.
	RequestHeld bool `json:"want_held,omitempty"`
}

// ShareDigest is a fingerprint of the ranges and shares, a member of ClusterNet.Held.
func (m RootNet) ShareDigest() api.Digest {
	parts := []string{"shares", fmt.Sprint(m.Ranges)}
	for _, p := range m.Shares {
		parts = append(parts, p.String())
	}
	return api.DigestOf(parts...)
}
