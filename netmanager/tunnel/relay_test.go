package tunnel

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/udp"
	"github.com/treeline-edge/treeline/internal/wire"
)

func message(b []byte, each int) udp.Message { return udp.Message{Data: b, Each: each} }

// relay forwards datagrams with a header to the node of its slot.
func relay(t *testing.T, h *host, slots map[uint32]netip.AddrPort, ticket uint64) netip.AddrPort {
	c := h.packets(netip.AddrPortFrom(h.under, 0).String())
	go func() {
		b := make([]byte, 1<<16)
		for {
			n, _, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			if n >= relayHeader && b[0] == typeRelay && binary.BigEndian.Uint64(b[8:]) == ticket {
				c.WriteToUDPAddrPort(b[relayHeader:n], slots[binary.BigEndian.Uint32(b[4:])])
			}
		}
	}()
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

func TestSessionsBeginOnTheRelayAndMoveToADirectPath(t *testing.T) {
	hs := newHosts(t, 3)
	a, b, r := hs[0], hs[1], hs[2]
	a.start(Hooks{})
	b.start(Hooks{})
	slots := map[uint32]netip.AddrPort{1: netip.AddrPortFrom(a.under, a.Local().Port()), 2: netip.AddrPortFrom(b.under, b.Local().Port())}
	at := relay(t, r, slots, 99)
	for i, h := range []*host{a, b} {
		h.SetSelf(Lease{Ranges: wire.DefaultNetRanges(), Subnet: h.subnet, Relays: []netip.AddrPort{at}})
		other := []*host{b, a}[i]
		h.SetPeer(api.Peer{Key: other.Public(), Subnets: []netip.Prefix{other.subnet}})
		h.SetTries(other.Public(), Path{Kind: api.PathRelay, Addr: at, Slot: uint32(2 - i), Ticket: 99})
	}
	l := b.serve(netip.AddrPortFrom(b.addr(), 0).String())
	if err := a.upload(l.Addr(), noise(3_000_000)); err != nil {
		t.Fatal(err)
	}
	if e := until[Established](a); e.From != (Path{Kind: api.PathRelay, Addr: at}) {
		t.Errorf("the session was established by %+v, want the relay", e)
	}
	if s := a.Stats()[0]; s.Path.Kind != api.PathRelay || s.Path.Slot != 2 || s.From.Kind != api.PathRelay {
		t.Errorf("the peer is %+v, want the relay in both directions", s)
	}
	direct := Path{Kind: api.PathDirect, Addr: slots[2]}
	a.SetPath(b.Public(), direct)
	if err := a.upload(l.Addr(), noise(3_000_000)); err != nil {
		t.Fatal(err)
	}
	if m := until[Moved](b); m.From != (Path{Kind: api.PathDirect, Addr: slots[1]}) {
		t.Errorf("the peer moved: %+v, want the direct path from the slot", m)
	}
	if s := b.Stats()[0]; s.Path.Kind != api.PathRelay || s.From.Kind != api.PathDirect {
		t.Errorf("the way back is not ours to change: %+v", s)
	}
}

// Where UDP is blocked, SendTLS and Receive carry the datagrams.
func TestSessionsOverACarrier(t *testing.T) {
	hs := newHosts(t, 2)
	a, b := hs[0], hs[1]
	carry := func(to **host) func(Path, []byte) {
		pipe := make(chan []byte, 1000)
		go func() {
			for d := range pipe {
				(*to).Receive(Path{Kind: api.PathRelayTLS}, d)
			}
		}()
		t.Cleanup(func() { close(pipe) })
		return func(p Path, d []byte) {
			select {
			case pipe <- append([]byte(nil), d...):
			default:
			}
		}
	}
	a.start(Hooks{SendTLS: carry(&b)})
	b.start(Hooks{SendTLS: carry(&a)})
	a.SetPeer(b.record())
	b.SetPeer(a.record())
	a.SetTries(b.Public(), Path{Kind: api.PathRelayTLS, Slot: 2})
	b.SetTries(a.Public(), Path{Kind: api.PathRelayTLS, Slot: 1})
	l := b.serve(netip.AddrPortFrom(b.addr(), 0).String())
	if err := a.upload(l.Addr(), noise(3_000_000)); err != nil {
		t.Fatal(err)
	}
	if s := a.Stats()[0]; s.Path.Kind != api.PathRelayTLS {
		t.Errorf("the peer is %+v, want the relay over TLS", s)
	}
}
