package overlay

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/names"
)

// Answer is what a name leads to at the moment, for records of every type. Names
// are full, with their final dot. One that exists and has nothing of the type that
// was asked for is Found all the same.
type Answer struct {
	// Known says that this is the answer; else it is still being asked for, and
	// Answered will tell when to look again.
	Known bool
	Found bool // the name exists
	// Failed says that nobody could be asked, or, where it is not Known yet, what it
	// means if it stays so. Only a name that is ours for sure fails; one that may be
	// from outside, and only looks like ours by the search list, does not exist then,
	// so that the outside is asked.
	Failed bool
	open   bool         // the cluster has not said
	Addrs  []netip.Addr // IPv4
	Twins  []netip.Addr // the same in IPv6
	PTR    string
	SRV    []Target
	Stay   time.Duration // how long it may be kept
}

// Target is where an SRV answer leads: to an instance, or where instances have no
// addresses of their own, to the service.
type Target struct {
	Name    string
	Address netip.Addr
	Twin    netip.Addr // the same in IPv6
	Port    uint16
	Weight  uint16
}

// subject is what a name is about, for who asks.
type subject struct {
	want  api.Want // of the service, as it was spelt, or of an address
	query names.Query
	proto string // "_name._tcp.web" is about the service's ports of a protocol
	below bool   // records are below the name, and none are at it
	sure  bool   // it is no name from outside
}

const (
	// positive is how long an address may be kept. It is stable, and what stands
	// behind it is the plane's to choose; a name that moves from one policy to another
	// is followed in seconds.
	positive = 5 * time.Second
	// negative is how long it may be kept that there is nothing.
	negative = time.Second
)

// about reads a name. One that is about nothing that could be asked for is not ok.
func (c *Core) about(asker api.ServiceID, name string) (s subject, ok bool) {
	if a, is := names.Reverse(name); is {
		a = c.lease.Ranges.Untwin(a)
		if !a.IsValid() || c.isInstance(a) && c.at[a] == nil && (c.lease.Subnet.Contains(a) || a == c.subnetAt(a).Addr()) {
			return s, false // nobody has it: it is ours to give, or a node's own
		}
		return subject{want: api.Want{Address: a, For: asker}, sure: true}, true
	}
	rest, proto, below := protocol(name)
	q, err := names.Parse(rest, asker)
	return subject{
		want: api.Want{Service: q.Service, For: asker}, query: q, proto: proto, below: below,
		sure: q.Policy != names.Any || proto != "" || q.Service.Tenant() != asker.Tenant(),
	}, err == nil
}

// protocol splits "_name._tcp.rest", and "_tcp.rest" above it.
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

// query is a name that somebody looks up. What it leads to is in Lookup, now or
// after Answered.
func (c *Core) query(in Query) {
	if c.lease == nil {
		return
	}
	a := c.at[c.lease.Ranges.Untwin(in.Local)]
	if a == nil {
		return
	}
	s, ok := c.about(a.service(), in.Name)
	if _, known := c.named(s.want.Address); !ok || known {
		return
	}
	name := strings.ToLower(in.Name) // who asks in another case waits for the same
	key := c.wantOf(s.want)
	w := c.wants[key]
	if w == nil {
		if a.bucket.take(c.now) {
			w = c.want(key)
		}
		if w == nil { // nobody is asked, so nobody waits
			c.emitLate(ToResolver, Answered{name})
			return
		}
		w.payer = a.Address
	}
	w.used = c.now
	switch o := c.outcome(w); {
	case o == unanswered && c.unheard(w):
		c.emitLate(ToResolver, Answered{name})
		return
	case o == answered || o != unanswered && w.until.After(c.now):
		if o == answered {
			c.refund(w)
		}
		c.emitLate(ToResolver, Answered{name})
		return
	case o != unanswered:
		// Nobody waits while it is asked again: the cluster says by itself when there is
		// such a service, and names from outside, which the search list makes look like
		// ours ("example.com"), are asked for all the time.
		c.emitLate(ToResolver, Answered{name})
		if c.link.up && a.bucket.take(c.now) {
			w.payer = a.Address
			c.doubtRefusal(w)
		}
		return
	}
	w.waiting = true
	if len(w.names) < maxNames && !slices.Contains(w.names, name) {
		w.names = append(w.names, name)
	}
}

// unheard says of an unanswered want that there is no point in waiting for it: the
// cluster is away for longer than a netmanager or a node engine takes to be started
// anew, or was asked more than a second ago and has said nothing. It is asked on;
// who looks again later finds the answer.
func (c *Core) unheard(w *want) bool {
	if !c.link.up {
		return c.now.Sub(c.link.lost) >= time.Second
	}
	return w.tries > 2
}

// maxSpellings of a name may be wanted beside the one in lower case, of one service.
const maxSpellings = 4

// wantOf is what is wanted for a service that somebody spelt so. Case means
// nothing in a name (names.Match), and there are resolvers that change it in each
// question; so one want serves all spellings. Only where the cluster refuses that
// is the exact one worth asking for: of two services that differ in case alone
// each is reached so.
func (c *Core) wantOf(spelt api.Want) api.Want {
	fold := folded(spelt)
	w := c.wants[fold]
	switch {
	case c.wants[spelt] != nil:
		return spelt
	case w == nil || w.refusal == nil:
		return fold
	}
	n := 0
	for k := range c.seeking[string(fold.Service)] {
		if k.For == spelt.For && k != fold {
			n++
		}
	}
	if n >= maxSpellings {
		return fold
	}
	return spelt
}

func folded(k api.Want) api.Want {
	k.Service = api.ServiceID(strings.ToLower(string(k.Service)))
	return k
}

// Lookup answers what a Query asked for, in the terms of who asked. It asks
// nobody.
func (c *Core) Lookup(local netip.Addr, name string) Answer {
	if c.lease == nil {
		return Answer{Known: true}
	}
	a := c.at[c.lease.Ranges.Untwin(local)]
	if a == nil {
		return Answer{Known: true}
	}
	out := c.lookup(a.service(), name)
	if out.Known && !out.Found && names.Above(name, a.service()) {
		out.Found, out.Failed = true, false
	}
	for _, v := range out.Addrs {
		if t := c.Twin(v); t.IsValid() {
			out.Twins = append(out.Twins, t)
		}
	}
	for i, t := range out.SRV {
		out.SRV[i].Twin = c.Twin(t.Address)
	}
	return out
}

func (c *Core) lookup(asker api.ServiceID, name string) Answer {
	x, ok := c.about(asker, name)
	if !ok {
		return Answer{Known: true, Stay: negative}
	}
	if q, ok := c.named(x.want.Address); ok {
		return c.pointer(asker, q)
	}
	w := &want{Want: x.want}
	known := c.wants[c.wantOf(w.Want)]
	if known != nil {
		w.refusal = known.refusal // what it leads to depends on how it was spelt now
	}
	s := c.leadsTo(w)
	switch o := c.outcome(w); {
	case o == unanswered:
		if s = c.here(w); s == nil {
			out := Answer{open: true, Failed: x.sure}
			if known == nil || c.unheard(known) {
				out.Known, out.Stay = true, negative
			}
			return out
		}
	case o != answered || s == nil || x.want.Address.IsValid():
		return Answer{Known: true, Stay: negative}
	}
	if x.proto == "" {
		return c.addressed(s, x.query)
	}
	out := Answer{Known: true, Stay: positive}
	if out.SRV, out.Found = c.targets(s, asker, x.query, x.proto); x.below {
		out.SRV = nil
	}
	return out
}

// addressed are the addresses that a name of the service leads to.
func (c *Core) addressed(s *service, q names.Query) Answer {
	out := Answer{Known: true, Found: true, Stay: positive}
	at := c.addresses(s)
	numbered := func() {
		for _, n := range sortedKeys(at.Instances) {
			if v := at.Instances[n]; v.IsValid() {
				out.Addrs = append(out.Addrs, v)
			}
		}
	}
	switch {
	case q.Number >= 0:
		v, ok := at.Instances[q.Number]
		out.Found = ok
		if v.IsValid() {
			out.Addrs = []netip.Addr{v}
		}
	case q.Policy == names.Instance:
		numbered()
	case q.Policy == names.RoundRobin && at.RoundRobin.IsValid(), q.Policy == names.Any && at.RoundRobin.IsValid():
		out.Addrs = []netip.Addr{at.RoundRobin}
	case q.Policy == names.Closest && at.Closest.IsValid(), q.Policy == names.Any && at.Closest.IsValid():
		out.Addrs = []netip.Addr{at.Closest}
	case q.Policy == names.Any:
		numbered()
	default:
		out.Found = false // the SLA did not ask for the policy
	}
	return out
}

// here is the service of a want by name where it has instances on this node, which
// serve it until the cluster answers.
func (c *Core) here(w *want) *service {
	id, ok := names.Match(w.Service, c.spelt[strings.ToLower(string(w.Service))])
	if s := c.services[id]; ok && s != nil && len(s.local) > 0 && c.mayCall(w.For, id) {
		return s
	}
	return nil
}

// targets are the instances that are up, at the first port of the protocol that
// the service publishes, and the service where they have no addresses of their own.
// ok says whether it publishes one.
func (c *Core) targets(s *service, asker api.ServiceID, q names.Query, proto string) (out []Target, ok bool) {
	var ports []api.PortMap
	if a := s.newest(); s.route != nil {
		ports = s.route.Ports
	} else if a != nil {
		ports = a.Attach.Ports
	}
	i := slices.IndexFunc(ports, func(p api.PortMap) bool { return p.Protocol == proto })
	at := c.addresses(s)
	if _, has := at.Instances[q.Number]; i < 0 || q.Number >= 0 && !has {
		return nil, false
	}
	add := func(policy names.Policy, n int, v netip.Addr) {
		if v.IsValid() {
			name := names.Of(names.Query{Service: s.id, Policy: policy, Number: n}, asker)
			out = append(out, Target{Name: name, Address: v, Port: ports[i].Instance, Weight: 1})
		}
	}
	up := open(c.backends(s))
	for _, b := range up {
		if n := b.instance.Number(); q.Number < 0 || n == q.Number {
			add(names.Instance, n, at.Instances[n])
		}
	}
	switch {
	case len(out) > 0 || len(up) == 0 || q.Number >= 0:
	case at.RoundRobin.IsValid() && q.Policy != names.Closest:
		add(names.RoundRobin, -1, at.RoundRobin)
	default:
		add(names.Closest, -1, at.Closest)
	}
	return out, true
}

func (c *Core) pointer(asker api.ServiceID, q names.Query) Answer {
	if !c.mayCall(asker, q.Service) && !c.mayCall(q.Service, asker) {
		return Answer{Known: true, Stay: negative}
	}
	return Answer{Known: true, Found: true, PTR: names.Of(q, asker), Stay: positive}
}

// named is the name that an address goes by.
func (c *Core) named(a netip.Addr) (names.Query, bool) {
	if at := c.at[a]; at != nil {
		return names.Query{Service: at.service(), Policy: names.Instance, Number: at.Attach.Instance.Number()}, true
	}
	if s := c.services[c.vips[a]]; s != nil {
		at := c.addresses(s)
		switch a {
		case at.RoundRobin:
			return names.Query{Service: s.id, Policy: names.RoundRobin, Number: -1}, true
		case at.Closest:
			return names.Query{Service: s.id, Policy: names.Closest, Number: -1}, true
		}
		for n, v := range at.Instances {
			if v == a {
				return names.Query{Service: s.id, Policy: names.Instance, Number: n}, true
			}
		}
	}
	if s := c.services[c.owners[a]]; s != nil {
		if s.route != nil {
			for _, b := range s.route.Backends {
				if b.Address == a {
					return names.Query{Service: s.id, Policy: names.Instance, Number: b.Instance.Number()}, true
				}
			}
		}
		return names.Query{Service: s.id, Policy: names.RoundRobin, Number: -1}, true
	}
	return names.Query{}, false
}

// Covers reports whether the core answers for a PTR name: an address of the ranges.
func (c *Core) Covers(name string) bool {
	a, ok := names.Reverse(name)
	return ok && c.lease != nil && c.lease.Ranges.Untwin(a).IsValid()
}

// Twin is the IPv6 address that belongs to one of ours.
func (c *Core) Twin(a netip.Addr) netip.Addr {
	if c.lease == nil {
		return netip.Addr{}
	}
	return c.lease.Ranges.Twin(a)
}
