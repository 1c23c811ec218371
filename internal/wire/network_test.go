package wire_test

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

func TestIPv6AddressesContainIPv4Addresses(t *testing.T) {
	r := wire.DefaultNetRanges()
	for _, tt := range []struct{ v4, v6 string }{
		{"10.16.0.1", "fd74:6c6e:1::a10:1"},
		{"10.23.255.255", "fd74:6c6e:1::a17:ffff"},
		{"10.30.0.7", "fd74:6c6e:2::a1e:7"},
	} {
		v4, v6 := netip.MustParseAddr(tt.v4), netip.MustParseAddr(tt.v6)
		if got := r.To6(v4); got != v6 {
			t.Errorf("To6(%s) = %s, want %s", v4, got, v6)
		}
		if got := r.To4(v6); got != v4 {
			t.Errorf("To4(%s) = %s, want %s", v6, got, v4)
		}
		if got := r.To4(v4); got != v4 {
			t.Errorf("To4(%s) = %s", v4, got)
		}
	}
	for _, a := range []string{"10.24.0.1", "10.31.0.1", "192.168.0.1", "fd74:6c6e:1::", "fd74:6c6e:2::a10:1", "fd74:6c6e:1:0:1:0:a10:1", "::1"} {
		addr := netip.MustParseAddr(a)
		if got := r.To4(addr); got.IsValid() {
			t.Errorf("%s is %s, and none of ours", a, got)
		}
		if got := r.To6(addr); got.IsValid() {
			t.Errorf("%s has the IPv6 address %s", a, got)
		}
	}
}

func TestWhoMayCallWhom(t *testing.T) {
	const shop, cart, blog, other = "acme/shop.prod.web.v1", "acme/shop.prod.cart.v1", "acme/blog.prod.web.v1", "umbrella/lab.x.probe.y"
	list := func(e ...string) api.Access { return api.Access{Callers: e} }
	for _, tt := range []struct {
		name           string
		caller, callee api.ServiceID
		calls          []string
		access         api.Access
		want           bool
	}{
		{"within a tenant all may", blog, shop, nil, api.Access{}, true},
		{"its own may", shop, shop, nil, list("lab.x"), true},
		{"the same application", cart, shop, nil, list("app"), true},
		{"another application", blog, shop, nil, list("app"), false},
		{"an application by name", blog, shop, nil, list("blog.prod"), true},
		{"another namespace", blog, shop, nil, list("blog.test"), false},
		{"a service by name", blog, shop, nil, list("blog.prod.web.v1"), true},
		{"another service", blog, shop, nil, list("blog.prod.web.v2"), false},
		{"with the tenant's name", blog, shop, nil, list("acme/blog.prod"), true},
		{"the tenant", blog, shop, nil, list("tenant"), true},
		{"nobody", cart, shop, nil, api.Access{Closed: true}, false},
		{"nobody is nobody, itself too", shop, shop, nil, api.Access{Closed: true}, false},
		{"another tenant", other, shop, nil, api.Access{}, false},
		{"another tenant under \"tenant\"", other, shop, []string{"acme/shop.prod"}, list("tenant"), false},
		{"only the callee says so", other, shop, nil, list("umbrella/lab.x"), false},
		{"only the caller says so", other, shop, []string{"acme/shop.prod"}, api.Access{}, false},
		{"both say so", other, shop, []string{"acme/shop.prod"}, list("umbrella/lab.x"), true},
		{"both say so, by service", other, shop, []string{shop}, list(other), true},
		{"both say so, of other services", other, shop, []string{cart}, list(other), false},
		{"a name without a tenant is never another's", other, shop, []string{"acme/shop.prod"}, list("lab.x"), false},
		{"nobody known", "", shop, nil, api.Access{}, false},
	} {
		if got := api.MayCall(tt.caller, api.Access{Calls: tt.calls}, tt.callee, tt.access); got != tt.want {
			t.Errorf("%s: MayCall returned %v, want the opposite", tt.name, got)
		}
	}
}

func TestPeerKeysInJSON(t *testing.T) {
	key := api.PeerKey{1, 2, 3}
	b, err := json.Marshal(map[api.PeerKey]int{key: 1})
	if err != nil {
		t.Fatal(err)
	}
	var back map[api.PeerKey]int
	if err := json.Unmarshal(b, &back); err != nil || back[key] != 1 {
		t.Fatalf("decode %s: %v, want the same key", b, err)
	}
	for _, bad := range []string{`""`, `"AAAA"`, `"!"`, `5`} {
		if json.Unmarshal([]byte(bad), &key) == nil {
			t.Errorf("%s is taken for a key", bad)
		}
	}
}
