package host

import (
	"context"
	"net/netip"

	"github.com/treeline-edge/treeline/netmanager/overlay"
)

// Names answers the resolver's queries from the core. It implements resolver.Overlay.
type Names struct {
	Core *Core
	// IsLocal reports whether an address belongs to an instance on this node.
	IsLocal func(netip.Addr) bool
}

// Local implements resolver.Overlay. It does not wait for the core.
func (n Names) Local(client netip.Addr) bool { return n.IsLocal(client) }

// Lookup implements resolver.Overlay. It posts the query before it looks the name up, so that a
// known name counts as used and a request for an unknown one is sent to the cluster.
func (n Names) Lookup(ctx context.Context, client netip.Addr, name string) (a overlay.Answer, err error) {
	look := func(o overlay.View) { a = o.Lookup(client, name) }
	q := overlay.Query{Local: client, Name: name}
	err = n.Core.Do(ctx, q, look)
	if unsaved(err) {
		n.Core.Offer(q)
		err = n.Core.Read(ctx, look)
	}
	return a, err
}

// Covers implements resolver.Overlay.
func (n Names) Covers(ctx context.Context, name string) (yes bool, err error) {
	err = n.Core.Read(ctx, func(o overlay.View) { yes = o.Covers(name) })
	return yes, err
}
