package probe_test

import (
	"net/netip"
	"testing"

	"github.com/treeline-edge/treeline/internal/probe"
)

func TestWhatIsPublicOrAllowedIsPermitted(t *testing.T) {
	nets := func(all ...string) (out []netip.Prefix) {
		for _, n := range all {
			out = append(out, netip.MustParsePrefix(n))
		}
		return out
	}
	for _, c := range []struct {
		addr        string
		allow, deny []netip.Prefix
		want        bool
	}{
		{addr: "9.9.9.9", want: true},
		{addr: "2620:fe::9", want: true},
		{addr: "::ffff:9.9.9.9", want: true},
		{addr: "0.0.0.0"},
		{addr: "0.1.2.3"},
		{addr: "::"},
		{addr: "127.0.0.1"},
		{addr: "127.9.9.9"},
		{addr: "::1"},
		{addr: "::ffff:127.0.0.1"},
		{addr: "::127.0.0.1"},
		{addr: "10.16.0.1"},
		{addr: "10.30.0.1"},
		{addr: "172.16.0.1"},
		{addr: "172.31.255.255"},
		{addr: "192.168.1.1"},
		{addr: "::ffff:10.0.0.1"},
		{addr: "64:ff9b::a00:1"},
		{addr: "64:ff9b::909:909"},
		{addr: "64:ff9b:1::a00:1"},
		{addr: "100::1"},
		{addr: "5f00::1"},
		{addr: "2002:a00:1::1"},
		{addr: "2001:0:a00:1::1"},
		{addr: "100.64.0.1"},
		{addr: "169.254.169.254"},
		{addr: "169.254.30.53"},
		{addr: "fe80::1"},
		{addr: "fe80::1%eth0"},
		{addr: "fd00::1"},
		{addr: "fc00::1"},
		{addr: "fec0::1"},
		{addr: "ff02::1"},
		{addr: "224.0.0.1"},
		{addr: "239.1.1.1"},
		{addr: "255.255.255.255"},
		{addr: "240.0.0.1"},
		{addr: "192.0.2.1"},
		{addr: "198.18.0.1"},
		{addr: "198.19.255.255"},
		{addr: "198.51.100.7"},
		{addr: "203.0.113.7"},
		{addr: "192.0.0.9"},
		{addr: "192.88.99.1"},
		{addr: "::ffff:198.51.100.7"},
		{addr: "2001:db8::1"},
		{addr: "3fff::1"},
		{addr: "172.15.255.255", want: true},
		{addr: "172.32.0.0", want: true},
		{addr: "100.128.0.0", want: true},
		{addr: "198.17.255.255", want: true},
		{addr: "198.20.0.0", want: true},
		{addr: "192.0.1.1", want: true},
		{addr: "2001:200::1", want: true},
		{addr: "2001:db9::1", want: true},

		{addr: "10.1.2.3", allow: nets("10.1.0.0/16"), want: true},
		{addr: "::ffff:10.1.2.3", allow: nets("10.1.0.0/16"), want: true},
		{addr: "10.1.2.3", allow: nets("::ffff:10.1.0.0/112"), want: true},
		{addr: "10.2.2.3", allow: nets("10.1.0.0/16")},
		{addr: "10.1.2.3", allow: nets("10.0.0.0/8"), deny: nets("10.1.0.0/16")},
		{addr: "9.9.9.9", deny: nets("9.9.9.0/24")},
		{addr: "9.9.9.9", deny: nets("::ffff:9.9.9.0/120")},
		{addr: "::ffff:9.9.9.9", deny: nets("9.9.9.0/24")},
		{addr: "9.9.9.9", allow: nets("9.9.9.9/32"), deny: nets("0.0.0.0/0")},
		{addr: "2620:fe::9", deny: nets("0.0.0.0/0"), want: true},
		{addr: "2620:fe::9", deny: nets("::/0")},
		{addr: "fd00::1", allow: nets("fd00::/8"), want: true},
		{addr: "127.0.0.1", allow: nets("0.0.0.0/0"), want: true}, // 0.0.0.0/0 allows everything
		{addr: "224.0.0.1", allow: nets("0.0.0.0/0")},             // except multicast
		{addr: "0.0.0.0", allow: nets("0.0.0.0/0")},
		{addr: "255.255.255.255", allow: nets("0.0.0.0/0")},
		{addr: "ff02::1", allow: nets("::/0")},
	} {
		a := netip.MustParseAddr(c.addr)
		if got := probe.Permitted(a, c.allow, c.deny); got != c.want {
			t.Errorf("%s, allowed %v, denied %v: %v, want %v", c.addr, c.allow, c.deny, got, c.want)
		}
	}
	if probe.Permitted(netip.Addr{}, nil, nil) || probe.Permitted(netip.MustParseAddr("9.9.9.9"), nil, []netip.Prefix{{}, netip.MustParsePrefix("9.0.0.0/8")}) {
		t.Error("zero values let something pass")
	}
}
