// Package names says what the names under "treeline" mean. A service is known by
//
//	<n|any>.<policy>.<service>.<ns>.<app>.<ns>.treeline
//
// where the policy is rr, closest or instance, a number goes with instance alone,
// and any.instance is all instances. Whoever asks may leave away, from the right,
// what it shares with the service, and the first two labels, which are any.rr then:
//
//	web.prod.shop.prod.treeline       the service web.prod of shop.prod
//	any.closest.web.prod.treeline     of the asker's own application
//	closest.web.prod.treeline         the same
//	web.prod.treeline, web.treeline   of its application, of its namespace in that
//
// A service of another tenant is named in full, with its tenant from the innermost
// part outwards: web.prod.shop.prod.of-tenant.lab.acme.treeline.
//
// A label is a selector where it reads as one: "any" or a number, followed by a
// policy. A service that is called "any" or "7" and whose namespace is called like
// a policy is reached by its name with a selector. A policy alone means any where
// what follows has as many labels as a service's name: "closest.web" is service
// closest of namespace web, but by the search list it is found as
// closest.web.prod.shop.prod.treeline first.
//
// DNS does not keep case apart and api.ValidName does: the name that is spelt
// exactly is meant, else the one known service that is spelt alike but for case;
// where there are several, none (Match).
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
)

// Policy is how a name chooses among a service's instances.
type Policy string

// The policies. Any is of names without a selector: rr, or what the service has.
const (
	Any        Policy = ""
	RoundRobin Policy = "rr"
	Closest    Policy = "closest"
	Instance   Policy = "instance"
)

// Query is what a name asks for.
type Query struct {
	Service api.ServiceID
	Policy  Policy
	Number  int // of the instance; -1: any
}

// Under reports whether the name is one of ours to answer, in any case and with
// or without the final dot.
func Under(name string) bool {
	name = strings.TrimSuffix(name, ".")
	i := len(name) - len(api.Domain)
	return i >= 0 && strings.EqualFold(name[i:], api.Domain) && (i == 0 || name[i-1] == '.')
}

// Parse reads a name under the domain as asked by an instance of the service
// asker; case stays as it is spelt. What is no such name is ErrInvalid.
func Parse(name string, asker api.ServiceID) (Query, error) {
	bad := func(why string) (Query, error) {
		return Query{}, fmt.Errorf("name %q %s: %w", name, why, api.ErrInvalid)
	}
	if len(name) > 254 || !Under(name) {
		return bad("is not under " + api.Domain)
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
	if len(labels)%2 == 1 && len(labels) > 1 && q.Policy == Any { // what is left after a policy names a service
		if policy, _, ok := selector("any", labels[0]); ok {
			q.Policy, labels = policy, labels[1:]
		}
	}
	for _, l := range labels {
		if !isName(l) {
			return bad("has a label that names nothing")
		}
	}
	// app.ns.service.ns
	own := strings.Split(asker.Name(), ".")
	if len(own) != 4 && len(labels) < 4 {
		return bad("is short, and who asks is of no application")
	}
	switch {
	case len(labels) == 4:
		q.Service = tenant.App(labels[2], labels[3]).Service(labels[0], labels[1])
	case len(labels) == 2 && !full:
		q.Service = tenant.App(own[0], own[1]).Service(labels[0], labels[1])
	case len(labels) == 1 && !full:
		q.Service = tenant.App(own[0], own[1]).Service(labels[0], own[3])
	default:
		return bad("has too few labels or too many")
	}
	return q, nil
}

// isName is api.ValidName without its regular expression: it is asked for every
// label of every look-up.
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

// Match is the service among those known that is meant by one as it was spelt:
// the same, else the only one that differs in case alone. ok says whether there is
// one; a second such makes it none.
func Match(spelt api.ServiceID, known []api.ServiceID) (id api.ServiceID, ok bool) {
	n := 0
	for _, k := range known {
		if k == spelt {
			return k, true
		}
		if strings.EqualFold(string(k), string(spelt)) {
			id = k
			n++
		}
	}
	return id, n == 1
}

// Of is the full name, with its final dot, that a query has for an instance of the
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
	return strings.Join(append(labels, api.Domain), ".") + "."
}

// Above reports whether names of the service asker itself are below the name, or at
// it: the name exists then, if only to lead on (an empty non-terminal, RFC 8020).
func Above(name string, asker api.ServiceID) bool {
	name = "." + strings.ToLower(strings.TrimSuffix(name, "."))
	if name == "."+api.Domain {
		return true
	}
	q := Query{Service: asker, Number: -1}
	for _, own := range []string{Of(q, asker), Of(q, "")} { // short of its tenant, and in full
		if strings.HasSuffix("."+strings.ToLower(strings.TrimSuffix(own, ".")), name) {
			return true
		}
	}
	return false
}

// Search is the search list for an instance's resolv.conf, most particular first:
// short names find services of its own application first. It wants `ndots:4`: with
// fewer, "any.rr.web" would be asked for outside first, and by musl there alone. An
// outside name costs a question to this node for each entry, and all but those of
// two labels, or four, are no names here that a cluster would have to be asked for.
func Search(asker api.ServiceID) []string {
	p := strings.Split(asker.Name(), ".")
	if len(p) != 4 {
		return []string{api.Domain}
	}
	app := p[0] + "." + p[1] + "." + api.Domain
	return []string{p[3] + "." + app, app, api.Domain}
}

// Reverse is the address that a PTR name under in-addr.arpa or ip6.arpa asks for.
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
