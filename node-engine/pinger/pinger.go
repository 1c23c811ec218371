// Package pinger measures round trips from this node to hosts that are not nodes, so that a cluster
// can place an instance near a user. It uses ICMP echo, and TCP connections if that has no answer or
// a port is given.
//
// Targets come from SLAs and are not trusted. The pinger checks the resolved address against the
// policy of the order and connects to that address. It reports the time of an answer, not its
// content. It limits concurrent probes and their rate.
//
//	p := pinger.New(pinger.Options{})
//	answer := p.Probe(ctx, wire.ProbeOrder{ID: 7, Target: "example.com", Wait: 3 * time.Second})
package pinger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/probe"
	"github.com/treeline-edge/treeline/internal/wire"
)

const (
	tries   = 3
	spacing = 150 * time.Millisecond // between two tries

	defaultWait = 3 * time.Second
	maxWait     = 10 * time.Second
	maxAddrs    = 16 // of one name
)

// webPorts are tried if no port is given and there is no echo reply. A closed port answers too,
// unless a firewall drops the packet.
var webPorts = []uint16{443, 80}

const told = "the cluster is told so and asks again a minute later"

var (
	probePlaces = bound(told+"; a tenant gets a further place only while more are free than it holds").Declare("probes of latency targets under way at a node", 6)
	probeRates  = bound("6 probes at once and 1.5 a second per tenant, of 8 and 2 a second in all; "+told).Declare("probe rates remembered at a node", 1024)
)

func bound(beyond string) fairshare.Bound {
	return fairshare.Bound{Per: "tenant", Beyond: beyond, Attack: "TestProbesOfOneTenantLeaveTheNodeToOthers"}
}

// Options are the options of a pinger. Zero values mean the defaults.
type Options struct {
	// Resolve resolves a name; default net.DefaultResolver.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	AtOnce  int           // concurrent probes; default 6. One holder gets at most half
	Every   time.Duration // the interval in which one more probe may begin; default 500 ms
	Burst   int           // probes that may begin at once after a pause; default 8. One holder gets three quarters
}

// Pinger carries out probes. It is safe for concurrent use.
type Pinger struct {
	opt Options

	places *fairshare.Pool
	rates  *fairshare.Rates

	mu     sync.Mutex    // guards the fields below
	credit time.Duration // Every for each probe that may begin now
	at     time.Time     // when credit was last updated
	counts Counts
}

// Counts are the numbers of probes by result.
type Counts struct{ Answered, Silent, Refused, Excess uint64 }

// New returns a pinger.
func New(o Options) *Pinger {
	if o.Resolve == nil {
		o.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host+".") // the dot disables the search list
		}
	}
	o.AtOnce, o.Every, o.Burst = cmp.Or(o.AtOnce, 6), cmp.Or(o.Every, 500*time.Millisecond), cmp.Or(o.Burst, 8)
	underWay := probePlaces
	underWay.Total = o.AtOnce
	return &Pinger{
		opt: o, credit: time.Duration(o.Burst) * o.Every, at: time.Now(),
		places: fairshare.NewPool(underWay, fairshare.Policy{Fixed: true}),
		rates:  fairshare.NewRates(probeRates, 0.75/o.Every.Seconds(), max(1, o.Burst*3/4)),
	}
}

// Counts returns the numbers since New.
func (p *Pinger) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts
}

// Probe carries out an order and returns its result within o.Wait, at most 10 s. Beyond the limits it
// returns an error at once.
func (p *Pinger) Probe(ctx context.Context, o wire.ProbeOrder) wire.Probed {
	out := wire.Probed{ID: o.ID}
	place := p.begin(time.Now(), o.For)
	if place == nil {
		out.Error = fmt.Sprintf("too many probes: this node does %d at a time, and one each %s, and a part of that for one tenant", p.opt.AtOnce, p.opt.Every)
		p.count(&p.counts.Excess)
		return out
	}
	defer place.Release()
	wait := o.Wait
	if wait <= 0 {
		wait = defaultWait
	}
	ctx, cancel := context.WithTimeout(ctx, min(wait, maxWait))
	defer cancel()
	rtt, how, err := p.probe(ctx, &o)
	switch {
	case err == nil:
		out.RTT, out.How = rtt, how
		p.count(&p.counts.Answered)
	case errors.Is(err, api.ErrForbidden):
		out.Error, out.Refused = err.Error(), true
		p.count(&p.counts.Refused)
	default:
		out.Error = err.Error()
		p.count(&p.counts.Silent)
	}
	return out
}

// begin takes a place for a probe of the holder; nil if there is none.
func (p *Pinger) begin(now time.Time, holder string) *fairshare.Place {
	place, err := p.places.Take(now, []string{holder}, nil)
	if err != nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.credit = min(p.credit+now.Sub(p.at), time.Duration(p.opt.Burst)*p.opt.Every)
	p.at = now
	if p.credit < p.opt.Every || p.rates.Allow(now, holder, holder) != nil {
		place.Release()
		return nil
	}
	p.credit -= p.opt.Every
	return place
}

func (p *Pinger) count(n *uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*n++
}

func (p *Pinger) probe(ctx context.Context, o *wire.ProbeOrder) (time.Duration, string, error) {
	host, port, err := api.ParseTarget(o.Target)
	if err != nil {
		return 0, "", err
	}
	addrs, err := p.addresses(ctx, host, o)
	if err != nil {
		return 0, "", err
	}
	for i, a := range addrs {
		rtt, how, e := probeAddr(ctx, a, port, len(addrs)-i)
		if e == nil {
			return rtt, how, nil
		}
		err = e
	}
	return 0, "", fmt.Errorf("probe %s: %w", o.Target, err)
}

// addresses returns the first permitted address of each family, in the resolver's order. It fails with
// ErrForbidden if none is permitted. The error does not contain the addresses, which may be secret.
func (p *Pinger) addresses(ctx context.Context, host string, o *wire.ProbeOrder) ([]netip.Addr, error) {
	all := []netip.Addr{}
	if a, err := netip.ParseAddr(host); err == nil {
		all = append(all, a)
	} else if all, err = p.opt.Resolve(ctx, host); err != nil {
		return nil, fmt.Errorf("resolve %s: %w", host, err)
	}
	var out []netip.Addr
	for _, a := range all[:min(len(all), maxAddrs)] {
		if probe.Permitted(a, o.Allow, o.Deny) && (len(out) == 0 || len(out) == 1 && out[0].Is4() != a.Unmap().Is4()) {
			out = append(out, a.Unmap())
		}
	}
	switch {
	case len(all) == 0:
		return nil, fmt.Errorf("resolve %s: no address: %w", host, api.ErrNotFound)
	case len(out) == 0:
		return nil, fmt.Errorf("%s has no address that the probe policy permits: %w", host, api.ErrForbidden)
	}
	return out, nil
}

// probeAddr probes one address within its share of the remaining time.
func probeAddr(ctx context.Context, a netip.Addr, port uint16, share int) (time.Duration, string, error) {
	ports := []uint16{port}
	steps := 1
	if port == 0 {
		ports, steps = webPorts, len(webPorts)+1
	}
	end, _ := ctx.Deadline()
	ctx, cancel := context.WithTimeout(ctx, time.Until(end)/time.Duration(share))
	defer cancel()
	end, _ = ctx.Deadline()
	// within runs a step with an equal part of the remaining time.
	within := func(try func(context.Context) (time.Duration, error)) (time.Duration, error) {
		part, cancel := context.WithTimeout(ctx, time.Until(end)/time.Duration(steps))
		defer cancel()
		steps--
		return try(part)
	}
	var errs []error
	if port == 0 {
		rtt, err := within(func(ctx context.Context) (time.Duration, error) { return ping(ctx, a) })
		if err == nil {
			return rtt, "icmp", nil
		}
		errs = append(errs, err)
	}
	for _, n := range ports {
		rtt, err := within(func(ctx context.Context) (time.Duration, error) { return connect(ctx, netip.AddrPortFrom(a, n)) })
		if err == nil {
			return rtt, "tcp", nil
		}
		errs = append(errs, err)
	}
	return 0, "", errors.Join(errs...)
}

// connect opens a few connections in sequence and returns the shortest time until an answer, which may
// be a refusal. It cannot distinguish the refusal of a firewall from that of the host.
func connect(ctx context.Context, to netip.AddrPort) (best time.Duration, err error) {
	d := net.Dialer{KeepAlive: -1}
	for i := range tries {
		if i > 0 {
			select {
			case <-time.After(spacing):
			case <-ctx.Done():
				return best, nil
			}
		}
		began := time.Now()
		c, err := d.DialContext(ctx, "tcp", to.String())
		took := max(time.Since(began), 1)
		switch {
		case err == nil:
			_ = c.Close()
		case errors.Is(err, syscall.ECONNREFUSED):
		case best > 0:
			return best, nil
		default:
			return 0, fmt.Errorf("connect to %s: %w", to, err)
		}
		if best == 0 || took < best {
			best = took
		}
	}
	return best, nil
}
