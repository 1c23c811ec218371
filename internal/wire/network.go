package wire

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Addresses that are the same on every node, so that a container's resolv.conf is valid on all
// of them. All are link-local.
var (
	ResolverAddr = netip.MustParseAddr("169.254.30.53") // the node's DNS server
	GatewayAddr  = netip.MustParseAddr("169.254.30.1")  // the default route of instances
	GatewayAddr6 = netip.MustParseAddr("fe80::1")
)

// Domain is the last label of services' names: any.rr.web.prod.shop.prod.treeline.
const Domain = "treeline"

// NetRanges are the address ranges of an installation. All tiers have the same. The IPv6
// prefixes contain the IPv4 addresses in their low 32 bits, so that one allocation serves both.
type NetRanges struct {
	Instances  netip.Prefix `json:"instances"`   // IPv4; contains the subnets of nodes; 10.16.0.0/13
	Services   netip.Prefix `json:"services"`    // IPv4; semantic addresses; 10.30.0.0/16
	Instances6 netip.Prefix `json:"instances_6"` // /64, unique local (RFC 4193)
	Services6  netip.Prefix `json:"services_6"`  // /64, unique local
	Share      int          `json:"share_bits"`  // length of the prefixes of clusters, 20
	Subnet     int          `json:"subnet_bits"` // length of the prefixes of nodes, 26
}

// DefaultNetRanges returns the ranges of an installation whose configuration has none.
func DefaultNetRanges() NetRanges {
	return NetRanges{
		Instances: netip.MustParsePrefix("10.16.0.0/13"), Services: netip.MustParsePrefix("10.30.0.0/16"),
		Instances6: netip.MustParsePrefix("fd74:6c6e:1::/64"), Services6: netip.MustParsePrefix("fd74:6c6e:2::/64"),
		Share: 20, Subnet: 26,
	}
}

// Numbers of addresses of a node's subnet that no instance gets: the first one identifies the
// node in a Subscription to a peer, the second is reserved, and the last is the broadcast address.
const (
	SubnetFirst = 2 // at the beginning
	SubnetLast  = 1 // at the end
)

// SubnetCapacity returns how many instances can have addresses of a node's subnet: 61 for a
// /26, 0 if p is not an IPv4 prefix or is too small.
func SubnetCapacity(p netip.Prefix) int {
	if !p.IsValid() || !p.Addr().Is4() {
		return 0
	}
	return max(0, 1<<(32-p.Bits())-SubnetFirst-SubnetLast)
}

// CheckSubnet returns ErrInvalid unless p can be the subnet of a node: a masked IPv4 prefix of
// r.Subnet bits within r.Instances. Call it for each subnet from another tier or a peer.
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

// To6 returns the IPv6 address that contains an IPv4 address of the ranges, or the zero Addr.
func (r NetRanges) To6(a netip.Addr) netip.Addr {
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

// To4 returns the IPv4 address that a stands for: a itself, or the address that To6 turns into a. It
// returns the zero Addr if that is outside the ranges.
func (r NetRanges) To4(a netip.Addr) netip.Addr {
	a = a.Unmap()
	if a.Is4() {
		if r.Instances.Contains(a) || r.Services.Contains(a) {
			return a
		}
		return netip.Addr{}
	}
	b := a.As16()
	v4 := netip.AddrFrom4([4]byte(b[12:]))
	if r.To6(v4) == a {
		return v4
	}
	return netip.Addr{}
}

// ProofText returns the text that a node signs with its certificate's key to bind its overlay
// key k to its certificate.
func ProofText(k api.PeerKey) []byte {
	return append([]byte("treeline overlay key v1\x00"), k[:]...)
}

// Source is the record of an instance's address: its service and node. The nodes to which the
// instance sends packets need it.
type Source struct {
	Address netip.Addr    `json:"address"`
	Rev     uint64        `json:"rev"` // of its author; only grows
	Service api.ServiceID `json:"service"`
	Access  api.Access    `json:"access"`
	Peer    api.Peer      `json:"peer"`
}

// Subscription requests the resource of one name or address, on behalf of a service that the
// subscriber hosts. Exactly one of Address and Service is set. Address is a semantic address, an
// instance's address, or the first address of a node's subnet, which requests the node's peer
// record and needs no For.
type Subscription struct {
	Address netip.Addr    `json:"address,omitzero"`
	Service api.ServiceID `json:"service,omitempty"` // of any tenant
	For     api.ServiceID `json:"for,omitempty"`
}

// Refusal answers a Subscription for which there is no resource at present. The subscription
// stays and is answered again when that changes.
type Refusal struct {
	Subscription
	// Denied means that For is not on the node, or that the service exists and For may not reach
	// it. It is false for services of other tenants, to keep their existence secret.
	Denied bool `json:"denied,omitempty"`
}

// NetSelf describes a node on the overlay network.
type NetSelf struct {
	Key       api.PeerKey      `json:"key"`
	Endpoints []netip.AddrPort `json:"endpoints,omitempty"` // its own addresses, and those that the relay observed
	Mapped    []netip.AddrPort `json:"mapped,omitempty"`    // the part of Endpoints that the relay observed: public
	Chain     [][]byte         `json:"chain"`
	Proof     []byte           `json:"proof"`
	Coord     *api.Coordinate  `json:"coord,omitempty"`
}

// NetUp is a message of a node's netmanager to its cluster. It is sent after a change, on
// request (NetDown.RequestHeld, RequestWhole), and to renew the subscriptions before
// NetLease.Interest is over. If it has more than Held, it is repeated with a new Seq until
// NetDown.Seq acknowledges it. The cluster applies each Seq once, and requests a whole NetUp if
// one is missing.
type NetUp struct {
	Boot        uint64         `json:"boot"`
	Seq         uint64         `json:"seq"` // within a boot, from 1
	Self        *NetSelf       `json:"self,omitempty"`
	Whole       bool           `json:"whole,omitempty"` // Subscribe has all subscriptions
	Subscribe   []Subscription `json:"add,omitempty"`
	Unsubscribe []Subscription `json:"drop,omitempty"`
	Held        api.Digest     `json:"held"`  // XOR of the digests of all resources that it holds; reveals losses
	Rev         uint64         `json:"rev"`   // of the last NetDown that it applied in this boot, before Held
	Lease       api.Digest     `json:"lease"` // of its lease; 0: none
	// Subnet is that of the lease. A cluster whose store was restored from an older copy leases
	// it again.
	Subnet netip.Prefix `json:"subnet,omitzero"`
	// Measure is the XOR of the digests of the last NetDown.Measure and NetDown.Between; 0: none.
	Measure api.Digest `json:"measure,omitempty"`
	// Between has the round trips that TCP measured for the services in NetDown.Between, if they
	// changed or are about to expire. It is not acknowledged. A NetUp that answers RequestWhole
	// has all of them.
	Between []NetPair `json:"between,omitempty"`
	// Demand has subscriptions to sleeping services for which packets wait. It is not acknowledged:
	// it is repeated while they wait, and may be received twice.
	Demand []Subscription `json:"demand,omitempty"`
}

// MaxDemands bounds the demands of one message.
const MaxDemands = 256

// NetPair is the round trip between a service on the reporting node and another service of its
// application. Either of them may open the connections.
type NetPair struct {
	Local  api.ServiceID `json:"local"`
	Remote api.ServiceID `json:"remote"`
	// Node hosts Remote; it may be the reporting node. For a node of another cluster it is the
	// text of its PeerKey, because clusters do not exchange the names of nodes.
	Node    api.NodeID    `json:"node"`
	Cluster api.ClusterID `json:"cluster,omitempty"` // of Remote, if it is another one
	// Least is the least round trip that the kernels measured in the last minutes. The minimum
	// excludes busy processes, full queues and delayed acknowledgements. In (0, MaxNetPairRTT].
	Least       time.Duration `json:"least_ns"`
	Connections int           `json:"connections"` // that were observed, above 0
	Age         time.Duration `json:"age_ns"`      // of the observation, below MaxNetPairAge
}

// Bounds of NetPairs.
const (
	MaxNetPairAge = 5 * time.Minute
	MaxNetPairRTT = time.Minute
	MaxNetPairs   = 256 // in one NetUp
)

// Valid reports whether all fields of p are set and within their bounds.
func (p NetPair) Valid() bool {
	return p.Local != "" && p.Remote != "" && p.Node != "" && p.Least > 0 && p.Least <= MaxNetPairRTT &&
		p.Connections > 0 && p.Age >= 0 && p.Age < MaxNetPairAge
}

// NetLease is a node's lease on the overlay network.
type NetLease struct {
	Rev         uint64         `json:"rev"`
	Node        api.NodeID     `json:"node"`
	Cluster     api.ClusterID  `json:"cluster"`
	Ranges      NetRanges      `json:"ranges"`
	Subnet      netip.Prefix   `json:"subnet"`
	Relay       api.Relay      `json:"relay"`
	Secret      []byte         `json:"secret"`             // authenticates the node at the relay
	Unencrypted []netip.Prefix `json:"clear,omitempty"`    // networks of the operator on which packets between nodes need no encryption
	Interest    time.Duration  `json:"interest,omitempty"` // how long a subscription lasts unless it is renewed
}

// Digest returns the digest of l without Rev.
func (l NetLease) Digest() api.Digest {
	l.Rev = 0
	b, err := json.Marshal(l)
	if err != nil {
		panic("encode a lease: " + err.Error()) // it has plain fields only
	}
	return api.DigestOf("lease", string(b))
}

// NetDown is a message of a cluster to a node's netmanager: the changes of the resources that the
// node holds, or with Whole all of them or all of a part. A longer content is split into several
// messages, each sent after the node has acknowledged the one before (RequestHeld).
//
// A node holds at most one Route per service, Source per address, Peer per key (not counting
// those within other records) and Refusal per subscription, each until it is removed. The node
// may drop resources that none of its subscriptions leads to.
//
// Removals apply before additions. A message with a lower Rev than the last one is late and is
// dropped. Its content is sent again because the digests then differ.
type NetDown struct {
	Boot  uint64    `json:"boot"` // of the netmanager that it answers; 0: any
	Seq   uint64    `json:"seq"`  // of the last NetUp that was applied
	Rev   uint64    `json:"rev"`  // only grows, over the cluster's restarts too
	Lease *NetLease `json:"lease,omitempty"`
	Whole bool      `json:"whole,omitempty"` // resources within Of that are absent are removed
	Of    Span      `json:"of,omitzero"`     // with Whole; the zero Span: all

	Records
	// Measure has the few nodes to which the node keeps measuring its round trip, so that its
	// coordinate stays current without traffic. nil: as before, empty: none. They do not count in
	// Held; NetUp.Measure acknowledges them.
	Measure []api.Peer `json:"measure,omitzero"`
	// Between comes with Measure: the services on the node whose distance to others of their
	// application is bounded by an SLA. The node reports the round trips of their TCP connections.
	Between []api.ServiceID `json:"between,omitempty"`

	// Held is the digest that the node should have after this message, comparable if Seq is the
	// node's last. 0: unknown, or not everything has been sent yet.
	Held api.Digest `json:"held"`
	// RequestHeld requests a NetUp, whose Rev acknowledges the message.
	RequestHeld bool `json:"want_held,omitempty"`
	// RequestWhole requests a whole NetUp.
	RequestWhole bool `json:"want_whole,omitempty"`
}

// Digest returns the digest of the address and the revision.
func (s Source) Digest() api.Digest {
	return api.DigestOf("source", s.Address.String(), strconv.FormatUint(s.Rev, 10))
}

func (w Subscription) Digest() api.Digest {
	return api.DigestOf("want", w.Address.String(), string(w.Service), string(w.For))
}

func (r Refusal) Digest() api.Digest {
	return api.DigestOf("refusal", r.Address.String(), string(r.Service), string(r.For), fmt.Sprint(r.Denied))
}

// Records are resources that are added or replaced, and names of those that are removed.
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

func (r Records) Empty() bool {
	return len(r.Routes)+len(r.Sources)+len(r.Peers)+len(r.Refused)+
		len(r.RemovedRoutes)+len(r.RemovedSources)+len(r.RemovedPeers)+len(r.RemovedRefusals) == 0
}

// Append adds the lists of more to those of r.
func (r *Records) Append(more Records) {
	r.Routes, r.Sources = append(r.Routes, more.Routes...), append(r.Sources, more.Sources...)
	r.Peers, r.Refused = append(r.Peers, more.Peers...), append(r.Refused, more.Refused...)
	r.RemovedRoutes, r.RemovedSources = append(r.RemovedRoutes, more.RemovedRoutes...), append(r.RemovedSources, more.RemovedSources...)
	r.RemovedPeers, r.RemovedRefusals = append(r.RemovedPeers, more.RemovedPeers...), append(r.RemovedRefusals, more.RemovedRefusals...)
}

// Removals returns the removals in r without the resources.
func (r Records) Removals() Records {
	return Records{RemovedRoutes: r.RemovedRoutes, RemovedSources: r.RemovedSources, RemovedPeers: r.RemovedPeers, RemovedRefusals: r.RemovedRefusals}
}

// ClusterNet is the network's part of a cluster's report: the changes since the last acknowledged
// one, or with Whole all or all of a part. A longer content is split into several reports, each
// sent after the one before is acknowledged. The records are the cluster's own part of what the
// root subscribed to (RootNet.Subscribe), without what other clusters must not see.
type ClusterNet struct {
	Whole   bool           `json:"whole,omitempty"`  // what is absent within Of is removed
	Of      Span           `json:"of,omitzero"`      // of records, Subscribe and InUse, with Whole; the zero Span: all
	Subnets int            `json:"subnets"`          // number that it needs; the root gives shares ahead of need
	Shares  []netip.Prefix `json:"shares,omitempty"` // that it has
	// Returned are the Shares that it gives up. It uses none of their addresses, and repeats them
	// until the root no longer lists them.
	Returned    []netip.Prefix `json:"returned,omitempty"`
	Subscribe   []Subscription `json:"wants,omitempty"` // that it cannot answer, or cannot answer alone
	Unsubscribe []Subscription `json:"dropped,omitempty"`
	Records
	// InUse, with Whole, has the semantic addresses of its services: a root whose store was
	// restored from an older copy gives them to no other service.
	InUse []ServiceAddress `json:"in_use,omitempty"`
	// Subscribed and Published are the digests of all its subscriptions and all its records.
	Subscribed api.Digest `json:"wanted"`
	Published  api.Digest `json:"said"`
	Rev        uint64     `json:"rev"`  // of the last RootNet that it applied since its start, before Held
	Held       api.Digest `json:"held"` // of all that it has from the root: records, subscriptions, shares
	// Demand has subscriptions of its nodes to services that sleep in other clusters, see NetUp.Demand.
	Demand []Subscription `json:"demand,omitempty"`
}

// ServiceAddress is a semantic address and its service.
type ServiceAddress struct {
	Address netip.Addr    `json:"address"`
	Service api.ServiceID `json:"service"`
}

// RootNet is the network's part of the root's messages to a cluster: its shares, records of other
// clusters, and what other clusters subscribe to at this one. With Whole it has all or all of a
// part, else the changes. A longer content is split into several messages, each sent after a
// report has the Rev of the one before.
type RootNet struct {
	Rev    uint64         `json:"rev"`             // only grows, over the root's restarts too; lower ones are late
	Whole  bool           `json:"whole,omitempty"` // what is absent within Of is removed
	Of     Span           `json:"of,omitzero"`     // of records and Subscribe, with Whole; the zero Span: all
	Ranges NetRanges      `json:"ranges"`
	Shares []netip.Prefix `json:"shares,omitempty"` // always all
	Records
	Subscribe    []Subscription `json:"asked,omitempty"`    // what the cluster publishes from now on
	Unsubscribe  []Subscription `json:"unasked,omitempty"`  // what it no longer publishes
	RequestWhole bool           `json:"want_net,omitempty"` // requests a whole ClusterNet
	// RequestHeld requests a report soon, because more is to be sent after its Rev and Held.
	RequestHeld bool `json:"want_held,omitempty"`
	// Demand has semantic addresses of services that sleep in the cluster and that other clusters
	// may use: packets wait for them. It is repeated while they wait.
	Demand []netip.Addr `json:"demand,omitempty"`
}

// ShareDigest returns the digest of the ranges and shares, a part of ClusterNet.Held.
func (m RootNet) ShareDigest() api.Digest {
	parts := []string{"shares", fmt.Sprint(m.Ranges)}
	for _, p := range m.Shares {
		parts = append(parts, p.String())
	}
	return api.DigestOf(parts...)
}
