package away

import (
	"context"
	"testing"

	"github.com/miekg/dns"
)

// knownByName resolves names inside a container, with its own resolv.conf.
func (w *world) knownByName(t *testing.T) {
	const tail = ".lab.shop.lab.treeline."
	page, web := w.pairs[1].at.RoundRobin, w.pairs[0].at.RoundRobin
	reverse := func(a string) string {
		name, err := dns.ReverseAddr(a)
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	a := func(of, at string) string { return of + tail + " A " + at }
	aaaa := func(of, at string) string { return of + tail + " AAAA " + at }
	for _, tt := range []struct {
		name string
		kind uint16
		want string
	}{
		{"web", dns.TypeA, a("web", web.String())},
		{"web", dns.TypeAAAA, aaaa("web", ranges.To6(web).String())},
		{"web.lab", dns.TypeA, a("web", web.String())},
		{"any.rr.page", dns.TypeA, a("any.rr.page", page.String())},
		{"any.rr.page", dns.TypeAAAA, aaaa("any.rr.page", ranges.To6(page).String())},
		{"any.rr.page" + tail, dns.TypeA, a("any.rr.page", page.String())},
		{"0.instance.web", dns.TypeA, a("0.instance.web", w.pairs[0].at.Instances[0].String())},
		{"_http._tcp.page", dns.TypeSRV, "_http._tcp.page" + tail + " SRV 0 1 80 any.rr.page" + tail},
		{reverse(web.String()), dns.TypePTR, reverse(web.String()) + " PTR any.rr.web" + tail},
		{reverse(ranges.To6(page).String()), dns.TypePTR, reverse(ranges.To6(page).String()) + " PTR any.rr.page" + tail},
		{"nothing" + tail, dns.TypeA, ""},
	} {
		for _, p := range w.pairs {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			m, err := p.client.Ask(ctx, tt.name, tt.kind)
			cancel()
			if err != nil {
				t.Errorf("%s %s: %v", tt.name, dns.Type(tt.kind), err)
				continue
			}
			got := ""
			for _, rr := range m.Answer {
				got += said(rr)
				if ttl := rr.Header().Ttl; ttl > 5 {
					t.Errorf("%s has a TTL of %d s", tt.name, ttl)
				}
			}
			if got != tt.want || got == "" && m.Rcode != dns.RcodeNameError {
				t.Errorf("%s %s is %s %q, want %q", tt.name, dns.Type(tt.kind), dns.RcodeToString[m.Rcode], got, tt.want)
			}
		}
	}
}

// said returns a record without its class and TTL.
func said(rr dns.RR) string {
	h := rr.Header()
	return h.Name + " " + dns.Type(h.Rrtype).String() + " " + rr.String()[len(h.String()):]
}
