// Package netlab provides networks for tests. Hosts are network namespaces, connected by veth
// pairs and switches, behind NATs of every kind (nftables), over links with delay and loss (a
// process that copies frames). It needs root. Names are unique to a lab, the machine's own network
// is not changed, and everything is removed at the end of the test.
//
// The package does not depend on Treeline.
//
//	lab := netlab.New(t)
//	wan := lab.Switch("wan")
//	relay := lab.Host("relay")
//	relay.Plug(wan, "eth0", "203.0.113.1/24")
//	home := lab.Site("home", netlab.PortRestricted, wan, "203.0.113.10/24", "192.168.1.0/24")
//	home.Do(func() { conn, err = net.ListenPacket("udp", ":0") })
package netlab

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/internal/programtest"
)

// T is what a lab needs of a test or of a benchmark.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
	Skip(args ...any)
	Cleanup(fn func())
}

// Lab is one test network.
type Lab struct {
	t     T
	id    string
	veths int
}

var labs atomic.Int32

// New returns a lab, which ends with the test. Without root it skips the test.
func New(t T) *Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	programtest.Need(t, "ip", "nft", "conntrack", "ethtool", "nsenter", "sysctl")
	return &Lab{t: t, id: fmt.Sprintf("nl%d-%d-", os.Getpid(), labs.Add(1))}
}

// Host is a network namespace.
type Host struct {
	lab  *Lab
	Name string
	ns   string
}

// Host adds a host without connections.
func (l *Lab) Host(name string) *Host {
	l.t.Helper()
	h := &Host{lab: l, Name: name, ns: l.id + name}
	l.run("ip", "netns", "add", h.ns)
	l.t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", h.ns).Run() })
	h.ip("link", "set", "lo", "up")
	return h
}

// Switch adds a host that is a bridge.
func (l *Lab) Switch(name string) *Host {
	l.t.Helper()
	h := l.Host(name)
	h.ip("link", "add", "name", "br", "type", "bridge")
	h.ip("link", "set", "dev", "br", "up")
	return h
}

// Netns returns the name of the host's namespace for `ip netns`.
func (h *Host) Netns() string { return h.ns }

// Plug connects the host to a switch with a device, with an address unless that is "".
func (h *Host) Plug(sw *Host, dev, addr string) {
	h.lab.t.Helper()
	port := h.lab.veth(h, dev, sw)
	sw.ip("link", "set", port, "master", "br")
	sw.ip("link", "set", port, "up")
	h.up(dev, addr)
}

// Join connects two hosts by a cable.
func (l *Lab) Join(a *Host, devA, addrA string, b *Host, devB, addrB string) {
	l.t.Helper()
	port := l.veth(a, devA, b)
	b.ip("link", "set", port, "name", devB)
	a.up(devA, addrA)
	b.up(devB, addrB)
}

// veth adds a veth pair: dev on h, and the returned name on the other host.
func (l *Lab) veth(h *Host, dev string, other *Host) string {
	l.t.Helper()
	l.veths++
	port := fmt.Sprintf("p%d", l.veths)
	h.ip("link", "add", "name", dev, "type", "veth", "peer", "name", port, "netns", other.ns)
	return port
}

func (h *Host) up(dev, addr string) {
	h.lab.t.Helper()
	if addr != "" {
		h.ip("addr", "add", addr, "dev", dev)
	}
	h.ip("link", "set", dev, "up")
}

// Route adds a route to a network, or "default", through a gateway.
func (h *Host) Route(to, via string) {
	h.lab.t.Helper()
	h.ip("route", "replace", to, "via", via)
}

// ip runs ip on the host.
func (h *Host) ip(args ...string) {
	h.lab.t.Helper()
	h.lab.run(append([]string{"ip", "-n", h.ns}, args...)...)
}

// Run runs a program on the host and returns its output. If it fails, the test fails.
func (h *Host) Run(args ...string) string {
	h.lab.t.Helper()
	return h.lab.run(append([]string{"ip", "netns", "exec", h.ns}, args...)...)
}

// Nft loads rules into the host.
func (h *Host) Nft(rules string) {
	h.lab.t.Helper()
	cmd := exec.Command("ip", "netns", "exec", h.ns, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		h.lab.t.Fatalf("%s: nft: %v\n%s\n%s", h.Name, err, out, rules)
	}
}

// Do runs f on a thread in the host's network. Sockets and devices that f opens stay there, but
// goroutines that it starts run elsewhere.
func (h *Host) Do(f func()) {
	h.lab.t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // not unlocked: the thread ends with the goroutine
		done <- enter(h.ns, f)
	}()
	if err := <-done; err != nil {
		h.lab.t.Fatalf("enter %s: %v", h.Name, err)
	}
}

func enter(ns string, f func()) error {
	file, err := os.Open("/var/run/netns/" + ns)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	f()
	return nil
}

func (l *Lab) run(args ...string) string {
	l.t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		l.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// addrOf returns the address in a text of address/length.
func addrOf(prefix string) string { return netip.MustParsePrefix(prefix).Addr().String() }

// nth returns the nth address of a network, with its length.
func nth(network string, n int) string {
	p := netip.MustParsePrefix(network)
	a := p.Masked().Addr()
	for range n {
		a = a.Next()
	}
	return netip.PrefixFrom(a, p.Bits()).String()
}
