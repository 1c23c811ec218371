package netbench

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"fmt"
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/tunnel"
	"github.com/treeline-edge/treeline/netmanager/tunnel/tun"
)

func init() { roles["tunnel"] = as(runTunnel) }

type tunnelOrder struct {
	Device string
	Key    []byte // private
	Listen netip.AddrPort
	Subnet netip.Prefix
	Peer   api.Peer
	Path   tunnel.Path
	First  bool // begins the handshake
}

// tunnels runs an encrypted tunnel between the nodes.
func (k *PartsPath) tunnels(ctx context.Context) error {
	const port = 41641
	var keys [2]*ecdh.PrivateKey
	for i := range keys {
		var err error
		if keys[i], err = ecdh.X25519().GenerateKey(rand.Reader); err != nil {
			return err
		}
		copy(k.state[1-i].Peers[0].Key[:], keys[i].PublicKey().Bytes())
	}
	for i, n := range k.bed.Node {
		peer := api.Peer{Key: k.state[i].Peers[0].Key, Subnets: []netip.Prefix{subnets[1-i]}}
		c, err := k.bed.start(n, "tunnel", tunnelOrder{
			Device: k.state[i].Node.Tunnel, Key: keys[i].Bytes(), Subnet: subnets[i], Peer: peer, First: i == 1, // when the other one listens
			Listen: netip.AddrPortFrom(WireAddr[i], port),
			Path:   tunnel.Path{Kind: api.PathDirect, Addr: netip.AddrPortFrom(WireAddr[1-i], port)},
		})
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

func runTunnel(ctx context.Context, o tunnelOrder, ready func()) (any, error) {
	dev, err := tun.Open(o.Device, tunnel.DefaultMTU)
	if err != nil {
		return nil, err
	}
	established := make(chan struct{}, 1)
	e, err := tunnel.New(tunnel.Config{Device: dev, Key: [32]byte(o.Key), Listen: o.Listen, Hooks: tunnel.Hooks{
		Event: func(ev tunnel.Event) {
			if _, ok := ev.(tunnel.Established); ok {
				select {
				case established <- struct{}{}:
				default:
				}
			}
		},
	}})
	if err != nil {
		return nil, err
	}
	e.SetSelf(tunnel.Lease{Ranges: ranges, Subnet: o.Subnet})
	e.SetPeer(o.Peer)
	e.SetTries(o.Peer.Key, o.Path)
	e.SetPath(o.Peer.Key, o.Path)
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	if o.First {
		e.Connect(o.Peer.Key)
		select {
		case <-established:
		case err := <-ended:
			return nil, err
		case <-time.After(10 * time.Second):
			return nil, fmt.Errorf("no session with %s", o.Path.Addr)
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
