package api

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MaxPorts limits the ports that a service publishes.
const MaxPorts = 64

// Ports returns the ports that the service publishes on its node, in the order of its SLA,
// which must have been validated.
func (m Microservice) Ports() []PortMap {
	ports, _ := ParsePorts(m.Port)
	return ports
}

// ParsePorts parses `port` of an SLA: entries separated by ";", each a node's and an instance's
// port with an optional protocol, "6080:80/tcp", or one number for both. Anything else is
// ErrInvalid.
func ParsePorts(s string) ([]PortMap, error) {
	var out []PortMap
	for e := range strings.SplitSeq(s, ";") {
		if e = strings.TrimSpace(e); e == "" {
			continue
		}
		p, err := parsePort(e)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(out, func(o PortMap) bool { return o.Host == p.Host && o.Protocol == p.Protocol }) {
			return nil, fmt.Errorf("port %d/%s published twice: %w", p.Host, p.Protocol, ErrInvalid)
		}
		if out = append(out, p); len(out) > MaxPorts {
			return nil, fmt.Errorf("more than %d published ports: %w", MaxPorts, ErrInvalid)
		}
	}
	return out, nil
}

func parsePort(entry string) (PortMap, error) {
	numbers, protocol, ok := strings.Cut(entry, "/")
	if !ok {
		protocol = "tcp"
	}
	if protocol = strings.ToLower(protocol); protocol != "tcp" && protocol != "udp" && protocol != "sctp" {
		return PortMap{}, fmt.Errorf("port %q: want protocol tcp, udp or sctp: %w", shorten(entry), ErrInvalid)
	}
	host, inside, ok := strings.Cut(numbers, ":")
	if !ok {
		inside = host
	}
	h, err1 := strconv.ParseUint(host, 10, 16)
	i, err2 := strconv.ParseUint(inside, 10, 16)
	if err1 != nil || err2 != nil || h == 0 || i == 0 {
		return PortMap{}, fmt.Errorf("port %q: want NODE_PORT:INSTANCE_PORT, each 1 to 65535: %w", shorten(entry), ErrInvalid)
	}
	return PortMap{Host: uint16(h), Instance: uint16(i), Protocol: protocol}, nil
}

// DefaultPublish is the default for the ports that workloads may publish. It excludes those for
// administration, DNS, time and mail.
const DefaultPublish = "80,443,1024-65535"

// MaxPortRanges limits the entries of ParsePortRanges.
const MaxPortRanges = 64

// PortRange is a range of ports that includes both ends.
type PortRange struct {
	First uint16 `json:"first"`
	Last  uint16 `json:"last"`
}

// ParsePortRanges parses "80,443,1024-65535"; "none" means no port. Anything else is
// ErrInvalid.
func ParsePortRanges(s string) ([]PortRange, error) {
	if strings.TrimSpace(s) == "none" {
		return nil, nil
	}
	var out []PortRange
	for e := range strings.SplitSeq(s, ",") {
		e = strings.TrimSpace(e)
		a, b, two := strings.Cut(e, "-")
		if !two {
			b = a
		}
		first, err1 := strconv.ParseUint(strings.TrimSpace(a), 10, 16)
		last, err2 := strconv.ParseUint(strings.TrimSpace(b), 10, 16)
		switch {
		case err1 != nil || err2 != nil || first == 0:
			return nil, fmt.Errorf("%q is not a list of ports from 1 to 65535, such as %s, or none: %w", shorten(e), DefaultPublish, ErrInvalid)
		case first > last:
			return nil, fmt.Errorf("%q is a range that ends before it begins: %w", shorten(e), ErrInvalid)
		}
		if out = append(out, PortRange{uint16(first), uint16(last)}); len(out) > MaxPortRanges {
			return nil, fmt.Errorf("more than %d ranges of ports: %w", MaxPortRanges, ErrInvalid)
		}
	}
	return out, nil
}

// HostPort is a port of a node for "tcp", "udp" or "sctp".
type HostPort struct {
	Port     uint16 `json:"port"`
	Protocol string `json:"protocol"`
}

// String returns "22/tcp".
func (p HostPort) String() string { return fmt.Sprintf("%d/%s", p.Port, p.Protocol) }

// MaxOwnPorts limits NodePorts.Own.
const MaxOwnPorts = 4096

// NodePorts are the ports that workloads may publish on a node. Nil, which nodes of earlier
// releases report, means all.
type NodePorts struct {
	Publish []PortRange `json:"publish,omitempty"` // allowed by the operator; empty: none
	Own     []HostPort  `json:"own,omitempty"`     // those of Publish that the machine itself uses
}

// Refuses returns why a workload may not publish the port, or "".
func (n *NodePorts) Refuses(p HostPort) string {
	switch {
	case n == nil:
		return ""
	case !slices.ContainsFunc(n.Publish, func(r PortRange) bool { return r.First <= p.Port && p.Port <= r.Last }):
		return "not among the ports that may be published on the node (" + n.ranges() + ")"
	case slices.Contains(n.Own, p):
		return "used by the node itself"
	}
	return ""
}

func (n *NodePorts) ranges() string {
	const shown = 8
	var b []string
	for _, r := range n.Publish[:min(len(n.Publish), shown)] {
		s := strconv.Itoa(int(r.First))
		if r.Last != r.First {
			s += "-" + strconv.Itoa(int(r.Last))
		}
		b = append(b, s)
	}
	switch {
	case len(b) == 0:
		return "none"
	case len(n.Publish) > shown:
		b = append(b, "…")
	}
	return strings.Join(b, ",")
}

// String returns "6080:80/tcp".
func (p PortMap) String() string { return fmt.Sprintf("%d:%d/%s", p.Host, p.Instance, p.Protocol) }

// NeedsNetwork reports whether the service runs only on nodes with an overlay network. ParseSLA
// sets NetworkOverlay unless the SLA opts out. Services stored by an earlier release have no
// Network: they need the overlay network if they use a feature of it.
func (m Microservice) NeedsNetwork() bool {
	return m.Network == NetworkOverlay || m.Port != "" || m.BandwidthIn > 0 || m.BandwidthOut > 0 || len(m.Callers) > 0 || len(m.Calls) > 0 || m.Addresses != nil
}

// TakesAddress reports whether each instance gets an address on its node's overlay network, if
// there is one. A process does not: it uses the node's network.
func (m Microservice) TakesAddress() bool { return m.Virtualization != "process" }

// Access returns the access rules of the service's SLA.
func (m Microservice) Access() Access {
	a := Access{Callers: m.Callers, Calls: m.Calls}
	if slices.Contains(m.Callers, "none") {
		a.Callers, a.Closed = nil, true
	}
	return a
}
