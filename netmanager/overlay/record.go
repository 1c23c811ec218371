package overlay

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// service is all that is known of one: what the cluster said, what is here of it,
// and what the plane was told.
type service struct {
	id      api.ServiceID
	ident   plane.Ident
	route   *api.Route
	local   map[api.Key]*attachment
	sources map[netip.Addr]struct{} // held, of its instances
	vips    []netip.Addr            // its semantic addresses
	loads   map[netip.Addr]uint8    // that the weights of backends stand on
	near    map[netip.Addr]*near    // what is known of distances, where the service has a closest address
}

// service is the one of that name, known from now on until the end of a step
// that leaves nothing of it.
func (c *Core) service(id api.ServiceID) *service {
	s := c.services[id]
	if s != nil {
		return s
	}
	s = &service{id: id, local: map[api.Key]*attachment{}, sources: map[netip.Addr]struct{}{}, loads: map[netip.Addr]uint8{}, near: map[netip.Addr]*near{}}
	if s.ident = c.known[id]; s.ident == 0 {
		s.ident = plane.Ident(c.idents.Next(&c.journal, kindCounter, keyIdent))
		c.known[id] = s.ident
		c.journal.Put(kindIdent, string(id), identRecord{s.ident})
	}
	c.services[id] = s
	fold := strings.ToLower(string(id))
	c.spelt[fold] = append(c.spelt[fold], id)
	c.touch(id)
	c.dirty.access[id] = struct{}{}
	return s
}

// forget lets go of a service of which nothing is left.
func (c *Core) forget(s *service) {
	if s.route != nil || len(s.local)+len(s.sources) > 0 {
		return
	}
	delete(c.services, s.id)
	delete(c.known, s.id)
	c.journal.Delete(kindIdent, string(s.id))
	fold := strings.ToLower(string(s.id))
	if c.spelt[fold] = slices.DeleteFunc(c.spelt[fold], func(o api.ServiceID) bool { return o == s.id }); len(c.spelt[fold]) == 0 {
		delete(c.spelt, fold)
	}
}

// newest is the attachment that was placed last, or nil.
func (s *service) newest() (last *attachment) {
	for _, a := range s.local {
		if last == nil || cmp.Or(cmp.Compare(a.Attach.Epoch, last.Attach.Epoch), cmp.Compare(a.Attach.Instance, last.Attach.Instance)) > 0 {
			last = a
		}
	}
	return last
}

// accessOf is the service's list as the best source has it: what is attached here
// brought its own.
func (c *Core) accessOf(s *service) api.Access {
	if a := s.newest(); a != nil {
		return a.Attach.Access
	}
	if s.route != nil {
		return s.route.Access
	}
	var last *api.Source // to be said by its author
	for a := range s.sources {
		src := c.sources[a]
		if last == nil || cmp.Or(cmp.Compare(src.Rev, last.Rev), a.Compare(last.Address)) > 0 {
			last = &src
		}
	}
	if last != nil {
		return last.Access
	}
	return api.Access{Closed: true}
}

func (c *Core) mayCall(caller, callee api.ServiceID) bool {
	from, to := c.services[caller], c.services[callee]
	return from != nil && to != nil && api.MayCall(caller, c.accessOf(from), callee, c.accessOf(to))
}

// takeRoute holds a route from now on. A revision that is not newer is late,
// unless the whole is replaced.
func (c *Core) takeRoute(r api.Route, whole bool) {
	if r.Service == "" {
		return // of nobody
	}
	s := c.service(r.Service)
	old := s.route
	if old != nil && r.Rev <= old.Rev && (!whole || r.Rev == old.Rev) {
		return
	}
	c.keepRoute(s, &r)
	if old == nil || !sameButLoad(*old, r) {
		c.journal.Put(kindRoute, string(r.Service), r)
	}
}

// sameButLoad says that a restart would lose nothing that matters.
func sameButLoad(a, b api.Route) bool {
	a.Rev, a.Backends = b.Rev, slices.Clone(a.Backends)
	if len(a.Backends) == len(b.Backends) {
		for i := range a.Backends {
			a.Backends[i].Load = b.Backends[i].Load
		}
	}
	return equalJSON(a, b)
}

// keepRoute puts r, or nothing, in the place of the service's route.
func (c *Core) keepRoute(s *service, r *api.Route) {
	old := s.route
	var was, is api.Route
	if old != nil {
		was = *old
		c.held = c.held.Toggle(old.Digest())
	}
	if r != nil {
		is = *r
		c.held = c.held.Toggle(r.Digest())
		if old == nil {
			c.link.run.Add(interest.RouteOf(s.id))
		}
	}
	for i, p := range is.Peers {
		c.refer(p, 1)
		is.Peers[i] = c.shared(p)
	}
	s.route = r
	for _, b := range is.Backends {
		addTo(c.behind, b.Peer, s.id)
		if c.isInstance(b.Address) {
			c.own(b.Address, s)
		}
	}
	stays := func(o api.Backend) bool {
		return slices.ContainsFunc(is.Backends, func(b api.Backend) bool {
			return b.Address == o.Address && b.Instance == o.Instance && b.Epoch == o.Epoch
		})
	}
	for _, b := range was.Backends {
		if !slices.ContainsFunc(is.Backends, func(o api.Backend) bool { return o.Peer == b.Peer }) {
			removeFrom(c.behind, b.Peer, s.id)
		}
		if !stays(b) {
			c.disown(b.Address, s)
			if r != nil {
				c.end(b.Address)
			}
		}
	}
	for _, p := range was.Peers {
		c.unrefer(p.Key, 1)
	}
	c.localAddresses(s)
	if old == nil || r == nil || !equalJSON(was.Access, is.Access) {
		c.dirty.access[s.id] = struct{}{}
	}
	c.touch(s.id)
	c.weigh(s, api.PeerKey{}, false)
	c.settleAbout(s)
	for _, b := range is.Backends {
		c.settleAt(b.Address)
	}
}

// loseRoute lets go of a route. Where the service itself is gone, so are the
// flows to it.
func (c *Core) loseRoute(s *service, gone bool) {
	if s.route == nil {
		return
	}
	if gone {
		for _, b := range s.route.Backends {
			c.end(b.Address)
		}
	}
	about := c.wantsOf(s)
	c.keepRoute(s, nil)
	c.journal.Delete(kindRoute, string(s.id))
	for _, k := range about { // by addresses that lead nowhere now
		if w := c.wants[k]; w != nil {
			c.settle(w)
		}
	}
}

// localAddresses notes which semantic addresses lead to the service. Those of a
// route count; without one, those that its instances here were attached with.
func (c *Core) localAddresses(s *service) {
	var now []netip.Addr
	for _, v := range allAddresses(c.addresses(s)) {
		if c.lease == nil || !c.lease.Ranges.Services.Contains(v) {
			continue
		}
		if o := c.services[c.vips[v]]; o != nil && o != s && o.route != nil && s.route == nil {
			continue // the cluster has said whose it is
		}
		now = append(now, v)
	}
	was := s.vips
	s.vips = now
	for _, v := range was {
		if !slices.Contains(now, v) && c.vips[v] == s.id {
			delete(c.vips, v)
			c.settleAt(v)
		}
	}
	for _, v := range now {
		if o := c.vips[v]; o != s.id {
			c.vips[v] = s.id // whoever says so last has it
			if o != "" {
				c.touch(o)
			}
			c.settleAt(v)
		}
	}
}

func (c *Core) addresses(s *service) api.ServiceAddresses {
	if s.route != nil {
		return s.route.Addresses
	}
	if a := s.newest(); a != nil {
		return a.Attach.Addresses
	}
	return api.ServiceAddresses{}
}

func allAddresses(a api.ServiceAddresses) []netip.Addr {
	var out []netip.Addr
	for _, v := range []netip.Addr{a.RoundRobin, a.Closest} {
		if v.IsValid() {
			out = append(out, v)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(a.Instances)) {
		if v := a.Instances[n]; v.IsValid() {
			out = append(out, v)
		}
	}
	return out
}

// end has the flows to a remote instance end.
func (c *Core) end(a netip.Addr) {
	if c.isInstance(a) && c.at[a] == nil {
		c.dirty.end[a] = struct{}{}
	}
}

func (c *Core) isInstance(a netip.Addr) bool {
	return c.lease != nil && a.Is4() && c.lease.Ranges.Instances.Contains(a) && !c.lease.Ranges.Services.Contains(a)
}

// own notes that a remote instance's address is the service's; whoever says so
// last has it.
func (c *Core) own(a netip.Addr, s *service) {
	if o := c.owners[a]; o != s.id {
		c.owners[a] = s.id
		if o != "" {
			c.touch(o)
		}
	}
	c.dirty.sources[a] = struct{}{}
}

// disown is its opposite, unless the service has the address for another reason.
func (c *Core) disown(a netip.Addr, s *service) {
	if c.owners[a] != s.id {
		return
	}
	if _, ok := s.sources[a]; ok {
		return
	}
	if s.route != nil && slices.ContainsFunc(s.route.Backends, func(b api.Backend) bool { return b.Address == a }) {
		return
	}
	delete(c.owners, a)
	c.dirty.sources[a] = struct{}{}
	c.settleAt(a)
}

// takeSource holds a source from now on.
func (c *Core) takeSource(src api.Source, whole bool) {
	if src.Service == "" {
		return // of nobody
	}
	old, had := c.sources[src.Address]
	if had && src.Rev <= old.Rev && (!whole || src.Rev == old.Rev) {
		return
	}
	c.keepSource(src)
	c.journal.Put(kindSource, src.Address.String(), src)
}

func (c *Core) keepSource(src api.Source) {
	c.refer(src.Peer, 1)
	s := c.service(src.Service)
	if old, had := c.sources[src.Address]; had {
		c.held = c.held.Toggle(old.Digest())
		c.unrefer(old.Peer.Key, 1)
		if old.Service != src.Service {
			o := c.services[old.Service]
			delete(o.sources, src.Address)
			c.disown(src.Address, o)
			c.touch(o.id)
		}
	} else {
		c.link.run.Add(interest.SourceOf(src.Address))
	}
	c.sources[src.Address] = src
	c.held = c.held.Toggle(src.Digest())
	s.sources[src.Address] = struct{}{}
	if c.isInstance(src.Address) {
		c.own(src.Address, s)
	}
	c.touch(s.id)
	c.dirty.access[s.id] = struct{}{}
	c.settleAt(src.Address)
}

func (c *Core) loseSource(a netip.Addr) {
	src, ok := c.sources[a]
	if !ok {
		return
	}
	delete(c.sources, a)
	c.held = c.held.Toggle(src.Digest())
	c.journal.Delete(kindSource, a.String())
	s := c.services[src.Service]
	delete(s.sources, a)
	c.disown(a, s)
	c.touch(s.id)
	c.dirty.access[s.id] = struct{}{}
	c.unrefer(src.Peer.Key, 1)
	c.settleAt(a)
}

// down takes in what the cluster says.
func (c *Core) down(d api.NetDown) {
	if d.Boot != 0 && d.Boot != c.boot {
		return // to an earlier life, of whose wants it tells
	}
	if d.Rev < c.link.rev && !c.link.fresh {
		return // late
	}
	c.link.rev, c.link.fresh = d.Rev, false
	if d.Boot == c.boot {
		c.acknowledged(d.Seq)
	}
	if d.Lease != nil {
		c.leased(*d.Lease)
	}
	if c.lease != nil {
		c.records(d)
		if d.Measure != nil {
			c.setMeasure(d.Measure)
			c.setGaps(d.Between)
		}
	}
	if d.Boot == c.boot {
		c.confirm(d.Seq)
	}
	c.link.say = c.link.say || d.WantHeld
	c.link.whole = c.link.whole || d.WantWhole
	c.link.self = c.link.self || d.WantWhole
	c.compare(d)
}

// records takes in what there is: what is gone first, so that what comes in its
// place finds the room. What is only absent goes last, so that what it shares with what
// comes stays.
func (c *Core) records(d api.NetDown) {
	var absent []interest.Key
	if d.Whole {
		absent = c.absent(d)
	}
	for _, id := range d.Gone {
		if s := c.services[id]; s != nil {
			c.loseRoute(s, true)
		}
	}
	for _, a := range d.GoneSources {
		c.loseSource(a)
	}
	for _, k := range d.GonePeers {
		c.losePeer(k)
	}
	for _, p := range d.Peers {
		c.takePeer(p, d.Whole)
	}
	for _, r := range d.Routes {
		c.takeRoute(r, d.Whole)
	}
	for _, s := range d.Sources {
		c.takeSource(s, d.Whole)
	}
	for _, k := range absent {
		c.lose(k)
	}
	if d.Whole && d.Of.Last() { // what was refused before a part may be answered by a later one
		for _, id := range sortedKeys(c.asking) {
			c.settleFor(id)
		}
	}
	for _, k := range d.Answered {
		if w := c.wants[k]; w != nil && w.refusal != nil {
			c.setRefusal(w, nil)
			c.settle(w)
			c.settleSpellings(w)
		}
	}
	for _, r := range d.Refused {
		if w := c.wants[r.Want]; w != nil {
			c.setRefusal(w, &r)
			c.settle(w)
			c.settleSpellings(w)
		}
	}
}

// absent is what is held and a whole does not have, or a part of one within its span.
// Of parts that follow one another each costs what it carries.
func (c *Core) absent(d api.NetDown) (gone []interest.Key) {
	named := make(map[interest.Key]bool, len(d.Routes)+len(d.Sources)+len(d.Peers)+len(d.Refused))
	for _, r := range d.Routes {
		named[interest.RouteOf(r.Service)] = true
	}
	for _, s := range d.Sources {
		named[interest.SourceOf(s.Address)] = true
	}
	for _, p := range d.Peers {
		named[interest.PeerOf(p.Key)] = true
	}
	for _, r := range d.Refused {
		named[interest.RefusalOf(r.Want, false)] = true
	}
	if c.link.run == nil {
		c.link.run = interest.NewRun(interest.Key.Name, interest.CompareKeys)
	}
	c.link.run.Within(d.Of, c.holds, len(named), func(k interest.Key) bool {
		if !named[k] {
			gone = append(gone, k)
		}
		return named[k]
	})
	if d.Of.Last() {
		c.link.run = nil
	}
	return gone
}

// holds are the records that are held, in no order.
func (c *Core) holds(yield func(interest.Key) bool) {
	for id, s := range c.services {
		if s.route != nil && !yield(interest.RouteOf(id)) {
			return
		}
	}
	for a := range c.sources {
		if !yield(interest.SourceOf(a)) {
			return
		}
	}
	for k, q := range c.peers {
		if q.alone != nil && !yield(interest.PeerOf(k)) {
			return
		}
	}
	for k, w := range c.wants {
		if w.refusal != nil && !yield(interest.RefusalOf(k, false)) {
			return
		}
	}
}

// lose lets go of a record, if it is still held. That the flows of a service that is
// absent ended is not said: perhaps the cluster has only forgotten it.
func (c *Core) lose(k interest.Key) {
	switch k.Kind {
	case interest.Route:
		if s := c.services[k.Service]; s != nil {
			c.loseRoute(s, false)
		}
	case interest.Source:
		c.loseSource(k.Address)
	case interest.Peer:
		c.losePeer(k.Peer)
	case interest.Refused:
		if w := c.wants[k.Refusal.Want]; w != nil {
			c.setRefusal(w, nil)
		}
	}
}
