package lab_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/dataplane/ebpf"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// siege is an overlay with targets: the tenant's client on n0 calls its web on n1
// continuously, and another tenant has a service "secret" on n1. On n2 are the tenant's
// mole, which may call web, and the other tenant's spy.
type siege struct {
	*lab.Overlay
	other                          api.Tenant
	client, mole, spy, web, secret *lab.Inside
	caller                         *lab.Caller
	stranger                       *netlab.Host // see outside
}

func newSiege(t *testing.T, netArgs ...string) *siege {
	s := &siege{Overlay: lab.NewOverlay(t, lab.Options{})}
	for i := range 3 {
		name := fmt.Sprintf("n%d", i)
		h := s.Net.Host(name)
		h.Plug(s.WAN, "eth0", s.hostAddr(i).String()+"/24")
		n := s.First.Node(name, lab.NodeOptions{Containers: true, CPUs: 4, Host: h, Overlay: true, NetArgs: netArgs})
		s.Nodes, s.Hosts = append(s.Nodes, n), append(s.Hosts, h)
	}
	s.Ready(s.First, 3)
	s.other = s.Tenant + "/other"
	if err := s.API.CreateTenant(t.Context(), s.other, "another"); err != nil {
		t.Fatal(err)
	}
	s.Apply(lab.App("shop",
		lab.On(s.Container("client", 1), "c1", "n0"), lab.On(s.Server("web", 1), "c1", "n1"), lab.On(s.Container("mole", 1), "c1", "n2")))
	secret := s.Server("secret", 1)
	secret.Addresses = &api.Addresses{Closest: "auto"}
	theirs := lab.Encode(lab.App("vault", lab.On(secret, "c1", "n1"), lab.On(s.Container("spy", 1), "c1", "n2")))
	if _, err := s.API.Apply(t.Context(), theirs, client.ApplyOptions{Tenant: s.other}); err != nil {
		t.Fatal(err)
	}
	inside := func(id api.InstanceID) *lab.Inside {
		s.Wait(string(id)+" runs", lab.Is(id, func(i api.Instance) bool { return i.State == api.Running }))
		return s.Inside(id)
	}
	s.client, s.web, s.mole = inside(s.ID("shop", "client", 0)), inside(s.ID("shop", "web", 0)), inside(s.ID("shop", "mole", 0))
	s.secret, s.spy = inside(s.theirs("secret").Instance(0)), inside(s.theirs("spy").Instance(0))
	s.caller = lab.Call(s.client, s.at(s.ServiceID("shop", "web")).String())
	t.Cleanup(s.caller.Stop)
	s.caller.More(t, 20)
	return s
}

func (s *siege) theirs(service string) api.ServiceID {
	return s.other.App("vault", lab.Namespace).Service(service, lab.Namespace)
}

// hostAddr returns a node's address on the lab's network.
func (s *siege) hostAddr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{203, 0, 113, byte(10 + i)})
}

// outside returns a host on the network of the nodes that is not part of the installation.
func (s *siege) outside() *netlab.Host {
	if s.stranger == nil {
		s.stranger = s.Net.Host("outside")
		s.stranger.Plug(s.WAN, "eth0", "203.0.113.200/24")
	}
	return s.stranger
}

// route adds a route to an address, through the host of a node, until the end of the test.
func (s *siege) route(t *testing.T, h *netlab.Host, to, via netip.Addr) {
	h.Route(to.String(), via.String())
	t.Cleanup(func() { h.Run("ip", "route", "del", to.String(), "via", via.String()) })
}

// at returns a service's semantic address with its port.
func (s *siege) at(id api.ServiceID) netip.AddrPort {
	return netip.AddrPortFrom(s.AddressesOf(id).RoundRobin, 80)
}

// own returns an instance's own address with a port.
func (s *siege) own(in *lab.Inside) netip.AddrPort {
	return netip.AddrPortFrom(s.Instance(in.W.Instance).Address, 9)
}

func to6(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(wire.DefaultNetRanges().To6(a.Addr()), a.Port())
}

// tunnelOf returns the address of a node's tunnel on the lab's network.
func (s *siege) tunnelOf(i int) netip.AddrPort {
	return netip.AddrPortFrom(s.hostAddr(i), s.Nodes[i].NetStatus().Listen.Port())
}

// moleCalls makes mole call web, so that both nodes have a session.
func (s *siege) moleCalls(t *testing.T) {
	t.Helper()
	lab.Within(t, time.Minute, "the mole reaches web", func() error {
		_, err := s.mole.Who(s.at(s.ServiceID("shop", "web")).String(), 10*time.Second)
		return err
	})
}

// undisturbed runs an attack, and checks that no other request is lost, and that no daemon
// ends or grows by more than bound bytes.
func (s *siege) undisturbed(t *testing.T, bound int64, attack func()) {
	t.Helper()
	daemons := []*lab.Proc{s.Root, s.First.Proc}
	for _, n := range s.Nodes {
		daemons = append(daemons, n.Proc, n.Net)
	}
	pid, held := make([]int, len(daemons)), make([]int64, len(daemons))
	for i, p := range daemons {
		pid[i], held[i] = p.PID(), p.Memory()
	}
	s.caller.Forget()
	attack()
	s.caller.More(t, 20)
	if f := s.caller.Failures(); len(f) > 0 {
		t.Errorf("%d requests of other services were lost during the attack, want 0: %v", len(f), f)
	}
	for i, p := range daemons {
		now := p.Memory()
		switch {
		case p.PID() != pid[i]:
			t.Errorf("%s ended during the attack", p.Name)
		case now > held[i]+bound:
			t.Errorf("the memory of %s grew from %d to %d KiB during the attack", p.Name, held[i]>>10, now>>10)
		case p.PID() != 0:
			t.Logf("%s: %d KiB before, %d KiB after", p.Name, held[i]>>10, now>>10)
		}
	}
}

// TestOverlayUnderAttack attacks one installation of each data plane. All planes must refuse the same.
// What reaches only daemons, which are the same on all planes, is sent to the first.
func TestOverlayUnderAttack(t *testing.T) {
	daemons := false
	for _, plane := range []string{"ebpf", "nft"} {
		t.Run(plane, func(t *testing.T) {
			if err := ebpf.Available(); plane == "ebpf" && err != nil {
				t.Skip(err)
			}
			s := newSiege(t, "--plane", plane)
			attack := func(name string, test func(*testing.T, *siege)) {
				sub(t, s.Lab, name, func(t *testing.T) { test(t, s) })
			}
			attack("flood of unknown destinations", unknownDestinations)
			attack("another tenant is out of reach", anotherTenant)
			attack("plain packets are refused", plainPackets)
			if !daemons {
				daemons = true
				attack("resolver amplifies nothing", amplification)
				attack("floods of datagrams", floods)
			}
			attack("hostile node speaks for itself alone", hostileNode) // last: it replaces the netmanager of n2
		})
	}
}

// holdTime is longer than a packet with an unknown source or destination waits.
const holdTime = 2 * time.Second

// A node under the control of an attacker has a real session and follows no policy. With the
// addresses of its own instances its packets get only where those may send; with other
// addresses they are dropped.
func hostileNode(t *testing.T, s *siege) {
	s.moleCalls(t)
	client, mole, spy, web, secret := s.own(s.client), s.own(s.mole), s.own(s.spy), s.own(s.web), s.own(s.secret)
	victim := s.Nodes[1].NetStatus()
	to := s.tunnelOf(1)
	sniffers := map[string]*lab.Sniffer{
		"web": s.Sniff(s.web.NetNS()), "secret": s.Sniff(s.secret.NetNS()), "client": s.Sniff(s.client.NetNS()),
	}
	v := s.Nodes[2].TakeOver(s.Hosts[2])
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := v.Aim(ctx, victim.Key, to); err != nil {
		t.Fatalf("no session with n1: %v", err)
	}
	allowed := func(marker string) {
		t.Helper()
		lab.Within(t, time.Minute, "what the mole may send arrives", func() error {
			v.Send(lab.Datagram(mole, web, []byte(marker)))
			if sniffers["web"].Saw(marker) == 0 {
				return errors.New(marker)
			}
			return nil
		})
	}
	allowed("allowed before")
	vacant := netip.AddrPortFrom(v.Subnet.Addr().Next(), 9)
	for vacant.Addr() == mole.Addr() || vacant.Addr() == spy.Addr() {
		vacant = netip.AddrPortFrom(vacant.Addr().Next(), 9)
	}
	resolver := netip.AddrPortFrom(wire.ResolverAddr, 53)
	addr := netip.MustParseAddrPort
	type flow struct {
		name     string
		from, to netip.AddrPort
	}
	flows := []flow{
		{"another node's instance as source", client, web},
		{"the receiver's own instance as source", secret, web},
		{"a source of nobody's lease", addr("10.23.255.9:9"), web},
		{"a service as source", s.at(s.ServiceID("shop", "web")), web},
		{"a source outside of all ranges", addr("8.8.8.8:53"), web},
		{"the receiver's node as source", to, web},
		{"loopback as source", addr("127.0.0.1:9"), web},
		{"no source", addr("0.0.0.0:9"), web},
		{"a source of its lease that is nobody's", vacant, web},
		{"a destination of another node", mole, client},
		{"a destination outside of all ranges", mole, addr("203.0.113.1:7443")},
		{"the receiver's node", mole, to},
		{"the receiver's resolver", mole, resolver},
		{"the receiver's loopback", mole, addr("127.0.0.1:53")},
		{"a broadcast", mole, addr("255.255.255.255:9")},
		{"its own service's address", mole, s.at(s.ServiceID("shop", "web"))},
		{"another tenant's instance", mole, secret},
		{"another tenant's service", mole, s.at(s.theirs("secret"))},
		{"as another tenant's instance", spy, web},
		{"as another tenant's to its own, forged", client, secret},
	}
	s.undisturbed(t, 12<<20, func() {
		for round := range 20 {
			for _, f := range flows {
				v.Send(lab.Datagram(f.from, f.to, fmt.Appendf(nil, "attack %s.", f.name)))
				if a, b := to6(f.from), to6(f.to); a.Addr().IsValid() && b.Addr().IsValid() {
					v.Send(lab.Datagram(a, b, fmt.Appendf(nil, "attack %s.", f.name)))
				}
			}
			if round%10 == 9 {
				time.Sleep(holdTime) // checks that nothing leaves the packet queue
			}
		}
		allowed("allowed after")
	})
	for who, sn := range sniffers {
		for _, f := range flows {
			if n := sn.Saw("attack " + f.name + "."); n > 0 {
				t.Errorf("%s received %d packets that should be dropped: %s (%s → %s)", who, n, f.name, f.from, f.to)
			}
		}
	}
	if n := v.Got("attack"); n > 0 {
		t.Errorf("n1 sent %d of the packets back, want 0", n)
	}
	t.Logf("n1 counts %v packets dropped by the tunnel, %v denied, %v forged",
		s.Nodes[1].NetMetric("treeline_net_tunnel_dropped_packets_total"),
		s.Nodes[1].NetMetric("treeline_net_denied_packets_total"), s.Nodes[1].NetMetric("treeline_net_forged_packets_total"))
}

// Containers of one tenant cannot reach those of another by any address.
func anotherTenant(t *testing.T, s *siege) {
	sn := s.Sniff(s.secret.NetNS())
	at := s.AddressesOf(s.theirs("secret"))
	own := s.own(s.secret).Addr()
	lab.Within(t, time.Minute, "a service of the same tenant reaches it", func() error { // a running instance may not listen yet
		_, err := s.spy.Who(netip.AddrPortFrom(own, 80).String(), 10*time.Second)
		return err
	})
	s.undisturbed(t, 12<<20, func() {
		var all sync.WaitGroup
		for name, a := range map[string]netip.Addr{"rr": at.RoundRobin, "closest": at.Closest, "own": own} {
			for _, a := range []netip.Addr{a, wire.DefaultNetRanges().To6(a)} {
				to := netip.AddrPortFrom(a, 80)
				for who, in := range map[string]*lab.Inside{"client": s.client, "mole": s.mole, "web, beside it": s.web} {
					all.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
						defer cancel()
						if c, err := in.Dial(ctx, "tcp", to.String()); err == nil {
							_ = c.Close()
							t.Errorf("%s reaches %s %s of another tenant", who, name, a)
						}
					})
					if u, err := in.Dial(t.Context(), "udp", to.String()); err == nil {
						for range 20 {
							_, _ = u.Write([]byte("attack"))
						}
						_ = u.Close()
					}
				}
			}
		}
		all.Wait()
		// A container forges its source address, for example that of the tenant's own spy.
		raw := s.Raw(s.web.NetNS())
		for _, from := range []netip.AddrPort{s.own(s.spy), s.own(s.client), netip.MustParseAddrPort("10.30.0.1:9"), netip.MustParseAddrPort("8.8.8.8:9")} {
			for range 20 {
				_ = raw.Send(lab.Datagram(from, s.own(s.secret), []byte("attack")))
				_ = raw.Send(lab.Datagram(from, netip.AddrPortFrom(at.RoundRobin, 9), []byte("attack")))
			}
		}
		time.Sleep(holdTime)
	})
	if n := sn.Saw("attack"); n > 0 {
		t.Errorf("%d packets of another tenant arrived, want 0", n)
	}
	var none *net.DNSError
	if ips, err := s.client.Lookup(t.Context(), "ip4", "any.rr.secret.lab.vault.lab.treeline"); !errors.As(err, &none) {
		t.Errorf("the name of another tenant's service resolves to %v (%v), want not found", ips, err)
	}
}

// Packets with overlay addresses are accepted only through the tunnel: plain and VXLAN packets
// of a host on the nodes' network, or of another node, are dropped.
func plainPackets(t *testing.T, s *siege) {
	s.moleCalls(t)
	out := s.outside()
	victim := s.hostAddr(1)
	web, secret, mole, client := s.own(s.web), s.own(s.secret), s.own(s.mole), s.own(s.client)
	sniffers := []*lab.Sniffer{s.Sniff(s.web.NetNS()), s.Sniff(s.secret.NetNS()), s.Sniff(s.mole.NetNS()), s.Sniff(s.client.NetNS())}
	arrived := s.Sniff(lab.NetNS(s.Hosts[1]))
	services := netip.AddrPortFrom(s.AddressesOf(s.ServiceID("shop", "web")).RoundRobin, 9)
	mac := strings.Fields(s.Hosts[1].Run("cat", "/sys/class/net/eth0/address"))[0]
	link, err := net.ParseMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	sources := []netip.AddrPort{client, mole, secret, web, services, netip.AddrPortFrom(victim, 9), netip.MustParseAddrPort("203.0.113.200:9")}
	s.undisturbed(t, 12<<20, func() {
		for _, h := range []*netlab.Host{out, s.Hosts[2]} {
			for _, to := range []netip.AddrPort{web, secret, services} {
				s.route(t, h, to.Addr(), victim)
			}
			raw := s.Raw(lab.NetNS(h))
			for range 20 {
				for _, from := range sources {
					for _, to := range []netip.AddrPort{web, secret, services} {
						inner := lab.Datagram(from, to, []byte("attack"))
						_ = raw.Send(inner)
						for _, vni := range []byte{0, 1, 7} {
							frame := slices.Concat([]byte{8, 0, 0, 0, 0, 0, vni, 0}, link, link, []byte{8, 0}, inner)
							_ = raw.Send(lab.Datagram(netip.AddrPortFrom(s.hostAddr(0), 4789), netip.AddrPortFrom(victim, 4789), frame))
						}
					}
				}
			}
		}
		time.Sleep(holdTime)
	})
	if arrived.Saw("attack") == 0 {
		t.Error("no packet reached the node, so that the test proves nothing")
	}
	for _, sn := range sniffers {
		if n := sn.Saw("attack"); n > 0 {
			t.Errorf("an instance received %d plain or VXLAN packets, want 0", n)
		}
	}
}
