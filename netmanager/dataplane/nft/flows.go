package nft

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// flow is an entry of connection tracking, in IPv4 addresses: the client, the address that it
// called, and the backend. An end outside the ranges is the zero Addr.
type flow struct {
	from, to, backend netip.Addr
	opening           bool // TCP without an answer yet
}

// ours reports whether an instance is part of the flow.
func (m *model) ours(f flow) bool { return f.from.IsValid() || f.to.IsValid() || f.backend.IsValid() }

// invalid reports whether a flow of an earlier start must end: an end is gone, or policy denies
// it.
func (m *model) invalid(f flow) bool {
	return m.unused(f.from) || m.unused(f.backend) || m.deniedBy(f, func(p plane.Pair) bool { return !m.allowed[p] })
}

// unused reports whether an instance's address is unused.
func (m *model) unused(a netip.Addr) bool {
	if !a.IsValid() || !m.node.Ranges.Instances.Contains(a) {
		return false
	}
	if _, here := m.endpoints[a]; here {
		return false
	}
	if m.node.Subnet.IsValid() && m.node.Subnet.Contains(a) {
		return true
	}
	for _, p := range m.peers {
		if slices.ContainsFunc(p.Subnets, func(s netip.Prefix) bool { return s.Contains(a) }) {
			return false
		}
	}
	return true
}

// deniedBy reports whether refused is true for one of the pairs of idents that policy checks.
func (m *model) deniedBy(f flow, refused func(plane.Pair) bool) bool {
	from, ok := m.ident(f.from)
	if !ok {
		return false
	}
	if to, ok := m.ident(f.to); ok && refused(plane.Pair{From: from, To: to}) {
		return true
	}
	if _, here := m.endpoints[f.backend]; here {
		to, _ := m.ident(f.backend)
		return refused(plane.Pair{From: from, To: to})
	}
	return false
}

func (m *model) ident(a netip.Addr) (plane.Ident, bool) {
	if e, ok := m.endpoints[a]; ok {
		return e.Ident, true
	}
	if s, ok := m.services[a]; ok {
		return s.Ident, true
	}
	id, ok := m.sources[a]
	return id, ok
}

// reassigned returns the addresses that c gives to another ident or to none, whose flows must end.
// Call it before c is applied.
func (m *model) reassigned(c plane.Change) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for _, a := range c.DropEndpoints {
		if _, was := m.endpoints[a]; was {
			out[a] = true
		}
	}
	for _, e := range c.SetEndpoints {
		if id, was := m.ident(e.Address); was && id == e.Ident {
			delete(out, e.Address)
		} else if was {
			out[e.Address] = true
		}
	}
	for _, s := range c.SetSources {
		if id, was := m.ident(s.Address); was && id != s.Ident {
			out[s.Address] = true
		}
	}
	return out
}

func (p *Plane) end(c plane.Change, reassigned map[netip.Addr]bool) error {
	if len(c.End) == 0 && len(c.Retry) == 0 && len(c.Deny) == 0 && len(reassigned) == 0 {
		return nil
	}
	ended, retry, denied := map[netip.Addr]bool{}, map[netip.Addr]bool{}, map[plane.Pair]bool{}
	for _, a := range c.End {
		ended[a] = true
	}
	for _, a := range c.Retry {
		retry[a] = true
	}
	for _, pair := range c.Deny {
		denied[pair] = !p.m.allowed[pair]
	}
	return p.host.end(func(f flow) bool {
		return ended[f.backend] || retry[f.backend] && f.opening || reassigned[f.from] || reassigned[f.backend] || p.m.deniedBy(f, func(p plane.Pair) bool { return denied[p] })
	}, p.m)
}

// conntrackFilter is a filter of connection tracking that records its matches.
type conntrackFilter struct {
	want func(flow) bool
	m    *model
	tcp  []*netlink.ConntrackFlow
}

// MatchConntrackFlow reports whether the flow should end.
func (s *conntrackFilter) MatchConntrackFlow(c *netlink.ConntrackFlow) bool {
	to4 := func(ip net.IP) netip.Addr {
		a, _ := netip.AddrFromSlice(ip)
		return s.m.node.Ranges.To4(a)
	}
	tcp, known := c.ProtoInfo.(*netlink.ProtoInfoTCP)
	f := flow{
		from: to4(c.Forward.SrcIP), to: to4(c.Forward.DstIP), backend: to4(c.Reverse.SrcIP),
		opening: known && tcp.State == nl.TCP_CONNTRACK_SYN_SENT,
	}
	if !s.m.ours(f) || !s.want(f) {
		return false
	}
	if _, here := s.m.endpoints[f.from]; here && c.Forward.Protocol == unix.IPPROTO_TCP && !f.opening {
		s.tcp = append(s.tcp, c)
	}
	return true
}

// end deletes the flows that match want. A connected client on this node that only waits for data
// would detect this late: challenge makes it send a segment, which gets a reset because its flow is
// unknown.
func (h *host) end(want func(flow) bool, m *model) error {
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		s := &conntrackFilter{want: want, m: m}
		if _, err := h.nl.ConntrackDeleteFilters(netlink.ConntrackTable, family, s); err != nil {
			return fmt.Errorf("end flows: %w", err)
		}
		for _, f := range s.tcp {
			h.challenge(f)
		}
	}
	return nil
}

// challenge sends the client of a flow a segment outside its window, as if from its server. The
// client answers with an acknowledgement (RFC 9293, section 3.10.7.4).
func (h *host) challenge(f *netlink.ConntrackFlow) {
	server, _ := netip.AddrFromSlice(f.Forward.DstIP)
	client, _ := netip.AddrFromSlice(f.Forward.SrcIP)
	h.segments.Send(netip.AddrPortFrom(server.Unmap(), f.Forward.DstPort), netip.AddrPortFrom(client.Unmap(), f.Forward.SrcPort), rand.Uint32(), ack)
}
