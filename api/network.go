package api

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// PeerKey is a node's static X25519 public key, as the Noise handshake uses it:
// what a peer is known by on the overlay network.
type PeerKey [32]byte

// String is the key in unpadded URL-safe base64.
func (k PeerKey) String() string { return base64.RawURLEncoding.EncodeToString(k[:]) }

// MarshalText encodes the key for JSON, as a map's key too.
func (k PeerKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads what MarshalText wrote; anything else is ErrInvalid.
func (k *PeerKey) UnmarshalText(b []byte) error {
	raw, err := base64.RawURLEncoding.DecodeString(string(b))
	if err != nil || len(raw) != len(k) {
		return fmt.Errorf("peer key %q is not 32 bytes in base64: %w", b, ErrInvalid)
	}
	copy(k[:], raw)
	return nil
}

// Relay is where a node can always be reached: its cluster's relay, which
// forwards what carries the slot and its ticket and cannot read it.
type Relay struct {
	Addr   string `json:"addr"` // host:port, UDP; TLS on the same port is for the relay's own nodes
	Slot   uint32 `json:"slot"`
	Ticket uint64 `json:"ticket,string"` // whoever may send to the node has it from a route
}

// Coordinate is a node's place in the network's latency space (Vivaldi with
// height, as hashicorp/serf's coordinate has it), in seconds.
type Coordinate struct {
	Vec        []float64 `json:"vec"`
	Error      float64   `json:"error"`
	Adjustment float64   `json:"adjustment"`
	Height     float64   `json:"height"`
}

// Peer is a node as others need it to send to it. Across clusters it has no node
// name, and only endpoints that its own cluster saw from outside.
type Peer struct {
	Key       PeerKey          `json:"key"`
	Cluster   ClusterID        `json:"cluster"`
	Node      NodeID           `json:"node,omitempty"`
	Subnets   []netip.Prefix   `json:"subnets"`             // its lease: a packet of another source is forged
	Endpoints []netip.AddrPort `json:"endpoints,omitempty"` // where it may be reached directly
	Relay     Relay            `json:"relay"`
	Chain     [][]byte         `json:"chain"`           // its certificate and its cluster's, DER
	Proof     []byte           `json:"proof"`           // by the certificate's key over ProofText(Key)
	Coord     *Coordinate      `json:"coord,omitempty"` // as it was when Rev last grew: it changes too often to be news
	Rev       uint64           `json:"rev"`             // its author's; only grows
}

// ServiceAddresses are the semantic addresses of a service. The zero Addr stands
// for a policy that the SLA did not ask for.
type ServiceAddresses struct {
	RoundRobin netip.Addr         `json:"rr,omitzero"`
	Closest    netip.Addr         `json:"closest,omitzero"`
	Instances  map[int]netip.Addr `json:"instances,omitempty"` // by instance number
}

// All lists the addresses in order.
func (a ServiceAddresses) All() []netip.Addr {
	all := slices.Collect(maps.Values(a.Instances))
	for _, addr := range []netip.Addr{a.RoundRobin, a.Closest} {
		if addr.IsValid() {
			all = append(all, addr)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// BackendState says whether new flows may go to a backend.
type BackendState string

// The states of a backend.
const (
	BackendUp       BackendState = "up"
	BackendDraining BackendState = "draining" // flows stay, new ones avoid it where there is another
	BackendStarting BackendState = "starting" // it may send, and is in no route: it does not listen yet, or its node is silent
)

// Backend is one running instance of a service.
type Backend struct {
	Instance InstanceID   `json:"instance"`
	Epoch    Epoch        `json:"epoch"`
	Address  netip.Addr   `json:"address"` // of the instance, IPv4
	Peer     PeerKey      `json:"peer"`
	State    BackendState `json:"state"`
	Load     uint8        `json:"load,omitempty"` // of its node, percent of CPU; 0 where it is not known
}

// Route is a service as a node needs it. It is whole in itself: a later revision
// replaces an earlier one. A service without backends is one that exists and has
// nothing running.
type Route struct {
	Service   ServiceID        `json:"service"`
	Rev       uint64           `json:"rev"` // its author's; only grows
	Addresses ServiceAddresses `json:"addresses"`
	Access    Access           `json:"access"`
	Ports     []PortMap        `json:"ports,omitempty"` // as its SLA has them; SRV records name the instances' side
	Backends  []Backend        `json:"backends,omitempty"`
	Peers     []Peer           `json:"peers,omitempty"` // of the backends, once each
}

// Digest is a fingerprint of r, a member of its holder's digest, as those of
// sources, peers and refusals are.
func (r Route) Digest() Digest { return DigestOf("route", string(r.Service), utoa(r.Rev)) }

// Digest is a fingerprint of p.
func (p Peer) Digest() Digest { return DigestOf("peer", p.Key.String(), utoa(p.Rev)) }

// Digest is a fingerprint of s, a member of NetUp.Measure.
func (s ServiceID) Digest() Digest { return DigestOf("service", string(s)) }
