package wiring

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"net/url"

	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/netbook"
	"github.com/treeline-edge/treeline/cluster-orchestrator/nodelink"
	"github.com/treeline-edge/treeline/cluster-orchestrator/relay"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
)

// The document with the seed of the relay's tickets and secrets.
const (
	kindSecret = "secret"
	keySeed    = "network"
	seedSize   = 32
)

// networkSeed returns the cluster's seed. The first start generates and saves it.
func networkSeed(ctx context.Context, st store.Store, docs []store.Doc) ([]byte, error) {
	for _, d := range docs {
		if d.Kind == kindSecret && d.Key == keySeed {
			return d.Data, nil
		}
	}
	seed := make([]byte, seedSize)
	_, _ = rand.Read(seed) // never fails
	if err := st.Save(ctx, []store.Doc{{Kind: kindSecret, Key: keySeed, Version: 1, Data: seed}}); err != nil {
		return nil, fmt.Errorf("save the network's seed: %w", err)
	}
	return seed, nil
}

// relayAddr returns the address at which nodes reach the relay: the configured one, or else
// the cluster's own port. It returns "" without a relay.
func (n NetworkConfig) relayAddr(external string) string {
	switch n.Relay {
	case noRelay:
		return ""
	case "":
		if u, err := url.Parse(external); err == nil {
			return net.JoinHostPort(u.Hostname(), u.Port())
		}
	}
	return n.Relay
}

// openRelay opens the relay on the UDP port with the same number as the TCP listener.
func (o *orchestrator) openRelay(ln net.Addr, members *nodelink.Members) error {
	if o.cfg.Network.Relay == noRelay {
		return nil
	}
	at, err := netip.ParseAddrPort(ln.String())
	if err != nil {
		return fmt.Errorf("open the relay: %w", err)
	}
	o.relay, err = relay.New(relay.Options{Listen: at, Identify: members.Node, Allow: o.relays.Allow, Log: o.log})
	return err
}

func (o *orchestrator) serveRelay(ctx context.Context, c *tls.Conn) error {
	if o.relay == nil {
		return c.Close()
	}
	return o.relay.Serve(ctx, c)
}

func (o *orchestrator) sendRelay(msg any) {
	if o.relay == nil {
		return
	}
	switch m := msg.(type) {
	case netbook.SetSlot:
		o.relay.Set(m.Slot, relay.Slot{Node: m.Node, Ticket: m.Ticket, Secret: m.Secret})
	case netbook.DropSlot:
		o.relay.Drop(m.Slot)
	}
}

// noteRelays allows the relays in a message to a node: nodes that have only TLS may send to
// them through the cluster's relay.
func (o *orchestrator) noteRelays(d wire.NetDown) {
	for _, route := range d.Routes {
		for _, p := range route.Peers {
			o.relays.Add(p.Relay.Addr)
		}
	}
	for _, s := range d.Sources {
		o.relays.Add(s.Peer.Relay.Addr)
	}
	for _, p := range d.Peers {
		o.relays.Add(p.Relay.Addr)
	}
}
