package wiring

import (
	"context"
	"net/netip"

	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/netmanager/resolver"
)

// nameService is the resolver's Overlay: it reads the core, and has it ask for
// what it does not know.
type nameService struct{ m *manager }

// Local is resolver.Overlay's. It must not wait for the core.
func (n nameService) Local(client netip.Addr) bool { return n.m.links.local(client) }

// Lookup is resolver.Overlay's. The query goes in before the look-up, so that what
// is known counts as used, and what is not is asked for.
func (n nameService) Lookup(ctx context.Context, client netip.Addr, name string) (a overlay.Answer, err error) {
	look := func() { a = n.m.core.Lookup(client, name) }
	q := overlay.Query{Local: client, Name: name}
	err = n.m.loop.Do(ctx, q, look)
	if unsaved(err) {
		n.m.offer(q)
		err = n.m.loop.Read(ctx, look)
	}
	return a, err
}

// Covers is resolver.Overlay's.
func (n nameService) Covers(ctx context.Context, name string) (yes bool, err error) {
	err = n.m.loop.Read(ctx, func() { yes = n.m.core.Covers(name) })
	return yes, err
}

func (m *manager) openResolver() (*resolver.Resolver, error) {
	var servers []netip.AddrPort
	for _, s := range m.cfg.Resolvers {
		a, err := netip.ParseAddrPort(s)
		if err != nil {
			return nil, err
		}
		servers = append(servers, a)
	}
	return resolver.New(resolver.Config{Overlay: nameService{m}, Servers: servers, Log: m.log}), nil
}
