package link_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/dataplane/dataplanetest"
	"github.com/treeline-edge/treeline/netmanager/link"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

var ranges = wire.DefaultNetRanges()

func instance(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 16, byte(1 + n/250), byte(1 + n%250)})
}

func attachment(n int, s *dataplanetest.Space) link.Attachment {
	return link.Attachment{Address: instance(n), Address6: ranges.To6(instance(n)), NetNS: s.Path(), MTU: 1400}
}

// with runs f with the links of the space.
func with(t *testing.T, s *dataplanetest.Space, f func(*link.Links) error) {
	t.Helper()
	var err error
	s.Do(func() {
		var l *link.Links
		if l, err = link.New("tl"); err == nil {
			defer l.Close()
			err = f(l)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// snapshot returns the state that links could leave behind, as text.
func snapshot(s *dataplanetest.Space) string {
	var b strings.Builder
	for _, args := range []string{
		"-br link", "-br addr", "route show table all", "-6 route show table all", "rule", "-6 rule", "neigh show nud permanent", "-6 neigh show nud permanent",
	} {
		fmt.Fprintf(&b, "# %s\n%s", args, s.Output("ip", strings.Fields(args)...))
	}
	b.WriteString(s.Output("tc", "qdisc"))
	b.WriteString(s.Output("sysctl", "net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"))
	return b.String()
}

// difference returns the lines that were added and removed.
func difference(before, after string) string {
	var b strings.Builder
	was, is := strings.Split(before, "\n"), strings.Split(after, "\n")
	for _, l := range was {
		if !slices.Contains(is, l) {
			b.WriteString("- " + l + "\n")
		}
	}
	for _, l := range is {
		if !slices.Contains(was, l) {
			b.WriteString("+ " + l + "\n")
		}
	}
	return b.String()
}

// hold opens the TUN devices of the packet queue and the tunnel, as a netmanager would, until end.
func hold(t *testing.T, s *dataplanetest.Space, names ...string) (end func()) {
	t.Helper()
	var fds []int
	s.Do(func() {
		for _, name := range names {
			fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Error(err)
				return
			}
			req, _ := unix.NewIfreq(name)
			req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
			if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
				t.Error(err)
			}
			fds = append(fds, fd)
		}
	})
	return func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
}

func node(vxlan uint16) plane.Node {
	return plane.Node{Ranges: ranges, Prefix: "tl", Queue: "tlhold", Tunnel: "tltun", VXLAN: vxlan}
}

// In a container of Docker, and on machines of some administrators, new devices have no IPv6.
func TestAttachedInstancesReachOneAnother(t *testing.T) {
	for _, off := range []string{"0", "1"} {
		t.Run("disable_ipv6="+off, func(t *testing.T) { reachOneAnother(t, off) })
	}
}

func reachOneAnother(t *testing.T, off string) {
	host, a, b := dataplanetest.NewSpace(t, "h"), dataplanetest.NewSpace(t, "a"), dataplanetest.NewSpace(t, "b")
	host.Output("sysctl", "-w", "net.ipv6.conf.all.disable_ipv6="+off, "net.ipv6.conf.default.disable_ipv6="+off)
	defer hold(t, host, "tlhold", "tltun")()
	with(t, host, func(l *link.Links) error {
		if err := l.Setup(node(0), netip.Addr{}); err != nil {
			return err
		}
		for range 2 { // a repetition changes nothing
			if err := l.Attach(attachment(1, a)); err != nil {
				return err
			}
			if err := l.Attach(attachment(2, b)); err != nil {
				return err
			}
		}
		return nil
	})
	b.Serve("b", 80)
	for _, addr := range []netip.Addr{instance(2), ranges.To6(instance(2))} {
		for _, network := range []string{"tcp", "udp"} {
			if who, err := a.Ask(network, netip.AddrPortFrom(addr, 80)); err != nil || who != "b" {
				t.Errorf("a asked %s %s: %q, %v", network, addr, who, err)
			}
		}
	}
	if mtu := b.Output("ip", "-o", "link", "show", "eth0"); !strings.Contains(mtu, "mtu 1400") {
		t.Error(mtu)
	}
}

func TestAnotherNamespaceTakesTheAddressOver(t *testing.T) {
	host, a, b := dataplanetest.NewSpace(t, "h"), dataplanetest.NewSpace(t, "a"), dataplanetest.NewSpace(t, "b")
	with(t, host, func(l *link.Links) error {
		if err := l.Attach(attachment(1, a)); err != nil {
			return err
		}
		return l.Attach(attachment(1, b))
	})
	if out := a.Output("ip", "-br", "link"); strings.Contains(out, "eth0") {
		t.Errorf("the first namespace still has its device: %s", out)
	}
	if out := b.Output("ip", "-br", "addr"); !strings.Contains(out, instance(1).String()) {
		t.Errorf("the second namespace has not the address: %s", out)
	}
}

// TestAMachineIsAttachedAgain: beside a running virtual machine, the namespace has the gateway's addresses
// itself, on the machine's device.
func TestAMachineIsAttachedAgain(t *testing.T) {
	host, a := dataplanetest.NewSpace(t, "h"), dataplanetest.NewSpace(t, "a")
	again := func(l *link.Links) error { return l.Attach(attachment(1, a)) }
	with(t, host, again)
	routes := a.Output("ip", "route", "show", "default") + a.Output("ip", "-6", "route", "show", "default")
	a.IP("link add tap0 type bridge", "link set tap0 up", fmt.Sprintf("addr add %s/32 dev tap0", wire.GatewayAddr), fmt.Sprintf("addr add %s/128 dev tap0 nodad", wire.GatewayAddr6))
	with(t, host, again)
	if now := a.Output("ip", "route", "show", "default") + a.Output("ip", "-6", "route", "show", "default"); now != routes || !strings.Contains(now, "default") {
		t.Errorf("default routes: got %q, want %q", now, routes)
	}
}

func TestAFailedAttachLeavesNothing(t *testing.T) {
	host, a := dataplanetest.NewSpace(t, "h"), dataplanetest.NewSpace(t, "a")
	a.IP("link add eth0 type bridge") // another program's
	before := snapshot(host)
	with(t, host, func(l *link.Links) error {
		if err := l.Attach(attachment(1, a)); err == nil {
			t.Error("attached over a strange eth0")
		}
		gone := attachment(1, a)
		gone.NetNS = "/proc/0/ns/net"
		if err := l.Attach(gone); err == nil {
			t.Error("attached to no namespace")
		}
		return l.Detach(instance(1))
	})
	if after := snapshot(host); after != before {
		t.Error(difference(before, after))
	}
}

func TestAttachmentIsFoundAndGoesWithItsNamespace(t *testing.T) {
	host, a := dataplanetest.NewSpace(t, "h"), dataplanetest.NewSpace(t, "a")
	host.IP("link add tlx type bridge", "link add tl0a1001zz type bridge") // not of an instance
	with(t, host, func(l *link.Links) error { return l.Attach(attachment(1, a)) })
	with(t, host, func(l *link.Links) error { // after a restart
		found, err := l.List()
		if err != nil {
			return err
		}
		want := []link.Found{{Address: instance(1), Device: plane.Device("tl", instance(1)), MTU: 1400}}
		if !slices.Equal(found, want) {
			t.Errorf("found %v, want %v", found, want)
		}
		return nil
	})
	if out, err := exec.Command("ip", "-n", a.Name, "link", "del", "eth0").CombinedOutput(); err != nil {
		t.Fatalf("delete eth0: %v: %s", err, out)
	}
	with(t, host, func(l *link.Links) error {
		found, err := l.List()
		if len(found) > 0 {
			t.Errorf("found %v", found)
		}
		if err == nil {
			err = l.Detach(instance(1))
		}
		return err
	})
}

func TestBandwidthIsBounded(t *testing.T) {
	host, a := dataplanetest.NewSpace(t, "h"), dataplanetest.NewSpace(t, "a")
	x := attachment(1, a)
	x.In, x.Out = 20, 1000
	with(t, host, func(l *link.Links) error {
		if err := l.Attach(x); err != nil {
			return err
		}
		return l.Attach(x)
	})
	if q := host.Output("tc", "qdisc", "show", "dev", plane.Device("tl", instance(1))); !strings.Contains(q, "tbf") || !strings.Contains(q, "rate 20Mbit burst 80Kb") {
		t.Error(q)
	}
	if q := a.Output("tc", "qdisc", "show", "dev", "eth0"); !strings.Contains(q, "rate 1Gbit") {
		t.Error(q)
	}
	x.In, x.Out = 0, 0
	with(t, host, func(l *link.Links) error { return l.Attach(x) })
	if q := host.Output("tc", "qdisc") + a.Output("tc", "qdisc"); strings.Contains(q, "tbf") {
		t.Error(q)
	}
}

// TestKilledWhileAttaching repeatedly kills a process at different moments while it attaches and
// detaches.
func TestKilledWhileAttaching(t *testing.T) {
	host := dataplanetest.NewSpace(t, "h")
	defer hold(t, host, "tlhold", "tltun")()
	const many, kills = 10, 40
	var spaces []*dataplanetest.Space
	for n := range many {
		spaces = append(spaces, dataplanetest.NewSpace(t, fmt.Sprintf("c%d", n)))
	}
	host.IP(devicesUp...)
	before := snapshot(host)
	for kill := range kills {
		cmd := exec.Command("nsenter", append([]string{"--net=" + host.Path(), os.Args[0], "-test.run=^TestAttachAndDetachRepeatedly$"}, "-test.v")...)
		cmd.Env = append(os.Environ(), "LINK_CYCLE="+func() string {
			var paths []string
			for _, s := range spaces {
				paths = append(paths, s.Path())
			}
			return strings.Join(paths, ",")
		}())
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// The process prints a dot for each cycle. The kill follows within a cycle, each time later.
		b := make([]byte, 1)
		for n := 0; n <= kill%many; {
			if _, err := out.Read(b); err != nil {
				t.Fatalf("the cycles ended: %v", err)
			}
			if b[0] == '.' {
				n++
			}
		}
		time.Sleep(time.Duration(kill) * 317 * time.Microsecond)
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
	}
	with(t, host, func(l *link.Links) error {
		found, err := l.List()
		if err != nil {
			return err
		}
		t.Logf("orphans: %v", found)
		for _, f := range found {
			if err := l.Detach(f.Address); err != nil {
				return err
			}
		}
		return l.Remove(link.Forwarding{})
	})
	if after := snapshot(host); after != before {
		t.Error(difference(before, after))
	}
	for _, s := range spaces {
		if out := s.Output("ip", "-br", "link"); strings.Contains(out, "eth0") {
			t.Errorf("eth0 still exists in %s: %s", s.Name, out)
		}
	}
}

// TestAttachAndDetachRepeatedly is the process that TestKilledWhileAttaching kills.
func TestAttachAndDetachRepeatedly(t *testing.T) {
	paths := os.Getenv("LINK_CYCLE")
	if paths == "" {
		return // only that test runs it
	}
	runtime.LockOSThread()
	l, err := link.New("tl")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Setup(node(4789), netip.MustParseAddr("192.168.77.1")); err != nil {
		t.Fatal(err)
	}
	for {
		for n, path := range strings.Split(paths, ",") {
			a := link.Attachment{Address: instance(n), Address6: ranges.To6(instance(n)), NetNS: path, MTU: 1400, In: 100, Out: 100}
			if err := l.Attach(a); err != nil {
				t.Fatal(err)
			}
			if n%3 != 0 { // some stay for the next round or process
				if err := l.Detach(a.Address); err != nil {
					t.Fatal(err)
				}
			}
			fmt.Print(".")
		}
	}
}

// TestPeersAreReachedOnEveryPath changes the path between two hosts during an exchange of datagrams. None
// may be lost.
func TestPeersAreReachedOnEveryPath(t *testing.T) {
	type side struct {
		*dataplanetest.Space
		c      *dataplanetest.Space
		local  netip.Addr
		subnet netip.Prefix
		addr   netip.Addr
	}
	sides := make([]*side, 2)
	for i := range sides {
		s := &side{
			Space: dataplanetest.NewSpace(t, fmt.Sprintf("h%d", i)), c: dataplanetest.NewSpace(t, fmt.Sprintf("c%d", i)),
			local:  netip.AddrFrom4([4]byte{192, 168, 77, byte(i + 1)}),
			subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 16, 1, byte(64 * i)}), 26),
		}
		s.addr = s.subnet.Addr().Next()
		sides[i] = s
		t.Cleanup(hold(t, s.Space, "tlhold", "tltun"))
	}
	sides[0].IP("link add up0 type veth peer name up0 netns " + sides[1].Name)
	before := make([]string, 2)
	for _, s := range sides {
		s.IP("addr add "+s.local.String()+"/24 dev up0", "link set up0 up", "link set tlhold up", "link set tltun up")
	}
	for i, s := range sides {
		for try := 0; !strings.Contains(s.Output("ip", "-6", "route", "show", "table", "local", "dev", "up0"), "local fe80::"); try++ {
			if try == 1000 {
				t.Fatal("the link does not come up")
			}
		}
		before[i] = snapshot(s.Space)
	}
	set := func(path api.PathKind, mtu int) {
		for i, s := range sides {
			other := sides[1-i]
			with(t, s.Space, func(l *link.Links) error {
				return l.SetPeers(node(4789), []plane.Peer{{Key: api.PeerKey{1}, Subnets: []netip.Prefix{other.subnet}, Path: path, Via: other.local, MTU: mtu}})
			})
		}
	}
	for _, s := range sides {
		with(t, s.Space, func(l *link.Links) error {
			if err := l.Setup(node(4789), s.local); err != nil {
				return err
			}
			return l.Attach(link.Attachment{Address: s.addr, Address6: ranges.To6(s.addr), NetNS: s.c.Path()})
		})
	}
	sides[1].c.Serve("far", 80)
	set(api.PathRoute, 0)
	for _, addr := range []netip.Addr{sides[1].addr, ranges.To6(sides[1].addr)} {
		c, err := sides[0].c.Dial("udp", netip.AddrPortFrom(addr, 80), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		// Wait until the link is up and neighbours are resolved. After that nothing may be lost.
		for try := 0; trip(c, 200*time.Millisecond) != nil; try++ {
			if try == 100 {
				t.Fatalf("%s is not reached", addr)
			}
		}
		for n := range 20 {
			set([]api.PathKind{api.PathVXLAN, api.PathRoute}[n%2], []int{1400, 0}[n%2])
			for range 5 {
				if err := trip(c, 10*time.Second); err != nil {
					t.Fatalf("%s after change %d: %v", addr, n, err)
				}
			}
		}
	}
	set(api.PathVXLAN, 1300)
	if out := sides[0].Output("ip", "route", "get", sides[1].addr.String()); !strings.Contains(out, "mtu 1300") || !strings.Contains(out, "tlvxlan") {
		t.Error(out)
	}
	set(api.PathDirect, 1280)
	for _, addr := range []netip.Addr{sides[1].addr, ranges.To6(sides[1].addr)} {
		if out := sides[0].Output("ip", "route", "get", addr.String()); !strings.Contains(out, "tltun") {
			t.Error(out)
		}
	}
	for i, s := range sides {
		with(t, s.Space, func(l *link.Links) error {
			if err := l.SetPeers(node(4789), nil); err != nil {
				return err
			}
			if err := l.Remove(link.Forwarding{}); err != nil {
				return err
			}
			return l.Remove(link.Forwarding{})
		})
		if after := snapshot(s.Space); after != before[i] {
			t.Error(difference(before[i], after))
		}
	}
}

// trip sends a datagram and waits for the answer.
func trip(c net.Conn, patience time.Duration) error {
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write([]byte("?")); err != nil {
		return err
	}
	_, err := c.Read(make([]byte, 100))
	return err
}

// BenchmarkAttach and BenchmarkDetach are separate, because most of the latter is the kernel's wait
// until no processor uses the device.
func BenchmarkAttach(b *testing.B) { benchmark(b, true) }

func BenchmarkDetach(b *testing.B) { benchmark(b, false) }

func benchmark(b *testing.B, attach bool) {
	host, c := dataplanetest.NewSpace(b, "h"), dataplanetest.NewSpace(b, "c")
	x := attachment(1, c)
	x.In, x.Out = 100, 100
	var err error
	host.Do(func() {
		var l *link.Links
		if l, err = link.New("tl"); err != nil {
			return
		}
		defer l.Close()
		timed := func(on bool, f func() error) {
			if !on {
				b.StopTimer()
				defer b.StartTimer()
			}
			err = errors.Join(err, f())
		}
		for range b.N {
			timed(attach, func() error { return l.Attach(x) })
			timed(!attach, func() error { return l.Detach(x.Address) })
		}
	})
	if err != nil {
		b.Fatal(err)
	}
}

// devicesUp sets the devices up without link-local addresses, which the kernel would add at any time during
// a test that compares settings.
var devicesUp = []string{"link set tlhold addrgenmode none", "link set tltun addrgenmode none", "link set tlhold up", "link set tltun up"}

func TestRemoveRestoresTheHostsSettings(t *testing.T) {
	host, a := dataplanetest.NewSpace(t, "h"), dataplanetest.NewSpace(t, "a")
	defer hold(t, host, "tlhold", "tltun")()
	host.IP(devicesUp...)
	before := snapshot(host)
	var was link.Forwarding
	with(t, host, func(l *link.Links) (err error) {
		if was, err = link.Forwards(); err != nil {
			return err
		}
		for range 2 {
			if err := l.Setup(node(4789), netip.MustParseAddr("192.168.77.1")); err != nil {
				return err
			}
		}
		now, err := link.Forwards()
		if was != (link.Forwarding{}) || now != (link.Forwarding{IPv4: true, IPv6: true}) {
			t.Errorf("forwarded before: %v, then %v", was, now)
		}
		if err != nil {
			return err
		}
		return l.Attach(attachment(1, a))
	})
	host.Serve("resolver", 53)
	for _, network := range []string{"tcp", "udp"} {
		if who, err := a.Ask(network, netip.AddrPortFrom(wire.ResolverAddr, 53)); err != nil || who != "resolver" {
			t.Errorf("query the resolver over %s: %q answered (%v), want resolver", network, who, err)
		}
	}
	for _, unknown := range []string{"10.16.9.9", "10.30.0.1", "fd74:6c6e:1::a10:909", "fd74:6c6e:2::a1e:1"} {
		if out := host.Output("ip", "route", "get", unknown); !strings.Contains(out, "dev tlhold") {
			t.Errorf("route to the unknown address %s is %s, want device tlhold", unknown, out)
		}
	}
	with(t, host, func(l *link.Links) error { // another port is another device
		return l.Setup(node(4790), netip.MustParseAddr("192.168.77.1"))
	})
	if out := host.Output("ip", "-d", "link", "show", "tlvxlan"); !strings.Contains(out, "dstport 4790") || !strings.Contains(out, "external") {
		t.Error(out)
	}
	with(t, host, func(l *link.Links) error { return l.Remove(was) })
	if after := snapshot(host); after != before {
		t.Error(difference(before, after))
	}
}
