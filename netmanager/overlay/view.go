package overlay

import (
	"fmt"
	"net/netip"
	"slices"
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
	pairs := map[api.ServiceID][]api.PairStatus{}
	for _, p := range c.Pairs() {
		pairs[p.Remote] = append(pairs[p.Remote], p)
	}
	for _, id := range sortedKeys(c.services) {
		s := c.services[id]
		if s.route == nil {
			continue
		}
		st := api.RouteStatus{Route: *s.route, Latency: map[string]time.Duration{}, Pairs: pairs[id]}
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
			RTT: q.path.RTT, Loss: q.path.Loss, Measured: q.measured, MTU: q.path.MTU, Kernel: q.carried,
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
		ans := c.Lookup(a.Address, name)
		switch {
		case !ans.Known || ans.open:
			note(false, "name", "%s is not known yet; a look-up asks the cluster", name)
			return t, Query{Local: a.Address, Name: name}, nil
		case !ans.Found:
			note(false, "name", "there is no service that is called %s, or none that %s may know of", name, a.service())
			return t, nil, nil
		case len(ans.Addrs) == 0:
			note(false, "name", "%s exists and has no address for that", name)
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
	if p := c.rtts[servicePair{a.service(), s.id}]; p != nil {
		note(true, "latency", "%s, %s at least, by %d connections %s ago; %.1f %% of segments sent again",
			p.RTT.Round(time.Microsecond), p.Least, p.Connections, c.now.Sub(p.Seen).Round(time.Second), 100*p.Again)
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
