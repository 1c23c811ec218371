package cluster

import (
	"bytes"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/routes"
	"github.com/treeline-edge/treeline/internal/step"
)

// network is what the cluster keeps of the overlay network.
type network struct {
	book    *routes.Book
	subnets subnets
	moved   map[routes.Place]bool   // that may have changed in this step
	changed map[api.InstanceID]bool // whose assignment may have
	hosted  map[routes.Place]bool   // as the book knows it
	talk    map[api.NodeID]bool     // to be told something in this step
	whole   bool                    // the root asked for all
	sent    uint64                  // the report that told it something and waits for its answer; 0: none does
}

func newNetwork(id api.ClusterID) network {
	return network{
		book: routes.New(id), moved: map[routes.Place]bool{}, changed: map[api.InstanceID]bool{},
		hosted: map[routes.Place]bool{}, talk: map[api.NodeID]bool{}, whole: true,
	}
}

// nodeNet is a node's part of it.
type nodeNet struct {
	subnet netip.Prefix
	had    netip.Prefix // that it says it has
	self   *api.NetSelf
	load   uint8 // as the book has it
	loadAt time.Time

	boot, seq uint64     // of the netmanager
	holds     api.Digest // as it said last, after message took
	took      uint64
	lease     api.Digest // that it has
	spoke     bool       // in this step
	answer    bool       // what it said is to be answered
	askWhole  bool
	askHeld   bool
	sent      uint64 // the last message that it was told something by
	probes    int    // questions without an answer, in a row
	lost      bool   // it does not hold what it should: it is told all, once all is known
	toldAll   time.Time
	tries     int  // how often, in a row, without effect
	more      bool // of what changed than the last message had room for
	all       recount
}

const (
	ackWait    = 2 * time.Second // for a node to say that it holds what it was told; doubles
	ackWaitMax = time.Minute
	loadEvery  = 10 * time.Second
	loadStep   = 20 // percent; smaller changes of a node's load are no news
)

// placeChanged notes that what is at a place may have changed.
func (c *Core) placeChanged(n api.NodeID, id api.InstanceID) {
	c.net.moved[routes.Place{Node: n, Instance: id}] = true
}

func (n *node) placeChanged(id api.InstanceID) {
	n.moved[routes.Place{Node: n.info.ID, Instance: id}] = true
}

// netChanged notes that an instance may have changed, wherever it is.
func (c *Core) netChanged(in *instance) {
	c.net.changed[in.id()] = true
	if in.Node != "" {
		c.placeChanged(in.Node, in.id())
	}
	for _, v := range in.Vacancies {
		c.placeChanged(v.Node, in.id())
	}
}

// nodeNetChanged notes that all on a node may have changed.
func (c *Core) nodeNetChanged(n *node) {
	for id := range n.observed {
		c.placeChanged(n.info.ID, id)
	}
	for id := range n.assigned {
		c.placeChanged(n.info.ID, id)
	}
	for id := range n.leaving {
		c.placeChanged(n.info.ID, id)
	}
}

// network brings the book up to date with what the step changed, and tells the
// nodes. It comes before the nodes' desired sets: new flows avoid an instance
// before its node is told to stop it.
func (c *Core) network() {
	for _, id := range step.Keys(c.net.changed) {
		if in := c.instances[id]; in != nil {
			c.net.book.SetSpec(id, routes.Spec{
				Rev: in.Want.SpecRev, Addresses: in.Want.Addresses, Access: in.Want.Spec.Access(), Ports: in.Want.Spec.Ports(),
			})
		} else {
			c.net.book.DropSpec(id)
		}
	}
	clear(c.net.changed)
	places := make([]routes.Place, 0, len(c.net.moved))
	for p := range c.net.moved {
		places = append(places, p)
	}
	slices.SortFunc(places, routes.ComparePlaces)
	for _, p := range places {
		c.syncPlace(p)
	}
	clear(c.net.moved)
	for _, id := range c.net.book.Dirty() {
		c.net.talk[id] = true
	}
	for _, id := range step.Keys(c.net.talk) {
		if n := c.nodes[id]; n != nil {
			c.tell(n)
		}
	}
	clear(c.net.talk)
}

func (c *Core) syncPlace(p routes.Place) {
	n := c.nodes[p.Node]
	hosted := n != nil && (n.assigned[p.Instance] != nil || n.leaving[p.Instance])
	if hosted != c.net.hosted[p] {
		if c.net.hosted[p] = hosted; !hosted {
			delete(c.net.hosted, p)
		}
		c.net.book.SetHosted(p, hosted)
		if len(c.linkers[p.Instance.Service().App()]) > 0 {
			c.net.talk[p.Node] = true // what it is asked of its services may be another
		}
	}
	c.net.book.SetBackend(p, c.backend(n, p.Instance))
}

// backend is what others may send to at a place. What a node says that it runs
// counts where it was placed, and with an address of the node's own subnet.
func (c *Core) backend(n *node, id api.InstanceID) api.Backend {
	in := c.instances[id]
	if n == nil || in == nil || n.net.self == nil {
		return api.Backend{}
	}
	// 0 would say that nothing is known of the node, which gets what the average gets.
	be, ready := api.Backend{Instance: id, State: api.BackendDraining, Load: max(1, n.net.load)}, false
	here := in.Node == n.info.ID
	o, seen := n.observed[id]
	switch {
	case seen && o.State == api.Running && (here || n.leaving[id] || n.silent):
		be.Epoch, be.Address, ready = o.Epoch, o.Address, o.Ready
	case !seen && n.awaited && here && in.State == api.Running:
		be.Epoch, be.Address, ready = in.Epoch, in.Address, in.Ready // as it was before this life
	}
	if !n.net.subnet.IsValid() || !n.net.subnet.Contains(be.Address) {
		return api.Backend{}
	}
	// A silent node may be cut off from us alone: what it runs may still send to
	// others, which must know who that is.
	if !ready || n.silent {
		be.State = api.BackendStarting
		return be
	}
	// What is to leave its node takes new flows until its next placement runs, which
	// is when the node is told to end it.
	stays, ok := n.stays[id]
	if here && be.Epoch == in.Epoch && in.State == api.Running && !in.Leaving && !in.Withdrawn || ok && be.Epoch == stays.Epoch {
		be.State = api.BackendUp
	}
	return be
}

// netUp takes what a node's netmanager says.
func (c *Core) netUp(id api.NodeID, up api.NetUp) {
	n := c.nodes[id]
	if n == nil || up.Boot == 0 || up.Boot < n.net.boot {
		return
	}
	s := &n.net
	if up.Boot > s.boot {
		s.boot, s.seq, s.all, n.measured.sent = up.Boot, 0, recount{}, 0
		c.net.book.Lost(id)
	}
	if up.Seq <= s.seq {
		return
	}
	s.askWhole = s.askWhole && !up.Whole || up.Seq != s.seq+1 && !up.Whole
	s.seq, s.holds, s.took, s.lease, s.spoke, s.probes = up.Seq, up.Held, up.Rev, up.Lease, true, 0
	s.answer = s.askWhole || up.Self != nil || up.Whole || len(up.Add)+len(up.Drop) > 0
	n.measured.has = up.Measure
	c.net.talk[id] = true
	if up.Self != nil {
		c.netSelf(n, *up.Self)
	}
	if s.had = up.Subnet; !s.subnet.IsValid() {
		c.leaseTo(n)
	}
	if up.Whole {
		c.net.book.Keep(id, up.Add)
	}
	until := c.now.Add(c.cfg.Interest)
	for _, w := range up.Add {
		c.net.book.Want(id, w, until)
	}
	for _, w := range up.Drop {
		c.net.book.Drop(id, w)
	}
	if len(up.Add) > 0 {
		c.timers.SetEarlier(timerKey{what: timerInterest, node: id}, until)
	}
	c.between(n, up.Between)
}

// netSelf takes what a node says of itself. Its coordinate alone is no news:
// it changes all the time, and goes along with what is told next.
func (c *Core) netSelf(n *node, self api.NetSelf) {
	old := n.net.self
	n.net.self = &self
	if c.moved(n, self.Coord) {
		c.refresh(n)
		c.stoodBy(n)
	}
	if old != nil && old.Key == self.Key && slices.Equal(old.Endpoints, self.Endpoints) && slices.Equal(old.Mapped, self.Mapped) &&
		slices.EqualFunc(old.Chain, self.Chain, bytes.Equal) && bytes.Equal(old.Proof, self.Proof) {
		return
	}
	c.saveNode(n)
	c.member(n)
	if old == nil {
		c.nodeNetChanged(n)
	}
}

// member has the book know the node, once it has said who it is and has a lease.
func (c *Core) member(n *node) {
	s := n.net.self
	if s == nil || !n.net.subnet.IsValid() {
		return
	}
	ok := c.net.book.SetMember(n.info.ID, api.Peer{
		Key: s.Key, Subnets: []netip.Prefix{n.net.subnet}, Endpoints: s.Endpoints, Relay: c.relayOf(n),
		Chain: s.Chain, Proof: s.Proof, Coord: s.Coord,
	}, s.Mapped)
	c.peerMoved(n)
	c.measureSoonest(n)
	if !ok {
		n.net.self = nil // another node's key: whose it is it cannot prove
		c.saveNode(n)
	}
}

func (c *Core) interestOver(n *node) {
	if next := c.net.book.Expire(n.info.ID, c.now); !next.IsZero() {
		c.timers.Set(timerKey{what: timerInterest, node: n.info.ID}, next)
	}
	c.net.talk[n.info.ID] = true
}

// tell tells a node what there is to tell.
func (c *Core) tell(n *node) {
	s, id := &n.net, n.info.ID
	if s.boot == 0 && !s.askWhole {
		return // no netmanager has spoken yet
	}
	book := c.net.book
	// What is too much for one message is told in several, the next one when the node
	// has the one before.
	room := api.PartSize
	if s.more && s.took < s.sent {
		room = 0
	}
	before := book.Held(id)
	rec, without := book.Flush(id, room)
	s.more = book.Behind(id)
	if s.spoke {
		c.compare(n, before, without)
	}
	d := api.NetDown{Boot: s.boot, Seq: s.seq, WantWhole: s.askWhole}
	part := c.recount(n, &rec, &d)
	d.Routes, d.Sources, d.Peers, d.Refused = rec.Routes, rec.Sources, rec.Peers, rec.Refused
	d.Gone, d.GoneSources, d.GonePeers, d.Answered = rec.Gone, rec.GoneSources, rec.GonePeers, rec.Answered
	d.WantHeld = part || !rec.Empty() || s.askHeld
	if !s.lost && (!s.all.on || part && s.all.part.Last()) {
		d.Held = book.Held(id)
	}
	if l, ok := c.Lease(id); ok && l.Digest() != s.lease {
		l.Rev = c.net.book.NextRev()
		d.Lease, d.WantHeld = &l, true // it is told until it says that it has it
	}
	if d.Measure, d.Between = c.measureOf(n); d.Measure != nil {
		d.WantHeld = true
	}
	if part || !rec.Empty() || d.Lease != nil || d.Measure != nil || s.answer || s.askWhole || s.askHeld {
		d.Rev = c.net.book.NextRev()
		c.emit(id.Addr(), d)
		if part || !rec.Empty() {
			s.sent = d.Rev
		}
		if part {
			s.all.sent = d.Rev
		}
		if d.Measure != nil {
			n.measured.sent = d.Rev
		}
		if d.WantHeld || d.WantWhole {
			c.timers.SetEarlier(timerKey{what: timerAck, node: id}, c.now.Add(min(ackWait<<min(s.probes, 6), ackWaitMax)))
		}
	}
	s.spoke, s.answer, s.askHeld = false, false, false
}

// compare sees by what a node says that it holds whether it had all that it was
// told. A node may forget by itself what its wants lead to no longer.
func (c *Core) compare(n *node, before, without api.Digest) {
	s, key := &n.net, timerKey{what: timerAck, node: n.info.ID}
	switch {
	case s.holds == before || s.holds == without:
		s.lost, s.tries = false, 0
		c.timers.Clear(key)
	case s.took < s.sent:
		c.timers.SetEarlier(key, c.now.Add(ackWait)) // it did not have our last message when it spoke
	case s.all.on && !s.all.part.Last(): // it was not told all yet
		c.timers.Clear(key)
	default:
		s.lost = true
		c.timers.SetEarlier(key, s.toldAll.Add(s.pause()))
	}
}

// pause is between two times that a node is told all: none before the first.
func (s *nodeNet) pause() time.Duration {
	if s.tries == 0 {
		return 0
	}
	return min(resend<<min(s.tries-1, 6), ackWaitMax)
}

// unacknowledged asks a node what it holds, for it has not said so since it was
// told something.
func (c *Core) unacknowledged(n *node) {
	if n.silent || n.net.boot == 0 && !n.net.askWhole {
		return
	}
	n.net.probes++
	n.net.askHeld = true
	c.net.talk[n.info.ID] = true
}

// netBack has a node that is heard again, or first in this life, say all that it
// wants: what it said while nobody listened is lost.
func (c *Core) netBack(n *node) {
	if n.net.self != nil { // it has a netmanager
		n.net.askWhole = true
		c.net.talk[n.info.ID] = true
	}
}

// netSilent forgets what a node wanted that nobody can tell anything.
func (c *Core) netSilent(n *node) {
	id := n.info.ID
	c.net.book.Forget(id)
	c.timers.Clear(timerKey{what: timerAck, node: id})
	c.timers.Clear(timerKey{what: timerInterest, node: id})
	c.nodeNetChanged(n)
	n.measured.has, n.measured.sent = 0, 0
	s := &n.net
	*s = nodeNet{subnet: s.subnet, self: s.self, load: s.load, loadAt: s.loadAt}
}

// netLoad notes how busy a node is, where that is news.
func (c *Core) netLoad(n *node) {
	s := &n.net
	if s.self == nil || max(n.cpu, s.load)-min(n.cpu, s.load) < loadStep || c.now.Sub(s.loadAt) < loadEvery {
		return
	}
	s.load, s.loadAt = n.cpu, c.now
	c.nodeNetChanged(n)
}

// rootNet takes what the root says of the network.
func (c *Core) rootNet(m api.RootNet) {
	if !c.net.book.Take(m) {
		return
	}
	c.sharesChanged(m.Ranges, m.Shares)
	c.net.whole = c.net.whole || m.WantNet
	c.root.due = c.root.due || m.WantNet || m.WantHeld
}

// clusterNet is the network's part of a report, or nil where there is no network.
func (c *Core) clusterNet() *api.ClusterNet {
	if !c.net.subnets.used() {
		return nil
	}
	lost := c.net.sent != 0
	if c.net.whole {
		c.net.book.NetAnew()
		lost = false
	}
	n := c.net.book.Net(lost)
	c.giveBack()
	n.Subnets, n.Returned = c.net.subnets.needed(c.wall), slices.Clone(c.net.subnets.returned)
	if n.Whole || len(n.Wants)+len(n.Dropped) > 0 || !n.Records.Empty() {
		c.net.sent = c.root.seq
	}
	c.net.whole = false
	return &n
}

// Interest is how many wants of nodes there are, and how many have no answer.
func (c *Core) Interest() (wants, open int) { return c.net.book.Interest() }
