package api

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// PeerKey is a node's static X25519 public key in Noise handshakes. It identifies the node on
// the overlay network.
type PeerKey [32]byte

// String returns the key in unpadded URL-safe base64.
func (k PeerKey) String() string { return base64.RawURLEncoding.EncodeToString(k[:]) }

// MarshalText encodes the key for JSON, as a map's key too.
func (k PeerKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText decodes the output of MarshalText; anything else is ErrInvalid.
func (k *PeerKey) UnmarshalText(b []byte) error {
	raw, err := base64.RawURLEncoding.DecodeString(string(b))
	if err != nil || len(raw) != len(k) {
		return fmt.Errorf("peer key %q is not 32 bytes in base64: %w", b, ErrInvalid)
	}
	copy(k[:], raw)
	return nil
}

// Relay is the address of a node at its cluster's relay. The relay forwards encrypted datagrams
// that contain the slot and its ticket.
type Relay struct {
	Addr   string `json:"addr"` // host:port, UDP; nodes of the relay's cluster may use TLS on the same port
	Slot   uint32 `json:"slot"`
	Ticket uint64 `json:"ticket,string"` // known to those that may send to the node
}

// Coordinate is a node's point in the latency space (Vivaldi with height, as in
// hashicorp/serf/coordinate), in seconds.
type Coordinate struct {
	Vec        []float64 `json:"vec"`
	Error      float64   `json:"error"`
	Adjustment float64   `json:"adjustment"`
	Height     float64   `json:"height"`
}

// Peer contains what other nodes need to send packets to a node. For nodes of other clusters it has
// no node name, and only the endpoints that the peer's own cluster observed.
type Peer struct {
	Key       PeerKey          `json:"key"`
	Cluster   ClusterID        `json:"cluster"`
	Node      NodeID           `json:"node,omitempty"`
	Subnets   []netip.Prefix   `json:"subnets"`             // leased to it; the valid sources of its packets
	Endpoints []netip.AddrPort `json:"endpoints,omitempty"` // where it may be reached directly
	Relay     Relay            `json:"relay"`
	Chain     [][]byte         `json:"chain"`           // its certificate and its cluster's, DER
	Proof     []byte           `json:"proof"`           // by the certificate's key over ProofText(Key)
	Coord     *Coordinate      `json:"coord,omitempty"` // at the last change of Rev; a change of it alone does not change Rev
	Rev       uint64           `json:"rev"`             // assigned by its author; only grows
}

// ServiceAddresses are the semantic addresses of a service; zero for policies that the SLA does
// not request.
type ServiceAddresses struct {
	RoundRobin netip.Addr         `json:"rr,omitzero"`
	Closest    netip.Addr         `json:"closest,omitzero"`
	Instances  map[int]netip.Addr `json:"instances,omitempty"` // by instance number
}

// All returns the addresses, sorted.
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

const (
	BackendUp       BackendState = "up"
	BackendDraining BackendState = "draining" // keeps its flows; gets new ones only if there is no other backend
	BackendStarting BackendState = "starting" // may send, but is in no route: it does not listen yet, or its node is silent
)

type Backend struct {
	Instance InstanceID   `json:"instance"`
	Epoch    Epoch        `json:"epoch"`
	Address  netip.Addr   `json:"address"` // of the instance, IPv4
	Peer     PeerKey      `json:"peer"`
	State    BackendState `json:"state"`
	Load     uint8        `json:"load,omitempty"` // of its node, percent of CPU; 0: unknown
}

// Route contains what a node needs to know about a service. A later revision replaces an earlier
// one. A route without backends is that of a service without running instances.
type Route struct {
	Service   ServiceID        `json:"service"`
	Rev       uint64           `json:"rev"` // assigned by its author; only grows
	Addresses ServiceAddresses `json:"addresses"`
	Access    Access           `json:"access"`
	Ports     []PortMap        `json:"ports,omitempty"` // of its SLA; SRV records contain the instances' ports
	Backends  []Backend        `json:"backends,omitempty"`
	Peers     []Peer           `json:"peers,omitempty"` // of the backends, without duplicates
	// Asleep means that the service has instances that sleep or start: a packet to an address without a
	// backend that takes new flows waits, and wakes one. Netmanagers of earlier releases refuse such packets.
	Asleep bool `json:"asleep,omitempty"`
}

// Digest returns a fingerprint of r, for the digest of a subscriber's resources.
func (r Route) Digest() Digest { return DigestOf("route", string(r.Service), utoa(r.Rev)) }

// Digest returns a fingerprint of p.
func (p Peer) Digest() Digest { return DigestOf("peer", p.Key.String(), utoa(p.Rev)) }

// Digest returns a fingerprint of s, for the digest of NetUp.Measure.
func (s ServiceID) Digest() Digest { return DigestOf("service", string(s)) }
