package netbench

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/songgao/water"
)

func init() { roles["one-a-time"] = as(forwardOneAtATime) }

// OneAtATime is a TUN forwarder that moves one packet per system call. It has the structure of
// Oakestra's, one goroutine for each direction, without its further processing of packets.
func OneAtATime() Path { return &oneAtATime{} }

type oneAtATime struct{ plain }

type forwarderOrder struct {
	Local, Remote netip.AddrPort
	MTU           int
}

// Up implements Path.
func (p *oneAtATime) Up(ctx context.Context, b *Bed) error {
	const mtu, port = 1450, 50103
	if err := p.containers(ctx, b, mtu); err != nil {
		return err
	}
	for i, n := range b.Node {
		c, err := b.start(n, "one-a-time", forwarderOrder{
			Local: netip.AddrPortFrom(WireAddr[i], port), Remote: netip.AddrPortFrom(WireAddr[1-i], port),
		})
		if err != nil {
			return err
		}
		p.procs = append(p.procs, c)
		if err := n.IP(ctx, fmt.Sprintf("link set tun0 mtu %d up", mtu), fmt.Sprintf("route add %s dev tun0", behind(1-i))); err != nil {
			return err
		}
	}
	return nil
}

func forwardOneAtATime(ctx context.Context, o forwarderOrder, ready func()) (any, error) {
	tun, err := water.New(water.Config{DeviceType: water.TUN, PlatformSpecificParams: water.PlatformSpecificParams{Name: "tun0"}})
	if err != nil {
		return nil, err
	}
	sock, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(o.Local))
	if err != nil {
		return nil, err
	}
	errs := make(chan error, 2)
	go func() {
		buf := make([]byte, 65536)
		for {
			n, err := tun.Read(buf)
			if err == nil {
				_, err = sock.WriteToUDPAddrPort(buf[:n], o.Remote)
			}
			if err != nil {
				errs <- err
				return
			}
		}
	}()
	go func() {
		buf := make([]byte, 65536)
		for {
			n, _, err := sock.ReadFromUDPAddrPort(buf)
			if err == nil {
				_, err = tun.Write(buf[:n])
			}
			if err != nil {
				errs <- err
				return
			}
		}
	}()
	ready()
	select {
	case <-ctx.Done():
		return nil, nil
	case err := <-errs:
		return nil, err
	}
}
