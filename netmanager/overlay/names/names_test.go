package names

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/treeline-edge/treeline/api"
)

const asker api.ServiceID = "acme/shop.prod.cart.eu"

func TestNames(t *testing.T) {
	web := api.ServiceID("acme/shop.prod.web.eu")
	for name, want := range map[string]Query{
		"any.rr.web.eu.shop.prod.treeline":                         {web, RoundRobin, -1},
		"any.closest.web.eu.shop.prod.treeline.":                   {web, Closest, -1},
		"7.instance.web.eu.shop.prod.TREELINE":                     {web, Instance, 7},
		"any.instance.web.eu.shop.prod.treeline":                   {web, Instance, -1},
		"ANY.Closest.web.eu.shop.prod.treeline":                    {web, Closest, -1},
		"web.eu.shop.prod.treeline":                                {web, Any, -1},
		"any.closest.web.eu.treeline":                              {web, Closest, -1},
		"any.closest.web.treeline":                                 {web, Closest, -1},
		"0.instance.web.treeline":                                  {web, Instance, 0},
		"web.eu.treeline":                                          {web, Any, -1},
		"web.treeline":                                             {web, Any, -1},
		"closest.web.eu.shop.prod.treeline":                        {web, Closest, -1},
		"RR.web.eu.treeline":                                       {web, RoundRobin, -1},
		"instance.web.eu.shop.prod.of-tenant.acme.treeline":        {web, Instance, -1},
		"closest.web.treeline":                                     {"acme/shop.prod.closest.web", Any, -1},
		"any.rr.treeline":                                          {"acme/shop.prod.any.rr", Any, -1},
		"any.rr.shop.prod.treeline":                                {"acme/shop.prod.shop.prod", RoundRobin, -1},
		"any.rr.any.rr.shop.prod.treeline":                         {"acme/shop.prod.any.rr", RoundRobin, -1},
		"any.eu.shop.prod.treeline":                                {"acme/shop.prod.any.eu", Any, -1},
		"Web.eu.treeline":                                          {"acme/shop.prod.Web.eu", Any, -1},
		"web-1.eu.treeline":                                        {"acme/shop.prod.web-1.eu", Any, -1},
		"2.instance.a--b.e-u.my-shop.prod.treeline":                {"acme/my-shop.prod.a--b.e-u", Instance, 2},
		"any-rr.rr-closest.treeline":                               {"acme/shop.prod.any-rr.rr-closest", Any, -1},
		"web.eu.shop.prod.of-tenant.beta.treeline":                 {"beta/shop.prod.web.eu", Any, -1},
		"any.closest.web.eu.shop.prod.of-tenant.lab.BETA.treeline": {"beta/lab/shop.prod.web.eu", Closest, -1},
	} {
		if got, err := Parse(name, asker); err != nil || got != want {
			t.Errorf("%s: %+v %v, want %+v", name, got, err, want)
		}
	}
	for _, name := range []string{
		"", "treeline", ".treeline", "web", "web.eu.treelin", "xtreeline", "web..treeline", "a.b.c.treeline", "7.rr.web.treeline",
		"07.instance.web.treeline", "-1.instance.web.treeline", "any.best.web.treeline", "a.b.c.d.e.treeline", "a.b.c.d.e.f.g.treeline",
		"any.rr.closest.web.eu.treeline", "closest.treeline.treeline.x", "closest.closest.web.eu.shop.prod.treeline", "web-.eu.treeline", "-web.eu.treeline", "web_1.eu.treeline", "web.of-tenant.beta.treeline", "a.b.c.d.of-tenant.treeline", "a.b.c.d.of-tenant.b_a.treeline",
		strings.Repeat("a.", 130) + "treeline", "\x00.treeline", "wéb.treeline",
	} {
		if got, err := Parse(name, asker); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("Parse(%q) = %+v, %v, want ErrInvalid", name, got, err)
		}
	}
	if _, err := Parse("web.treeline", ""); !errors.Is(err, api.ErrInvalid) {
		t.Error("a short name without an application")
	}
}

func TestShortNamesResolveThroughTheSearchList(t *testing.T) {
	for short, want := range map[string]api.ServiceID{
		"web": "acme/shop.prod.web.eu", "web.us": "acme/shop.prod.web.us", "any.closest.web": "acme/shop.prod.web.eu",
		"any.closest.web.us": "acme/shop.prod.web.us", "closest.web": "acme/shop.prod.web.eu", "web.us.blog.dev": "acme/blog.dev.web.us", "3.instance.web.us.blog.dev": "acme/blog.dev.web.us",
	} {
		var found []api.ServiceID
		for _, s := range Search(asker) {
			if q, err := Parse(short+"."+s, asker); err == nil {
				found = append(found, q.Service)
			}
		}
		if !slices.Contains(found, want) {
			t.Errorf("the candidates of %s are %v, want the expected name among them", short, found)
		}
	}
}

func TestParentsOfAServicesNameExist(t *testing.T) {
	for name, want := range map[string]bool{
		"treeline": true, "Treeline.": true, "prod.treeline.": true, "shop.PROD.treeline": true, "eu.shop.prod.treeline.": true,
		"cart.eu.shop.prod.treeline.": true, "acme.treeline.": true, "of-tenant.acme.treeline.": true, "prod.of-tenant.acme.treeline.": true,
		"op.prod.treeline.": false, "rod.treeline": false, "web.eu.shop.prod.treeline": false, "beta.treeline": false, "": false, ".": false, "com.": false,
	} {
		if Above(name, asker) != want {
			t.Errorf("Above(%q) = %v, want the opposite", name, !want)
		}
	}
	if !Above("treeline.", "") || Above("prod.treeline.", "") {
		t.Error("above nobody")
	}
}

func TestReverse(t *testing.T) {
	for _, s := range []string{"10.30.0.1", "fd74:6c6e:2::a1e:1"} {
		a := netip.MustParseAddr(s)
		arpa, _ := dns.ReverseAddr(s)
		if got, ok := Reverse(arpa); !ok || got != a {
			t.Errorf("Reverse(%s) = %s, %v, want the address", arpa, got, ok)
		}
	}
	for _, s := range []string{"", "in-addr.arpa.", "1.2.3.in-addr.arpa.", "1.2.3.4.5.in-addr.arpa.", "256.2.3.4.in-addr.arpa.", "x.ip6.arpa.", strings.Repeat("1.", 31) + "g.ip6.arpa."} {
		if a, ok := Reverse(s); ok {
			t.Errorf("Reverse(%q) = %s, want none", s, a)
		}
	}
}

// FuzzParse checks that a name that can be parsed can be written in full, with the same meaning.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"web.treeline", "a-b.c--d.treeline", "any.rr.web.eu.shop.prod.treeline.", "3.instance.a.b.c.d.of-tenant.x.y.treeline", "10.in-addr.arpa"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		Reverse(name)
		if isName(name) != api.ValidName(name) {
			t.Fatalf("%q is a name: %v", name, !isName(name))
		}
		q, err := Parse(name, asker)
		if err != nil {
			return
		}
		again, err := Parse(Of(q, asker), asker)
		if q.Policy == Any {
			q.Policy = RoundRobin
		}
		if err != nil || again != q {
			t.Fatalf("%q is %+v, and in full %+v %v", name, q, again, err)
		}
		if _, err := api.ParseInstanceID(string(q.Service.Instance(0))); err != nil {
			t.Fatal(err)
		}
	})
}

func TestFewExternalNamesLookLikeServices(t *testing.T) {
	for name, want := range map[string]int{ // services that a cluster would be asked for
		"localhost.localdomain.": 1, "example.com.": 1, // could be services of a namespace of the asker's application
		"www.example.com.": 0, "api.eu.example.com.": 1, "1.debian.pool.ntp.org.": 0,
		"my-host.example.com.": 0, "_https._tcp.example.com.": 0,
	} {
		seen := map[api.ServiceID]bool{}
		for _, s := range Search(asker) {
			if q, err := Parse(name+s, asker); err == nil {
				seen[q.Service] = true
			}
		}
		if len(seen) != want {
			t.Errorf("%s leads to %v", name, seen)
		}
	}
}
