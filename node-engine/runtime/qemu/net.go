package qemu

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	goruntime "runtime"

	_ "github.com/treeline-edge/treeline/internal/mainthread"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A guest's interface is a tap device in the instance's network namespace. The netmanager's eth0 is there
// too, with the instance's addresses, limits and policies. Whatever arrives at one of the two devices is
// redirected to the other, so that the guest is where a container would be. What stays in the namespace:
//
//   - ARP and neighbour discovery of the guest. The namespace answers for every address with the Ethernet
//     address of the host's end.
//   - packets to the gateway's address. They are answers to connections from within the namespace, such as
//     health checks, which have a route to the guest of their own.
const (
	eth0 = "eth0"
	tap0 = "tap0"

	guestTable  = 77 // of routes to the guest from within the namespace
	guestPref   = 5  // of the rule for the table
	localPref   = 10 // to which the rule for local addresses moves, which would hide the guest
	localTable  = 255
	ingressRoot = 0xffff
)

const namespaces = "/run/netns"

// namespaceOf returns the path of a workload's network namespace. Several engines on a machine, such as those
// of two installations, can have workloads of the same id.
func namespaceOf(stateDir, id string) string {
	engine := sha256.Sum256([]byte(stateDir))
	return filepath.Join(namespaces, "treeline-"+hex.EncodeToString(engine[:4])+"-"+id)
}

// onThread runs fn on a thread that ends with it.
func onThread(fn func() error) error {
	result := make(chan error, 1)
	go func() {
		goruntime.LockOSThread()
		result <- fn()
	}()
	return <-result
}

// inNamespace runs fn on a thread in the network namespace.
func inNamespace(path string, fn func() error) error {
	return onThread(func() error {
		if err := enter(path); err != nil {
			return err
		}
		return fn()
	})
}

// enter moves this thread to the network namespace.
func enter(path string) error {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", path, err)
	}
	defer ns.Close()
	return netns.Set(ns)
}

// createNamespace creates a named network namespace. It replaces one of the same name.
func createNamespace(path string) error {
	if err := deleteNamespace(path); err != nil {
		return err
	}
	return onThread(func() error {
		ns, err := netns.NewNamed(filepath.Base(path))
		if err != nil {
			return fmt.Errorf("create network namespace %s: %w", path, err)
		}
		return ns.Close()
	})
}

// deleteNamespace deletes the name. The namespace ends with its last process.
func deleteNamespace(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount network namespace %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// connect creates the tap device on this thread, which is in the instance's network namespace. It returns
// nil if the namespace has no eth0.
func connect() (tap *os.File, n *interfaceOf, err error) {
	out, err := netlink.LinkByName(eth0)
	if _, none := errors.AsType[netlink.LinkNotFoundError](err); none {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	n, gateway, err := describe(out)
	if err != nil {
		return nil, nil, err
	}
	in := &netlink.Tuntap{
		LinkAttrs: netlink.LinkAttrs{Name: tap0, TxQLen: -1}, Mode: netlink.TUNTAP_MODE_TAP, NonPersist: true, Queues: 1,
		Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR,
	}
	if err := netlink.LinkAdd(in); err != nil {
		return nil, nil, fmt.Errorf("create %s: %w", tap0, err)
	}
	tap = in.Fds[0]
	if err := join(out, n, gateway); err != nil {
		return nil, nil, errors.Join(err, tap.Close())
	}
	return tap, n, nil
}

// describe returns what the netmanager gave the instance.
func describe(out netlink.Link) (*interfaceOf, net.HardwareAddr, error) {
	n := &interfaceOf{mac: out.Attrs().HardwareAddr.String(), mtu: out.Attrs().MTU}
	addrs, err := netlink.AddrList(out, netlink.FAMILY_ALL)
	if err != nil {
		return nil, nil, err
	}
	for _, a := range addrs {
		ip, _ := netip.AddrFromSlice(a.IP)
		switch ip = ip.Unmap(); {
		case ip.Is4():
			n.address = ip
		case !ip.IsLinkLocalUnicast():
			n.address6 = ip
		}
	}
	neighbours, err := netlink.NeighList(out.Attrs().Index, netlink.FAMILY_V4)
	if err != nil {
		return nil, nil, err
	}
	for _, x := range neighbours {
		if x.IP.Equal(wire.GatewayAddr.AsSlice()) {
			n.gatewayMAC = x.HardwareAddr.String()
			return n, x.HardwareAddr, nil
		}
	}
	return nil, nil, fmt.Errorf("%s has no neighbour %s", eth0, wire.GatewayAddr)
}

// join connects both devices.
func join(out netlink.Link, n *interfaceOf, gateway net.HardwareAddr) error {
	in, err := netlink.LinkByName(tap0)
	if err != nil {
		return err
	}
	for name, value := range map[string]string{
		"ipv4/conf/tap0/proxy_arp": "1", "ipv4/conf/tap0/forwarding": "1", "ipv4/neigh/tap0/proxy_delay": "0",
		"ipv4/conf/tap0/rp_filter": "0", "ipv4/conf/all/rp_filter": "0", "ipv4/conf/tap0/accept_local": "1",
		"ipv6/conf/tap0/accept_ra": "0", "ipv6/conf/tap0/accept_dad": "0",
	} {
		err := os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // without IPv6
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	if err := netlink.LinkSetHardwareAddr(in, gateway); err != nil {
		return fmt.Errorf("set the address of %s: %w", tap0, err)
	}
	if err := netlink.LinkSetMTU(in, n.mtu); err != nil {
		return fmt.Errorf("set the MTU of %s: %w", tap0, err)
	}
	if err := netlink.LinkSetUp(in); err != nil {
		return fmt.Errorf("set %s up: %w", tap0, err)
	}
	if err := answer(in, n); err != nil {
		return err
	}
	for _, dev := range []netlink.Link{out, in} {
		q := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: dev.Attrs().Index, Handle: netlink.MakeHandle(ingressRoot, 0), Parent: netlink.HANDLE_INGRESS,
		}}
		_ = netlink.QdiscDel(q) // of an earlier attempt in this namespace
		if err := netlink.QdiscAdd(q); err != nil {
			return fmt.Errorf("add the ingress queue of %s: %w", dev.Attrs().Name, err)
		}
	}
	return errors.Join(redirect(out, in), keep(in), redirect(in, out))
}

// answer makes the namespace the guest's gateway, for what is not redirected.
func answer(in netlink.Link, n *interfaceOf) error {
	index := in.Attrs().Index
	own := &netlink.Addr{IPNet: host(wire.GatewayAddr), Scope: int(netlink.SCOPE_LINK)}
	if err := netlink.AddrReplace(in, own); err != nil {
		return fmt.Errorf("add %s to %s: %w", wire.GatewayAddr, tap0, err)
	}
	own6 := &netlink.Addr{IPNet: host(wire.GatewayAddr6), Flags: unix.IFA_F_NODAD}
	if err := netlink.AddrReplace(in, own6); err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EACCES) {
		return fmt.Errorf("add %s to %s: %w", wire.GatewayAddr6, tap0, err)
	}
	mac, err := net.ParseMAC(n.mac)
	if err != nil {
		return err
	}
	err = netlink.NeighSet(&netlink.Neigh{LinkIndex: index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT, IP: n.address.AsSlice(), HardwareAddr: mac})
	if err != nil {
		return fmt.Errorf("set neighbour %s: %w", n.address, err)
	}
	err = netlink.RouteReplace(&netlink.Route{LinkIndex: index, Dst: host(n.address), Src: wire.GatewayAddr.AsSlice(), Scope: netlink.SCOPE_LINK, Table: guestTable})
	if err != nil {
		return fmt.Errorf("set the route to the guest: %w", err)
	}
	toGuest, local, first := netlink.NewRule(), netlink.NewRule(), netlink.NewRule()
	toGuest.Priority, toGuest.Table, toGuest.Dst = guestPref, guestTable, host(n.address)
	local.Priority, local.Table = localPref, localTable
	first.Priority, first.Table = 0, localTable
	for _, r := range []*netlink.Rule{toGuest, local} {
		if err := netlink.RuleAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add rule %d: %w", r.Priority, err)
		}
	}
	if err := netlink.RuleDel(first); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete the first rule: %w", err)
	}
	return nil
}

// host returns the network of one address.
func host(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// filter returns a filter of what arrives at a device.
func filter(dev netlink.Link, priority uint16, protocol uint16) *netlink.U32 {
	return &netlink.U32{FilterAttrs: netlink.FilterAttrs{
		LinkIndex: dev.Attrs().Index, Parent: netlink.MakeHandle(ingressRoot, 0), Priority: priority, Protocol: protocol,
	}}
}

// keep leaves what is for the gateway, and multicast, in the namespace.
func keep(in netlink.Link) error {
	for i, k := range []struct {
		protocol uint16
		keys     []netlink.TcU32Key
	}{
		{unix.ETH_P_IP, equal(16, wire.GatewayAddr)},
		{unix.ETH_P_IPV6, equal(24, wire.GatewayAddr6)},
		{unix.ETH_P_IPV6, []netlink.TcU32Key{{Mask: 0xff000000, Val: 0xff000000, Off: 24}}},
	} {
		f := filter(in, uint16(i+1), k.protocol)
		f.ClassId = netlink.MakeHandle(1, 1) // matches, and nothing else happens
		f.Sel = &netlink.TcU32Sel{Flags: netlink.TC_U32_TERMINAL, Nkeys: uint8(len(k.keys)), Keys: k.keys}
		if err := netlink.FilterAdd(f); err != nil {
			return fmt.Errorf("add a filter to %s: %w", tap0, err)
		}
	}
	return nil
}

// equal returns the keys of an address at an offset of the IP header.
func equal(offset int32, a netip.Addr) (keys []netlink.TcU32Key) {
	b := a.AsSlice()
	for i := 0; i < len(b); i += 4 {
		v := uint32(b[i])<<24 | uint32(b[i+1])<<16 | uint32(b[i+2])<<8 | uint32(b[i+3])
		keys = append(keys, netlink.TcU32Key{Mask: 0xffffffff, Val: v, Off: offset + int32(i)})
	}
	return keys
}

// redirect sends the IP packets that arrive at a device out of the other one.
func redirect(from, to netlink.Link) error {
	for i, protocol := range []uint16{unix.ETH_P_IP, unix.ETH_P_IPV6} {
		f := filter(from, uint16(i+10), protocol)
		f.RedirIndex = to.Attrs().Index
		if err := netlink.FilterAdd(f); err != nil {
			return fmt.Errorf("redirect %s to %s (needs the kernel's cls_u32 and act_mirred): %w", from.Attrs().Name, to.Attrs().Name, err)
		}
	}
	return nil
}
