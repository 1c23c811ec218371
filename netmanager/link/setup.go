package link

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// Forwarding is whether a host forwards packets. Setup enables it; its caller keeps the former
// value for Remove.
type Forwarding struct {
	IPv4 bool `json:"ipv4"`
	IPv6 bool `json:"ipv6"`
}

var forwarding = [2]string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"}

// Setup sets up what all instances share: forwarding, the resolver's address and the ranges'
// routes on the packet queue's device, and the VXLAN device; local is the node's address on the
// unencrypted network. Both TUN devices must exist. It is called at every start and may be
// repeated.
func (l *Links) Setup(n plane.Node, local netip.Addr) error {
	if n.Prefix != l.prefix {
		return fmt.Errorf("set up node with prefix %[2]q on links with prefix %[1]q: %[3]w", l.prefix, n.Prefix, api.ErrInvalid)
	}
	if err := forward(); err != nil {
		return err
	}
	queue, err := l.nl.LinkByName(n.Queue)
	if err != nil {
		return fmt.Errorf("find device %s of the packet queue: %w", n.Queue, err)
	}
	if err := l.bringUp(queue); err != nil {
		return err
	}
	r := n.Ranges
	for _, p := range []netip.Prefix{r.Instances, r.Services, r.Instances6, r.Services6} {
		err := l.nl.RouteReplace(&netlink.Route{LinkIndex: queue.Attrs().Index, Dst: network(p), Scope: netlink.SCOPE_LINK, Protocol: RouteProtocol})
		if err != nil && !(p.Addr().Is6() && noIPv6(err)) {
			return fmt.Errorf("route %s to %s: %w", p, n.Queue, err)
		}
	}
	if n.Tunnel != "" {
		tun, err := l.nl.LinkByName(n.Tunnel)
		if err != nil {
			return fmt.Errorf("find tunnel device %s: %w", n.Tunnel, err)
		}
		if err := l.bringUp(tun); err != nil {
			return err
		}
	}
	return l.vxlan(n, local)
}

func (l *Links) bringUp(dev netlink.Link) error {
	if err := l.acceptAnySource(dev); err != nil {
		return err
	}
	return wrap(l.nl.LinkSetUp(dev), "set %s up", dev.Attrs().Name)
}

// acceptAnySource adds the resolver's address to the device, and makes it accept packets whose source is
// routed to another device, even if net.ipv4.conf.all.rp_filter is 1: queued packets come back by
// the queue's device, and peers may send by another path than this node. The value is 2, because the
// kernel uses the greater of all's value and the device's. Without an address on the device it treats
// 2 as 1. The data plane checks sources instead.
func (l *Links) acceptAnySource(dev netlink.Link) error {
	name := dev.Attrs().Name
	if err := l.nl.AddrReplace(dev, &netlink.Addr{IPNet: host(wire.ResolverAddr), Scope: int(netlink.SCOPE_HOST)}); err != nil {
		return fmt.Errorf("add the resolver's address to %s: %w", name, err)
	}
	return sysctl("2", "net/ipv4/conf", name, "rp_filter")
}

// Forwards returns whether the host forwards now. It reads the calling thread's network namespace.
func Forwards() (now Forwarding, err error) {
	for i, to := range []*bool{&now.IPv4, &now.IPv6} {
		b, err := os.ReadFile(forwarding[i])
		if i == 1 && errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
			break
		}
		if err != nil {
			return now, fmt.Errorf("read whether the host forwards: %w", err)
		}
		*to = strings.TrimSpace(string(b)) != "0"
	}
	return now, nil
}

func forward() error {
	for i, path := range forwarding {
		b, err := os.ReadFile(path)
		if i == 1 && errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err == nil && strings.TrimSpace(string(b)) == "0" {
			err = writable(os.WriteFile(path, []byte("1"), 0o644))
		}
		if err != nil {
			return fmt.Errorf("enable forwarding: %w", err)
		}
	}
	return nil
}

// vxlan creates the VXLAN device, or deletes it if n.VXLAN is 0. The destination is in each route,
// so that a peer needs two routes and a neighbour.
func (l *Links) vxlan(n plane.Node, local netip.Addr) error {
	name := plane.VXLANDevice(l.prefix)
	dev, err := l.nl.LinkByName(name)
	if err != nil && !none(err) {
		return fmt.Errorf("find %s: %w", name, err)
	}
	if v, ok := dev.(*netlink.Vxlan); err == nil &&
		(!ok || n.VXLAN == 0 || v.Port != int(n.VXLAN) || v.HardwareAddr.String() != MAC(local).String()) {
		if err := l.nl.LinkDel(dev); err != nil {
			return fmt.Errorf("delete %s: %w", name, err)
		}
		dev = nil
	}
	if n.VXLAN == 0 {
		return nil
	}
	if !local.Is4() {
		return fmt.Errorf("set up %s with local address %s: %w", name, local, api.ErrInvalid)
	}
	if dev == nil || err != nil {
		dev = &netlink.Vxlan{
			LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: MAC(local), MTU: vxlanMTU, TxQLen: -1},
			FlowBased: true, Port: int(n.VXLAN), Learning: false,
		}
		if err := l.nl.LinkAdd(dev); err != nil {
			return fmt.Errorf("create %s: %w", name, err)
		}
	}
	return l.bringUp(dev)
}

// vxlanMTU is the MTU within VXLAN over Ethernet in bytes: 1500 less 14 + 8 + 8 + 20. Routes to
// peers with another MTU have their own.
const vxlanMTU = 1450

// Remove deletes everything of the netmanager, including attachments, and restores forwarding. It
// succeeds if there is nothing.
func (l *Links) Remove(was Forwarding) error {
	var errs []error
	ours, err := l.ours()
	errs = append(errs, err)
	for _, dst := range ours {
		errs = append(errs, l.unroute(dst))
	}
	links, err := l.nl.LinkList()
	errs = append(errs, err)
	for _, dev := range links {
		name := dev.Attrs().Name
		_, veth := l.address(name)
		if veth && dev.Type() == "veth" || name == plane.VXLANDevice(l.prefix) {
			errs = append(errs, wrap(unlessNone(l.nl.LinkDel(dev)), "delete %s", name))
		} else {
			errs = append(errs, l.unaddress(dev))
		}
	}
	for i, on := range []bool{was.IPv4, was.IPv6} {
		if err := os.WriteFile(forwarding[i], []byte(map[bool]string{true: "1", false: "0"}[on]), 0o644); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("restore forwarding: %w", err))
		}
	}
	return errors.Join(errs...)
}

// unaddress deletes the netmanager's addresses from another device: Via6 of the device's IPv4
// addresses, and the resolver's.
func (l *Links) unaddress(dev netlink.Link) error {
	addrs, err := l.nl.AddrList(dev, netlink.FAMILY_ALL)
	if none(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", dev.Attrs().Name, err)
	}
	ours := map[netip.Addr]bool{wire.ResolverAddr: strings.HasPrefix(dev.Attrs().Name, l.prefix)}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP.To4()); ok {
			ours[Via6(ip)] = true
		}
	}
	for _, a := range addrs {
		if ip, _ := netip.AddrFromSlice(a.IP); ours[ip.Unmap()] {
			if err := unlessNone(l.nl.AddrDel(dev, &a)); err != nil {
				return fmt.Errorf("delete address %s of %s: %w", ip, dev.Attrs().Name, err)
			}
		}
	}
	return nil
}
