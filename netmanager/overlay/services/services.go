// Package services keeps the routes and sources that the cluster sent, and which services have instances
// on this node. It derives the service of each address, which services may call each other, and the data
// plane's entries. It does no I/O: the core passes records and applies the returned Changes.
//
//	m := services.New()
//	if m.NewerRoute(route, false) {
//		changes := m.SetRoute(route, false)
//	}
//	id, ok := m.Semantic(address)
package services

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/names"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
	"github.com/treeline-edge/treeline/netmanager/overlay/sorted"
)

// The kinds of documents.
const (
	KindRoute   = "route"   // by service
	KindSource  = "source"  // by address
	KindIdent   = "ident"   // the plane's number for a service
	KindCounter = "counter" // of idents

	keyIdent = "ident"
)

// Changes lists what the core must update, in this order.
type Changes struct {
	Services  []api.ServiceID // their plane entries may have changed
	Access    []api.ServiceID // which services they may call, or may call them, may have changed
	Sources   []netip.Addr    // the service of these addresses may have changed
	Ended     []netip.Addr    // flows to these instances must end
	Released  []api.PeerKey   // peers that each lost one reference
	Backends  []api.ServiceID // their backends changed
	Added     bool            // the record is new; false: a newer revision of a known one
	Subscribe []Subject       // subscriptions whose outcome may have changed
}

// Subject identifies subscriptions: those to a service, or to an address.
type Subject struct {
	Service api.ServiceID
	Address netip.Addr
}

// Local describes a service by its instances on this node.
type Local struct {
	Count     int // instances
	Access    api.Access
	Addresses api.ServiceAddresses
	Ports     []api.PortMap
}

type service struct {
	id        api.ServiceID
	ident     plane.Ident
	route     *api.Route
	local     Local
	sources   map[netip.Addr]struct{}
	addresses []netip.Addr // semantic addresses that belong to it
}

type identRecord struct {
	Ident plane.Ident `json:"ident"`
}

// Machine keeps all known services.
type Machine struct {
	ranges   *wire.NetRanges // nil without a lease
	services map[api.ServiceID]*service
	names    interest.Names
	semantic map[netip.Addr]api.ServiceID // semantic addresses; the last record wins
	owners   map[netip.Addr]api.ServiceID // remote instances' addresses; the last record wins
	sources  map[netip.Addr]wire.Source
	hosts    map[api.PeerKey]map[api.ServiceID]struct{} // services by the peers that host them
	locals   map[api.ServiceID]struct{}                 // services with instances on this node
	counter  step.Counter
	idents   map[api.ServiceID]plane.Ident
	held     api.Digest
	journal  step.Journal
}

// New returns a machine without services.
func New() *Machine {
	return &Machine{
		services: map[api.ServiceID]*service{}, names: interest.Names{}, semantic: map[netip.Addr]api.ServiceID{},
		owners: map[netip.Addr]api.ServiceID{}, sources: map[netip.Addr]wire.Source{}, hosts: map[api.PeerKey]map[api.ServiceID]struct{}{},
		locals: map[api.ServiceID]struct{}{}, idents: map[api.ServiceID]plane.Ident{},
	}
}

// RestoreIdent loads the document of an ident or of the counter of idents.
func (m *Machine) RestoreIdent(d store.Doc) error {
	m.journal.Restored(d)
	if d.Kind == KindCounter {
		return m.counter.Restore(d.Data)
	}
	var r identRecord
	if err := json.Unmarshal(d.Data, &r); err != nil {
		return err
	}
	m.idents[api.ServiceID(d.Key)] = r.Ident
	return nil
}

// Restoring reads the document of a route or source into record, which the caller passes to SetRoute or
// SetSource. It deletes the document unless keep is set.
func (m *Machine) Restoring(d store.Doc, keep bool, record any) error {
	m.journal.Restored(d)
	err := json.Unmarshal(d.Data, record)
	if err == nil && !keep {
		m.journal.Delete(d.Kind, d.Key)
	}
	return err
}

// Restored deletes the idents whose services were not restored.
func (m *Machine) Restored() {
	for _, id := range sorted.Ordered(m.idents) {
		if m.services[id] == nil {
			delete(m.idents, id)
			m.journal.Delete(KindIdent, string(id))
		}
	}
}

// Save returns the documents that changed.
func (m *Machine) Save() []store.Doc { return m.journal.Take() }

// Held is the digest of all routes and sources.
func (m *Machine) Held() api.Digest { return m.held }

// IDs lists all services in order.
func (m *Machine) IDs() []api.ServiceID { return sorted.Ordered(m.services) }

// Has reports whether a service is known.
func (m *Machine) Has(id api.ServiceID) bool { return m.services[id] != nil }

// Route returns the route of a service, or nil. It must not be modified.
func (m *Machine) Route(id api.ServiceID) *api.Route {
	if s := m.services[id]; s != nil {
		return s.route
	}
	return nil
}

// Routes lists, in no order, the services that have a route.
func (m *Machine) Routes(yield func(api.ServiceID) bool) {
	for id, s := range m.services {
		if s.route != nil && !yield(id) {
			return
		}
	}
}

// Source returns the source of an address.
func (m *Machine) Source(a netip.Addr) (s wire.Source, ok bool) {
	s, ok = m.sources[a]
	return s, ok
}

// Sources lists, in no order, the addresses that have a source.
func (m *Machine) Sources(yield func(netip.Addr) bool) {
	for a := range m.sources {
		if !yield(a) {
			return
		}
	}
}

// Ident returns the plane's number for a service; 0: unknown service.
func (m *Machine) Ident(id api.ServiceID) plane.Ident {
	if s := m.services[id]; s != nil {
		return s.ident
	}
	return 0
}

// service returns a service, and adds it if it is unknown. It exists until Remove.
func (m *Machine) service(id api.ServiceID, c *Changes) *service {
	s := m.services[id]
	if s != nil {
		return s
	}
	s = &service{id: id, sources: map[netip.Addr]struct{}{}}
	if s.ident = m.idents[id]; s.ident == 0 {
		s.ident = plane.Ident(m.counter.Next(&m.journal, KindCounter, keyIdent))
		m.idents[id] = s.ident
		m.journal.Put(KindIdent, string(id), identRecord{s.ident})
	}
	m.services[id] = s
	m.names.Add(id)
	c.Services, c.Access = append(c.Services, id), append(c.Access, id)
	return s
}

// Remove removes a service without route, sources and local instances. It reports whether it did.
func (m *Machine) Remove(id api.ServiceID) bool {
	s := m.services[id]
	if s == nil || s.route != nil || s.local.Count+len(s.sources) > 0 {
		return false
	}
	delete(m.services, id)
	delete(m.idents, id)
	m.journal.Delete(KindIdent, string(id))
	m.names.Remove(id)
	return true
}

// SetRanges sets the network's address ranges.
func (m *Machine) SetRanges(r wire.NetRanges) { m.ranges = &r }

// Readdress determines again which semantic addresses belong to a service, after SetRanges.
func (m *Machine) Readdress(id api.ServiceID) (c Changes) {
	m.readdress(m.services[id], &c)
	return c
}

// readdress determines which semantic addresses belong to a service: those of its route or, without one,
// those that its local instances were attached with. A service with a route takes precedence over one
// without. Otherwise the last one wins.
func (m *Machine) readdress(s *service, c *Changes) {
	var now []netip.Addr
	for _, v := range list(s.advertised()) {
		if m.ranges == nil || !m.ranges.Services.Contains(v) {
			continue
		}
		if o := m.services[m.semantic[v]]; o != nil && o != s && o.route != nil && s.route == nil {
			continue
		}
		now = append(now, v)
	}
	was := s.addresses
	s.addresses = now
	for _, v := range was {
		if !slices.Contains(now, v) && m.semantic[v] == s.id {
			delete(m.semantic, v)
			c.Subscribe = append(c.Subscribe, Subject{Address: v})
		}
	}
	for _, v := range now {
		if o := m.semantic[v]; o != s.id {
			m.semantic[v] = s.id
			if o != "" {
				c.Services = append(c.Services, o)
			}
			c.Subscribe = append(c.Subscribe, Subject{Address: v})
		}
	}
}

// advertised returns the semantic addresses of the route or, without one, of the local instances.
func (s *service) advertised() api.ServiceAddresses {
	if s.route != nil {
		return s.route.Addresses
	}
	return s.local.Addresses
}

func list(a api.ServiceAddresses) (out []netip.Addr) {
	for _, v := range []netip.Addr{a.RoundRobin, a.Closest} {
		if v.IsValid() {
			out = append(out, v)
		}
	}
	for _, n := range sorted.Ordered(a.Instances) {
		if v := a.Instances[n]; v.IsValid() {
			out = append(out, v)
		}
	}
	return out
}

// Advertised returns the semantic addresses in a service's records. Some may belong to another service.
func (m *Machine) Advertised(id api.ServiceID) api.ServiceAddresses {
	if s := m.services[id]; s != nil {
		return s.advertised()
	}
	return api.ServiceAddresses{}
}

// Addresses returns the semantic addresses that belong to a service.
func (m *Machine) Addresses(id api.ServiceID) []netip.Addr {
	if s := m.services[id]; s != nil {
		return s.addresses
	}
	return nil
}

// Ports returns the ports that a service publishes.
func (m *Machine) Ports(id api.ServiceID) []api.PortMap {
	switch s := m.services[id]; {
	case s == nil:
		return nil
	case s.route != nil:
		return s.route.Ports
	default:
		return s.local.Ports
	}
}

// SetLocal describes a service by its instances on this node.
func (m *Machine) SetLocal(id api.ServiceID, l Local) (c Changes) {
	s := m.service(id, &c)
	if s.local = l; l.Count > 0 {
		m.locals[id] = struct{}{}
	} else {
		delete(m.locals, id)
	}
	m.readdress(s, &c)
	c.Services, c.Access = append(c.Services, id), append(c.Access, id)
	return c
}

// access returns the access list of the local instances, else of the route, else of the newest source.
func (m *Machine) access(s *service) api.Access {
	switch {
	case s.local.Count > 0:
		return s.local.Access
	case s.route != nil:
		return s.route.Access
	}
	var last *wire.Source
	for a := range s.sources {
		src := m.sources[a]
		if last == nil || cmp.Or(cmp.Compare(src.Rev, last.Rev), a.Compare(last.Address)) > 0 {
			last = &src
		}
	}
	if last != nil {
		return last.Access
	}
	return api.Access{Closed: true}
}

// MayCall reports whether a service may call another one. Both must be known.
func (m *Machine) MayCall(caller, callee api.ServiceID) bool {
	from, to := m.services[caller], m.services[callee]
	return from != nil && to != nil && api.MayCall(caller, m.access(from), callee, m.access(to))
}

// Pairs adds the pairs of services, one of which is id, between which flows are allowed. At least one end
// of each has instances on this node.
func (m *Machine) Pairs(id api.ServiceID, set map[plane.Pair]struct{}) {
	s := m.services[id]
	with := func(o *service) {
		if m.MayCall(s.id, o.id) {
			set[plane.Pair{From: s.ident, To: o.ident}] = struct{}{}
		}
		if m.MayCall(o.id, s.id) {
			set[plane.Pair{From: o.ident, To: s.ident}] = struct{}{}
		}
	}
	if s.local.Count > 0 {
		for _, o := range m.services {
			with(o)
		}
		return
	}
	for o := range m.locals {
		with(m.services[o])
	}
}

// NewerRoute reports whether a route replaces the present one: it is newer, or whole is set (a full
// update, which replaces everything) and the revision differs.
func (m *Machine) NewerRoute(r api.Route, whole bool) bool {
	old := m.Route(r.Service)
	return r.Service != "" && (old == nil || r.Rev > old.Rev || whole && r.Rev != old.Rev)
}

// SetRoute sets the route of a service. The caller has added the references to its peers. restored means
// that the route is from the store.
func (m *Machine) SetRoute(r api.Route, restored bool) (c Changes) {
	s := m.service(r.Service, &c)
	old := s.route
	m.setRoute(s, &r, &c)
	if !restored && (old == nil || !equalButLoad(*old, r)) {
		m.journal.Put(KindRoute, string(r.Service), r)
	}
	return c
}

// equalButLoad reports whether two routes differ at most in revision and loads, which need not be saved.
func equalButLoad(a, b api.Route) bool {
	a.Rev, a.Backends = b.Rev, slices.Clone(a.Backends)
	if len(a.Backends) == len(b.Backends) {
		for i := range a.Backends {
			a.Backends[i].Load = b.Backends[i].Load
		}
	}
	return step.SameJSON(a, b)
}

// setRoute sets or, with nil, removes the route of a service.
func (m *Machine) setRoute(s *service, r *api.Route, c *Changes) {
	old := s.route
	var was, is api.Route
	if old != nil {
		was = *old
		m.held = m.held.Toggle(old.Digest())
	}
	if r != nil {
		is = *r
		m.held = m.held.Toggle(r.Digest())
		c.Added = old == nil
	}
	s.route = r
	for _, b := range is.Backends {
		if m.hosts[b.Peer] == nil {
			m.hosts[b.Peer] = map[api.ServiceID]struct{}{}
		}
		m.hosts[b.Peer][s.id] = struct{}{}
		if m.IsInstance(b.Address) {
			m.own(b.Address, s, c)
		}
	}
	for _, b := range was.Backends {
		if !slices.ContainsFunc(is.Backends, func(o api.Backend) bool { return o.Peer == b.Peer }) {
			if delete(m.hosts[b.Peer], s.id); len(m.hosts[b.Peer]) == 0 {
				delete(m.hosts, b.Peer)
			}
		}
		if !slices.ContainsFunc(is.Backends, func(o api.Backend) bool {
			return o.Address == b.Address && o.Instance == b.Instance && o.Epoch == b.Epoch
		}) {
			m.disown(b.Address, s, c)
			if r != nil {
				c.Ended = append(c.Ended, b.Address)
			}
		}
	}
	for _, p := range was.Peers {
		c.Released = append(c.Released, p.Key)
	}
	m.readdress(s, c)
	if old == nil || r == nil || !step.SameJSON(was.Access, is.Access) {
		c.Access = append(c.Access, s.id)
	}
	c.Services, c.Backends = append(c.Services, s.id), append(c.Backends, s.id)
	c.Subscribe = append(c.Subscribe, Subject{Service: s.id})
	for _, b := range is.Backends {
		c.Subscribe = append(c.Subscribe, Subject{Address: b.Address})
	}
}

// UnsetRoute removes the route of a service. gone means that the service is gone: its flows end.
func (m *Machine) UnsetRoute(id api.ServiceID, gone bool) (c Changes) {
	s := m.services[id]
	if s == nil || s.route == nil {
		return c
	}
	if gone {
		for _, b := range s.route.Backends {
			c.Ended = append(c.Ended, b.Address)
		}
	}
	before := s.addresses
	m.setRoute(s, nil, &c)
	m.journal.Delete(KindRoute, string(id))
	for _, v := range before {
		c.Subscribe = append(c.Subscribe, Subject{Address: v})
	}
	return c
}

// IsInstance reports whether an address is in the range of instances.
func (m *Machine) IsInstance(a netip.Addr) bool {
	return m.ranges != nil && a.Is4() && m.ranges.Instances.Contains(a) && !m.ranges.Services.Contains(a)
}

// own assigns a remote instance's address to a service; the last record wins.
func (m *Machine) own(a netip.Addr, s *service, c *Changes) {
	if o := m.owners[a]; o != s.id {
		m.owners[a] = s.id
		if o != "" {
			c.Services = append(c.Services, o)
		}
	}
	c.Sources = append(c.Sources, a)
}

// disown removes an address from a service unless another of its records has it.
func (m *Machine) disown(a netip.Addr, s *service, c *Changes) {
	if m.owners[a] != s.id {
		return
	}
	if _, ok := s.sources[a]; ok {
		return
	}
	if s.route != nil && slices.ContainsFunc(s.route.Backends, func(b api.Backend) bool { return b.Address == a }) {
		return
	}
	delete(m.owners, a)
	c.Sources = append(c.Sources, a)
	c.Subscribe = append(c.Subscribe, Subject{Address: a})
}

// NewerSource is NewerRoute for a source.
func (m *Machine) NewerSource(src wire.Source, whole bool) bool {
	old, had := m.sources[src.Address]
	return src.Service != "" && (!had || src.Rev > old.Rev || whole && src.Rev != old.Rev)
}

// SetSource sets the source of an address. The caller has added the reference to its peer. restored means
// that the source is from the store.
func (m *Machine) SetSource(src wire.Source, restored bool) (c Changes) {
	s := m.service(src.Service, &c)
	if old, had := m.sources[src.Address]; had {
		m.held = m.held.Toggle(old.Digest())
		c.Released = append(c.Released, old.Peer.Key)
		if old.Service != src.Service {
			o := m.services[old.Service]
			delete(o.sources, src.Address)
			m.disown(src.Address, o, &c)
			c.Services = append(c.Services, o.id)
		}
	} else {
		c.Added = true
	}
	m.sources[src.Address] = src
	m.held = m.held.Toggle(src.Digest())
	s.sources[src.Address] = struct{}{}
	if m.IsInstance(src.Address) {
		m.own(src.Address, s, &c)
	}
	c.Services, c.Access = append(c.Services, s.id), append(c.Access, s.id)
	c.Subscribe = append(c.Subscribe, Subject{Address: src.Address})
	if !restored {
		m.journal.Put(KindSource, src.Address.String(), src)
	}
	return c
}

// UnsetSource removes the source of an address.
func (m *Machine) UnsetSource(a netip.Addr) (c Changes) {
	src, ok := m.sources[a]
	if !ok {
		return c
	}
	delete(m.sources, a)
	m.held = m.held.Toggle(src.Digest())
	m.journal.Delete(KindSource, a.String())
	s := m.services[src.Service]
	delete(s.sources, a)
	m.disown(a, s, &c)
	c.Services, c.Access = append(c.Services, s.id), append(c.Access, s.id)
	c.Released = []api.PeerKey{src.Peer.Key}
	c.Subscribe = append(c.Subscribe, Subject{Address: a})
	return c
}

// ByName returns the service with a name, which may differ in case (interest.Names).
func (m *Machine) ByName(name api.ServiceID) (api.ServiceID, bool) { return m.names.Find(name) }

// Spelt lists, in order, the services with a name, ignoring case.
func (m *Machine) Spelt(name api.ServiceID) []api.ServiceID { return m.names.All(name) }

// Semantic returns the service that a semantic address belongs to.
func (m *Machine) Semantic(a netip.Addr) (id api.ServiceID, ok bool) {
	id, ok = m.semantic[a]
	return id, ok
}

// Owner returns the service that a remote instance's address belongs to.
func (m *Machine) Owner(a netip.Addr) (id api.ServiceID, ok bool) {
	id, ok = m.owners[a]
	return id, ok
}

// Owned lists the remote instances' addresses in order.
func (m *Machine) Owned() []netip.Addr {
	return sorted.Addrs(m.owners)
}

// HostedBy lists, in order, the services with backends on a peer.
func (m *Machine) HostedBy(k api.PeerKey) []api.ServiceID {
	return sorted.Ordered(m.hosts[k])
}

// BackendAt returns the backend that a route has at an address, and its service.
func (m *Machine) BackendAt(a netip.Addr) (id api.ServiceID, b api.Backend, ok bool) {
	r := m.Route(m.owners[a])
	if r == nil {
		return "", b, false
	}
	i := slices.IndexFunc(r.Backends, func(b api.Backend) bool { return b.Address == a })
	if i < 0 {
		return "", b, false
	}
	return r.Service, r.Backends[i], true
}

// Name returns the name of an address, as the query that resolves to it.
func (m *Machine) Name(a netip.Addr) (names.Query, bool) {
	if id := m.semantic[a]; m.services[id] != nil {
		at := m.Advertised(id)
		switch a {
		case at.RoundRobin:
			return names.Query{Service: id, Policy: names.RoundRobin, Number: -1}, true
		case at.Closest:
			return names.Query{Service: id, Policy: names.Closest, Number: -1}, true
		}
		for n, v := range at.Instances {
			if v == a {
				return names.Query{Service: id, Policy: names.Instance, Number: n}, true
			}
		}
	}
	if _, b, ok := m.BackendAt(a); ok {
		return names.Query{Service: m.owners[a], Policy: names.Instance, Number: b.Instance.Number()}, true
	}
	if id := m.owners[a]; m.services[id] != nil {
		return names.Query{Service: id, Policy: names.RoundRobin, Number: -1}, true
	}
	return names.Query{}, false
}

// OnlyPeer returns the peer that hosts all instances behind a semantic address. It is zero if this node
// hosts some, or several peers do.
func (m *Machine) OnlyPeer(id api.ServiceID, address netip.Addr) (k api.PeerKey) {
	s := m.services[id]
	if s == nil || s.route == nil || s.local.Count > 0 {
		return k
	}
	at := s.route.Addresses
	for _, b := range s.route.Backends {
		if address != at.RoundRobin && address != at.Closest && address != at.Instances[b.Instance.Number()] {
			continue
		}
		if k != (api.PeerKey{}) && k != b.Peer {
			return api.PeerKey{}
		}
		k = b.Peer
	}
	return k
}
