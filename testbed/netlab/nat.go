package netlab

import "strings"

// Kind is the behaviour of a NAT (RFC 4787).
type Kind int

// The kinds of NAT.
const (
	None           Kind = iota // the host has a public address
	FullCone                   // one mapping for all destinations, open to all sources
	Restricted                 // one mapping, open to addresses that it was used for
	PortRestricted             // one mapping, open to addresses and ports that it was used for
	Symmetric                  // a mapping for each destination, open only to it
	Double                     // port-restricted behind port-restricted
	Blocked                    // only TCP passes
)

// Kinds lists all kinds.
var Kinds = []Kind{None, FullCone, Restricted, PortRestricted, Symmetric, Double, Blocked}

func (k Kind) String() string {
	return [...]string{"none", "full cone", "restricted", "port-restricted", "symmetric", "double", "UDP blocked"}[k]
}

// Site adds a host behind a NAT of that kind on a switch. public is the outer address with its
// length; inside is a network for the host and its router.
func (l *Lab) Site(name string, k Kind, wan *Host, public, inside string) *Host {
	l.t.Helper()
	h := l.Host(name)
	if k == None {
		h.Plug(wan, "eth0", public)
		return h
	}
	router := l.Host(name + "-r")
	l.Join(h, "eth0", nth(inside, 2), router, "in", nth(inside, 1))
	h.Route("default", addrOf(nth(inside, 1)))
	if k == Double {
		outer := l.Host(name + "-o")
		l.Join(router, "out", "100.64.0.2/24", outer, "in", "100.64.0.1/24")
		router.Route("default", "100.64.0.1")
		outer.Plug(wan, "out", public)
		router.NAT(PortRestricted)
		outer.NAT(PortRestricted)
		return h
	}
	router.Plug(wan, "out", public)
	router.NAT(k)
	return h
}

// NAT makes the host a router from its device "in" to its device "out". Like home routers, it drops
// unsolicited packets: otherwise conntrack would keep an entry that changes the mapping of the next
// outgoing packet.
func (h *Host) NAT(k Kind) {
	h.lab.t.Helper()
	h.Run("sysctl", "-qw", "net.ipv4.ip_forward=1")
	var udp, out string
	switch k {
	case FullCone:
		udp = `
	map inner { type inet_service : ipv4_addr . inet_service; flags dynamic; size 65535; }
	chain inbound {
		type nat hook prerouting priority dstnat;
		iifname "out" meta l4proto udp dnat ip to udp dport map @inner
	}`
		out = `oifname "out" meta l4proto udp update @inner { udp sport : ip saddr . udp sport }
		oifname "out" masquerade`
	case Restricted:
		udp = `
	map inner { type inet_service : ipv4_addr . inet_service; flags dynamic; size 65535; }
	set spoken { type ipv4_addr . inet_service; flags dynamic; size 65535; }
	chain inbound {
		type nat hook prerouting priority dstnat;
		iifname "out" meta l4proto udp ip saddr . udp dport @spoken dnat ip to udp dport map @inner
	}`
		out = `oifname "out" meta l4proto udp update @inner { udp sport : ip saddr . udp sport }
		oifname "out" meta l4proto udp update @spoken { ip daddr . udp sport }
		oifname "out" masquerade`
	case Symmetric:
		out = `oifname "out" masquerade fully-random`
	default:
		out = `oifname "out" masquerade`
	}
	forward := ""
	if k == Blocked {
		forward = "meta l4proto udp drop"
	}
	h.Nft(strings.NewReplacer("UDP", udp, "OUT", out, "FORWARD", forward).Replace(`
table ip nat {UDP
	chain outbound {
		type nat hook postrouting priority srcnat;
		OUT
	}
}
table ip filter {
	chain input {
		type filter hook input priority filter; policy accept;
		iifname "out" ct state new drop
	}
	chain forward {
		type filter hook forward priority filter; policy accept;
		FORWARD
		iifname "out" ct status dnat accept
		iifname "out" ct state new drop
	}
}`))
}

// Forget flushes the state of the router's NAT, like a restart. It needs conntrack(8).
func (h *Host) Forget() {
	h.lab.t.Helper()
	h.Run("conntrack", "-F")
}

// Router returns the router of a site's host, the inner one of a double NAT.
func (h *Host) Router() *Host {
	return &Host{lab: h.lab, Name: h.Name + "-r", ns: h.ns + "-r"}
}
