package wiring

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"sync"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/cluster-orchestrator/nodelink"
	"github.com/treeline-edge/treeline/cluster-orchestrator/relay"
	"github.com/treeline-edge/treeline/internal/store"
)

// The seed of the relay's tickets and secrets is in the store, with what hangs on it.
const (
	kindSecret = "secret"
	keySeed    = "network"
	seedSize   = 32
)

// networkSeed is the cluster's seed; at the first start it is made.
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

// relayAddr is where nodes reach the relay: on the cluster's own port, if nothing
// else is said.
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

// openRelay opens the relay on the UDP port with the listener's number.
func (o *orchestrator) openRelay(ln net.Addr, members *nodelink.Members) error {
	if o.cfg.Network.Relay == noRelay {
		return nil
	}
	at, err := netip.ParseAddrPort(ln.String())
	if err != nil {
		return fmt.Errorf("open the relay: %w", err)
	}
	o.relay, err = relay.New(relay.Options{Listen: at, Identify: members.Node, Allow: o.relays.has, Log: o.log})
	return err
}

func (o *orchestrator) runRelay(ctx context.Context) error {
	if o.relay == nil {
		<-ctx.Done()
		return nil
	}
	return o.relay.Run(ctx)
}

func (o *orchestrator) serveRelay(ctx context.Context, c *tls.Conn) error {
	if o.relay == nil {
		return c.Close()
	}
	return o.relay.Serve(ctx, c)
}

// sendRelay gives the relay its slots.
func (o *orchestrator) sendRelay(msg any) {
	if o.relay == nil {
		return
	}
	switch m := msg.(type) {
	case cluster.SetSlot:
		o.relay.Set(m.Slot, relay.Slot{Node: m.Node, Ticket: m.Ticket, Secret: m.Secret})
	case cluster.DropSlot:
		o.relay.Drop(m.Slot)
	}
}

// maxRelays bounds the relays of others that nodes may be told of.
const maxRelays = 4096

// relays are the relays that routes lead to: whoever has TLS alone may send to
// those through ours, and to nobody else.
type relays struct {
	mu    sync.RWMutex // guards the fields below
	texts map[string]bool
	addrs map[netip.AddrPort]bool
}

// note takes the relays that a message to a node names.
func (r *relays) note(d api.NetDown) {
	for _, route := range d.Routes {
		for _, p := range route.Peers {
			r.add(p.Relay.Addr)
		}
	}
	for _, s := range d.Sources {
		r.add(s.Peer.Relay.Addr)
	}
	for _, p := range d.Peers {
		r.add(p.Relay.Addr)
	}
}

func (r *relays) add(text string) {
	r.mu.RLock()
	known := r.texts[text]
	r.mu.RUnlock()
	if known || text == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.texts == nil || len(r.texts) >= maxRelays {
		r.texts, r.addrs = map[string]bool{}, map[netip.AddrPort]bool{}
	}
	r.texts[text] = true
	// A relay that is named and not numbered is reached over UDP only: looking names
	// up has no place here.
	if at, err := netip.ParseAddrPort(text); err == nil {
		r.addrs[at] = true
	}
}

func (r *relays) has(at netip.AddrPort) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.addrs[at]
}
