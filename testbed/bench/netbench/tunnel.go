package netbench

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"fmt"
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/relay"
	"github.com/treeline-edge/treeline/netmanager/relaylink"
	"github.com/treeline-edge/treeline/netmanager/tunnel"
	"github.com/treeline-edge/treeline/netmanager/tunnel/tun"
)

func init() {
	roles["tunnel"] = as(runTunnel)
	roles["relay"] = as(runRelay)
}

type tunnelOrder struct {
	Device string
	Key    []byte // private
	Listen netip.AddrPort
	Subnet netip.Prefix
	Peer   api.Peer
	Path   tunnel.Path
	Slot   uint32 // our own, where Path is through a relay
	First  bool   // begins the handshake
}

type relayOrder struct {
	Listen netip.AddrPort
	Slots  []uint32
}

// A slot's ticket and secret are as good as any in a namespace of its own.
func ticketOf(slot uint32) uint64 { return 1000 + uint64(slot) }

var relaySecret = []byte("thirty-two bytes of no secrecy..")

// tunnels runs an encrypted tunnel between the nodes.
func (k *PartsPath) tunnels(ctx context.Context) error {
	const port = 41641
	between := netip.AddrPortFrom(hostBetween, 7443)
	slots := []uint32{1, 2}
	if k.kind == api.PathRelay {
		c, err := k.bed.start(k.bed.wan, "relay", relayOrder{between, slots})
		if err != nil {
			return err
		}
		k.procs = append(k.procs, c)
	}
	var keys [2]*ecdh.PrivateKey
	for i := range keys {
		var err error
		if keys[i], err = ecdh.X25519().GenerateKey(rand.Reader); err != nil {
			return err
		}
		copy(k.state[1-i].Peers[0].Key[:], keys[i].PublicKey().Bytes())
	}
	for i, n := range k.bed.Node {
		o := tunnelOrder{
			Device: k.state[i].Node.Tunnel, Key: keys[i].Bytes(), Subnet: subnets[i], Listen: netip.AddrPortFrom(WireAddr[i], port),
			Peer:  api.Peer{Key: k.state[i].Peers[0].Key, Subnets: []netip.Prefix{subnets[1-i]}},
			Path:  tunnel.Path{Kind: api.PathDirect, Addr: netip.AddrPortFrom(WireAddr[1-i], port)},
			First: i == 1, // when the other one listens
		}
		if k.kind == api.PathRelay {
			o.Slot = slots[i]
			o.Path = tunnel.Path{Kind: api.PathRelay, Addr: between, Slot: slots[1-i], Ticket: ticketOf(slots[1-i])}
		}
		c, err := k.bed.start(n, "tunnel", o)
		if err != nil {
			return err
		}
		k.procs = append(k.procs, c)
		if err := n.IP(ctx, fmt.Sprintf("route add %s dev %s", subnets[1-i], k.state[i].Node.Tunnel)); err != nil {
			return err
		}
	}
	return nil
}

// sessionTime is how long a binding and a handshake may take.
const sessionTime = 10 * time.Second

func runTunnel(ctx context.Context, o tunnelOrder, ready func()) (any, error) {
	dev, err := tun.Open(o.Device, tunnel.DefaultMTU)
	if err != nil {
		return nil, err
	}
	established, bound := make(chan struct{}, 1), make(chan struct{}, 1)
	tell := func(c chan struct{}) {
		select {
		case c <- struct{}{}:
		default:
		}
	}
	var e *tunnel.Engine
	link := relaylink.New(relaylink.Options{
		Send: func(to netip.AddrPort, datagram []byte) error { return e.SendRaw(to, datagram) },
		Changed: func(s relaylink.State) {
			if s.UDP {
				tell(bound)
			}
		},
	})
	e, err = tunnel.New(tunnel.Config{Device: dev, Key: [32]byte(o.Key), Listen: o.Listen, Hooks: tunnel.Hooks{
		Raw: link.Receive,
		Event: func(ev tunnel.Event) {
			if _, ok := ev.(tunnel.Established); ok {
				tell(established)
			}
		},
	}})
	if err != nil {
		return nil, err
	}
	self := tunnel.Lease{Ranges: ranges, Subnet: o.Subnet}
	if o.Slot != 0 {
		self.Relays = []netip.AddrPort{o.Path.Addr}
	}
	e.SetSelf(self)
	e.SetPeer(o.Peer)
	e.SetTries(o.Peer.Key, o.Path)
	e.SetPath(o.Peer.Key, o.Path)
	ended := make(chan error, 2)
	go func() { ended <- e.Run(ctx) }()
	wait := func(c chan struct{}, what string) error {
		select {
		case <-c:
			return nil
		case err := <-ended:
			return fmt.Errorf("%s: %w", what, err)
		case <-time.After(sessionTime):
			return fmt.Errorf("%s takes too long", what)
		}
	}
	if o.Slot != 0 {
		go func() { ended <- link.Run(ctx) }()
		if err := link.SetLease(ctx, api.Relay{Addr: o.Path.Addr.String(), Slot: o.Slot, Ticket: ticketOf(o.Slot)}, relaySecret); err != nil {
			return nil, err
		}
		if err := wait(bound, "the binding at "+o.Path.Addr.String()); err != nil {
			return nil, err
		}
	}
	if o.First {
		e.Connect(o.Peer.Key)
		if err := wait(established, "a session by "+o.Path.Addr.String()); err != nil {
			return nil, err
		}
	}
	ready()
	select {
	case <-ctx.Done():
		return nil, nil
	case err := <-ended:
		return nil, err
	}
}

func runRelay(ctx context.Context, o relayOrder, ready func()) (any, error) {
	r, err := relay.New(relay.Options{Listen: o.Listen})
	if err != nil {
		return nil, err
	}
	for _, s := range o.Slots {
		r.Set(s, relay.Slot{Node: api.NodeID(fmt.Sprintf("n%d", s)), Ticket: ticketOf(s), Secret: relaySecret})
	}
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	ready()
	select {
	case <-ctx.Done():
		return nil, nil
	case err := <-ended:
		return nil, err
	}
}
