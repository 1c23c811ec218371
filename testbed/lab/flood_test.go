package lab_test

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/relaywire"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/tunnel/session"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// floodBound is how much a daemon may grow during a flood: bounded buffers and garbage.
const floodBound = 24 << 20

// A flood of datagrams to the UDP port of a node or relay that are not from a peer has no
// effect.
func floods(t *testing.T, s *siege) {
	out := s.outside()
	web, wire := s.Sniff(s.web.NetNS()), s.Sniff(lab.NetNS(s.Hosts[1]))
	node, relay := s.tunnelOf(1), netip.AddrPortFrom(netip.MustParseAddr("203.0.113.1"), lab.ClusterPort)
	key := s.Nodes[1].NetStatus().Key
	talk, err := s.client.Dial(t.Context(), "udp", s.own(s.web).String())
	if err != nil {
		t.Fatal(err)
	}
	defer talk.Close()
	send := func(marker string) {
		t.Helper()
		// Nobody listens there: a write may return the ICMP error of the previous one.
		_, err := talk.Write([]byte(marker))
		for errors.Is(err, syscall.ECONNREFUSED) {
			_, err = talk.Write([]byte(marker))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// say sends repeatedly until a datagram arrives, because full buffers may drop some.
	say := func(marker string) {
		t.Helper()
		lab.Within(t, time.Minute, "the client's datagram arrives", func() error {
			send(marker)
			if web.Saw(marker) == 0 {
				return fmt.Errorf("%q has not arrived", marker)
			}
			return nil
		})
	}
	const once = 50
	var sent []string // once, and arrived
	for i := 0; len(sent) < once; i++ {
		if i == 2*once {
			t.Fatalf("%d of %d datagrams arrived, want all", len(sent), i)
		}
		marker := fmt.Sprintf("once %d.", i)
		send(marker)
		for end := time.Now().Add(5 * time.Second); web.Saw(marker) == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		}
		if web.Saw(marker) > 0 {
			sent = append(sent, marker)
		}
	}
	raw := s.Raw(lab.NetNS(out))
	me := netip.MustParseAddrPort("203.0.113.200:4444")
	random := rand.New(rand.NewChaCha8([32]byte{1}))
	anybody := func() netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(20 + random.IntN(200))}), uint16(1024+random.IntN(60000)))
	}
	noise := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		return b
	}
	// plain sends n datagrams through a socket, which fragments long ones.
	plain := func(to netip.AddrPort, n int, payload func(i int) []byte) {
		var c net.Conn
		var err error
		out.Do(func() { c, err = net.Dial("udp", to.String()) })
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for i := range n {
			_, _ = c.Write(payload(i))
		}
	}

	t.Run("replayed", func(t *testing.T) {
		defer s.For(t)()
		from := s.tunnelOf(0)
		heard := wire.Datagrams(func(src, dst netip.AddrPort) bool { return src == from && dst == node })
		if len(heard) < once {
			t.Fatalf("recorded %d datagrams from n0 to n1, want some to replay", len(heard))
		}
		const drops = "treeline_net_tunnel_dropped_packets_total"
		before := s.Nodes[1].NetMetric(drops)
		s.undisturbed(t, floodBound, func() {
			for i := range 100_000 {
				source := from
				if i%2 == 1 {
					source = me
				}
				_ = raw.Send(lab.Datagram(source, node, heard[i%len(heard)]))
			}
		})
		say("after the replay")
		if n := s.Nodes[1].NetMetric(drops) - before; n < 1000 {
			t.Errorf("n1 dropped %v of 100,000 datagrams, so that too few reached it", n)
		} else {
			t.Logf("n1 received and dropped %v of 100,000 datagrams", n)
		}
		for _, marker := range sent {
			if n := web.Saw(marker); n != 1 {
				t.Errorf("%q arrived %d times, want once", marker, n)
			}
		}
	})
	t.Run("random", func(t *testing.T) {
		defer s.For(t)()
		s.undisturbed(t, floodBound, func() {
			for _, to := range []netip.AddrPort{node, relay} {
				for i := range 50_000 {
					b := noise(random.IntN(200))
					if len(b) > 4 && i%2 == 0 { // with a known type
						types := []byte{1, 2, 3, 4, 5, relaywire.TypeFrame, relaywire.TypeRequest, relaywire.TypeAnswer, relaywire.TypeLate}
						b[0], b[1], b[2], b[3] = types[random.IntN(len(types))], 0, 0, 0
					}
					_ = raw.Send(lab.Datagram(anybody(), to, b))
				}
				plain(to, 5000, func(int) []byte { return nil })
				plain(to, 5000, func(i int) []byte { return []byte{byte(i)} })
				largest := noise(65507)
				plain(to, 500, func(i int) []byte { largest[0] = byte(i % 6); return largest })
			}
		})
		say("after the noise")
	})
	t.Run("handshakes", func(t *testing.T) {
		defer s.For(t)()
		var first [][]byte
		for i := range 500 {
			id, err := session.NewIdentity([32]byte(noise(32)))
			if err != nil {
				t.Fatal(err)
			}
			hello := session.Hello{Stamp: uint64(time.Now().UnixNano()), Claim: netip.AddrFrom4([4]byte{10, 16, byte(i), 0})}
			_, msg, err := session.Initiate(crand.Reader, id, key, uint32(i+1), hello)
			if err != nil {
				t.Fatal(err)
			}
			session.Sign(msg, key, [16]byte{})
			first = append(first, msg)
		}
		s.undisturbed(t, floodBound, func() {
			for i := range 50_000 {
				msg := bytes.Clone(first[i%len(first)])
				if i%3 == 0 {
					msg[20] ^= byte(i) // valid format, invalid signature
					session.Sign(msg, key, [16]byte{})
				}
				_ = raw.Send(lab.Datagram(anybody(), node, msg))
			}
		})
		say("after the handshakes")
	})
	t.Run("relay", func(t *testing.T) {
		defer s.For(t)()
		s.undisturbed(t, floodBound, func() {
			for i := range 50_000 {
				slot := uint32(random.IntN(16))
				if i%2 == 0 {
					req := relaywire.Request{Slot: slot, Seq: uint64(time.Now().UnixNano()), Bind: true}
					if i%4 == 0 {
						req.Late = 30 * time.Second
					}
					_ = raw.Send(lab.Datagram(anybody(), relay, req.Append(nil, noise(32))))
					continue
				}
				frame := relaywire.AppendFrame(nil, relaywire.Header{Slot: slot, Ticket: random.Uint64()})
				_ = raw.Send(lab.Datagram(anybody(), relay, append(frame, "guessed ticket"...)))
			}
		})
		say("after the relay's flood")
		if n := wire.Saw("guessed ticket"); n > 0 {
			t.Errorf("the relay forwarded %d frames with guessed tickets, want 0", n)
		}
	})
}

func query(name string, kind uint16) []byte {
	m := new(dns.Msg).SetQuestion(name, kind)
	m.SetEdns0(65535, true)
	b, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return b
}

// The resolver answers only instances of its own node, and cannot be used for amplification.
func amplification(t *testing.T, s *siege) {
	out := s.outside()
	at := netip.AddrPortFrom(s.hostAddr(1), 53)
	resolver := netip.AddrPortFrom(wire.ResolverAddr, 53)
	s.route(t, out, resolver.Addr(), at.Addr())
	s.route(t, s.Hosts[2], resolver.Addr(), at.Addr())
	sniffers := map[string]*lab.Sniffer{
		"a host outside": s.Sniff(lab.NetNS(out)), "another node": s.Sniff(lab.NetNS(s.Hosts[2])),
		"the caller's node": s.Sniff(lab.NetNS(s.Hosts[0])), "an instance of the node": s.Sniff(s.web.NetNS()),
		"an instance elsewhere": s.Sniff(s.client.NetNS()),
	}
	const name = "amplified.lab.shop.lab.treeline."
	s.undisturbed(t, floodBound, func() {
		for path, own := range map[string]string{lab.NetNS(out): "203.0.113.200", lab.NetNS(s.Hosts[2]): "203.0.113.12"} {
			raw := s.Raw(path)
			for _, from := range []netip.Addr{
				netip.MustParseAddr(own), s.hostAddr(0), s.own(s.web).Addr(), s.own(s.client).Addr(), s.own(s.mole).Addr(),
			} {
				for _, to := range []netip.AddrPort{at, resolver, netip.AddrPortFrom(s.own(s.web).Addr(), 53)} {
					for _, q := range []string{"web.lab.shop.lab.treeline.", name, "example.org."} {
						_ = raw.Send(lab.Datagram(netip.AddrPortFrom(from, 5353), to, query(q, dns.TypeANY)))
					}
				}
			}
		}
		time.Sleep(holdTime) // checks that there is no answer
	})
	for who, sn := range sniffers {
		answers := sn.Datagrams(func(from, to netip.AddrPort) bool { return from.Port() == 53 && to.Port() == 5353 })
		if len(answers) > 0 {
			t.Errorf("%s received %d answers, want 0", who, len(answers))
		}
	}

	c, err := s.client.Dial(t.Context(), "udp", resolver.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var answers, longest atomic.Int64
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			answers.Add(1)
			longest.Store(max(longest.Load(), int64(n)))
		}
	}()
	began := time.Now()
	s.undisturbed(t, floodBound, func() {
		for i := range 10_000 {
			_, _ = c.Write(query([]string{"web.lab.shop.lab.treeline.", fmt.Sprintf("x%d.lab.shop.lab.treeline.", i)}[i%2], dns.TypeANY))
		}
	})
	time.Sleep(holdTime) // for the last answers
	most := 400 + 200*time.Since(began).Seconds() + 1
	t.Logf("%d answers to 10,000 queries in %s, the longest of %d bytes", answers.Load(), time.Since(began), longest.Load())
	if n := float64(answers.Load()); n > most || n == 0 {
		t.Errorf("%v answers to 10,000 queries, want between 1 and %v", n, most)
	}
	if longest.Load() > 1232 {
		t.Errorf("the longest answer has %d bytes, which is more than the bound", longest.Load())
	}
	lab.Within(t, time.Minute, "the flood over, names are answered", func() error {
		_, err := s.client.Lookup(t.Context(), "ip4", "web.lab.shop.lab.treeline")
		return err
	})
}

// An instance that sends to many unknown destinations costs its node, its cluster and the root
// little, and does not affect other instances.
func unknownDestinations(t *testing.T, s *siege) {
	// Services that the neighbour calls for the first time during the flood.
	const calls = 5
	fresh := make([]api.ServiceID, calls)
	app := lab.App("fresh")
	for i := range fresh {
		name := fmt.Sprintf("s%d", i)
		fresh[i] = s.other.App("fresh", lab.Namespace).Service(name, lab.Namespace)
		app.Applications[0].Services = append(app.Applications[0].Services, lab.On(s.Server(name, 1), "c1", "n1"))
	}
	if _, err := s.API.Apply(t.Context(), lab.Encode(app), client.ApplyOptions{Tenant: s.other}); err != nil {
		t.Fatal(err)
	}
	at := make([]string, calls)
	for i, id := range fresh {
		s.Wait(string(id)+" runs", lab.Is(id.Instance(0), func(i api.Instance) bool { return i.State == api.Running }))
		at[i] = s.at(id).String()
	}
	n2 := s.Nodes[2]
	const destinations = 50_000
	var sent atomic.Int64
	s.undisturbed(t, floodBound, func() {
		raw := s.Raw(s.mole.NetNS())
		from := s.own(s.mole)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan struct{})
		go func() {
			defer close(done)
			random := rand.New(rand.NewChaCha8([32]byte{2}))
			for ctx.Err() == nil && sent.Load() < destinations {
				to := netip.AddrFrom4([4]byte{10, byte(16 + random.IntN(8)), byte(random.Uint32()), byte(random.Uint32())})
				if random.IntN(2) == 0 {
					to = netip.AddrFrom4([4]byte{10, 30, byte(random.Uint32()), byte(random.Uint32())})
				}
				_ = raw.Send(lab.Datagram(from, netip.AddrPortFrom(to, 9), []byte("anybody?")))
				if sent.Add(1)%100 == 0 {
					time.Sleep(10 * time.Millisecond) // a continuous flood instead of one burst that is dropped at once
				}
			}
		}()
		names, err := s.mole.Dial(ctx, "udp", netip.AddrPortFrom(wire.ResolverAddr, 53).String())
		if err != nil {
			t.Fatal(err)
		}
		defer names.Close()
		go func() {
			for i := 0; ctx.Err() == nil; i++ {
				_, _ = names.Write(query(fmt.Sprintf("any.rr.x%d.lab.y%d.lab.treeline.", i, i), dns.TypeA))
				time.Sleep(5 * time.Millisecond)
			}
		}()
		lab.Within(t, 60*time.Second, "the flood is on", func() error {
			if n := sent.Load(); n < destinations/5 {
				return fmt.Errorf("%d sent", n)
			}
			return nil
		})
		// Meanwhile a neighbour sends its first packets to services. One may be lost on a busy
		// machine, and is repeated after a second.
		var took []time.Duration
		for i, to := range at {
			began := time.Now()
			id, err := s.spy.Who(to, 10*time.Second)
			took = append(took, time.Since(began))
			if err != nil || id != fresh[i].Instance(0) {
				t.Errorf("the neighbour's first call: %q after %s, %v", id, took[i], err)
			}
		}
		slices.Sort(took)
		t.Logf("the neighbour's first calls, while %d were sent, took %s", sent.Load(), took)
		if took[calls/2] > time.Second {
			t.Errorf("the neighbour's first calls during the flood took %s, which is more than the bound", took)
		}
		<-done
		// 256 subscriptions of one service without an answer, and those with a route.
		unmet, routes := n2.NetMetric("treeline_net_subscriptions_open"), n2.NetMetric("treeline_net_routes")
		t.Logf("n2 has %v routes and %v subscriptions without an answer; its core dropped %v inputs in %v steps", routes, unmet,
			n2.NetMetric("treeline_core_inputs_dropped_total"), n2.NetMetric("treeline_core_steps_total"))
		if unmet > 256+64 || routes > 64 {
			t.Errorf("n2 has %v routes and %v subscriptions without an answer, which is more than the bound", routes, unmet)
		}
	})
}
