package qemu

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

var (
	guestAddr  = netip.MustParseAddr("10.16.9.5")
	outside    = netip.MustParseAddr("10.200.0.1")
	gatewayMAC = net.HardwareAddr{0x02, 0x54, 0xff, 0xff, 0xff, 0x01}
	guestMAC   = net.HardwareAddr{0x02, 0x54, 10, 16, 9, 5}
)

// TestGuestIsWhereAContainerWouldBe reaches a guest by the instance's address from outside and from within
// its namespace, as flows and health checks do, and lets a guest reach an address outside.
func TestGuestIsWhereAContainerWouldBe(t *testing.T) {
	need(t)
	r, err := New(testConfig(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	beyond := hostNamespace(t)
	served := make(chan string, 1)
	serve(t, beyond, served)

	server := wire.Key{Instance: "t/net.d.server.d#0", Epoch: 1}
	boot(t, r, beyond, server, "serve")
	path, _, err := r.Namespace(t.Context(), server)
	if err != nil || path == "" {
		t.Fatalf("Namespace: got %q, %v, want a path", path, err)
	}
	url := fmt.Sprintf("http://%s:8080/", guestAddr)
	for name, ns := range map[string]string{"outside": beyond, "the namespace, as health checks do,": path} {
		await(t, func() error { return get(ns, url) }, "reach the guest from "+name)
	}
	if err := r.Stop(t.Context(), server, 0); err != nil {
		t.Fatal(err)
	}

	client := wire.Key{Instance: "t/net.d.client.d#0", Epoch: 1}
	boot(t, r, beyond, client, "check", fmt.Sprintf("http://%s:8080/", outside))
	l, err := r.Logs(t.Context(), client, -1, true)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	select {
	case from := <-served:
		if want := guestAddr.String(); from != want {
			t.Errorf("source of the guest's request: got %s, want %s", from, want)
		}
	case <-time.After(time.Minute):
		t.Error("the guest did not reach an address outside")
	}
}

// hostNamespace creates a namespace that stands for the host.
func hostNamespace(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(namespaces, fmt.Sprintf("treeline-test-host-%d", unix.Getpid()))
	if err := createNamespace(path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = deleteNamespace(path) })
	err := inNamespace(path, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetUp(lo), netlink.AddrAdd(lo, &netlink.Addr{IPNet: host(outside)}))
	})
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// boot runs a guest that is attached as the netmanager attaches instances.
func boot(t *testing.T, r *Runtime, beyond string, k wire.Key, args ...string) {
	t.Helper()
	w := runtime.Workload{Key: k, Attempt: 1, Spec: spec(args...)}
	t.Cleanup(func() {
		if err := r.Stop(context.Background(), k, 0); err != nil {
			t.Error(err)
		}
	})
	if err := r.Create(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	path, _, err := r.Namespace(t.Context(), k)
	if err == nil {
		err = attach(beyond, path)
	}
	if err == nil {
		err = r.Start(t.Context(), k)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func attach(beyond, instance string) error {
	ns, err := netns.GetFromPath(instance)
	if err != nil {
		return err
	}
	defer ns.Close()
	err = inNamespace(beyond, func() error {
		veth := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: "guest", MTU: 1400, HardwareAddr: gatewayMAC, TxQLen: -1},
			PeerName:  eth0, PeerHardwareAddr: guestMAC, PeerNamespace: netlink.NsFd(int(ns)), PeerMTU: 1400,
		}
		if old, err := netlink.LinkByName("guest"); err == nil { // its namespace is ending
			_ = netlink.LinkDel(old)
		}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		dev, err := netlink.LinkByName("guest")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetUp(dev), neighbour(dev, guestAddr, guestMAC),
			netlink.RouteReplace(&netlink.Route{LinkIndex: dev.Attrs().Index, Dst: host(guestAddr), Scope: netlink.SCOPE_LINK}))
	})
	if err != nil {
		return err
	}
	return inNamespace(instance, func() error {
		dev, err := netlink.LinkByName(eth0)
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetUp(dev), netlink.AddrReplace(dev, &netlink.Addr{IPNet: host(guestAddr)}),
			neighbour(dev, wire.GatewayAddr, gatewayMAC),
			netlink.RouteReplace(&netlink.Route{LinkIndex: dev.Attrs().Index, Gw: wire.GatewayAddr.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}))
	})
}

func neighbour(dev netlink.Link, a netip.Addr, mac net.HardwareAddr) error {
	return netlink.NeighSet(&netlink.Neigh{LinkIndex: dev.Attrs().Index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac})
}

// serve answers HTTP at the address outside, and reports where a request came from.
func serve(t *testing.T, ns string, from chan<- string) {
	t.Helper()
	var l net.Listener
	err := inNamespace(ns, func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(outside, 8080).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		source, _, _ := strings.Cut(req.RemoteAddr, ":")
		select {
		case from <- source:
		default:
		}
	})}
	t.Cleanup(func() { _ = srv.Close() })
	go srv.Serve(l)
}

// get requests a URL from a namespace.
func get(ns, url string) error {
	c := http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, at string) (conn net.Conn, err error) {
			err = inNamespace(ns, func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, at)
				return err
			})
			return conn, err
		},
	}}
	resp, err := c.Get(url)
	if err == nil {
		err = resp.Body.Close()
	}
	return err
}

// await repeats what a booting guest does not answer yet.
func await(t *testing.T, try func() error, what string) {
	t.Helper()
	err := try()
	for end := time.Now().Add(time.Minute); err != nil && time.Now().Before(end); err = try() {
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}
