package overlay

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/balance"
	"github.com/treeline-edge/treeline/netmanager/overlay/names"
	"github.com/treeline-edge/treeline/netmanager/overlay/subscriptions"
)

// Attached returns the attachment of a workload; ok is false if there is none.
func (v View) Attached(k wire.Key) (a wire.Attached, ok bool) {
	at, ok := v.endpoints.Get(k)
	if !ok {
		return a, false
	}
	return wire.Attached{Key: k, Address: at.Address, Address6: v.To6(at.Address), MTU: v.cfg.MTU, Ready: at.Serving(), Checked: at.Attach.Checked}, true
}

// Unready lists the attachments that do not listen yet, sorted by key, except those whose health checks
// decide whether they are ready.
func (v View) Unready() (out []wire.Attach) {
	for _, a := range v.endpoints.All() {
		if !a.Ready && !a.Attach.Checked && !a.Attach.Early {
			out = append(out, a.Attach)
		}
	}
	return out
}

// Attachments lists the requests of all attachments, sorted by key. The links of endpoints are made from
// them.
func (v View) Attachments() (out []wire.Attach) {
	for _, a := range v.endpoints.All() {
		out = append(out, a.Attach)
	}
	return out
}

// List lists the attachments with their addresses, sorted by key.
func (v View) List() (out []wire.Attached) {
	for _, a := range v.endpoints.All() {
		at, _ := v.Attached(a.Attach.Key)
		out = append(out, at)
	}
	return out
}

// Lease returns the node's lease; ok is false if there is none.
func (v View) Lease() (l wire.NetLease, ok bool) {
	if v.lease == nil {
		return l, false
	}
	return *v.lease, true
}

// Status returns the state of the node's network.
func (v View) Status() api.NetStatus {
	st := api.NetStatus{Ready: v.lease != nil, Key: v.self.Key, Mapped: slices.Clone(v.self.Mapped)}
	if v.lease == nil {
		st.Error = "the cluster has not given the node a lease yet"
		return st
	}
	st.Node, st.Cluster, st.Subnet = v.lease.Node, v.lease.Cluster, v.lease.Subnet
	if v.endpoints.Free(v.now) == 0 {
		st.Error = fmt.Sprintf("no free address in %s", v.lease.Subnet)
	}
	return st
}

// NoticesAcked reports whether all peers that answer have confirmed the last notice.
func (v View) NoticesAcked() bool { return v.notices.Confirmed(v.reachable(false)) }

// Pairs lists, in order, the pairs of services with the round trips that TCP observed in the last
// minutes.
func (v View) Pairs() []api.PairStatus { return v.roundTrips.Pairs(v.now) }

// Routes lists the routes in the order of their services, then the open subscriptions.
func (v View) Routes() []api.RouteStatus {
	var out []api.RouteStatus
	pairs := map[api.ServiceID][]api.PairStatus{}
	for _, p := range v.Pairs() {
		pairs[p.Remote] = append(pairs[p.Remote], p)
	}
	for _, id := range v.services.IDs() {
		if r := v.services.Route(id); r != nil {
			st := v.routeStatus(*r)
			st.Pairs = pairs[id]
			out = append(out, st)
		}
	}
	for _, id := range v.subs.Subscribers() {
		for _, k := range v.subs.OpenOf(id) {
			s, _ := v.subs.Get(k)
			st := api.RouteStatus{Route: api.Route{Service: k.Service}, Idle: v.now.Sub(s.Used)}
			st.Addresses.RoundRobin = k.Address
			switch v.outcome(k) {
			case subscriptions.Unanswered:
				st.Refused = fmt.Sprintf("requested for %s, not answered yet", k.For)
			case subscriptions.Denied:
				st.Refused = fmt.Sprintf("%s may not call it", k.For)
			case subscriptions.Nowhere:
				st.Refused = fmt.Sprintf("requested for %s: there is no such service", k.For)
			case subscriptions.Answered:
				continue
			}
			out = append(out, st)
		}
	}
	return out
}

func (v View) routeStatus(r api.Route) api.RouteStatus {
	st := api.RouteStatus{Route: r, Latency: map[string]time.Duration{}}
	all := v.backends(r.Service)
	for _, b := range all {
		if b.Distance < balance.Unknown {
			st.Latency[string(b.Instance)] = b.Distance
		}
	}
	if r.Addresses.Closest.IsValid() {
		st.Chosen = map[string]int{}
		for _, b := range v.balance.Nearest(r.Service, balance.Open(all)) {
			st.Chosen[string(b.Instance)]++
		}
	}
	var used time.Time
	for _, k := range v.subscriptionsTo(r.Service) {
		if s, _ := v.subs.Get(k); s.Used.After(used) {
			used = s.Used
		}
	}
	if !used.IsZero() {
		st.Idle = v.now.Sub(used)
	}
	return st
}

// Peers lists the peers with their paths. The tunnel adds its counters.
func (v View) Peers() (out []api.PeerStatus) {
	for _, k := range v.peers.Keys() {
		out = append(out, v.peerStatus(k))
	}
	return out
}

func (v View) peerStatus(k api.PeerKey) api.PeerStatus {
	p, _ := v.peers.Get(k)
	kernel := v.kernel.Status(k)
	st := api.PeerStatus{
		Key: k, Node: p.Record.Node, Cluster: p.Record.Cluster, Path: p.Path.Kind, Endpoint: p.Path.Addr,
		RTT: p.Path.RTT, Loss: p.Path.Loss, Measured: p.Measured, MTU: p.Path.MTU, Kernel: p.Carried,
	}
	if st.Path == "" {
		st.Path = api.PathNone
	}
	switch {
	case kernel.Path != "":
		st.Path = kernel.Path
	case kernel.Reason != "":
		st.Reason = kernel.Reason
	case p.Path.Silent:
		st.Reason = "it does not answer"
	case p.Path.Kind == api.PathDirect && !p.Path.NoNAT:
		st.Reason = "there is a NAT between the nodes"
	case p.Path.Kind == api.PathDirect:
		st.Reason = "the nodes are not in one unencrypted network"
	}
	return st
}

// Trace returns what would happen to a new flow from an instance on this node to a name or an address. It
// sends nothing. If the cluster has to be asked first, the Input asks it, and a later Trace has the
// answer. It fails with ErrNotFound if the instance is not on this node.
func (v View) Trace(from api.InstanceID, to string) (api.NetTrace, Input, error) {
	t := tracer{View: v, out: api.NetTrace{From: from, To: to, OK: true}}
	found := false
	for _, a := range v.endpoints.Of(from.Service()) {
		if a.Attach.Instance == from && (!found || a.Attach.Epoch > t.epoch) {
			t.asker, t.local, t.epoch, found = a.Service(), a.Address, a.Attach.Epoch, true
		}
	}
	if !found {
		return t.out, nil, fmt.Errorf("instance %s is not on this node's network: %w", from, api.ErrNotFound)
	}
	addr, ask, ok := t.resolve(to)
	if !ok {
		return t.out, ask, nil
	}
	id, ask, ok := t.service(addr)
	if !ok {
		return t.out, ask, nil
	}
	if p, ok := v.roundTrips.Pair(t.asker, id); ok {
		t.note(true, "latency", "%s, %s at least, by %d connections %s ago; %.1f %% of segments sent again",
			p.RTT.Round(time.Microsecond), p.Least, p.Connections, v.now.Sub(p.Seen).Round(time.Second), 100*p.Again)
	}
	return t.out, t.backends(addr, id), nil
}

type tracer struct {
	View
	asker api.ServiceID
	local netip.Addr
	epoch api.Epoch
	out   api.NetTrace
}

func (t *tracer) note(ok bool, what, format string, args ...any) bool {
	t.out.Steps = append(t.out.Steps, api.TraceStep{What: what, Detail: fmt.Sprintf(format, args...), OK: ok})
	t.out.OK = t.out.OK && ok
	return ok
}

// resolve returns the IPv4 address in the network for a name or an address.
func (t *tracer) resolve(to string) (a netip.Addr, ask Input, ok bool) {
	addr, err := netip.ParseAddr(to)
	if err != nil {
		name := to
		if !names.Under(name) {
			name += "." + names.Search(t.asker)[0]
		}
		switch ans := t.Lookup(t.local, name); {
		case !ans.Known || ans.open:
			t.note(false, "name", "%s is not known yet; a look-up asks the cluster", name)
			return a, Query{Local: t.local, Name: name}, false
		case !ans.Found:
			return a, nil, t.note(false, "name", "no service is called %s, or %s may not call it", name, t.asker)
		case len(ans.Addrs) == 0:
			return a, nil, t.note(false, "name", "%s exists and has no address", name)
		default:
			addr = ans.Addrs[0]
			t.note(true, "name", "%s is %s", name, addr)
		}
	}
	if a = t.lease.Ranges.To4(addr); !a.IsValid() {
		t.note(true, "route", "%s is outside the overlay network: it is reached with the host's address, unless closed", addr)
	}
	return a, nil, a.IsValid()
}

// service returns the service of an address, and notes whether it may be called.
func (t *tracer) service(addr netip.Addr) (id api.ServiceID, ask Input, ok bool) {
	k := wire.Subscription{Address: addr, For: t.asker}
	if id, ok = t.leadsTo(k); !ok {
		id, ok = t.services.Semantic(addr)
	}
	if !ok {
		why := "the first packet asks the cluster"
		ask = Miss{Local: t.local, Remote: addr}
		if s, known := t.subs.Get(k); s.Refused {
			why, ask = "the cluster knows no such address", nil
		} else if known && !s.Asked.IsZero() {
			why = "the cluster was asked and has not answered"
		}
		return "", ask, t.note(false, "route", "address %s is unknown: %s", addr, why)
	}
	detail := "instances on this node only"
	if r := t.services.Route(id); r != nil {
		detail = fmt.Sprintf("revision %d, %d backends", r.Rev, len(r.Backends))
	}
	t.note(true, "route", "%s belongs to %s: %s", addr, id, detail)
	may := t.services.MayCall(t.asker, id)
	return id, nil, t.note(may, "access", "%s may call %s: %v", t.asker, id, may)
}

// backends notes the backends behind an address with their paths.
func (t *tracer) backends(addr netip.Addr, id api.ServiceID) (ask Input) {
	targets := []netip.Addr{addr}
	if _, semantic := t.services.Semantic(addr); semantic {
		targets = nil
		for _, p := range t.planeServices(id) {
			if p.Address == addr {
				for _, b := range p.Backends {
					targets = append(targets, b.Address)
				}
			}
		}
		if len(targets) == 0 {
			t.note(false, "backend", "no instance of it can be reached")
			return Miss{Local: t.local, Remote: addr}
		}
	}
	for _, b := range targets {
		n, _ := t.named(b)
		t.note(true, "backend", "%s (%s)", n.Service.Instance(n.Number), b)
		t.path(b)
	}
	return nil
}

// path notes the path to a backend, and how the backend's node finds the path for replies.
func (t *tracer) path(b netip.Addr) {
	if t.endpoints.Has(b) {
		t.note(true, "path", "on this node")
		t.note(true, "reply", "on this node")
		return
	}
	k, ok := t.peers.At(b)
	if !ok {
		t.note(false, "path", "no known peer has %s", b)
		return
	}
	st := t.peerStatus(k)
	who := string(st.Node)
	if who == "" {
		who = "a node of cluster " + string(st.Cluster)
	}
	reason := ""
	if st.Reason != "" {
		reason = ": " + st.Reason
	}
	p, _ := t.peers.Get(k)
	t.note(!p.Path.Silent, "path", "%s by %s, %s%s", who, st.Path, st.RTT, reason)
	switch {
	case !t.described:
		t.note(false, "reply", "this node has not described itself yet")
	case !t.subs.Up():
		t.note(true, "reply", "%s can answer if it knows %s; the cluster, which would tell it, is disconnected", who, t.local)
	default:
		t.note(true, "reply", "%s asks its cluster about %s unless it knows it, and answers by the same path", who, t.local)
	}
}
