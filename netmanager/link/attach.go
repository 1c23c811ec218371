package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	_ "github.com/treeline-edge/treeline/internal/mainthread"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// Attachment describes an instance's connection to the network. Its address identifies it.
type Attachment struct {
	Address  netip.Addr // IPv4
	Address6 netip.Addr // see wire.NetRanges.To6
	NetNS    string     // path of the instance's network namespace
	MTU      int        // bytes of an inner packet; 0: 1500
	In, Out  int64      // bounds of receiving and sending in Mbit/s; 0: none
	// Localhost lets the host reach the instance's published ports by 127.0.0.1.
	Localhost bool
}

// Found is an attachment in the kernel.
type Found struct {
	Address netip.Addr
	Device  string // on the host
	MTU     int
}

// inside is the name of the device within the instance.
const inside = "eth0"

// gatewayMAC is the Ethernet address of every device on the host's side. Instances have it as a
// permanent neighbour, so that no ARP is needed.
var gatewayMAC = net.HardwareAddr{0x02, 0x54, 0xff, 0xff, 0xff, 0x01}

// MAC returns an instance's Ethernet address, which is locally administered and contains its
// IPv4 address.
func MAC(a netip.Addr) net.HardwareAddr {
	b := a.As4()
	return net.HardwareAddr{0x02, 0x54, b[0], b[1], b[2], b[3]}
}

// Attach creates eth0 in the namespace, with both addresses and a default route to the
// host, and routes the address there. It may be repeated, and then corrects what differs. It replaces
// a device in another namespace. After an error there is no device.
func (l *Links) Attach(a Attachment) error {
	if !a.Address.Is4() || a.MTU < 0 || a.In < 0 || a.Out < 0 {
		return fmt.Errorf("attach %+v: %w", a, api.ErrInvalid)
	}
	if a.MTU == 0 {
		a.MTU = 1500
	}
	if err := l.attach(a); err != nil {
		return fmt.Errorf("attach %s: %w", a.Address, errors.Join(err, l.Detach(a.Address)))
	}
	return nil
}

func (l *Links) attach(a Attachment) error {
	ns, err := os.Open(a.NetNS)
	if err != nil {
		return err
	}
	defer ns.Close()
	within, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("enter %s: %w", a.NetNS, err)
	}
	defer within.Close()
	out, in, err := l.pair(a, within, int(ns.Fd()))
	if err != nil {
		return err
	}
	if err := l.hostEnd(a, out); err != nil {
		return err
	}
	if err := instanceEnd(a, within, in); err != nil {
		return fmt.Errorf("within %s: %w", a.NetNS, err)
	}
	return errors.Join(shape(l.nl, out, a.In), shape(within, in, a.Out))
}

func (l *Links) pair(a Attachment, within *netlink.Handle, ns int) (out, in netlink.Link, err error) {
	name := plane.Device(l.prefix, a.Address)
	out, err = l.nl.LinkByName(name)
	if err == nil {
		in, err = within.LinkByName(inside)
		if err == nil && in.Attrs().ParentIndex == out.Attrs().Index && out.Attrs().ParentIndex == in.Attrs().Index {
			return out, in, nil
		}
		if err = l.nl.LinkDel(out); err != nil && !none(err) { // of an earlier namespace
			return nil, nil, fmt.Errorf("delete %s: %w", name, err)
		}
	} else if !none(err) {
		return nil, nil, fmt.Errorf("find %s: %w", name, err)
	}
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, MTU: a.MTU, HardwareAddr: gatewayMAC, TxQLen: -1},
		PeerName:  inside, PeerHardwareAddr: MAC(a.Address), PeerNamespace: netlink.NsFd(ns), PeerMTU: uint32(a.MTU), PeerTxQLen: -1,
	}
	// One request creates both ends, so that a crash leaves both or none.
	if err := l.nl.LinkAdd(veth); err != nil {
		return nil, nil, fmt.Errorf("create %s: %w", name, err)
	}
	if out, err = l.nl.LinkByName(name); err != nil {
		return nil, nil, fmt.Errorf("find %s: %w", name, err)
	}
	if in, err = within.LinkByName(inside); err != nil {
		return nil, nil, fmt.Errorf("find %s: %w", inside, err)
	}
	return out, in, nil
}

func (l *Links) hostEnd(a Attachment, dev netlink.Link) error {
	index := dev.Attrs().Index
	if err := setMTU(l.nl, dev, a.MTU); err != nil {
		return err
	}
	local := "0"
	if a.Localhost {
		local = "1"
	}
	// Override the host's settings for new devices: the data plane filters sources, and no
	// router is behind the device.
	err := errors.Join(
		sysctl(local, "net/ipv4/conf", dev.Attrs().Name, "route_localnet"),
		sysctl("0", "net/ipv4/conf", dev.Attrs().Name, "rp_filter"))
	// In a container of Docker, IPv6 is off by default.
	for _, key := range []string{"accept_ra", "disable_ipv6"} {
		if e := sysctl("0", "net/ipv6/conf", dev.Attrs().Name, key); !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	if err != nil {
		return err
	}
	if err := l.nl.LinkSetUp(dev); err != nil {
		return fmt.Errorf("set %s up: %w", dev.Attrs().Name, err)
	}
	for _, addr := range []netip.Addr{a.Address, a.Address6} {
		if !addr.IsValid() {
			continue
		}
		if err := neighbour(l.nl, index, addr, MAC(a.Address)); err != nil {
			if addr.Is6() && noIPv6(err) {
				continue
			}
			return err
		}
		err := l.nl.RouteReplace(&netlink.Route{
			LinkIndex: index, Dst: host(addr), Scope: netlink.SCOPE_LINK, Protocol: RouteProtocol,
		})
		if err != nil {
			return fmt.Errorf("set the route to %s: %w", addr, err)
		}
	}
	return nil
}

func instanceEnd(a Attachment, nl *netlink.Handle, dev netlink.Link) error {
	index := dev.Attrs().Index
	if lo, err := nl.LinkByIndex(1); err == nil && lo.Attrs().Flags&net.FlagUp == 0 {
		if err := nl.LinkSetUp(lo); err != nil {
			return fmt.Errorf("set lo up: %w", err)
		}
	}
	if err := setMTU(nl, dev, a.MTU); err != nil {
		return err
	}
	if err := nl.LinkSetUp(dev); err != nil {
		return fmt.Errorf("set %s up: %w", inside, err)
	}
	routes := []struct{ addr, gateway, all netip.Addr }{
		{a.Address, wire.GatewayAddr, netip.IPv4Unspecified()},
		{a.Address6, wire.GatewayAddr6, netip.IPv6Unspecified()},
	}
	for _, w := range routes {
		if !w.addr.IsValid() {
			continue
		}
		err := nl.AddrReplace(dev, &netlink.Addr{IPNet: host(w.addr), Flags: unix.IFA_F_NODAD})
		if w.addr.Is6() && noIPv6(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("add address %s: %w", w.addr, err)
		}
		if err := neighbour(nl, index, w.gateway, gatewayMAC); err != nil {
			return err
		}
		route := netlink.Route{
			LinkIndex: index, Dst: network(netip.PrefixFrom(w.all, 0)), Gw: w.gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK),
		}
		err = nl.RouteReplace(&route)
		if errors.Is(err, unix.EINVAL) {
			// Beside a running virtual machine the gateway's address is local: the route is from before its start.
			had, lerr := nl.RouteListFiltered(familyOf(w.gateway), &route, netlink.RT_FILTER_OIF|netlink.RT_FILTER_GW)
			if lerr == nil && len(had) > 0 {
				err = nil
			}
		}
		if err != nil {
			return fmt.Errorf("set the default route by %s: %w", w.gateway, err)
		}
	}
	return nil
}

func setMTU(nl *netlink.Handle, dev netlink.Link, mtu int) error {
	if dev.Attrs().MTU == mtu {
		return nil
	}
	return wrap(nl.LinkSetMTU(dev, mtu), "set the MTU of %s to %d", dev.Attrs().Name, mtu)
}

func familyOf(a netip.Addr) int {
	if a.Is6() {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

func neighbour(nl *netlink.Handle, index int, a netip.Addr, mac net.HardwareAddr) error {
	err := nl.NeighSet(&netlink.Neigh{LinkIndex: index, Family: familyOf(a), State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac})
	return wrap(err, "set neighbour %s", a)
}

// Detach deletes the instance's device, with its routes and neighbours. It succeeds if there is
// none.
func (l *Links) Detach(a netip.Addr) error {
	name := plane.Device(l.prefix, a)
	dev, err := l.nl.LinkByName(name)
	if err == nil {
		err = l.nl.LinkDel(dev)
	}
	return wrap(unlessNone(err), "detach %s", a)
}

// List returns the attachments, including those of earlier starts. The kernel deletes devices with
// their namespace.
func (l *Links) List() ([]Found, error) {
	links, err := l.nl.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	var out []Found
	for _, dev := range links {
		name := dev.Attrs().Name
		if a, ours := l.address(name); ours && dev.Type() == "veth" && strings.HasPrefix(name, l.prefix) {
			out = append(out, Found{a, name, dev.Attrs().MTU})
		}
	}
	return out, nil
}
