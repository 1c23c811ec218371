//go:build linux

package dev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
)

// hosts manages network namespaces that stand for the machines of nodes, because a netmanager owns
// the addresses, routes and rules of its machine. A bridge connects them to each other and to this
// machine, which masquerades their packets to other networks.
//
// A file lists what was created, so that scripts/down can remove it after a crash.
type hosts struct {
	tag  string
	file string       // lines "netns NAME", "link NAME", "table NAME" and "forwarding TAG"
	net  netip.Prefix // zero before up
	mu   *sync.Mutex  // guards the file, because nodes start concurrently
}

const (
	hostsFile   = "network"
	hostsPrefix = "treeline-dev-"
)

func networkTools() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("creating network namespaces needs root: %w", api.ErrForbidden)
	}
	for _, tool := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("%s is not installed (Debian: apt-get install iproute2 nftables): %w", tool, api.ErrNotFound)
		}
	}
	return nil
}

// newHosts returns the hosts of an installation. network is that of an earlier start, or zero.
func newHosts(tag, data string, network netip.Prefix) hosts {
	return hosts{tag: tag, file: filepath.Join(data, hostsFile), net: network, mu: new(sync.Mutex)}
}

// choose returns the installation's network: that of an earlier start, because certificates contain
// its addresses, or the first free /24 of 198.18.0.0/15 (RFC 2544, for benchmarks), beginning at a
// position that depends on the tag.
func (h hosts) choose(free func(netip.Prefix) bool) (netip.Prefix, error) {
	if h.net.IsValid() {
		if !free(h.net) {
			return h.net, fmt.Errorf("the installation's network %s is used by another program on this machine; free it, or use another --data: %w", h.net, api.ErrConflict)
		}
		return h.net, nil
	}
	begin, _ := strconv.ParseUint(h.tag, 36, 64)
	for i := range uint64(networks) {
		n := begin + i
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18 + byte(n>>8&1), byte(n), 0}), 24)
		if free(p) {
			return p, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("all %d networks of 198.18.0.0/15 are in use on this machine: %w", networks, api.ErrConflict)
}

// networks is the number of /24 networks in 198.18.0.0/15.
const networks = 512

func (h hosts) bridge() string           { return "tl" + h.tag } // at most nine characters
func (h hosts) gateway() netip.Addr      { return h.net.Addr().Next() }
func (h hosts) netns(node string) string { return hostsPrefix + h.tag + "-" + node }
func (h hosts) table() string            { return hostsPrefix + h.tag }

func (h hosts) address(i int) netip.Addr {
	b := h.net.Addr().As4()
	b[3] = byte(10 + i)
	return netip.AddrFrom4(b)
}

// up creates the bridge if it does not exist, and returns its network.
func (h hosts) up(ctx context.Context) (netip.Prefix, error) {
	if err := h.addBridge(ctx); err != nil {
		return h.net, err
	}
	return h.net, h.masquerade(ctx)
}

// addBridge creates the bridge, with an address in a network that this machine does not use. It
// holds the machine's lock, so that no other installation chooses the same network.
func (h *hosts) addBridge(ctx context.Context) error {
	lock, err := thisMachine.lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	bridge, err := net.InterfaceByName(h.bridge())
	there := err == nil
	if there && !h.net.IsValid() { // an earlier start ended before it saved its network
		h.net = networkOf(bridge)
	}
	if !there || !h.net.IsValid() {
		h.net, err = h.choose(func(p netip.Prefix) bool {
			out, err := exec.CommandContext(ctx, "ip", "-4", "route", "show", "root", p.String()).Output()
			return err != nil || len(bytes.TrimSpace(out)) == 0
		})
		if err != nil {
			return err
		}
	}
	if !there {
		if err := h.note("link " + h.bridge()); err != nil {
			return err
		}
		if err := run(ctx, "ip", "link", "add", "name", h.bridge(), "type", "bridge"); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"address", "replace", netip.PrefixFrom(h.gateway(), h.net.Bits()).String(), "dev", h.bridge()},
		{"link", "set", h.bridge(), "up"},
	} {
		if err := run(ctx, "ip", args...); err != nil {
			return err
		}
	}
	return nil
}

func networkOf(device *net.Interface) netip.Prefix {
	addrs, _ := device.Addrs()
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
			return p.Masked()
		}
	}
	return netip.Prefix{}
}

// masquerade gives the namespaces access to the networks that this machine can reach.
func (h hosts) masquerade(ctx context.Context) error {
	if err := h.note("forwarding " + h.tag); err != nil {
		return err
	}
	if err := thisMachine.forward(h.tag); err != nil {
		return err
	}
	if err := h.note("table " + h.table()); err != nil {
		return err
	}
	rules := fmt.Sprintf(`table ip %[1]s
delete table ip %[1]s
table ip %[1]s {
	chain post {
		type nat hook postrouting priority srcnat
		ip saddr %[2]s ip daddr != %[2]s masquerade
	}
}`, h.table(), h.net)
	return run(ctx, "nft", rules)
}

// host creates the namespace of node number i if it does not exist, and returns its path.
func (h hosts) host(ctx context.Context, node string, i int) (string, error) {
	name := h.netns(node)
	path := "/run/netns/" + name
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	near := "tl" + h.tag + "n" + strconv.FormatInt(int64(i), 36)
	if err := h.note("netns " + name); err != nil {
		return "", err
	}
	for _, args := range [][]string{
		{"ip", "netns", "add", name},
		{"ip", "link", "add", "name", near, "type", "veth", "peer", "name", "eth0", "netns", name},
		{"ip", "link", "set", near, "master", h.bridge(), "up"},
		{"ip", "-n", name, "link", "set", "lo", "up"},
		{"ip", "-n", name, "address", "add", netip.PrefixFrom(h.address(i), h.net.Bits()).String(), "dev", "eth0"},
		{"ip", "-n", name, "link", "set", "eth0", "up"},
		{"ip", "-n", name, "route", "add", "default", "via", h.gateway().String()},
	} {
		if err := run(ctx, args[0], args[1:]...); err != nil {
			_ = run(context.WithoutCancel(ctx), "ip", "netns", "delete", name) // the next attempt creates it again
			return "", err
		}
	}
	return path, nil
}

// note records, once, an object that is about to be created.
func (h hosts) note(line string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	text, err := os.ReadFile(h.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("record network changes: %w", err)
	}
	if strings.Contains("\n"+string(text), "\n"+line+"\n") {
		return nil
	}
	if err := os.WriteFile(h.file, append(text, line+"\n"...), 0o600); err != nil {
		return fmt.Errorf("record network changes: %w", err)
	}
	return nil
}

// down removes everything that note recorded. Missing objects are not an error.
func (h hosts) down() error {
	text, err := os.ReadFile(h.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read recorded network changes: %w", err)
	}
	ctx := context.Background()
	var errs []error
	for line := range strings.Lines(string(text)) {
		kind, what, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch kind {
		case "netns":
			if _, err := os.Stat("/run/netns/" + what); err == nil {
				errs = append(errs, run(ctx, "ip", "netns", "delete", what))
			}
		case "link":
			if run(ctx, "ip", "link", "show", "dev", what) == nil {
				errs = append(errs, run(ctx, "ip", "link", "delete", what))
			}
		case "table":
			errs = append(errs, run(ctx, "nft", fmt.Sprintf("table ip %[1]s\ndelete table ip %[1]s", what)))
		case "forwarding":
			errs = append(errs, thisMachine.release(what))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.Remove(h.file)
}

func run(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// within calls fn while the thread is in the network namespace at path. The caller has locked its
// goroutine to the thread.
func within(path string, fn func()) error {
	if path == "" {
		fn()
		return nil
	}
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("enter %s: %w", path, err)
	}
	defer own.Close()
	to, err := os.Open(path)
	if err == nil {
		defer to.Close()
		err = unix.Setns(int(to.Fd()), unix.CLONE_NEWNET)
	}
	if err != nil {
		return fmt.Errorf("enter %s: %w", path, err)
	}
	fn()
	if err := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); err != nil {
		panic("dev: cannot leave a network namespace: " + err.Error()) // otherwise other goroutines would run in that namespace
	}
	return nil
}
