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
	fixed   bool // the servers are those that were given
	conf    string
	timeout time.Duration
	room    *share

	mu      sync.Mutex // guards what follows
	own     []netip.AddrPort
	named   []netip.AddrPort // that were given, or that the file names
	looked  time.Time
	looking chan struct{} // closed when somebody has looked who does now; nil: nobody does

	was os.FileInfo // whoever looks has it
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
	return &forwarder{
		fixed: len(c.Servers) > 0, named: c.Servers, conf: c.ResolvConf, timeout: c.Forward, room: newShare(maxForwards),
	}
}

// avoid names an address of ours: asking it would be a loop.
func (f *forwarder) avoid(a netip.AddrPort) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.own = append(f.own, a)
}

// exchange asks one server after the other until one answers; a server that fails
// is like one that is silent.
func (f *forwarder) exchange(ctx context.Context, client netip.Addr, q *dns.Msg, tcp bool) (*dns.Msg, error) {
	give, ok := f.room.take(client)
	if !ok {
		return nil, errBusy
	}
	defer give()
	servers := f.current(ctx, time.Now())
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

// current are the servers, by the file as it is. One client's question has it looked at;
// others' go to those from before, if there are any: a file may take its time.
func (f *forwarder) current(ctx context.Context, now time.Time) []netip.AddrPort {
	f.mu.Lock()
	looking := f.looking
	mine := !f.fixed && looking == nil && (f.looked.IsZero() || now.Sub(f.looked) >= lookEvery)
	if mine {
		f.looking, f.looked = make(chan struct{}), now
	}
	wait := looking != nil && f.named == nil
	f.mu.Unlock()
	switch {
	case mine:
		f.look()
	case wait:
		select {
		case <-looking:
		case <-ctx.Done():
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.others(f.named)
}

// look reads the file anew where it has changed. One that is being replaced may be away
// for a moment: what it named before holds.
func (f *forwarder) look() {
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
	close(f.looking)
	f.looking = nil
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
