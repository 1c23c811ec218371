package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

// Ask resolves a name as the workload would: with the search list of its own resolv.conf,
// and like musl again if a server does not answer, until ctx ends. If no name of the search
// list exists, it returns the last answer.
func (in *Inside) Ask(ctx context.Context, name string, kind uint16) (*dns.Msg, error) {
	conf, err := dns.ClientConfigFromFile(fmt.Sprintf("/proc/%d/root/etc/resolv.conf", in.W.PID))
	if err != nil {
		return nil, err
	}
	var last *dns.Msg
	for _, full := range conf.NameList(name) {
		q := new(dns.Msg).SetQuestion(full, kind)
		if last, err = in.exchange(ctx, conf, q); err != nil {
			return nil, fmt.Errorf("query %s: %w", full, err)
		}
		if last.Rcode == dns.RcodeSuccess && len(last.Answer) > 0 {
			break
		}
	}
	return last, nil
}

func (in *Inside) exchange(ctx context.Context, conf *dns.ClientConfig, q *dns.Msg) (m *dns.Msg, err error) {
	timeout := time.Duration(conf.Timeout) * time.Second
	for {
		for _, server := range conf.Servers {
			next := time.After(timeout)
			var c net.Conn
			if c, err = in.Dial(ctx, "udp", net.JoinHostPort(server, conf.Port)); err != nil {
				return nil, err
			}
			m, _, err = (&dns.Client{Timeout: timeout}).ExchangeWithConn(q, &dns.Conn{Conn: c})
			_ = c.Close()
			if err == nil {
				return m, nil
			}
			select {
			case <-next:
			case <-ctx.Done():
				return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
			}
		}
	}
}

// resolve returns the address with its name resolved.
func (in *Inside) resolve(ctx context.Context, address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", err
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return address, nil
	}
	m, err := in.Ask(ctx, host, dns.TypeA)
	if err != nil {
		return "", err
	}
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			return net.JoinHostPort(a.A.String(), port), nil
		}
	}
	return "", &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}
