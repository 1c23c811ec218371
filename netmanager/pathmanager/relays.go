package pathmanager

import (
	"net"
	"net/netip"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/relaywire"
	"github.com/treeline-edge/treeline/internal/udp"
	"github.com/treeline-edge/treeline/netmanager/overlay/paths"
	"github.com/treeline-edge/treeline/netmanager/tunnel"
	"github.com/treeline-edge/treeline/netmanager/tunnel/session"
)

// outer returns the bytes that a datagram on the path adds to an inner packet.
func outer(via tunnel.Path) int {
	n := 20 + 8 + session.Overhead
	if via.Addr.Addr().Unmap().Is6() {
		n += 20
	}
	if via.Kind != api.PathDirect {
		n += relaywire.HeaderLen
	}
	return n
}

// pathOf converts a path of the tunnel to one of package paths.
func pathOf(p tunnel.Path) paths.Path {
	if p.Kind != api.PathDirect {
		return paths.Path{}
	}
	return paths.Path{Addr: p.Addr}
}

// via converts a path of a machine to one of the tunnel; zero if it cannot be used now.
func (m *Manager) via(p *peer, w paths.Path) tunnel.Path {
	if !w.Relay() {
		return tunnel.Path{Kind: api.PathDirect, Addr: w.Addr}
	}
	r := p.record.Relay
	out := tunnel.Path{Kind: api.PathRelay, Slot: r.Slot, Ticket: r.Ticket}
	if m.self.TLS {
		out.Kind = api.PathRelayTLS
	}
	switch {
	case r.Addr == m.self.Relay && len(m.self.Relays) > 0:
		out.Addr = m.self.Relays[0]
	case len(m.relays[r.Addr]) > 0:
		out.Addr = m.relays[r.Addr][0]
	default:
		return tunnel.Path{}
	}
	return out
}

func (m *Manager) lookup(addr string) {
	if _, _, err := net.SplitHostPort(addr); err != nil || m.resolving[addr] {
		return
	}
	if a, err := netip.ParseAddrPort(addr); err == nil {
		m.relays[addr] = []netip.AddrPort{netip.AddrPortFrom(a.Addr().Unmap(), a.Port())}
		return
	}
	m.resolving[addr] = true
	m.all.Go(func() {
		list, err := udp.Resolve(m.ctx, addr, nil)
		if err != nil {
			m.opt.Log.Warn("look up a peer's relay failed", "relay", addr, "err", err)
		}
		m.queue.put(slot{kind: relayFound, relay: addr}, func() {
			delete(m.resolving, addr)
			if len(list) == 0 && len(m.relays[addr]) > 0 {
				return // keep the last known addresses
			}
			m.relays[addr] = list
			for _, p := range m.peers {
				if p.record.Relay.Addr == addr {
					m.apply(p, true)
				}
			}
		})
	})
}
