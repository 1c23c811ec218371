package wiring

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/netmanager/overlay/notice"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
	"github.com/treeline-edge/treeline/netmanager/wayfinder"
)

// The pauses between attempts to make the kernel what it should be.
const (
	minPause = 100 * time.Millisecond
	maxPause = 5 * time.Second
)

// The others that carry out orders of the core. None of them blocks.
type (
	holder interface {
		Release(netip.Addr)
		Refuse(local, remote netip.Addr, denied bool)
	}
	answerer interface{ Answered(name string) }
	teller   interface {
		Tell(api.PeerKey, wayfinder.Message)
	}
)

// orders carries out what the core orders, one after the other, in their order: a
// packet that is held goes on when the plane knows its way, and not before. What
// the kernel refuses is made good by telling it everything, again and again until
// it takes it.
type orders struct {
	open     func() (dataplane.Plane, error)
	links    *links
	hold     holder
	resolver answerer
	tunnel   teller

	state func(context.Context) (plane.State, error) // all that the plane should hold now
	used  func(plane.Usage)
	// counted takes what passed by peers, nil if that is not known.
	counted func(map[api.PeerKey][2]uint64)
	// synced says whether the kernel is what the core wants, and if not, why.
	synced func(error)
	log    *slog.Logger

	plane     dataplane.Plane               // Run's
	endpoints map[netip.Addr]plane.Endpoint // that the core wants; Run's
	leased    bool                          // the kernel was told of a lease; Run's

	mu     sync.Mutex // guards queue
	queue  []any
	filled chan struct{}
}

func newOrders() *orders {
	return &orders{endpoints: map[netip.Addr]plane.Endpoint{}, filled: make(chan struct{}, 1)}
}

// barrier is closed when what was ordered before it is carried out.
type barrier chan struct{}

// resync has the kernel told everything: the machine is elsewhere, and which
// networks are its own hangs on that; or too much waits to be told one by one.
type resync struct{}

// connect makes an instance's device, and answers once.
type connect struct {
	address netip.Addr
	done    chan error
}

// mostOrders bounds what waits while the kernel refuses what it is told: workloads
// have the core go on ordering.
const mostOrders = 8192

// thinned are orders of which few are left: all is told in one, what is to be known is
// asked once, and what is held has waited too long. Peers are told again. Who waits is
// answered after all that.
func thinned(queue []any) []any {
	out := []any{resync{}}
	asked := map[any]bool{}
	for _, m := range queue {
		switch m.(type) {
		case connect, barrier:
			out = append(out, m)
		case overlay.Ask, overlay.Count:
			if !asked[m] {
				asked[m] = true
				out = append(out, m)
			}
		}
	}
	return out
}

// order takes an order and never blocks.
func (o *orders) order(m any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.queue = append(o.queue, m); len(o.queue) >= mostOrders {
		o.queue = thinned(o.queue)
	}
	select {
	case o.filled <- struct{}{}:
	default:
	}
}

// wait returns when all that was ordered before is carried out, or ctx ends.
func (o *orders) wait(ctx context.Context) error {
	b := make(barrier)
	o.order(b)
	select {
	case <-b:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run makes the kernel what the core says, and follows it until ctx ends.
func (o *orders) Run(ctx context.Context) error {
	p, err := o.open()
	if err != nil {
		return err
	}
	defer p.Close()
	o.plane = p
	o.sync(ctx, nil)
	for {
		select {
		case <-o.filled:
		case <-ctx.Done():
			return nil
		}
		o.mu.Lock()
		all := o.queue
		o.queue = nil
		o.mu.Unlock()
		for _, m := range all {
			if o.carryOut(ctx, m); ctx.Err() != nil {
				return nil
			}
		}
	}
}

func (o *orders) carryOut(ctx context.Context, m any) {
	switch m := m.(type) {
	case plane.Change:
		var err error
		switch {
		case o.leased:
			if err = o.change(ctx, m); err == nil {
				return
			}
		case m.Node == nil || !m.Node.Subnet.IsValid():
			return
		}
		o.sync(ctx, err)
	case overlay.Ask:
		u, err := o.plane.Usage(ctx)
		if err != nil {
			o.log.Warn("what is used is not known", "err", err)
			return
		}
		o.used(u)
	case overlay.Release:
		o.hold.Release(m.Remote)
	case overlay.Refuse:
		o.hold.Refuse(m.Local, m.Remote, m.Denied)
	case overlay.Answered:
		o.resolver.Answered(m.Name)
	case overlay.Count:
		n, err := o.plane.Traffic(ctx)
		if err != nil {
			o.log.Warn("what passes by kernel paths is not known", "err", err)
		}
		o.counted(n)
	case overlay.TunnelTerms:
		o.tunnel.Tell(m.Key, m.Terms)
	case overlay.TunnelHeed:
		o.tunnel.Tell(m.Key, notice.Ack{Serial: m.Serial})
	case barrier:
		close(m)
	case resync:
		o.sync(ctx, nil)
	case connect:
		m.done <- o.connect(ctx, m.address)
	}
}

// connect makes an instance's device; the plane is told of one that is new.
func (o *orders) connect(ctx context.Context, a netip.Addr) error {
	anew, err := o.links.connect(a)
	e, ok := o.endpoints[a]
	if err != nil || !ok || !anew {
		return err
	}
	if err := o.plane.Apply(ctx, plane.Change{SetEndpoints: []plane.Endpoint{e}}); err != nil {
		o.sync(ctx, err)
	}
	return nil
}

// change makes devices before the plane knows of them, and takes them away after
// it has forgotten them.
func (o *orders) change(ctx context.Context, c plane.Change) error {
	for _, a := range c.DropEndpoints {
		delete(o.endpoints, a)
	}
	for _, e := range c.SetEndpoints {
		o.endpoints[e.Address] = e
	}
	c, err := o.links.Prepare(ctx, c)
	if err != nil {
		return err
	}
	if err := o.plane.Apply(ctx, c); err != nil {
		return err
	}
	return o.links.Tidy(ctx, c)
}

// sync tells the kernel everything until it takes it.
func (o *orders) sync(ctx context.Context, why error) {
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		if why != nil {
			o.synced(why)
			o.log.Warn("the kernel is not what it should be; all is told anew", "err", why, "retry_in", pause)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
		}
		s, err := o.state(ctx)
		if ctx.Err() != nil {
			return
		}
		if o.leased = s.Node.Subnet.IsValid(); err == nil && !o.leased {
			o.synced(nil) // no ranges, nothing to tell; what an earlier life left stays until there are
			return
		}
		if err == nil {
			clear(o.endpoints)
			for _, e := range s.Endpoints {
				o.endpoints[e.Address] = e
			}
			s, err = o.links.Sync(ctx, s)
		}
		if err == nil {
			err = o.plane.Sync(ctx, s)
		}
		if why = err; why == nil {
			o.synced(nil)
			return
		}
	}
}
