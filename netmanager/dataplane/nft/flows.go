package nft

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"

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

// strayed reports whether a flow of an earlier start must end: an end is gone, or policy denies
// it.
func (m *model) strayed(f flow) bool {
	return m.gone(f.from) || m.gone(f.backend) || m.against(f, func(p plane.Pair) bool { return !m.allowed[p] })
}

// gone reports whether an instance's address is unused.
func (m *model) gone(a netip.Addr) bool {
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
		for _, s := range p.Subnets {
			if s.Contains(a) {
				return false
			}
		}
	}
	return true
}

// against reports whether refused is true for one of the pairs of idents that policy checks.
func (m *model) against(f flow, refused func(plane.Pair) bool) bool {
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

// moved returns the addresses that c gives to another ident or to none, whose flows must end.
// Call it before c is applied.
func (m *model) moved(c plane.Change) map[netip.Addr]bool {
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

// end ends the flows that c makes invalid.
func (p *Plane) end(c plane.Change, moved map[netip.Addr]bool) error {
	if len(c.End) == 0 && len(c.Retry) == 0 && len(c.Deny) == 0 && len(moved) == 0 {
		return nil
	}
	dead, doubted, denied := map[netip.Addr]bool{}, map[netip.Addr]bool{}, map[plane.Pair]bool{}
	for _, a := range c.End {
		dead[a] = true
	}
	for _, a := range c.Retry {
		doubted[a] = true
	}
	for _, pair := range c.Deny {
		denied[pair] = !p.m.allowed[pair]
	}
	return p.host.end(func(f flow) bool {
		return dead[f.backend] || doubted[f.backend] && f.opening || moved[f.from] || moved[f.backend] || p.m.against(f, func(p plane.Pair) bool { return denied[p] })
	}, p.m)
}

// sweep is a filter of connection tracking that records its matches.
type sweep struct {
	want func(flow) bool
	m    *model
	tcp  []*netlink.ConntrackFlow
}

// MatchConntrackFlow reports whether the flow should end.
func (s *sweep) MatchConntrackFlow(c *netlink.ConntrackFlow) bool {
	untwin := func(ip net.IP) netip.Addr {
		a, _ := netip.AddrFromSlice(ip)
		return s.m.node.Ranges.Untwin(a)
	}
	tcp, known := c.ProtoInfo.(*netlink.ProtoInfoTCP)
	f := flow{
		from: untwin(c.Forward.SrcIP), to: untwin(c.Forward.DstIP), backend: untwin(c.Reverse.SrcIP),
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
// would detect this late: rouse makes it send a segment, which gets a reset because its flow is
// unknown.
func (h *host) end(want func(flow) bool, m *model) error {
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		s := &sweep{want: want, m: m}
		if _, err := h.nl.ConntrackDeleteFilters(netlink.ConntrackTable, family, s); err != nil {
			return fmt.Errorf("end flows: %w", err)
		}
		for _, f := range s.tcp {
			h.rouse(f)
		}
	}
	return nil
}

// rouse sends the client of a flow a segment outside its window, as if from its server. The
// client answers with an acknowledgement (RFC 9293, section 3.10.7.4).
func (h *host) rouse(f *netlink.ConntrackFlow) {
	server, _ := netip.AddrFromSlice(f.Forward.DstIP)
	client, _ := netip.AddrFromSlice(f.Forward.SrcIP)
	h.segments.Send(netip.AddrPortFrom(server.Unmap(), f.Forward.DstPort), netip.AddrPortFrom(client.Unmap(), f.Forward.SrcPort), rand.Uint32(), ack)
}
