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
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// Forwarding is whether a host forwards. Whoever runs Setup, which has it do so, keeps for
// Remove how it was before.
type Forwarding struct {
	IPv4 bool `json:"ipv4"`
	IPv6 bool `json:"ipv6"`
}

var forwarding = [2]string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"}

// Setup gives the node what all its instances share: forwarding, the resolver's
// address and the ranges' routes on the hold device, and the VXLAN device for a node whose
// address on the clear network is local. Both TUN devices must be there; a
// new life's are new, so it is called in every life. It may be repeated.
func (l *Links) Setup(n plane.Node, local netip.Addr) error {
	if n.Prefix != l.prefix {
		return fmt.Errorf("links of %q asked for %q: %w", l.prefix, n.Prefix, api.ErrInvalid)
	}
	if err := forward(); err != nil {
		return err
	}
	hold, err := l.nl.LinkByName(n.Hold)
	if err != nil {
		return fmt.Errorf("hold device %s: %w", n.Hold, err)
	}
	if err := l.loosen(hold); err != nil {
		return err
	}
	if err := l.nl.LinkSetUp(hold); err != nil {
		return fmt.Errorf("set %s up: %w", n.Hold, err)
	}
	r := n.Ranges
	for _, p := range []netip.Prefix{r.Instances, r.Services, r.Instances6, r.Services6} {
		err := l.nl.RouteReplace(&netlink.Route{LinkIndex: hold.Attrs().Index, Dst: network(p), Scope: netlink.SCOPE_LINK, Protocol: RouteProtocol})
		if err != nil && !(p.Addr().Is6() && noIPv6(err)) {
			return fmt.Errorf("route %s to %s: %w", p, n.Hold, err)
		}
	}
	if n.Tunnel != "" {
		tun, err := l.nl.LinkByName(n.Tunnel)
		if err != nil {
			return fmt.Errorf("tunnel device %s: %w", n.Tunnel, err)
		}
		if err := l.loosen(tun); err != nil {
			return err
		}
		if err := l.nl.LinkSetUp(tun); err != nil {
			return fmt.Errorf("set %s up: %w", n.Tunnel, err)
		}
	}
	return l.vxlan(n, local)
}

// loosen gives the device the resolver's address, and has it take packets in whose source's
// route is by another device, on a host that is strict too (net.ipv4.conf.all.rp_filter=1):
// what was held comes back by the hold device, and peers by one way while ours leads to them
// by another. Of all's value and a device's own the greater counts, so that 0 would not do, and
// 2 counts as 1 on a device without an address. Who may speak is the data plane's to say.
func (l *Links) loosen(dev netlink.Link) error {
	name := dev.Attrs().Name
	if err := l.nl.AddrReplace(dev, &netlink.Addr{IPNet: host(api.ResolverAddr), Scope: int(netlink.SCOPE_HOST)}); err != nil {
		return fmt.Errorf("give %s the resolver's address: %w", name, err)
	}
	return sysctl("2", "net/ipv4/conf", name, "rp_filter")
}

// Forwards is whether the host, the calling thread's namespace, forwards now.
func Forwards() (now Forwarding, err error) {
	for i, to := range []*bool{&now.IPv4, &now.IPv6} {
		b, err := os.ReadFile(forwarding[i])
		if i == 1 && errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
			break
		}
		if err != nil {
			return now, fmt.Errorf("see whether the host forwards: %w", err)
		}
		*to = strings.TrimSpace(string(b)) != "0"
	}
	return now, nil
}

// forward has the host forward.
func forward() error {
	for i, path := range forwarding {
		b, err := os.ReadFile(path)
		if i == 1 && errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err == nil && strings.TrimSpace(string(b)) == "0" {
			err = os.WriteFile(path, []byte("1"), 0o644)
		}
		if err != nil {
			return fmt.Errorf("have the host forward: %w", err)
		}
	}
	return nil
}

// vxlan makes the VXLAN device, or takes it away where none is asked for. Its
// routes say where each packet goes, so that a peer is two routes and a neighbour.
func (l *Links) vxlan(n plane.Node, local netip.Addr) error {
	name := plane.VXLANDevice(l.prefix)
	dev, err := l.nl.LinkByName(name)
	if err != nil && !none(err) {
		return fmt.Errorf("look for %s: %w", name, err)
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
		return fmt.Errorf("%s for %s: %w", name, local, api.ErrInvalid)
	}
	if dev == nil || err != nil {
		dev = &netlink.Vxlan{
			LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: MAC(local), MTU: vxlanMTU, TxQLen: -1},
			FlowBased: true, Port: int(n.VXLAN), Learning: false,
		}
		if err := l.nl.LinkAdd(dev); err != nil {
			return fmt.Errorf("make %s: %w", name, err)
		}
	}
	if err := l.loosen(dev); err != nil {
		return err
	}
	if err := l.nl.LinkSetUp(dev); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

// vxlanMTU is what a packet may have within VXLAN over Ethernet: 14 + 8 + 8 + 20
// bytes less than 1500. Peers whose way is wider or narrower say so in their routes.
const vxlanMTU = 1450

// Remove takes everything of ours away, attachments too, and lets the host
// forward as it was. It succeeds where there is nothing.
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
			if err := l.nl.LinkDel(dev); err != nil && !none(err) {
				errs = append(errs, fmt.Errorf("delete %s: %w", name, err))
			}
			continue
		}
		errs = append(errs, l.unaddress(dev))
	}
	for i, on := range []bool{was.IPv4, was.IPv6} {
		if err := os.WriteFile(forwarding[i], []byte(map[bool]string{true: "1", false: "0"}[on]), 0o644); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("put forwarding back: %w", err))
		}
	}
	return errors.Join(errs...)
}

// unaddress takes our addresses from a device that is not ours to delete: Via6
// of an IPv4 address that is on it too, and the resolver's.
func (l *Links) unaddress(dev netlink.Link) error {
	addrs, err := l.nl.AddrList(dev, netlink.FAMILY_ALL)
	if none(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", dev.Attrs().Name, err)
	}
	ours := map[netip.Addr]bool{api.ResolverAddr: strings.HasPrefix(dev.Attrs().Name, l.prefix)}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP.To4()); ok {
			ours[Via6(ip)] = true
		}
	}
	for _, a := range addrs {
		ip, _ := netip.AddrFromSlice(a.IP)
		if !ours[ip.Unmap()] {
			continue
		}
		if err := l.nl.AddrDel(dev, &a); err != nil && !none(err) {
			return fmt.Errorf("take %s from %s: %w", ip, dev.Attrs().Name, err)
		}
	}
	return nil
}
