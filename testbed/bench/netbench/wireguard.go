package netbench

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/netip"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
)

func init() { roles["wireguard"] = as(wireGuard) }

// WireGuard is unmodified wireguard-go: its TUN, its sockets, its pools.
func WireGuard() Path { return &wireGuardPath{} }

type wireGuardPath struct{ plain }

const wireGuardMTU = 1420

type wireGuardOrder struct{ Config string }

// Up implements Path.
func (p *wireGuardPath) Up(ctx context.Context, b *Bed) error {
	const port = 51820
	if err := p.containers(ctx, b, wireGuardMTU); err != nil {
		return err
	}
	var keys [2]*ecdh.PrivateKey
	for i := range keys {
		var err error
		if keys[i], err = ecdh.X25519().GenerateKey(rand.Reader); err != nil {
			return err
		}
	}
	for i, n := range b.Node {
		c, err := b.start(n, "wireguard", wireGuardOrder{fmt.Sprintf(
			"private_key=%s\nlisten_port=%d\npublic_key=%s\nendpoint=%s\nallowed_ip=%s\n",
			hex.EncodeToString(keys[i].Bytes()), port, hex.EncodeToString(keys[1-i].PublicKey().Bytes()),
			netip.AddrPortFrom(WireAddr[1-i], port), behind(1-i))})
		if err != nil {
			return err
		}
		p.procs = append(p.procs, c)
		if err := n.IP(ctx, "link set wg0 up", fmt.Sprintf("route add %s dev wg0", behind(1-i))); err != nil {
			return err
		}
	}
	return nil
}

func wireGuard(ctx context.Context, o wireGuardOrder, ready func()) (any, error) {
	t, err := tun.CreateTUN("wg0", wireGuardMTU)
	if err != nil {
		return nil, err
	}
	d := device.NewDevice(t, conn.NewDefaultBind(), device.NewLogger(device.LogLevelSilent, ""))
	defer d.Close()
	if err := d.IpcSet(o.Config); err != nil {
		return nil, err
	}
	if err := d.Up(); err != nil {
		return nil, err
	}
	ready()
	select {
	case <-ctx.Done():
	case <-d.Wait():
	}
	return nil, nil
}
