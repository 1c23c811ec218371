package api

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MaxPorts bounds the ports that a service publishes.
const MaxPorts = 64

// Ports are the ports that the service publishes on its node, in the order of
// its SLA, which must have been validated.
func (m Microservice) Ports() []PortMap {
	ports, _ := ParsePorts(m.Port)
	return ports
}

// ParsePorts reads `port` of an SLA: entries separated by ";", each
// "<node's>:<instance's>[/tcp|udp|sctp]", or one number for both. What cannot be
// is ErrInvalid.
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
			return nil, fmt.Errorf("port %d/%s is published twice: %w", p.Host, p.Protocol, ErrInvalid)
		}
		if out = append(out, p); len(out) > MaxPorts {
			return nil, fmt.Errorf("more than %d ports are published: %w", MaxPorts, ErrInvalid)
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
		return PortMap{}, fmt.Errorf("port %q: the protocol is tcp, udp or sctp: %w", shorten(entry), ErrInvalid)
	}
	host, inside, ok := strings.Cut(numbers, ":")
	if !ok {
		inside = host
	}
	h, err1 := strconv.ParseUint(host, 10, 16)
	i, err2 := strconv.ParseUint(inside, 10, 16)
	if err1 != nil || err2 != nil || h == 0 || i == 0 {
		return PortMap{}, fmt.Errorf("port %q: write <node's>:<instance's>, each 1 to 65535: %w", shorten(entry), ErrInvalid)
	}
	return PortMap{Host: uint16(h), Instance: uint16(i), Protocol: protocol}, nil
}

// String is "6080:80/tcp".
func (p PortMap) String() string { return fmt.Sprintf("%d:%d/%s", p.Host, p.Instance, p.Protocol) }

// NeedsNetwork reports whether the service asks for what only an overlay network
// gives; it runs on nodes that have one, and nowhere else.
func (m Microservice) NeedsNetwork() bool {
	return m.Port != "" || m.BandwidthIn > 0 || m.BandwidthOut > 0 || len(m.Callers) > 0 || len(m.Calls) > 0 || m.Addresses != nil
}

// Access is who may call the service, as its SLA says.
func (m Microservice) Access() Access {
	a := Access{Callers: m.Callers, Calls: m.Calls}
	if slices.Contains(m.Callers, "none") {
		a.Callers, a.Closed = nil, true
	}
	return a
}
