package resolver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/wire"
)

type forwarder struct {
	fixed   bool // the servers are configured
	conf    string
	timeout time.Duration
	room    *fairshare.Pool

	mu      sync.Mutex       // guards the fields below, except was
	own     []netip.AddrPort // the resolver's addresses
	named   []netip.AddrPort // servers, configured or from the file
	checked time.Time        // when the file was last checked
	reading chan struct{}    // closed when the running check ends; nil: none

	was os.FileInfo // the file at the last check; owned by the goroutine that checks
}

const (
	// maxForwards bounds the concurrent questions to servers, of all clients together.
	maxForwards = 256
	// maxServers is how many servers of resolv.conf are used, as in the C library.
	maxServers = 3
	// checkInterval is the least time between checks of the file. Only questions cause checks.
	checkInterval = 2 * time.Second
)

func newForwarder(c Config) *forwarder {
	forwards := fairshare.Bound{Resource: "questions to name servers", Total: maxForwards}
	return &forwarder{
		fixed: len(c.Servers) > 0, named: c.Servers, conf: c.ResolvConf, timeout: c.Forward,
		room: fairshare.NewPool(forwards, fairshare.Policy{Fixed: true}),
	}
}

// avoid excludes an address of this resolver, because a question to it would loop.
func (f *forwarder) avoid(a netip.AddrPort) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.own = append(f.own, a)
}

// exchange asks the servers in order until one answers without a failure.
func (f *forwarder) exchange(ctx context.Context, client netip.Addr, q *dns.Msg, tcp bool) (*dns.Msg, error) {
	place, err := f.room.Take(time.Now(), []string{client.String()}, nil)
	if err != nil {
		return nil, err
	}
	defer place.Release()
	servers := f.current(ctx, time.Now())
	if len(servers) == 0 {
		return nil, fmt.Errorf("no name server is configured: %w", api.ErrUnavailable)
	}
	ask := q.Copy()
	ask.Id = dns.Id()
	ask.Extra = slices.DeleteFunc(ask.Extra, func(rr dns.RR) bool { return !isOPT(rr) })
	if o := ask.IsEdns0(); o != nil {
		o.Option = nil // cookies and client subnets are only for this resolver
		o.SetUDPSize(udpSize)
	}
	to := dns.Client{Net: "udp", Timeout: f.timeout, UDPSize: udpSize}
	if tcp {
		to.Net = "tcp"
	}
	var errs []error
	var failed *dns.Msg
	for _, s := range servers {
		m, _, err := to.ExchangeContext(ctx, ask, s.String())
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("ask %s: %w", s, err))
		case len(m.Question) != 1 || m.Question[0].Qtype != ask.Question[0].Qtype || dns.CanonicalName(m.Question[0].Name) != dns.CanonicalName(ask.Question[0].Name):
			errs = append(errs, fmt.Errorf("%s answered another question", s))
		case m.Rcode == dns.RcodeServerFailure || m.Rcode == dns.RcodeRefused:
			failed = m
		default:
			m.Id, m.Question = q.Id, q.Question
			return m, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	if failed != nil {
		failed.Id, failed.Question = q.Id, q.Question
		return failed, nil
	}
	return nil, errors.Join(errs...)
}

// current returns the servers. The first question after checkInterval checks the file. Concurrent
// questions use the previous servers, if there are any, because reading the file may be slow.
func (f *forwarder) current(ctx context.Context, now time.Time) []netip.AddrPort {
	f.mu.Lock()
	reading := f.reading
	mine := !f.fixed && reading == nil && (f.checked.IsZero() || now.Sub(f.checked) >= checkInterval)
	if mine {
		f.reading, f.checked = make(chan struct{}), now
	}
	wait := reading != nil && f.named == nil
	f.mu.Unlock()
	switch {
	case mine:
		f.check()
	case wait:
		select {
		case <-reading:
		case <-ctx.Done():
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.named), func(s netip.AddrPort) bool {
		return s.Addr() == wire.ResolverAddr || slices.Contains(f.own, s) || s.Addr().IsUnspecified()
	})
}

// check reads the file if it has changed. While it is missing, for example during a replacement, the
// previous servers stay.
func (f *forwarder) check() {
	named, changed := []netip.AddrPort(nil), false
	is, err := os.Stat(f.conf)
	if err != nil || f.was == nil || !os.SameFile(f.was, is) || !is.ModTime().Equal(f.was.ModTime()) || is.Size() != f.was.Size() {
		f.was = is
		if c, err := dns.ClientConfigFromFile(f.conf); err == nil {
			named, changed = parseServers(c.Servers), true
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if changed {
		f.named = named
	}
	close(f.reading)
	f.reading = nil
}

// parseServers returns the first maxServers valid addresses.
func parseServers(servers []string) (out []netip.AddrPort) {
	for _, s := range servers {
		if a, err := netip.ParseAddr(s); err == nil && len(out) < maxServers {
			out = append(out, netip.AddrPortFrom(a, 53))
		}
	}
	return out
}
