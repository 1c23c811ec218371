package wiring

import (
	"context"
	"crypto/ecdh"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"
	"syscall"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay"
	tunnels "github.com/treeline-edge/treeline/netmanager/tunnel"
	"github.com/treeline-edge/treeline/netmanager/tunnel/tun"
)

// tunnel is the engine, and what it tells the core.
type tunnel struct {
	*tunnels.Engine
	post func(overlay.Input)
	log  *slog.Logger
}

const portFile = "port"

// openTunnel opens the tunnel's device and socket. A port that was free once is
// asked for again: NATs and peers know it.
func (m *manager) openTunnel(key *ecdh.PrivateKey) (*tunnel, error) {
	t := &tunnel{post: m.post, log: m.log}
	dev, err := tun.Open(m.tunnelDevice(), tunnels.DefaultMTU)
	if err != nil {
		return nil, err
	}
	listen, err := m.cfg.listen()
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	open := func(at netip.AddrPort) (err error) {
		t.Engine, err = tunnels.New(tunnels.Config{
			Device: dev, Key: [32]byte(key.Bytes()), Listen: at, Hooks: tunnels.Hooks{Event: t.event},
		})
		return err
	}
	last := m.lastPort()
	err = syscall.EADDRINUSE
	if listen.Port() == 0 && last != 0 {
		err = open(netip.AddrPortFrom(listen.Addr(), last))
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		err = open(listen)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the tunnel at %s: %w", listen, err), dev.Close())
	}
	if p := t.Local().Port(); p != last {
		if err := m.data.WriteFile(portFile, []byte(strconv.Itoa(int(p))+"\n"), 0o600); err != nil {
			return nil, errors.Join(fmt.Errorf("keep the tunnel's port: %w", err), dev.Close())
		}
	}
	return t, nil
}

// lastPort is the one of the last life; 0: none is known.
func (m *manager) lastPort() uint16 {
	text, err := m.data.ReadFile(portFile)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			m.log.Warn("the tunnel's last port is not known", "err", err)
		}
		return 0
	}
	n, _ := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 16)
	return uint16(n)
}

// SetSelf is tunneller's.
func (t *tunnel) SetSelf(l api.NetLease) {
	t.Engine.SetSelf(tunnels.Lease{Ranges: l.Ranges, Subnet: l.Subnet})
}

func (t *tunnel) mapped() []netip.AddrPort { return nil }
func (t *tunnel) moved(place)              {}

func (t *tunnel) event(e tunnels.Event) {
	switch e := e.(type) {
	case tunnels.UnknownPeer:
		t.post(overlay.PeerUnknown{Key: e.Key, Claim: e.Claim})
	case tunnels.Established:
		t.post(overlay.Path{Key: e.Peer, Kind: e.From.Kind, Addr: e.From.Addr, RTT: e.RTT, MTU: tunnels.DefaultMTU})
	case tunnels.Silent:
		t.post(overlay.Path{Key: e.Peer, Silent: true})
	case tunnels.Heard:
		t.post(overlay.Path{Key: e.Peer, Kind: e.From.Kind, Addr: e.From.Addr, MTU: tunnels.DefaultMTU})
	}
}

// Peers is socket.Overlay's.
func (m *manager) Peers(ctx context.Context) (all []api.PeerStatus, err error) {
	if err := m.loop.Read(ctx, func() { all = m.core.Peers() }); err != nil {
		return nil, err
	}
	stats := map[api.PeerKey]tunnels.Stats{}
	for _, s := range m.tunnel.Stats() {
		stats[s.Peer] = s
	}
	for i := range all {
		p := &all[i]
		s, ok := stats[p.Key]
		if !ok {
			continue
		}
		p.Sent, p.Received, p.Handshake = s.SentBytes, s.ReceivedBytes, s.Handshake
		for _, n := range s.Drops {
			p.Dropped += n
		}
	}
	return all, nil
}

func removeDevices(prefix string) error {
	return errors.Join(tun.Remove(prefix+"tun"), tun.Remove(prefix+"hold"))
}
