package tunnel

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/tunnel/tun"
)

// A lab has hosts as network namespaces, each with a link to one switch.

var labs atomic.Int32

// run runs a command and fails the test with its output.
func run(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// host is a namespace with an engine in it.
type host struct {
	t      testing.TB
	ns     string
	hub    string
	under  netip.Addr // address on the link
	subnet netip.Prefix
	key    [32]byte
	*Engine
	events chan Event
	stop   func()
}

// inside runs f in the host's namespace.
func (h *host) inside(f func()) {
	h.t.Helper()
	var wg sync.WaitGroup
	wg.Add(1)
	var err error
	go func() {
		defer wg.Done()
		runtime.LockOSThread() // and not unlocked: the thread ends with the goroutine
		var ns *os.File
		if ns, err = os.Open("/var/run/netns/" + h.ns); err != nil {
			return
		}
		defer ns.Close()
		if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err == nil {
			f()
		}
	}()
	wg.Wait()
	if err != nil {
		h.t.Fatalf("enter %s: %v", h.ns, err)
	}
}

func (h *host) exec(args ...string) string {
	h.t.Helper()
	return run(h.t, append([]string{"ip", "netns", "exec", h.ns}, args...)...)
}

// addr returns the host's address in the overlay, six the IPv6 one.
func (h *host) addr() netip.Addr { return h.subnet.Addr().Next() }
func (h *host) six() netip.Addr  { return wire.DefaultNetRanges().To6(h.addr()) }

// newHosts returns n hosts on one link, each with its device, without peers.
func newHosts(t testing.TB, n int) []*host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	programtest.Need(t, "ip", "ping")
	id := fmt.Sprintf("tlt%d-%d-", os.Getpid(), labs.Add(1))
	hub := id + "hub"
	add := func(ns string) {
		run(t, "ip", "netns", "add", ns)
		t.Cleanup(func() { exec.Command("ip", "netns", "del", ns).Run() })
	}
	add(hub)
	run(t, "ip", "-n", hub, "link", "add", "name", "br", "type", "bridge")
	run(t, "ip", "-n", hub, "link", "set", "dev", "br", "up")
	var hosts []*host
	for i := range n {
		h := &host{
			t: t, hub: hub, ns: id + string(rune('a'+i)), under: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}),
			subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 16, byte(i), 0}), 26),
		}
		rand.Read(h.key[:])
		add(h.ns)
		peer := fmt.Sprintf("v%d", i)
		run(t, "ip", "-n", h.ns, "link", "add", "name", "eth0", "type", "veth", "peer", "name", peer, "netns", hub)
		run(t, "ip", "-n", hub, "link", "set", peer, "master", "br", "up")
		run(t, "ip", "-n", h.ns, "link", "set", "lo", "up")
		run(t, "ip", "-n", h.ns, "addr", "add", h.under.String()+"/24", "dev", "eth0")
		run(t, "ip", "-n", h.ns, "link", "set", "eth0", "up")
		hosts = append(hosts, h)
	}
	return hosts
}

// start opens the host's device and engine, and runs the engine until the test ends or stop is called.
func (h *host) start(hooks Hooks) {
	h.t.Helper()
	h.events = make(chan Event, 1000)
	own := hooks.Event
	hooks.Event = func(e Event) {
		if own != nil {
			own(e)
		}
		select {
		case h.events <- e:
		default:
		}
	}
	var err error
	h.inside(func() {
		var dev tun.Device
		if dev, err = tun.Open("tl0", DefaultMTU); err != nil {
			return
		}
		listen := netip.AddrPort{}
		if h.Engine != nil {
			listen = netip.AddrPortFrom(netip.IPv6Unspecified(), h.Local().Port())
		}
		h.Engine, err = New(Config{Device: dev, Key: h.key, Hooks: hooks, Listen: listen})
	})
	if err != nil {
		h.t.Fatalf("start %s: %v", h.ns, err)
	}
	run(h.t, "ip", "-n", h.ns, "addr", "replace", h.addr().String()+"/13", "dev", "tl0")
	run(h.t, "ip", "-n", h.ns, "addr", "replace", h.six().String()+"/64", "dev", "tl0", "nodad")
	h.SetSelf(Lease{Ranges: wire.DefaultNetRanges(), Subnet: h.subnet})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	e := h.Engine
	go func() { done <- e.Run(ctx) }()
	h.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			h.t.Errorf("run: %v", err)
		}
	})
	h.t.Cleanup(h.stop)
}

// record returns the host's record for its peers.
func (h *host) record() api.Peer {
	return api.Peer{
		Key: h.Public(), Subnets: []netip.Prefix{h.subnet},
		Endpoints: []netip.AddrPort{netip.AddrPortFrom(h.under, h.Local().Port())},
	}
}

// pair returns two hosts that are peers.
func pair(t testing.TB) (a, b *host) {
	hs := newHosts(t, 2)
	for _, h := range hs {
		h.start(Hooks{})
	}
	hs[0].SetPeer(hs[1].record())
	hs[1].SetPeer(hs[0].record())
	return hs[0], hs[1]
}

// until waits for an event.
func until[E Event](h *host) E {
	h.t.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case e := <-h.events:
			if e, ok := e.(E); ok {
				return e
			}
		case <-deadline:
			var zero E
			h.t.Fatalf("%s: no %T", h.ns, zero)
		}
	}
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// dial and listen make sockets in the host's namespace.
func (h *host) listen(network, addr string) (l net.Listener) {
	h.t.Helper()
	var err error
	h.inside(func() { l, err = net.Listen(network, addr) })
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { l.Close() })
	return l
}

func (h *host) packets(addr string) (c *net.UDPConn) {
	h.t.Helper()
	var err error
	h.inside(func() { c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr))) })
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	return c
}

func (h *host) dial(network, addr string) (c net.Conn) {
	h.t.Helper()
	var err error
	h.inside(func() { c, err = (&net.Dialer{Timeout: 30 * time.Second}).Dial(network, addr) })
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	return c
}
