package overlay

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/balance"
	"github.com/treeline-edge/treeline/netmanager/overlay/names"
	"github.com/treeline-edge/treeline/netmanager/overlay/sorted"
	"github.com/treeline-edge/treeline/netmanager/overlay/subscriptions"
)

// Answer is the result of a look-up, for records of every type. Names in it are fully qualified, with the
// final dot. Found is also set if the name has no records of the requested type.
type Answer struct {
	// Known means that the answer is final. Otherwise Query asks the cluster, and the look-up should be
	// repeated after Answered.
	Known bool
	Found bool // the name exists
	// Failed with Known means that the cluster is disconnected or does not answer. Without Known it means
	// that the look-up fails unless an answer comes. It is set only for names that must be in the overlay
	// network. Other names may come from the search list. They do not exist, so that the resolver tries
	// the next one.
	Failed bool
	open   bool         // the cluster has not answered
	Addrs  []netip.Addr // IPv4
	Addrs6 []netip.Addr // the same in IPv6
	PTR    string
	SRV    []Target
	Stay   time.Duration // time to live
}

// Target is the value of an SRV record: an instance, or the service if instances have no addresses of
// their own.
type Target struct {
	Name     string
	Address  netip.Addr
	Address6 netip.Addr // the same in IPv6
	Port     uint16
	Weight   uint16
}

const (
	// positiveTTL is the time to live of an address. The address is stable, because the plane chooses the
	// backend. The TTL bounds how long a client misses a change of the policy.
	positiveTTL = 5 * time.Second
	// negativeTTL is the time to live of a negative answer.
	negativeTTL = time.Second
)

// Lookup answers the look-up of a name by the endpoint local. It sends nothing; Query asks the cluster.
func (v View) Lookup(local netip.Addr, name string) Answer {
	if v.lease == nil {
		return Answer{Known: true}
	}
	a, ok := v.endpoints.At(v.lease.Ranges.To4(local))
	if !ok {
		return Answer{Known: true}
	}
	out := v.lookup(a.Service(), name)
	if out.Known && !out.Found && names.Above(name, a.Service()) {
		out.Found, out.Failed = true, false
	}
	for _, addr := range out.Addrs {
		if t := v.To6(addr); t.IsValid() {
			out.Addrs6 = append(out.Addrs6, t)
		}
	}
	for i, t := range out.SRV {
		out.SRV[i].Address6 = v.To6(t.Address)
	}
	return out
}

func (v View) lookup(asker api.ServiceID, name string) Answer {
	x, ok := v.about(asker, name)
	if !ok {
		return Answer{Known: true, Stay: negativeTTL}
	}
	if q, ok := v.named(x.key.Address); ok {
		if !v.services.MayCall(asker, q.Service) && !v.services.MayCall(q.Service, asker) {
			return Answer{Known: true, Stay: negativeTTL}
		}
		return Answer{Known: true, Found: true, PTR: names.Of(q, asker), Stay: positiveTTL}
	}
	k := v.subs.Spelling(x.key)
	id, leads := v.leadsTo(x.key) // where it leads depends on the spelling in this query
	switch o := v.outcomeWith(x.key, v.subs.Refusal(k)); {
	case o == subscriptions.Unanswered:
		if id, leads = v.serving(x.key); !leads {
			out := Answer{open: true, Failed: x.ours}
			if v.subs.Hopeless(v.now, k) {
				out.Known, out.Stay = true, negativeTTL
			}
			return out
		}
	case o != subscriptions.Answered || !leads || x.key.Address.IsValid():
		return Answer{Known: true, Stay: negativeTTL}
	}
	at := v.services.Advertised(id)
	if x.proto == "" {
		return addressed(at, x.query)
	}
	out := Answer{Known: true, Stay: positiveTTL}
	ports := v.services.Ports(id)
	i := slices.IndexFunc(ports, func(p api.PortMap) bool { return p.Protocol == x.proto })
	if _, has := at.Instances[x.query.Number]; i < 0 || x.query.Number >= 0 && !has {
		return out
	}
	if out.Found = true; !x.below {
		asleep := v.services.Route(id) != nil && v.services.Route(id).Asleep
		out.SRV = targets(id, at, balance.Open(v.backends(id)), asleep, asker, x.query, ports[i].Instance)
	}
	return out
}

// serving returns the service whose instances on this node serve a subscription by name until the cluster
// answers.
func (v View) serving(k wire.Subscription) (api.ServiceID, bool) {
	id, ok := v.services.ByName(k.Service)
	return id, ok && v.endpoints.Count(id) > 0 && v.services.MayCall(k.For, id)
}

// addressed returns the answer to a look-up of addresses.
func addressed(at api.ServiceAddresses, q names.Query) Answer {
	out := Answer{Known: true, Found: true, Stay: positiveTTL}
	instances := func() {
		for _, n := range sorted.Ordered(at.Instances) {
			if a := at.Instances[n]; a.IsValid() {
				out.Addrs = append(out.Addrs, a)
			}
		}
	}
	switch {
	case q.Number >= 0:
		a, ok := at.Instances[q.Number]
		out.Found = ok
		if a.IsValid() {
			out.Addrs = []netip.Addr{a}
		}
	case q.Policy == names.Instance:
		instances()
	case (q.Policy == names.RoundRobin || q.Policy == names.Any) && at.RoundRobin.IsValid():
		out.Addrs = []netip.Addr{at.RoundRobin}
	case (q.Policy == names.Closest || q.Policy == names.Any) && at.Closest.IsValid():
		out.Addrs = []netip.Addr{at.Closest}
	case q.Policy == names.Any:
		instances()
	default:
		out.Found = false // the SLA did not request the policy
	}
	return out
}

// targets returns the SRV records of a query: the instances that accept flows, or the
// service if they have no addresses of their own or are asleep.
func targets(id api.ServiceID, at api.ServiceAddresses, up []balance.Backend, asleep bool, asker api.ServiceID, q names.Query, port uint16) (out []Target) {
	add := func(policy names.Policy, n int, a netip.Addr) {
		if a.IsValid() {
			name := names.Of(names.Query{Service: id, Policy: policy, Number: n}, asker)
			out = append(out, Target{Name: name, Address: a, Port: port, Weight: 1})
		}
	}
	for _, b := range up {
		if n := b.Instance.Number(); q.Number < 0 || n == q.Number {
			add(names.Instance, n, at.Instances[n])
		}
	}
	switch {
	case len(out) > 0 || len(up) == 0 && !asleep || q.Number >= 0:
	case at.RoundRobin.IsValid() && q.Policy != names.Closest:
		add(names.RoundRobin, -1, at.RoundRobin)
	default:
		add(names.Closest, -1, at.Closest)
	}
	return out
}

// named returns the name of an address, as the query that resolves to it.
func (v View) named(a netip.Addr) (names.Query, bool) {
	if at, ok := v.endpoints.At(a); ok {
		return names.Query{Service: at.Service(), Policy: names.Instance, Number: at.Attach.Instance.Number()}, true
	}
	return v.services.Name(a)
}

// To6 returns the IPv6 address of an IPv4 address of the network.
func (v View) To6(a netip.Addr) netip.Addr {
	if v.lease == nil {
		return netip.Addr{}
	}
	return v.lease.Ranges.To6(a)
}

// Covers reports whether the core answers for a PTR name: whether its address is in the network.
func (v View) Covers(name string) bool {
	a, ok := names.Reverse(name)
	return ok && v.lease != nil && v.lease.Ranges.To4(a).IsValid()
}

// subject is the parsed name of a look-up.
type subject struct {
	key   wire.Subscription // what the asking service subscribes to
	query names.Query
	proto string // "tcp" in "_name._tcp.web": the look-up is for ports of the protocol
	below bool   // the name is "_tcp.web", which has no records itself
	ours  bool   // the name must be in the overlay network
}

// about parses a name. ok is false if nothing can be subscribed to for it.
func (v View) about(asker api.ServiceID, name string) (s subject, ok bool) {
	if a, is := names.Reverse(name); is {
		a = v.lease.Ranges.To4(a)
		if !a.IsValid() || v.services.IsInstance(a) && !v.endpoints.Has(a) && (v.lease.Subnet.Contains(a) || a == v.subnetOf(a).Addr()) {
			return s, false // a node's address, or a free one of this node
		}
		return subject{key: wire.Subscription{Address: a, For: asker}, ours: true}, true
	}
	rest, proto, below := protocol(name)
	q, err := names.Parse(rest, asker)
	return subject{
		key: wire.Subscription{Service: q.Service, For: asker}, query: q, proto: proto, below: below,
		ours: q.Policy != names.Any || proto != "" || q.Service.Tenant() != asker.Tenant(),
	}, err == nil
}

// protocol splits the prefix off "_name._tcp.rest" or "_tcp.rest". For the latter, below is true.
func protocol(name string) (rest, proto string, below bool) {
	p := strings.SplitN(name, ".", 3)
	for _, proto := range []string{"tcp", "udp", "sctp"} {
		switch {
		case len(p) == 3 && len(p[0]) > 1 && p[0][0] == '_' && strings.EqualFold(p[1], "_"+proto):
			return p[2], proto, false
		case len(p) > 1 && strings.EqualFold(p[0], "_"+proto) && !strings.HasPrefix(p[1], "_"):
			return name[len(p[0])+1:], proto, true
		}
	}
	return name, "", false
}
