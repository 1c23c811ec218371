package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// vni is the VXLAN network that nodes share.
const vni = 1

// Via6 returns the link-local address that a node has on an unencrypted network beside its IPv4
// address a. All nodes derive it in the same way, so that they need not exchange it.
func Via6(a netip.Addr) netip.Addr {
	b, four := [16]byte{0: 0xfe, 1: 0x80}, a.As4()
	copy(b[12:], four[:])
	return netip.AddrFrom16(b)
}

// SetPeer routes the peer's subnets in both families. A changed route replaces the former one
// atomically. It also prepares to receive the peer's packets by the paths in Accepts, whichever path
// this node sends by.
func (l *Links) SetPeer(n plane.Node, p plane.Peer) error {
	if p.Accepts.Route && p.Path != api.PathRoute {
		// If no device leads to the peer, no packet comes from it.
		if index, local, err := l.toward(p.Via); err == nil {
			if err := l.near(index, local); err != nil {
				return fmt.Errorf("prepare to receive from peer %s: %w", p.Key, err)
			}
		}
	}
	route, err := l.route(n, p)
	if err != nil {
		return fmt.Errorf("route to peer %s: %w", p.Key, err)
	}
	for _, s := range p.Subnets {
		for _, dst := range both(n.Ranges, s) {
			r := route(dst.Addr().Is6())
			r.Dst, r.Protocol, r.MTU = network(dst), RouteProtocol, p.MTU
			if err := l.nl.RouteReplace(r); err != nil && !(dst.Addr().Is6() && noIPv6(err)) {
				return fmt.Errorf("route %s to peer %s: %w", dst, p.Key, err)
			}
		}
	}
	if p.Path != api.PathVXLAN {
		return l.removeNeighbour(p.Via)
	}
	return nil
}

func both(r wire.NetRanges, s netip.Prefix) []netip.Prefix {
	out := []netip.Prefix{s}
	if six := r.To6(s.Addr()); six.IsValid() {
		out = append(out, netip.PrefixFrom(six, 96+s.Bits()))
	}
	return out
}

// route prepares the path to a peer, and returns its route by family.
func (l *Links) route(n plane.Node, p plane.Peer) (func(six bool) *netlink.Route, error) {
	switch p.Path {
	case api.PathRoute:
		index, local, err := l.toward(p.Via)
		if err != nil {
			return nil, err
		}
		if err := l.near(index, local); err != nil {
			return nil, err
		}
		return func(six bool) *netlink.Route {
			r := &netlink.Route{LinkIndex: index, Gw: p.Via.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}
			if six {
				r.Gw = Via6(p.Via).AsSlice()
			}
			return r
		}, nil
	case api.PathVXLAN:
		if !p.Via.Is4() {
			return nil, fmt.Errorf("VXLAN to %s: %w", p.Via, api.ErrInvalid)
		}
		dev, err := l.nl.LinkByName(plane.VXLANDevice(l.prefix))
		if err != nil {
			return nil, err
		}
		index := dev.Attrs().Index
		if err := neighbour(l.nl, index, Via6(p.Via), MAC(p.Via)); err != nil {
			return nil, err
		}
		return func(six bool) *netlink.Route {
			r := &netlink.Route{LinkIndex: index, Flags: int(netlink.FLAG_ONLINK), Encap: &encap{p.Via}}
			if six {
				r.Gw = Via6(p.Via).AsSlice()
			} else {
				r.Via = &netlink.Via{AddrFamily: unix.AF_INET6, Addr: Via6(p.Via).AsSlice()}
			}
			return r
		}, nil
	}
	dev, err := l.nl.LinkByName(n.Tunnel)
	if err != nil {
		return nil, fmt.Errorf("tunnel device %s: %w", n.Tunnel, err)
	}
	return func(bool) *netlink.Route {
		return &netlink.Route{LinkIndex: dev.Attrs().Index, Scope: netlink.SCOPE_LINK}
	}, nil
}

// near adds Via6(local) to the device, so that peers reach this node by IPv6.
func (l *Links) near(index int, local netip.Addr) error {
	dev, err := l.nl.LinkByIndex(index)
	if err != nil {
		return fmt.Errorf("device %d: %w", index, err)
	}
	six := host(Via6(local))
	six.Mask = net.CIDRMask(64, 128)
	if err := l.nl.AddrReplace(dev, &netlink.Addr{IPNet: six, Flags: unix.IFA_F_NODAD}); !noIPv6(err) {
		return wrap(err, "add address %s to %s", Via6(local), dev.Attrs().Name)
	}
	return nil
}

// toward returns the device that leads to a, and the host's address there.
func (l *Links) toward(a netip.Addr) (int, netip.Addr, error) {
	if !a.Is4() {
		return 0, netip.Addr{}, fmt.Errorf("route to %s, which is not IPv4: %w", a, api.ErrInvalid)
	}
	routes, err := l.nl.RouteGet(a.AsSlice())
	if err != nil {
		return 0, netip.Addr{}, fmt.Errorf("find route to %s: %w", a, err)
	}
	local, ok := netip.AddrFromSlice(routes[0].Src.To4())
	if !ok {
		return 0, netip.Addr{}, fmt.Errorf("route to %s: the host has no address there: %w", a, api.ErrInvalid)
	}
	return routes[0].LinkIndex, local, nil
}

// DropPeer deletes the routes to the peer's subnets, whose packets then go to the packet queue's
// device. It succeeds if there are none.
func (l *Links) DropPeer(n plane.Node, p plane.Peer) error {
	for _, s := range p.Subnets {
		for _, dst := range both(n.Ranges, s) {
			if err := l.unroute(dst); err != nil {
				return err
			}
		}
	}
	return l.removeNeighbour(p.Via)
}

// SetPeers sets the routes to these peers and deletes all others. Routes that are correct already
// lose no packet.
func (l *Links) SetPeers(n plane.Node, peers []plane.Peer) error {
	r := n.Ranges
	keep := map[netip.Prefix]bool{r.Instances: true, r.Services: true, r.Instances6: true, r.Services6: true}
	near := map[netip.Addr]bool{}
	var errs []error
	for _, p := range peers {
		errs = append(errs, l.SetPeer(n, p))
		for _, s := range p.Subnets {
			for _, dst := range both(r, s) {
				keep[dst] = true
			}
		}
		if p.Path == api.PathVXLAN {
			near[Via6(p.Via)] = true
		}
	}
	ours, err := l.ours()
	errs = append(errs, err)
	for _, dst := range ours {
		single := dst.IsSingleIP() // an instance's route is deleted with its device
		if !keep[dst] && !single {
			errs = append(errs, l.unroute(dst))
		}
	}
	return errors.Join(append(errs, l.removeNeighbours(near))...)
}

// ours returns the destinations of the routes with RouteProtocol.
func (l *Links) ours() (out []netip.Prefix, failed error) {
	for _, f := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := l.nl.RouteListFiltered(f, &netlink.Route{Protocol: RouteProtocol}, netlink.RT_FILTER_PROTOCOL)
		for n := 0; errors.Is(err, netlink.ErrDumpInterrupted) && n < 3; n++ { // routes changed during the dump
			routes, err = l.nl.RouteListFiltered(f, &netlink.Route{Protocol: RouteProtocol}, netlink.RT_FILTER_PROTOCOL)
		}
		// If routes change all the time, use the interrupted dump, which has most of them.
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) && !(f == netlink.FAMILY_V6 && noIPv6(err)) {
			failed = errors.Join(failed, fmt.Errorf("list routes: %w", err))
		}
		for _, r := range routes {
			if r.Dst == nil {
				continue
			}
			a, _ := netip.AddrFromSlice(r.Dst.IP)
			ones, _ := r.Dst.Mask.Size()
			out = append(out, netip.PrefixFrom(a, ones))
		}
	}
	return out, failed
}

func (l *Links) unroute(dst netip.Prefix) error {
	// SCOPE_NOWHERE matches any scope: routes by the tunnel and by a gateway have different ones.
	err := l.nl.RouteDel(&netlink.Route{Dst: network(dst), Protocol: RouteProtocol, Scope: netlink.SCOPE_NOWHERE})
	return wrap(unlessNone(err), "delete route to %s", dst)
}

func (l *Links) removeNeighbour(via netip.Addr) error {
	if !via.Is4() {
		return nil
	}
	dev, err := l.nl.LinkByName(plane.VXLANDevice(l.prefix))
	if err == nil {
		err = l.nl.NeighDel(&netlink.Neigh{LinkIndex: dev.Attrs().Index, Family: netlink.FAMILY_V6, IP: Via6(via).AsSlice()})
	}
	return wrap(unlessNone(err), "delete neighbour %s", via)
}

// removeNeighbours deletes the permanent neighbours on the VXLAN device except those in near.
func (l *Links) removeNeighbours(near map[netip.Addr]bool) error {
	dev, err := l.nl.LinkByName(plane.VXLANDevice(l.prefix))
	if err != nil {
		return unlessNone(err)
	}
	all, err := l.nl.NeighList(dev.Attrs().Index, netlink.FAMILY_V6)
	if err != nil {
		return fmt.Errorf("list neighbours: %w", err)
	}
	var errs []error
	for _, n := range all {
		a, _ := netip.AddrFromSlice(n.IP)
		if n.State&netlink.NUD_PERMANENT != 0 && !near[a] {
			errs = append(errs, wrap(unlessNone(l.nl.NeighDel(&n)), "delete neighbour %s", a))
		}
	}
	return errors.Join(errs...)
}

// encap encapsulates a route's packets for an IPv4 address (lwtunnel, as `ip route … encap ip`).
type encap struct{ to netip.Addr }

// Attributes of linux/lwtunnel.h.
const (
	encapID  = 1
	encapDst = 2
)

func (e *encap) Type() int           { return nl.LWTUNNEL_ENCAP_IP }
func (e *encap) Decode([]byte) error { return nil } // not used
func (e *encap) String() string      { return "ip to " + e.to.String() }

func (e *encap) Encode() ([]byte, error) {
	id := nl.NewRtAttr(encapID, binary.BigEndian.AppendUint64(nil, vni))
	return append(id.Serialize(), nl.NewRtAttr(encapDst, e.to.AsSlice()).Serialize()...), nil
}

func (e *encap) Equal(o netlink.Encap) bool {
	x, ok := o.(*encap)
	return ok && *x == *e
}
