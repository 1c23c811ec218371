package netlab_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/relay"
	"github.com/treeline-edge/treeline/internal/relaywire"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/netmanager/overlay/paths"
	"github.com/treeline-edge/treeline/netmanager/pathmanager"
	"github.com/treeline-edge/treeline/netmanager/relaylink"
	"github.com/treeline-edge/treeline/netmanager/tunnel"
	"github.com/treeline-edge/treeline/netmanager/tunnel/tun"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// world has a relay on a public network and nodes behind NATs: real tunnels and path managers over
// real sockets, TUN devices and nftables.
type world struct {
	t     testing.TB
	ctx   context.Context
	lab   *netlab.Lab
	wan   *netlab.Host
	host  *netlab.Host // the relay's
	relay *relay.Relay
	at    netip.AddrPort
	nodes []*node
}

// node is assembled like a netmanager.
type node struct {
	w      *world
	i      int
	kind   netlab.Kind
	host   *netlab.Host
	engine *tunnel.Engine
	paths  *pathmanager.Manager
	link   *relaylink.Link
	subnet netip.Prefix
	public string
	local  netip.Addr
	secret []byte

	mu      sync.Mutex // guards the fields below
	reports map[api.PeerKey]overlay.Path
	began   map[api.PeerKey]time.Time
	first   map[api.PeerKey]time.Duration // until the first echo
	direct  map[api.PeerKey]time.Duration // until the path was direct
	echoes  map[api.PeerKey]int
}

const relayPort = 7443

func newWorld(t testing.TB) *world {
	lab := netlab.New(t)
	ctx, cancel := context.WithCancel(context.Background())
	w := &world{t: t, ctx: ctx, lab: lab, wan: lab.Switch("wan"), host: lab.Host("relay"), at: netip.MustParseAddrPort(fmt.Sprintf("203.0.113.1:%d", relayPort))}
	w.host.Plug(w.wan, "eth0", "203.0.113.1/24")
	var all sync.WaitGroup
	t.Cleanup(func() { cancel(); all.Wait() })

	var ln net.Listener
	var err error
	w.host.Do(func() {
		w.relay, err = relay.New(relay.Options{
			Listen: netip.AddrPortFrom(netip.IPv4Unspecified(), relayPort),
			Identify: func(cs tls.ConnectionState) (api.NodeID, error) {
				if len(cs.PeerCertificates) == 0 {
					return "", api.ErrUnauthenticated
				}
				return api.NodeID(cs.PeerCertificates[0].Subject.CommonName), nil
			},
			Allow: func(netip.AddrPort) bool { return false },
		})
		if err == nil {
			ln, err = net.Listen("tcp4", fmt.Sprintf(":%d", relayPort))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	conf := &tls.Config{Certificates: []tls.Certificate{certificate(t, "relay")}, ClientAuth: tls.RequireAnyClientCert, NextProtos: []string{relaywire.Proto}}
	all.Go(func() {
		if err := w.relay.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	all.Go(func() {
		<-ctx.Done()
		_ = ln.Close()
	})
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				tc := tls.Server(c, conf)
				if tc.HandshakeContext(ctx) == nil {
					_ = w.relay.Serve(ctx, tc)
				}
				_ = c.Close()
			})
		}
	})
	return w
}

func certificate(t testing.TB, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tpl, tpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// add adds a node behind a NAT and starts it.
func (w *world) add(kind netlab.Kind) *node {
	w.t.Helper()
	i := len(w.nodes) + 1
	n := &node{
		w: w, i: i, kind: kind, subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 16, byte(i), 0}), 26),
		public: fmt.Sprintf("203.0.113.%d", 10+i), secret: []byte(fmt.Sprintf("secret %d", i)),
		reports: map[api.PeerKey]overlay.Path{}, began: map[api.PeerKey]time.Time{}, first: map[api.PeerKey]time.Duration{},
		direct: map[api.PeerKey]time.Duration{}, echoes: map[api.PeerKey]int{},
	}
	n.host = w.lab.Site(fmt.Sprintf("n%d", i), kind, w.wan, n.public+"/24", fmt.Sprintf("192.168.%d.0/24", i))
	n.local = netip.MustParseAddr(fmt.Sprintf("192.168.%d.2", i))
	if kind == netlab.None {
		n.local = netip.MustParseAddr(n.public)
	}
	w.slot(n)
	w.nodes = append(w.nodes, n)
	n.start()
	return n
}

func (w *world) slot(n *node) {
	w.relay.Set(uint32(n.i), relay.Slot{Node: n.id(), Ticket: n.ticket(), Secret: n.secret})
}

func (n *node) id() api.NodeID { return api.NodeID(fmt.Sprintf("node-%d", n.i)) }
func (n *node) ticket() uint64 { return uint64(n.i) << 32 }

func (n *node) start() {
	t := n.w.t
	cert := certificate(t, string(n.id()))
	n.paths = pathmanager.New(pathmanager.Options{
		Refuse: wire.DefaultNetRanges().Instances.Contains, Post: n.report, Lost: func() { n.link.Nudge() },
		Log: slog.New(slog.DiscardHandler),
	})
	hooks := tunnel.Hooks{
		Control: n.paths.Control, Event: n.paths.Event,
		Raw:     func(from netip.AddrPort, b []byte) { n.link.Receive(from, b) },
		SendTLS: func(to tunnel.Path, b []byte) { n.link.SendTLS(to.Addr, to.Slot, to.Ticket, b) },
	}
	var key [32]byte
	_, _ = rand.Read(key[:])
	var err error
	n.host.Do(func() {
		var dev tun.Device
		if dev, err = tun.Open("tl0", tunnel.DefaultMTU); err == nil {
			n.engine, err = tunnel.New(tunnel.Config{Device: dev, Key: key, Hooks: hooks, Listen: netip.AddrPortFrom(netip.IPv4Unspecified(), 0)})
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	n.host.Run("ip", "addr", "add", n.addr().String()+"/13", "dev", "tl0")
	own := []netip.AddrPort{netip.AddrPortFrom(n.local, n.engine.Local().Port())}
	place := pathmanager.Self{
		Self:  paths.Self{Own: own, Links: []netip.Prefix{netip.PrefixFrom(n.local, 24).Masked()}},
		Relay: n.w.at.String(), Relays: []netip.AddrPort{n.w.at},
	}
	n.engine.SetSelf(tunnel.Lease{Ranges: wire.DefaultNetRanges(), Subnet: n.subnet, Relays: []netip.AddrPort{n.w.at}})
	n.link = relaylink.New(relaylink.Options{
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			var c net.Conn
			var err error
			n.host.Do(func() { c, err = new(net.Dialer).DialContext(ctx, "tcp4", addr) })
			if err != nil {
				return nil, err
			}
			tc := tls.Client(c, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{cert}, NextProtos: []string{relaywire.Proto}})
			return tc, tc.HandshakeContext(ctx)
		},
		Probe: func(at netip.AddrPort) (c net.Conn, err error) {
			n.host.Do(func() { c, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(at)) })
			return c, err
		},
		Log: slog.New(slog.DiscardHandler),
	})
	ctx := n.w.ctx
	var all sync.WaitGroup
	for _, run := range []func(context.Context) error{
		n.engine.Run, func(ctx context.Context) error { return n.link.Run(ctx, relayTunnel{n, &place}) },
		func(ctx context.Context) error { return n.paths.Run(ctx, n.engine) },
	} {
		all.Go(func() {
			if err := run(ctx); err != nil {
				t.Errorf("node %d: %v", n.i, err)
			}
		})
	}
	n.paths.SetSelf(place)
	if err := n.link.SetOwn(ctx, own); err != nil {
		t.Fatal(err)
	}
	if err := n.link.SetLease(ctx, api.Relay{Addr: n.w.at.String(), Slot: uint32(n.i), Ticket: n.ticket()}, n.secret); err != nil {
		t.Fatal(err)
	}
}

// relayTunnel adapts a node's tunnel for its relay link.
type relayTunnel struct {
	n     *node
	place *pathmanager.Self
}

func (r relayTunnel) Send(to netip.AddrPort, b []byte) error { return r.n.engine.SendRaw(to, b) }

func (r relayTunnel) Deliver(at netip.AddrPort, b []byte) {
	r.n.engine.Receive(tunnel.Path{Kind: api.PathRelayTLS, Addr: at}, b)
}

func (r relayTunnel) Changed(s relaylink.State) {
	self := *r.place
	self.Mapped, self.NAT, self.Lifetime, self.TLS = nil, s.NAT, s.Lifetime, s.TLS
	if s.Mapped.IsValid() {
		self.Mapped = []netip.AddrPort{s.Mapped}
	}
	r.n.paths.SetSelf(self)
}

// addr returns the node's address on the overlay.
func (n *node) addr() netip.Addr { return n.subnet.Addr().Next() }

func (n *node) record() api.Peer {
	return api.Peer{
		Key: n.engine.Public(), Node: n.id(), Subnets: []netip.Prefix{n.subnet},
		Relay: api.Relay{Addr: n.w.at.String(), Slot: uint32(n.i), Ticket: n.ticket()},
	}
}

// knows makes a node a peer of another.
func (n *node) knows(o *node) {
	n.mu.Lock()
	n.began[o.engine.Public()] = time.Now()
	n.mu.Unlock()
	n.paths.SetPeer(o.record())
}

func (n *node) report(in overlay.Input) {
	r, ok := in.(overlay.Path)
	if !ok {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reports[r.Key] = r
	if r.Kind == api.PathDirect && n.direct[r.Key] == 0 {
		n.direct[r.Key] = time.Since(n.began[r.Key])
	}
}

func (n *node) sees(o *node) (r overlay.Path, first, direct time.Duration, echoes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	k := o.engine.Public()
	return n.reports[k], n.first[k], n.direct[k], n.echoes[k]
}

// echo answers packets to the node's overlay address.
func (n *node) echo() {
	n.w.t.Helper()
	c := n.socket(9)
	go func() {
		buf := make([]byte, 2000)
		for {
			size, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort(buf[:size], from)
		}
	}()
}

func (n *node) socket(port uint16) *net.UDPConn {
	n.w.t.Helper()
	var c *net.UDPConn
	var err error
	n.host.Do(func() {
		c, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(n.addr(), port)))
	})
	if err != nil {
		n.w.t.Fatal(err)
	}
	n.w.t.Cleanup(func() { _ = c.Close() })
	return c
}

// talk sends to the others ten times a second, and counts the echoes.
func (n *node) talk(others []*node) (sent *atomic.Int64) {
	n.w.t.Helper()
	sent = new(atomic.Int64)
	c := n.socket(10)
	by := map[netip.Addr]*node{}
	for _, o := range others {
		by[o.addr()] = o
	}
	go func() {
		buf := make([]byte, 2000)
		for {
			_, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			k := by[from.Addr()].engine.Public()
			n.mu.Lock()
			if n.echoes[k]++; n.echoes[k] == 1 {
				n.first[k] = time.Since(n.began[k])
			}
			n.mu.Unlock()
		}
	}()
	go func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		var b [64]byte
		for {
			for _, o := range others {
				binary.BigEndian.PutUint64(b[:], uint64(sent.Add(1)))
				if _, err := c.WriteToUDPAddrPort(b[:], netip.AddrPortFrom(o.addr(), 9)); err != nil && n.w.ctx.Err() != nil {
					return
				}
			}
			select {
			case <-tick.C:
			case <-n.w.ctx.Done():
				return
			}
		}
	}()
	return sent
}
