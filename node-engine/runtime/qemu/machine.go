package qemu

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode"

	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime/qemu/guest"
)

// machine is what a shim runs besides its plan. Nothing in it but Cmdline, Args and Env is chosen by
// tenants, and these reach QEMU as one argument or in a file.
type machine struct {
	QEMU      string // path
	Accel     string // kvm or tcg
	Unikernel bool
	MemoryMB  int64 // of the guest
	CPUs      int
	NetNS     string // path
	Hostname  string
	Resolv    string // resolv.conf
	Hosts     string // hosts
	Cmdline   string // the image's template; empty: the default
	Args      []string
	Env       []string
	Initrd    bool // the image has one
	KHz       int  // of the time stamp counter, if it is emulated; 0: unknown
}

// interfaceOf is the guest's network interface.
type interfaceOf struct {
	address, address6 netip.Addr
	mac, gatewayMAC   string
	mtu               int
}

const (
	// prefixBits is the length of the guest's prefix. Only the node is behind the guest's interface and
	// answers ARP for every address, so that any prefix does whose broadcast address is not assigned.
	prefixBits = 24
	netmask    = "255.255.255.0"
	// maxCmdline is what Linux takes on amd64, without the terminating zero.
	maxCmdline = 2047
)

// gateway returns the guest's gateway: an address in its prefix, because some kernels want that.
func (n interfaceOf) gateway() netip.Addr {
	b := n.address.As4()
	if b[3] = 254; netip.AddrFrom4(b) == n.address {
		b[3] = 253
	}
	return netip.AddrFrom4(b)
}

// Descriptors that QEMU inherits.
const (
	qmpFD = iota + 3
	kernelFD
	initrdFD
	tapFD
)

// arguments returns QEMU's arguments; n is nil without a network.
func (m machine) arguments(cmdline string, initrd bool, n *interfaceOf) []string {
	board, bus := "microvm", "device"
	if m.Unikernel {
		board, bus = "q35", "pci" // unikernels have drivers for PCI
	}
	accel, cpu := "tcg,tb-size=32", "max"
	if m.Accel == "kvm" {
		accel, cpu = "kvm", "host"
	}
	args := []string{
		m.QEMU, "-no-user-config", "-nodefaults", "-display", "none", "-no-reboot",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-machine", board, "-accel", accel, "-cpu", cpu,
		"-m", strconv.FormatInt(m.MemoryMB, 10) + "M", "-smp", strconv.Itoa(m.CPUs),
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-chardev", "socket,id=monitor,fd=" + strconv.Itoa(qmpFD), "-mon", "chardev=monitor,mode=control",
		"-device", "isa-debug-exit,iobase=" + strconv.Itoa(guest.ExitPort) + ",iosize=4",
		"-device", "virtio-rng-" + bus,
		"-kernel", "/proc/self/fd/" + strconv.Itoa(kernelFD),
	}
	if initrd {
		args = append(args, "-initrd", "/proc/self/fd/"+strconv.Itoa(initrdFD))
	}
	if n != nil {
		nic := fmt.Sprintf("virtio-net-%s,netdev=net,mac=%s,host_mtu=%d", bus, n.mac, n.mtu)
		if m.Unikernel {
			nic += ",romfile="
		}
		args = append(args, "-netdev", "tap,id=net,fd="+strconv.Itoa(tapFD), "-device", nic)
	}
	return append(args, "-append", cmdline)
}

const (
	linuxCmdline = "console=ttyS0 quiet loglevel=0 panic=-1 reboot=t"
	linuxNetwork = " ip={address}::{gateway}:{netmask}:{hostname}:eth0:off:{resolver}"
	// unikernelNetwork is what Oakestra passes, and Unikraft takes.
	unikernelNetwork = "netdev.ipv4_addr={address} netdev.ipv4_gw_addr={gateway} netdev.ipv4_subnet_mask={netmask} "
)

// cmdline returns the kernel's parameters: the image's template with its variables replaced, after
// Treeline's own for Linux.
func (m machine) cmdline(n *interfaceOf) (string, error) {
	text := m.Cmdline
	switch {
	case !m.Unikernel:
		own := linuxCmdline
		if n != nil {
			own += linuxNetwork
		}
		if m.KHz > 0 {
			own += " tsc_early_khz=" + strconv.Itoa(m.KHz)
		}
		text = own + " " + text
	case text == "" && n != nil:
		text = unikernelNetwork + "-- {args}"
	case text == "":
		text = "-- {args}"
	}
	values := []string{"{hostname}", m.Hostname, "{args}", strings.Join(m.Args, " "), "{address}", "", "{prefix}", "", "{netmask}", "", "{gateway}", "", "{resolver}", ""}
	if n != nil {
		values = []string{
			"{hostname}", m.Hostname, "{args}", strings.Join(m.Args, " "), "{address}", n.address.String(), "{prefix}", strconv.Itoa(prefixBits),
			"{netmask}", netmask, "{gateway}", n.gateway().String(), "{resolver}", wire.ResolverAddr.String(),
		}
	}
	text = strings.TrimSpace(strings.NewReplacer(values...).Replace(text))
	if strings.ContainsFunc(text, unicode.IsControl) {
		return "", fmt.Errorf("the kernel's parameters contain a control character: %q", text)
	}
	if len(text) > maxCmdline {
		return "", fmt.Errorf("the kernel's parameters have %d bytes, at most %d", len(text), maxCmdline)
	}
	return text, nil
}

// checkArgs refuses arguments of a unikernel that its command line cannot carry.
func checkArgs(args []string) error {
	for _, a := range args {
		if strings.ContainsFunc(a, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
			return fmt.Errorf("cmd: %q contains white space, which a unikernel's command line cannot carry", a)
		}
	}
	return nil
}

// parameters returns what the guest finds in its initial file system.
func (m machine) parameters(n *interfaceOf) guest.Parameters {
	p := guest.Parameters{Args: m.Args, Env: m.Env, Hostname: m.Hostname}
	if n != nil {
		p.Network = &guest.Network{
			Address: netip.PrefixFrom(n.address, prefixBits).String(), Gateway: n.gateway().String(),
			MTU: n.mtu, MAC: n.mac, Resolver: wire.ResolverAddr.String(),
		}
		if n.address6.IsValid() {
			p.Network.Address6, p.Network.Gateway6 = n.address6.String()+"/128", wire.GatewayAddr6.String()
		}
	}
	return p
}
