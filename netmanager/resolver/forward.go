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
)

// forwarder asks the machine's name servers.
type forwarder struct {
	fixed   []netip.AddrPort
	conf    string
	timeout time.Duration
	room    *share

	mu      sync.Mutex // guards what follows
	own     []netip.AddrPort
	servers []netip.AddrPort
	looked  time.Time
	was     os.FileInfo
}

const (
	// maxForwards are questions on their way to servers, of all clients together.
	maxForwards = 256
	// maxServers of a resolv.conf are asked, as by the C library.
	maxServers = 3
	// lookEvery bounds how often the file is looked at; nobody does without a question.
	lookEvery = 2 * time.Second
)

func newForwarder(c Config) *forwarder {
	return &forwarder{fixed: c.Servers, conf: c.ResolvConf, timeout: c.Forward, room: newShare(maxForwards)}
}

// avoid names an address of ours: asking it would be a loop.
func (f *forwarder) avoid(a netip.AddrPort) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.own = append(f.own, a)
	f.looked = time.Time{}
}

// exchange asks one server after the other until one answers; a server that fails
// is like one that is silent.
func (f *forwarder) exchange(ctx context.Context, client netip.Addr, q *dns.Msg, tcp bool) (*dns.Msg, error) {
	give, ok := f.room.take(client)
	if !ok {
		return nil, errBusy
	}
	defer give()
	servers := f.current(time.Now())
	if len(servers) == 0 {
		return nil, fmt.Errorf("no name server is known: %w", api.ErrUnavailable)
	}
	ask := q.Copy()
	ask.Id = dns.Id()
	ask.Extra = slices.DeleteFunc(ask.Extra, func(rr dns.RR) bool { _, opt := rr.(*dns.OPT); return !opt })
	if o := ask.IsEdns0(); o != nil {
		o.Option = nil // cookies and client subnets are between the client and us
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
			errs = append(errs, fmt.Errorf("%s answers something else", s))
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

// current are the servers, read anew where the file has changed.
func (f *forwarder) current(now time.Time) []netip.AddrPort {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.looked.IsZero() && now.Sub(f.looked) < lookEvery {
		return f.servers
	}
	first := f.looked.IsZero()
	f.looked = now
	if len(f.fixed) > 0 {
		f.servers = f.others(f.fixed)
		return f.servers
	}
	is, err := os.Stat(f.conf)
	if err == nil && !first && f.was != nil && os.SameFile(f.was, is) && is.ModTime().Equal(f.was.ModTime()) && is.Size() == f.was.Size() {
		return f.servers
	}
	f.was = is
	if c, err := dns.ClientConfigFromFile(f.conf); err == nil {
		f.servers = f.others(parseServers(c.Servers))
	} // else those from before: a file that is being replaced may be away for a moment
	return f.servers
}

// parseServers are the addresses that can be asked.
func parseServers(servers []string) (out []netip.AddrPort) {
	for _, s := range servers {
		if a, err := netip.ParseAddr(s); err == nil && len(out) < maxServers {
			out = append(out, netip.AddrPortFrom(a, 53))
		}
	}
	return out
}

func (f *forwarder) others(of []netip.AddrPort) (out []netip.AddrPort) {
	for _, s := range of {
		if s.Addr() != api.ResolverAddr && !slices.Contains(f.own, s) && !s.Addr().IsUnspecified() {
			out = append(out, s)
		}
	}
	return out
}
