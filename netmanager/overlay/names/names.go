// Package names parses and builds the DNS names under "treeline". A service has the
// name
//
//	<n|any>.<policy>.<service>.<ns>.<app>.<ns>.treeline
//
// where the policy is rr, closest or instance. A number is only valid with instance, and any.instance
// means all instances. The asking service may omit the application if it is its own, and then also the
// service's namespace if it is its own. It may omit the first two labels; then they are any.rr:
//
//	web.prod.shop.prod.treeline       the service web.prod of shop.prod
//	any.closest.web.prod.treeline     of the asking service's own application
//	closest.web.prod.treeline         the same
//	web.prod.treeline, web.treeline   of its application, of its namespace in that
//
// A service of another tenant needs the full name, with the parts of its tenant from
// the innermost outwards: web.prod.shop.prod.of-tenant.lab.acme.treeline.
//
// The first two labels are a selector if they are "any" or a number, followed by a policy. A service with
// the name "any" or "7" in a namespace with the name of a policy needs a selector. A policy alone means
// any.<policy> if the remaining labels are a complete name of a service. Otherwise it is a label:
// "closest.web" is the service "closest" in namespace "web". (The search list first finds it as
// closest.web.prod.shop.prod.treeline.)
//
// DNS ignores case and api.ValidName does not. A name stands for the service with exactly that name, or
// else for the only known service whose name differs in case (interest.Names).
//
//	q, err := names.Parse("web.prod.treeline.", client)
package names

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Policy is the balancing policy that a name selects.
type Policy string

// The policies. Any is for names without a selector: rr if the service has it, else another address.
const (
	Any        Policy = ""
	RoundRobin Policy = "rr"
	Closest    Policy = "closest"
	Instance   Policy = "instance"
)

// Query is a parsed name.
type Query struct {
	Service api.ServiceID
	Policy  Policy
	Number  int // of the instance; -1: any
}

// Under reports whether a name is under the domain, in any case and with or without
// the final dot.
func Under(name string) bool {
	name = strings.TrimSuffix(name, ".")
	i := len(name) - len(wire.Domain)
	return i >= 0 && strings.EqualFold(name[i:], wire.Domain) && (i == 0 || name[i-1] == '.')
}

// Parse parses a name that an instance of the service asker looks up. It keeps the case. It fails with
// ErrInvalid.
func Parse(name string, asker api.ServiceID) (Query, error) {
	bad := func(why string) (Query, error) {
		return Query{}, fmt.Errorf("name %q %s: %w", name, why, api.ErrInvalid)
	}
	if len(name) > 254 || !Under(name) {
		return bad("is not under " + wire.Domain)
	}
	labels := strings.Split(strings.TrimSuffix(name, "."), ".")
	labels = labels[:len(labels)-1]
	tenant := asker.Tenant()
	full := false
	if i := slices.IndexFunc(labels, func(l string) bool { return strings.EqualFold(l, api.TenantLabel) }); i >= 0 {
		parts := slices.Clone(labels[i+1:])
		slices.Reverse(parts)
		tenant, labels, full = api.Tenant(strings.ToLower(strings.Join(parts, "/"))), labels[:i], true
	}
	if full && !api.ValidTenant(tenant) || tenant == "" {
		return bad("has no tenant")
	}
	q := Query{Number: -1}
	if len(labels) > 2 {
		if policy, n, ok := selector(labels[0], labels[1]); ok {
			q.Policy, q.Number, labels = policy, n, labels[2:]
		}
	}
	if len(labels)%2 == 1 && len(labels) > 1 && q.Policy == Any { // what is left after a policy must name a service
		if policy, _, ok := selector("any", labels[0]); ok {
			q.Policy, labels = policy, labels[1:]
		}
	}
	for _, l := range labels {
		if !isName(l) {
			return bad("has an invalid label")
		}
	}
	// app.ns.service.ns
	own := strings.Split(asker.Name(), ".")
	if len(own) != 4 && len(labels) < 4 {
		return bad("is short, and the asking service has no application")
	}
	switch {
	case len(labels) == 4:
		q.Service = tenant.App(labels[2], labels[3]).Service(labels[0], labels[1])
	case len(labels) == 2 && !full:
		q.Service = tenant.App(own[0], own[1]).Service(labels[0], labels[1])
	case len(labels) == 1 && !full:
		q.Service = tenant.App(own[0], own[1]).Service(labels[0], own[3])
	default:
		return bad("has a wrong number of labels")
	}
	return q, nil
}

// isName is api.ValidName without a regular expression, because it runs for every label of every look-up.
func isName(s string) bool {
	for i := range len(s) {
		inner := i > 0 && i < len(s)-1
		if b := s[i]; (b < '0' || b > '9') && (b|0x20 < 'a' || b|0x20 > 'z') && (b != '-' || !inner) {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= 30 && !strings.EqualFold(s, api.TenantLabel)
}

func selector(which, policy string) (Policy, int, bool) {
	p := Policy(strings.ToLower(policy))
	if strings.EqualFold(which, "any") {
		return p, -1, p == RoundRobin || p == Closest || p == Instance
	}
	n, err := strconv.Atoi(which)
	return p, n, err == nil && n >= 0 && strconv.Itoa(n) == which && p == Instance
}

// Of returns the full name of a query, with its final dot, for an instance of the
// service asker.
func Of(q Query, asker api.ServiceID) string {
	p := strings.Split(q.Service.Name(), ".")
	if len(p) != 4 {
		return ""
	}
	which := "any"
	if q.Number >= 0 {
		which = strconv.Itoa(q.Number)
	}
	policy := q.Policy
	if policy == Any {
		policy = RoundRobin
	}
	labels := []string{which, string(policy), p[2], p[3], p[0], p[1]}
	if t := q.Service.Tenant(); t != asker.Tenant() {
		parts := strings.Split(string(t), "/")
		slices.Reverse(parts)
		labels = append(append(labels, api.TenantLabel), parts...)
	}
	return strings.Join(append(labels, wire.Domain), ".") + "."
}

// Above reports whether a name is the name of the service asker or a parent of it. Such a name exists,
// possibly without records (an empty non-terminal, RFC 8020).
func Above(name string, asker api.ServiceID) bool {
	name = "." + strings.ToLower(strings.TrimSuffix(name, "."))
	if name == "."+wire.Domain {
		return true
	}
	q := Query{Service: asker, Number: -1}
	for _, own := range []string{Of(q, asker), Of(q, "")} { // without its tenant, and with it
		if strings.HasSuffix("."+strings.ToLower(strings.TrimSuffix(own, ".")), name) {
			return true
		}
	}
	return false
}

// Search returns the search list for an instance's resolv.conf, the most specific domain first, so that
// short names find services of the same application. It requires `ndots:4`. With a lower value, resolvers
// first look up "any.rr.web" as it is, and musl looks up nothing else. A name from outside costs one
// query to this node per entry. The cluster is asked only if such a query has two or four labels.
func Search(asker api.ServiceID) []string {
	p := strings.Split(asker.Name(), ".")
	if len(p) != 4 {
		return []string{wire.Domain}
	}
	app := p[0] + "." + p[1] + "." + wire.Domain
	return []string{p[3] + "." + app, app, wire.Domain}
}

// Reverse returns the address in a PTR name under in-addr.arpa or ip6.arpa.
func Reverse(name string) (a netip.Addr, ok bool) {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if rest, is := strings.CutSuffix(name, ".in-addr.arpa"); is {
		parts := strings.Split(rest, ".")
		if len(parts) != 4 {
			return a, false
		}
		slices.Reverse(parts)
		a, err := netip.ParseAddr(strings.Join(parts, "."))
		return a, err == nil
	}
	rest, is := strings.CutSuffix(name, ".ip6.arpa")
	if !is || len(rest) != 63 {
		return a, false
	}
	var b [16]byte
	for i := range 32 {
		if i > 0 && rest[2*i-1] != '.' {
			return a, false
		}
		v, err := strconv.ParseUint(rest[2*i:2*i+1], 16, 8)
		if err != nil {
			return a, false
		}
		at := 31 - i
		b[at/2] |= byte(v) << (4 * (1 - at%2))
	}
	return netip.AddrFrom16(b), true
}
