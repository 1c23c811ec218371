// Package pinger measures round trips from this node to hosts that are no nodes,
// for clusters that look for a place near a user: by ICMP echo, and by TCP
// connections where nobody answers that or a port is given.
//
// What it is asked to probe comes from SLAs, which is to say from anybody. So it
// probes only addresses that the policy of its order permits, checks the addresses
// and not the name, and connects to what it has checked; it says how long an answer
// took, and not what was answered; and it does little at a time.
//
//	p := pinger.New(pinger.Options{})
//	answer := p.Probe(ctx, wire.ProbeOrder{ID: 7, Target: "example.com", Wait: 3 * time.Second})
package pinger

import (
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
	spacing = 150 * time.Millisecond // between two of them

	defaultWait = 3 * time.Second
	longestWait = 10 * time.Second
	mostAddrs   = 16 // of one name that are looked at
)

// webPorts are tried where no port is given and nobody answers an echo. A port
// that nobody listens on answers as well, unless a firewall keeps silent.
var webPorts = []uint16{443, 80}

var (
	probePlaces = fairshare.Declare(fairshare.Bound{
		Resource: "probes of latency targets under way at a node", Total: 6, Per: "tenant",
		Beyond: "the cluster is told so and asks again a minute later; a tenant gets a further place only while more are free than it holds",
		Attack: "TestProbesOfOneTenantLeaveTheNodeToOthers",
	})
	probeRates = fairshare.Declare(fairshare.Bound{
		Resource: "probe rates remembered at a node", Total: 1024, Per: "tenant",
		Beyond: "6 probes at once and 1.5 a second per tenant, of 8 and 2 a second in all; the cluster is told so and asks again a minute later",
		Attack: "TestProbesOfOneTenantLeaveTheNodeToOthers",
	})
)

// Options are what it needs. Zero values mean the defaults.
type Options struct {
	// Resolve looks a name up: net.DefaultResolver.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	AtOnce  int           // probes under way: 6; one holder leaves as many to others as it has
	Every   time.Duration // one more probe may begin: 500 ms
	Burst   int           // that may begin at once after a rest: 8; of one holder three quarters
}

// Pinger probes. It is safe for concurrent use.
type Pinger struct {
	opt Options

	places *fairshare.Pool
	rates  *fairshare.Rates

	mu     sync.Mutex    // guards the fields below
	credit time.Duration // Every for each probe that may begin now
	at     time.Time     // when credit was true
	counts Counts
}

// Counts are probes by what came of them.
type Counts struct{ Answered, Silent, Refused, Excess uint64 }

// New is a pinger that has nothing to do.
func New(o Options) *Pinger {
	if o.Resolve == nil {
		o.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host+".") // no search list: it is nobody's name within
		}
	}
	if o.AtOnce <= 0 {
		o.AtOnce = 6
	}
	if o.Every <= 0 {
		o.Every = 500 * time.Millisecond
	}
	if o.Burst <= 0 {
		o.Burst = 8
	}
	underWay := probePlaces
	underWay.Total = o.AtOnce
	return &Pinger{
		opt: o, credit: time.Duration(o.Burst) * o.Every, at: time.Now(),
		places: fairshare.NewPool(underWay, fairshare.Policy{Fixed: true}),
		rates:  fairshare.NewRates(probeRates, 0.75/o.Every.Seconds(), max(1, o.Burst*3/4)),
	}
}

// Counts are those since New.
func (p *Pinger) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts
}

// Probe carries out an order and answers within its Wait, at most 10 s. Where too
// many are asked for it answers at once that it does not.
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
	ctx, cancel := context.WithTimeout(ctx, min(wait, longestWait))
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

// begin takes a place for one more probe of the holder; nil: there is none.
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

// addresses are the first permitted address of each family, in the resolver's
// order. Where none is permitted that is ErrForbidden; which addresses there are
// stays here.
func (p *Pinger) addresses(ctx context.Context, host string, o *wire.ProbeOrder) ([]netip.Addr, error) {
	all := []netip.Addr{}
	if a, err := netip.ParseAddr(host); err == nil {
		all = append(all, a)
	} else if all, err = p.opt.Resolve(ctx, host); err != nil {
		return nil, fmt.Errorf("look %s up: %w", host, err)
	}
	var out []netip.Addr
	for _, a := range all[:min(len(all), mostAddrs)] {
		if probe.Permitted(a, o.Allow, o.Deny) && (len(out) == 0 || len(out) == 1 && out[0].Is4() != a.Unmap().Is4()) {
			out = append(out, a.Unmap())
		}
	}
	switch {
	case len(all) == 0:
		return nil, fmt.Errorf("look %s up: it has no address: %w", host, api.ErrNotFound)
	case len(out) == 0:
		return nil, fmt.Errorf("%s is not at an address that the probe policy permits: %w", host, api.ErrForbidden)
	}
	return out, nil
}

// probeAddr probes one address within its share of the time that is left.
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
	// within gives a step an equal part of the time that the earlier ones left.
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

// connect opens a few connections, one after the other, and returns the shortest
// time until one was answered: taken or refused, a host is there. What a firewall
// refuses in its name is taken for its answer.
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
