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
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// Attachment is what an instance has of the network. Its key is its address.
type Attachment struct {
	Address  netip.Addr // IPv4
	Address6 netip.Addr // its twin
	NetNS    string     // path of the instance's network namespace
	MTU      int        // bytes of an inner packet; 0: 1500
	In, Out  int64      // Mbit/s that it may receive and send; 0 bounds nothing
	// Localhost lets the host reach a published port of the instance by 127.0.0.1.
	Localhost bool
}

// Found is an attachment as the kernel has it.
type Found struct {
	Address netip.Addr
	Device  string // the host's end
	MTU     int
}

// inside is what the device is called within the instance.
const inside = "eth0"

// gatewayMAC is every host end's Ethernet address: containers have it as a
// permanent neighbour, so that nobody has to ask or answer.
var gatewayMAC = net.HardwareAddr{0x02, 0x54, 0xff, 0xff, 0xff, 0x01}

// MAC is an instance's Ethernet address: locally administered, and its IPv4 address.
func MAC(a netip.Addr) net.HardwareAddr {
	b := a.As4()
	return net.HardwareAddr{0x02, 0x54, b[0], b[1], b[2], b[3]}
}

// Attach gives the namespace its eth0: address, twin, and a default route to the host,
// which routes to it. The same again mends what is not so; another namespace under the
// same address takes it over. If it fails there is no device.
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

// pair finds the veth pair or makes it.
func (l *Links) pair(a Attachment, within *netlink.Handle, ns int) (out, in netlink.Link, err error) {
	name := plane.Device(l.prefix, a.Address)
	out, err = l.nl.LinkByName(name)
	if err == nil {
		in, err = within.LinkByName(inside)
		if err == nil && in.Attrs().ParentIndex == out.Attrs().Index && out.Attrs().ParentIndex == in.Attrs().Index {
			return out, in, nil
		}
		if err = l.nl.LinkDel(out); err != nil && !none(err) { // an earlier namespace's
			return nil, nil, fmt.Errorf("delete %s: %w", name, err)
		}
	} else if !none(err) {
		return nil, nil, fmt.Errorf("look for %s: %w", name, err)
	}
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, MTU: a.MTU, HardwareAddr: gatewayMAC, TxQLen: -1},
		PeerName:  inside, PeerHardwareAddr: MAC(a.Address), PeerNamespace: netlink.NsFd(ns), PeerMTU: uint32(a.MTU), PeerTxQLen: -1,
	}
	// In one step: a kill leaves both ends or none.
	if err := l.nl.LinkAdd(veth); err != nil {
		return nil, nil, fmt.Errorf("make %s: %w", name, err)
	}
	if out, err = l.nl.LinkByName(name); err != nil {
		return nil, nil, fmt.Errorf("look for %s: %w", name, err)
	}
	if in, err = within.LinkByName(inside); err != nil {
		return nil, nil, fmt.Errorf("look for %s: %w", inside, err)
	}
	return out, in, nil
}

// hostEnd routes to the instance.
func (l *Links) hostEnd(a Attachment, dev netlink.Link) error {
	index := dev.Attrs().Index
	if dev.Attrs().MTU != a.MTU {
		if err := l.nl.LinkSetMTU(dev, a.MTU); err != nil {
			return fmt.Errorf("set the MTU: %w", err)
		}
	}
	local := "0"
	if a.Localhost {
		local = "1"
	}
	// Nothing else of the host's settings for new devices may get in our way: a strict
	// filter of sources is the data plane's, and a router there is none behind it.
	err := errors.Join(
		sysctl(local, "net/ipv4/conf", dev.Attrs().Name, "route_localnet"),
		sysctl("0", "net/ipv4/conf", dev.Attrs().Name, "rp_filter"))
	if e := sysctl("0", "net/ipv6/conf", dev.Attrs().Name, "accept_ra"); !errors.Is(e, os.ErrNotExist) {
		err = errors.Join(err, e)
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
			return fmt.Errorf("route to %s: %w", addr, err)
		}
	}
	return nil
}

// instanceEnd gives the instance its addresses and the way out.
func instanceEnd(a Attachment, nl *netlink.Handle, dev netlink.Link) error {
	index := dev.Attrs().Index
	if lo, err := nl.LinkByIndex(1); err == nil && lo.Attrs().Flags&net.FlagUp == 0 {
		if err := nl.LinkSetUp(lo); err != nil {
			return fmt.Errorf("set lo up: %w", err)
		}
	}
	if dev.Attrs().MTU != a.MTU {
		if err := nl.LinkSetMTU(dev, a.MTU); err != nil {
			return fmt.Errorf("set the MTU: %w", err)
		}
	}
	if err := nl.LinkSetUp(dev); err != nil {
		return fmt.Errorf("set %s up: %w", inside, err)
	}
	ways := []struct{ addr, gateway, all netip.Addr }{
		{a.Address, api.GatewayAddr, netip.IPv4Unspecified()},
		{a.Address6, api.GatewayAddr6, netip.IPv6Unspecified()},
	}
	for _, w := range ways {
		if !w.addr.IsValid() {
			continue
		}
		err := nl.AddrReplace(dev, &netlink.Addr{IPNet: host(w.addr), Flags: unix.IFA_F_NODAD})
		if w.addr.Is6() && noIPv6(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("give it %s: %w", w.addr, err)
		}
		if err := neighbour(nl, index, w.gateway, gatewayMAC); err != nil {
			return err
		}
		err = nl.RouteReplace(&netlink.Route{
			LinkIndex: index, Dst: network(netip.PrefixFrom(w.all, 0)), Gw: w.gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK),
		})
		if err != nil {
			return fmt.Errorf("default route by %s: %w", w.gateway, err)
		}
	}
	return nil
}

func neighbour(nl *netlink.Handle, index int, a netip.Addr, mac net.HardwareAddr) error {
	family := netlink.FAMILY_V4
	if a.Is6() {
		family = netlink.FAMILY_V6
	}
	err := nl.NeighSet(&netlink.Neigh{LinkIndex: index, Family: family, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac})
	if err != nil {
		return fmt.Errorf("neighbour %s: %w", a, err)
	}
	return nil
}

// Detach takes the instance's device away, and with it all that it had. It
// succeeds where there is none.
func (l *Links) Detach(a netip.Addr) error {
	name := plane.Device(l.prefix, a)
	dev, err := l.nl.LinkByName(name)
	if err == nil {
		err = l.nl.LinkDel(dev)
	}
	if err != nil && !none(err) {
		return fmt.Errorf("detach %s: %w", a, err)
	}
	return nil
}

// List is what is attached, also by earlier lives. What is not there any more went
// with its namespace.
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
