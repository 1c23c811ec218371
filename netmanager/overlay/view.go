package overlay

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/netmanager/overlay/names"
)

// Attached is what a workload has; ok says whether it is attached.
func (c *Core) Attached(k api.Key) (a api.Attached, ok bool) {
	at := c.attached[k]
	if at == nil {
		return a, false
	}
	a = api.Attached{Key: k, Address: at.Address, MTU: c.cfg.MTU, Ready: at.Ready}
	if c.lease != nil {
		a.Address6 = c.lease.Ranges.Twin(at.Address)
	}
	return a, true
}

// Unready are the attachments that were not said to listen yet, in the order of
// their keys.
func (c *Core) Unready() []api.Attach {
	return slices.DeleteFunc(c.Attachments(), func(a api.Attach) bool { return c.attached[a.Key].Ready })
}

// Attachments are what is attached and was asked for, in the order of their keys:
// what the links of endpoints are made of.
func (c *Core) Attachments() []api.Attach {
	byName := map[string]api.Attach{}
	for k, a := range c.attached {
		byName[k.String()] = a.Attach
	}
	var out []api.Attach
	for _, k := range step.Keys(byName) {
		out = append(out, byName[k])
	}
	return out
}

// List is what is attached, in the order of the keys.
func (c *Core) List() []api.Attached {
	var out []api.Attached
	for _, a := range c.Attachments() {
		at, _ := c.Attached(a.Key)
		out = append(out, at)
	}
	return out
}

// Lease is the node's part of the network; ok says whether there is one.
func (c *Core) Lease() (l api.NetLease, ok bool) {
	if c.lease == nil {
		return l, false
	}
	return *c.lease, true
}

// Status is what the core knows of it; the wiring adds the rest.
func (c *Core) Status() api.NetStatus {
	st := api.NetStatus{Ready: c.lease != nil, Key: c.self.Key, Mapped: slices.Clone(c.self.Mapped)}
	if c.lease == nil {
		st.Error = "the cluster has not given the node a lease yet"
		return st
	}
	st.Node, st.Cluster, st.Subnet = c.lease.Node, c.lease.Cluster, c.lease.Subnet
	if c.pool.Free(c.now) == 0 {
		st.Error = fmt.Sprintf("no address of %s is left", c.lease.Subnet)
	}
	return st
}

// Routes is what is held of services, in the order of their ids, and what the
// cluster refused.
func (c *Core) Routes() []api.RouteStatus {
	var out []api.RouteStatus
	for _, id := range sortedKeys(c.services) {
		s := c.services[id]
		if s.route == nil {
			continue
		}
		st := api.RouteStatus{Route: *s.route, Latency: map[string]time.Duration{}}
		all := c.backends(s)
		for _, b := range all {
			if d := c.cost(b); d < unknown {
				st.Latency[string(b.instance)] = d
			}
		}
		if s.route.Addresses.Closest.IsValid() {
			st.Chosen = map[string]int{}
			for _, b := range nearest(s, open(all)) {
				st.Chosen[string(b.instance)]++
			}
		}
		var used time.Time
		for _, k := range c.wantsOf(s) {
			if w := c.wants[k]; w.used.After(used) {
				used = w.used
			}
		}
		if !used.IsZero() {
			st.Idle = c.now.Sub(used)
		}
		out = append(out, st)
	}
	for _, id := range sortedKeys(c.asking) {
		for _, k := range c.inOrder(c.asking[id].pending) {
			w := c.wants[k]
			st := api.RouteStatus{Route: api.Route{Service: w.Service}, Idle: c.now.Sub(w.used)}
			if w.Address.IsValid() {
				st.Addresses.RoundRobin = w.Address
			}
			switch c.outcome(w) {
			case unanswered:
				st.Refused = fmt.Sprintf("asked for %s, not answered yet", w.For)
			case denied:
				st.Refused = fmt.Sprintf("%s may not call it", w.For)
			case nowhere:
				st.Refused = fmt.Sprintf("asked for %s: there is no such service", w.For)
			case answered:
				continue
			}
			out = append(out, st)
		}
	}
	return out
}

// Peers is what the core decided of peers; what passed is the tunnel's to add.
func (c *Core) Peers() []api.PeerStatus {
	var out []api.PeerStatus
	for _, k := range sortedKeys(c.peers) {
		q := c.peers[k]
		st := api.PeerStatus{
			Key: k, Node: q.record.Node, Cluster: q.record.Cluster, Path: q.path.Kind, Endpoint: q.path.Addr,
			RTT: q.path.RTT, Loss: q.path.Loss, MTU: q.path.MTU,
		}
		if st.Path == "" {
			st.Path = api.PathNone
		}
		switch {
		case q.kernel.Path != "":
			st.Path = q.kernel.Path
		case q.kernel.Takes != none && q.deal.why != "":
			st.Reason = q.deal.why
		case q.kernel.Takes != none && q.kernel.Terms.Ways == none:
			st.Reason = "it takes nothing in the clear from here"
		case q.kernel.Takes != none:
			st.Reason = "no way in the clear that both have"
		case q.path.Silent:
			st.Reason = "it does not answer"
		case q.path.Kind == api.PathDirect && !q.path.Plain:
			st.Reason = "a NAT lies between"
		case q.path.Kind == api.PathDirect:
			st.Reason = "not in one network that the operator called clear"
		}
		out = append(out, st)
	}
	return out
}

// Answer is what a name or an address leads to at the moment. Names are full, with
// their final dot. Where there is nothing of the type that was asked for, but the
// name exists, it is empty and Found.
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

// Target is an instance of an SRV answer.
type Target struct {
	Name    string
	Address netip.Addr
	Port    uint16
	Weight  uint16
}

// Kind is what of a name is looked up.
type Kind uint8

// The kinds of look-ups.
const (
	Addresses Kind = iota
	Pointer
	Services
)

// positive is how long an address may be kept. It is stable, and what stands
// behind it is the plane's to choose; a name that moves from one policy to another
// is followed in seconds.
const positive = 5 * time.Second

// Lookup answers what a Query asked for, in the terms of who asked. It asks
// nobody.
func (c *Core) Lookup(local netip.Addr, name string, kind Kind) Answer {
	out := c.lookup(local, name, kind)
	for _, a := range out.Addrs {
		if t := c.Twin(a); t.IsValid() {
			out.Twins = append(out.Twins, t)
		}
	}
	return out
}

func (c *Core) lookup(local netip.Addr, name string, kind Kind) Answer {
	none := Answer{Known: true}
	if c.lease == nil {
		return none
	}
	a := c.at[c.lease.Ranges.Untwin(local)]
	if a == nil {
		return none
	}
	if kind == Pointer {
		return c.pointer(a.service(), name)
	}
	proto := ""
	if kind == Services {
		if name, proto = protocol(name); proto == "" {
			return none
		}
	}
	q, err := names.Parse(name, a.service())
	if err != nil {
		return none
	}
	w := &want{Want: api.Want{Service: q.Service, For: a.service()}}
	known := c.wants[c.wantOf(w.Want)]
	if known != nil {
		w.refusal = known.refusal // what it leads to depends on how it was spelt now
	}
	s := c.leadsTo(w)
	switch c.outcome(w) {
	case unanswered:
		if s = c.here(w); s == nil {
			out := Answer{open: true, Failed: q.Policy != names.Any || q.Service.Tenant() != a.service().Tenant()}
			if known == nil || c.unheard(known) {
				out.Known, out.Stay = true, time.Second
			}
			return out
		}
	case denied, nowhere:
		return Answer{Known: true, Stay: time.Second}
	}
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
	case kind == Services:
		out.SRV = c.targets(s, a.service(), proto)
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

// protocol splits "_name._tcp.rest".
func protocol(name string) (rest, proto string) {
	p := strings.SplitN(name, ".", 3)
	if len(p) != 3 || len(p[0]) < 2 || p[0][0] != '_' {
		return "", ""
	}
	for _, proto := range []string{"tcp", "udp", "sctp"} {
		if strings.EqualFold(p[1], "_"+proto) {
			return p[2], proto
		}
	}
	return "", ""
}

// targets are the instances that are up and have an address of their own, at the
// first port of the protocol that the service publishes.
func (c *Core) targets(s *service, asker api.ServiceID, proto string) []Target {
	var ports []api.PortMap
	if a := s.newest(); s.route != nil {
		ports = s.route.Ports
	} else if a != nil {
		ports = a.Attach.Ports
	}
	i := slices.IndexFunc(ports, func(p api.PortMap) bool { return p.Protocol == proto })
	if i < 0 {
		return nil
	}
	at := c.addresses(s)
	var out []Target
	for _, b := range open(c.backends(s)) {
		n := b.instance.Number()
		if v := at.Instances[n]; v.IsValid() {
			name := names.Of(names.Query{Service: s.id, Policy: names.Instance, Number: n}, asker)
			out = append(out, Target{Name: name, Address: v, Port: ports[i].Instance, Weight: 1})
		}
	}
	return out
}

func (c *Core) pointer(asker api.ServiceID, name string) Answer {
	a, ok := names.Reverse(name)
	if !ok {
		return Answer{Known: true}
	}
	a = c.lease.Ranges.Untwin(a)
	q, ok := c.named(a)
	if !ok || !c.mayCall(asker, q.Service) && !c.mayCall(q.Service, asker) {
		return Answer{Known: true, Stay: time.Second}
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

// Trace says what would happen to a new flow from an instance on this node to a
// name or an address. It asks nobody; where the flow would, ask is the input that
// does so, after which another Trace may know more. An instance that is not here
// is ErrNotFound.
func (c *Core) Trace(from api.InstanceID, to string) (t api.NetTrace, ask Input, err error) {
	t = api.NetTrace{From: from, To: to, OK: true}
	var a *attachment
	for k, o := range c.attached {
		if k.Instance == from && (a == nil || k.Epoch > a.Attach.Epoch) {
			a = o
		}
	}
	if a == nil {
		return t, nil, fmt.Errorf("instance %s is not on this node's network: %w", from, api.ErrNotFound)
	}
	note := func(ok bool, what, format string, args ...any) bool {
		t.Steps = append(t.Steps, api.TraceStep{What: what, Detail: fmt.Sprintf(format, args...), OK: ok})
		t.OK = t.OK && ok
		return ok
	}
	addr, err := netip.ParseAddr(to)
	if err != nil {
		name := to
		if !names.Under(name) {
			name += "." + names.Search(a.service())[0]
		}
		ans := c.Lookup(a.Address, name, Addresses)
		switch {
		case !ans.Known || ans.open:
			note(false, "name", "%s is not known yet; a look-up asks the cluster", name)
			return t, Query{Local: a.Address, Name: name}, nil
		case len(ans.Addrs) == 0:
			note(false, "name", "%s leads to no address", name)
			return t, nil, nil
		}
		addr = ans.Addrs[0]
		note(true, "name", "%s is %s", name, addr)
	}
	v4 := c.lease.Ranges.Untwin(addr)
	if !v4.IsValid() {
		note(true, "route", "%s is outside the overlay network: it is reached with the host's address, unless closed", addr)
		return t, nil, nil
	}
	w := &want{Want: api.Want{Address: v4, For: a.service()}}
	if known := c.wants[w.Want]; known != nil {
		w = known
	}
	s := c.leadsTo(w)
	if s == nil {
		if s = c.services[c.vips[v4]]; s == nil {
			why := "the first packet asks the cluster"
			if w.refusal != nil {
				why = "the cluster knows of no such address"
			} else if !w.asked.IsZero() {
				why = "the cluster was asked and has not answered"
			}
			note(false, "route", "nothing is known of %s: %s", v4, why)
			if w.refusal == nil {
				ask = Miss{Local: a.Address, Remote: v4}
			}
			return t, ask, nil
		}
	}
	detail := "of instances on this node alone"
	if s.route != nil {
		detail = fmt.Sprintf("revision %d, %d backends", s.route.Rev, len(s.route.Backends))
	}
	note(true, "route", "%s is %s's: %s", v4, s.id, detail)
	if !note(c.mayCall(a.service(), s.id), "access", "%s may call %s: %v", a.service(), s.id, c.mayCall(a.service(), s.id)) {
		return t, nil, nil
	}
	targets := []netip.Addr{v4}
	if _, ok := c.vips[v4]; ok {
		targets = nil
		for _, p := range c.planeServices(s) {
			if p.Address == v4 {
				for _, b := range p.Backends {
					targets = append(targets, b.Address)
				}
			}
		}
		if len(targets) == 0 {
			note(false, "backend", "no instance of it can be reached")
			return t, Miss{Local: a.Address, Remote: v4}, nil
		}
	}
	for _, b := range targets {
		n, _ := c.named(b)
		note(true, "backend", "%s (%s)", n.Service.Instance(n.Number), b)
		c.tracePath(a.Address, b, note)
	}
	return t, nil, nil
}

// traceReply says by what the other node lets answers back: what is allowed to call
// is allowed to be answered, once it is known who calls.
func (c *Core) traceReply(from netip.Addr, who string, note func(bool, string, string, ...any) bool) {
	switch {
	case !c.described:
		note(false, "reply", "this node has not said yet how it is reached")
	case !c.link.up:
		note(true, "reply", "%s knows %s if it asked before; the cluster, which would tell it, is not reached", who, from)
	default:
		note(true, "reply", "%s asks its cluster who %s is, unless it knows, and answers by the same path", who, from)
	}
}

func (c *Core) tracePath(from, b netip.Addr, note func(bool, string, string, ...any) bool) {
	if c.at[b] != nil {
		note(true, "path", "on this node")
		note(true, "reply", "on this node")
		return
	}
	k, ok := c.peerAt(b)
	if !ok {
		note(false, "path", "no peer is known that has %s", b)
		return
	}
	for _, st := range c.Peers() {
		if st.Key != k {
			continue
		}
		who := string(st.Node)
		if who == "" {
			who = "a node of cluster " + string(st.Cluster)
		}
		reason := ""
		if st.Reason != "" {
			reason = ": " + st.Reason
		}
		note(!c.peers[k].path.Silent, "path", "%s by %s, %s%s", who, st.Path, st.RTT, reason)
		c.traceReply(from, who, note)
	}
}
