package cluster

import (
	"encoding/json"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// instance is what the cluster knows of one instance. What is exported is saved.
type instance struct {
	Want      api.Assignment `json:"want"`  // as the root wants it
	Epoch     api.Epoch      `json:"epoch"` // of the newest placement here
	Node      api.NodeID     `json:"node,omitempty"`
	State     api.State      `json:"state"`
	Reason    api.Reason     `json:"reason,omitempty"`
	Detail    string         `json:"detail,omitempty"`
	Restarts  int            `json:"restarts,omitempty"`
	Failures  int            `json:"failures,omitempty"` // the workload's own, see api.Observed
	ExitCode  *int           `json:"exit_code,omitempty"`
	Address   netip.Addr     `json:"address,omitzero"`      // on the overlay network, as its node said last
	Ready     bool           `json:"ready,omitempty"`       // it listens there
	Leaving   bool           `json:"leaving,omitempty"`     // nobody wants it; it goes when nothing of it is left
	Local     bool           `json:"local,omitempty"`       // added by the operator, not yet taken over by the root
	Withdrawn bool           `json:"withdrawn,omitempty"`   // taken away by the operator, not yet taken over by the root
	Offered   bool           `json:"handed_back,omitempty"` // the root may place it elsewhere
	Bound     bool           `json:"bound,omitempty"`       // and it is not placed here until the root offers it anew
	Moving    bool           `json:"moving,omitempty"`      // it is to leave its node as soon as another has room
	GivenUp   bool           `json:"given_up,omitempty"`    // it failed on every node that fits; the root is to place it elsewhere
	Vacancies []vacancy      `json:"vacancies,omitempty"`
	Violated  string         `json:"violated,omitempty"` // which part of its SLA its place breaks
	Strained  bool           `json:"strained,omitempty"` // for too long, and the cluster has no better one
	Moves     []time.Time    `json:"moves,omitempty"`    // that violations caused within the last hour, by the wall clock
	Reserved  api.NodeID     `json:"reserved,omitempty"` // where room is kept for it while others make way
	Before    claim          `json:"before,omitzero"`    // what an earlier placement may still take on its node

	demand    demand           // of Want
	limits    api.Resources    // on its node, for what its SLA leaves out
	given     api.Generation   // of its node's desired set that placed it there
	asked     string           // the open question to the scheduler outside about it
	cause     api.Reason       // why it lost its last place
	until     time.Time        // placing it may search; zero: it has not begun to
	since     time.Time        // its SLA is violated; zero: it is not
	looks     looks            // the last checks of that
	stilled   bool             // it is leaving, and all its processes have ended
	saidAt    time.Time        // when Violated was said, and
	estimated bool             // by coordinates
	told      *api.Position    // of where it is, to the root
	stirred   uint64           // as of when placing it was tried last
	avoid     []string         // nodes that it failed on, under the root's present epoch
	why       *api.Explanation // why it fits nowhere
	shown     api.Digest       // of what the root was shown, to change the digest of all
	inList    bool             // it counts in the digest
}

// vacancy is a node that may still run an earlier placement: what it claims stays
// taken until the node, holding generation Gen or a later one, has nothing of it.
type vacancy struct {
	Node  api.NodeID     `json:"node"`
	Epoch api.Epoch      `json:"epoch,omitempty"` // of that placement; 0: an earlier release saved it
	Gen   api.Generation `json:"gen"`
	claim
	// Stays is what the node goes on with until the new placement runs: a move is
	// make before break. Nil: it was told to end it.
	Stays *api.Assignment `json:"stays,omitempty"`
}

// service is what placement asks of a service's instances.
type service struct {
	instances map[api.InstanceID]*instance
	peers     map[string]int  // instances per node
	expected  map[string]int  // per node those for which room is reserved there
	places    sched.Places    // of those nodes
	ways      map[wayKey]*way // that lead to it
	links     []sched.Link    // as the SLA that came last says
	aparts    []sched.Apart   // as the SLA that came last says
	spread    bool            // and it has so many in one domain and no more
	crowds    map[string]crowds
}

func (in *instance) id() api.InstanceID { return in.Want.Instance }

// wants takes what the root wants of the instance.
func (c *Core) wants(in *instance, a api.Assignment) {
	old := in.demand.users
	in.Want, in.demand, in.limits = a, c.demandOf(a.Instance, &a.Spec), c.cfg.Workload.Limit
	c.relate(in)
	c.refersTo(slices.DeleteFunc(slices.Clone(old), func(t string) bool { return slices.Contains(in.demand.users, t) }), in.id(), false)
}

// ended reports whether the instance has ended for good: it needs no place any more.
func (in *instance) ended() bool { return api.Ended(in.State, in.Reason) }

// exclusive reports whether the instance must never run twice, so that a new
// placement waits until the old one has ended.
func (in *instance) exclusive() bool { return in.Want.Spec.Exclusive }

// assignment is what the instance's node is told.
func (in *instance) assignment() api.Assignment {
	a := in.Want
	a.Epoch, a.Targets, a.Watched, a.Searched = in.Epoch, nil, false, false // between cluster and root alone
	a.Restarts, a.Failures = in.Restarts, in.Failures
	a.Spec = filled(a.Spec, in.limits)
	return a
}

func (c *Core) save(in *instance) {
	c.netChanged(in)
	c.journal.Put(kindInstance, string(in.id()), in)
}

func (c *Core) restoreInstance(d store.Doc) error {
	in := new(instance)
	if err := json.Unmarshal(d.Data, in); err != nil {
		return err
	}
	c.wants(in, in.Want)
	if in.Local {
		c.local = max(c.local, in.id().Number()-c.cfg.LocalNumbers+1) // the count may not have been saved
	}
	if !in.Local {
		c.root.wanted = c.root.wanted.Toggle(in.Want.Digest())
	}
	if in.Leaving && !in.Local {
		c.root.wanted = c.root.wanted.Toggle(in.Want.Digest())
	}
	for _, v := range in.Vacancies {
		if n := c.nodes[v.Node]; n != nil {
			n.hold(in.id(), v.claim)
			if v.Stays != nil {
				n.stay(*v.Stays)
			}
		}
	}
	if n := c.nodes[in.Node]; n != nil {
		n.book(in.id(), in.Before)
		n.take(in)
		c.countPeer(in, +1)
	} else {
		in.Node = ""
	}
	if n := c.nodes[in.Reserved]; n != nil && in.Reserved != in.Node {
		c.keepRoom(in, n)
	} else {
		in.Reserved = ""
	}
	c.show(in)
	return nil
}

// relate enters the instance, and notes what its SLA has to do with others'.
func (c *Core) relate(in *instance) {
	id := in.id()
	c.instances[id] = in
	s := c.services[id.Service()]
	if s == nil {
		s = c.newService(id.Service())
	}
	s.instances[id] = in
	same := slices.Equal(s.links, in.demand.links)
	s.links = in.demand.links
	if s.aparts, s.spread = in.demand.aparts, len(in.demand.spreads) > 0; in.demand.refers() {
		c.linkers.add(id.Service())
	}
	if !same {
		c.askAnew(id.Service().App())
	}
	c.refersTo(in.demand.users, id, true)
	c.tie(in, in.demand.tied)
}

// unrelate undoes relate as far as it hangs on the SLA.
func (c *Core) unrelate(in *instance) {
	c.refersTo(in.demand.users, in.id(), false)
	c.tie(in, false)
}

func (c *Core) newService(id api.ServiceID) *service {
	s := &service{instances: map[api.InstanceID]*instance{}, peers: map[string]int{}, expected: map[string]int{}}
	c.services[id] = s
	c.apps.add(id)
	return s
}

func (c *Core) dropService(id api.ServiceID) {
	c.forgetWays(id)
	delete(c.services, id)
	c.apps.remove(id)
	c.linkers.remove(id)
	if len(c.linkers[id.App()]) == 0 {
		delete(c.stirs, id.App())
	}
}

// kin are services by their application.
type kin map[api.AppID]map[api.ServiceID]bool

func (k kin) add(id api.ServiceID) {
	if k[id.App()] == nil {
		k[id.App()] = map[api.ServiceID]bool{}
	}
	k[id.App()][id] = true
}

func (k kin) remove(id api.ServiceID) {
	delete(k[id.App()], id)
	if len(k[id.App()]) == 0 {
		delete(k, id.App())
	}
}

// count notes how urgent what is placed is.
func (c *Core) count(in *instance, by int) {
	if u := in.demand.request.Urgency; u >= 0 && u < len(c.placed) {
		c.placed[u] += by
	}
}

func (c *Core) countPeer(in *instance, by int) {
	c.count(in, by)
	c.peer(c.services[in.id().Service()], string(in.Node), by)
	c.shifted(in)
	if by < 0 {
		c.leaves(in.id().Service())
	}
	c.stir(in.id().Service().App())
}

// peer counts an instance of a service on a node.
func (c *Core) peer(s *service, node string, by int) {
	was := s.peers[node]
	switch now := was + by; {
	case now == 0:
		delete(s.peers, node)
		c.goes(s, node)
	default:
		if s.peers[node] = now; was == 0 {
			c.comes(s, node)
		}
	}
}

// become changes the instance's state through the lifecycle's table and notes
// the change for the root.
func (c *Core) become(in *instance, e lifecycle.Event, reason api.Reason, detail string) {
	in.State = lifecycle.Must(in.State, e)
	in.Reason, in.Detail = reason, detail
	c.changed(in)
}

func (c *Core) changed(in *instance) {
	c.save(in)
	c.show(in)
}

// view is what the root is told: no node is named.
func (in *instance) view() api.Observed {
	o := api.Observed{
		Instance: in.id(), Epoch: in.Epoch, State: in.State, Reason: in.Reason, Detail: in.Detail,
		Restarts: in.Restarts, Failures: in.Failures, ExitCode: in.ExitCode, HandedBack: in.Offered, Local: in.Local, Address: in.Address,
	}
	o.Violated, o.Moves = in.Violated, slices.Clone(in.Moves) // they are pruned in place
	if in.Strained && in.Violated != "" {
		o.Reason, o.Detail = api.ReasonViolated, in.Violated
	}
	if in.Offered && in.Node == "" {
		o.State = api.Requested
	}
	o.Ended = in.Leaving && in.stilled
	if in.Withdrawn {
		o.State, o.Reason, o.Stopped = api.Terminated, api.ReasonScaledLocally, in.Node == "" && len(in.Vacancies) == 0
	}
	if in.Offered {
		o.Why = in.why
	}
	return o
}

// show brings the digest of what the root should know up to date, and has the
// instance reported.
func (c *Core) show(in *instance) {
	v := in.view()
	if in.inList {
		c.root.known = c.root.known.Toggle(in.shown)
	}
	in.shown, in.inList = v.Digest(), !v.Stopped
	if in.inList {
		c.root.known = c.root.known.Toggle(in.shown)
	}
	c.root.dirty[in.id()] = 0
	c.root.fresh = true
}

// finish forgets an instance that nobody wants and of which nothing is left.
func (c *Core) finish(in *instance) {
	if !in.Leaving || in.Node != "" || len(in.Vacancies) > 0 {
		return
	}
	id := in.id()
	c.netChanged(in)
	c.unrelate(in)
	c.gone(in)
	c.unask(in)
	c.unreserve(in)
	for _, k := range []timerKind{timerSearch, timerViolated, timerListen, timerAccept} {
		c.timers.Clear(timerKey{what: k, instance: id})
	}
	delete(c.instances, id)
	delete(c.beyond, id)
	for _, p := range c.net.book.PlacesOf(id) { // on silent nodes, too
		c.net.moved[p] = true
	}
	s := c.services[id.Service()]
	if delete(s.instances, id); len(s.instances) == 0 {
		c.dropService(id.Service())
	}
	c.waiting.Remove(id)
	if in.inList {
		c.root.known = c.root.known.Toggle(in.shown)
	}
	c.journal.Delete(kindInstance, string(id))
	delete(c.root.dirty, id)
	c.root.fresh = true
	c.root.gone[id] = goneReport{Observed: api.Observed{
		Instance: id, Epoch: in.Epoch, State: api.Terminated, Stopped: true, Local: in.Local,
		Reason: in.Reason, Restarts: in.Restarts, Failures: in.Failures,
	}}
}

// dropVacancy notes that nothing of an earlier placement is left on the node. What waits
// for that is placed at the end of the step, in its turn and when all room that the step
// freed is known.
func (c *Core) dropVacancy(in *instance, id api.NodeID) {
	n := len(in.Vacancies)
	in.Vacancies = slices.DeleteFunc(in.Vacancies, func(v vacancy) bool { return v.Node == id })
	if len(in.Vacancies) == n {
		return
	}
	c.changed(in)
	if c.finish(in); c.instances[in.id()] != in {
		return
	}
	c.freed(in)
	if c.waiting.Has(in.id()) && in.Node == "" {
		c.vacated[in.id()] = true
	}
}

// freed has what was saved of the instance last, which takes less room than before, stay
// before what is saved of others later in the step: they may take that room, and a crash
// between two saves must not leave it with both.
func (c *Core) freed(in *instance) { c.journal.Pin(kindInstance, string(in.id())) }
