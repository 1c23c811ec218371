// Package placement decides which cluster an instance goes to. It is a sub-machine of the root's
// core. The core passes in facts about clusters (Facts and sched.Candidate), services and
// instances, and carries out the Decision that it gets back.
//
//	m := placement.New(placement.Config{Plugin: rom.Plugin{}})
//	m.Begin(clock, now, wall)
//	d := m.Decide(in)
package placement

import (
	"maps"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/extsched"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Config configures a Machine. All fields but Asks must be set.
type Config struct {
	RetryMin, RetryMax time.Duration // limits of the pause before a cluster that refused is asked again
	Plugin             sched.Plugin
	Asks               string // the external scheduler's name; "" for none
	MovesPerHour       int    // limit for moves because of violations; below 0: no moves
}

// Instance has the values of an instance that decisions depend on. They are only read.
type Instance struct {
	ID         api.InstanceID
	Spec       *api.Microservice
	SpecRev    api.Revision
	State      api.State
	Reason     api.Reason
	Cluster    api.ClusterID // "" if it has no place
	Trial      api.ClusterID // the cluster of its second placement, which replaces the first once it runs
	Epoch      api.Epoch
	Tries      int
	Fails      int
	Leaving    bool
	HandedBack bool            // its cluster handed it back, or is silent
	Searched   bool            // its placement in Cluster may violate its links
	Vacating   api.ClusterID   // the cluster that must confirm the end of an exclusive placement first
	Stopping   []api.ClusterID // the clusters that have not confirmed the end of an exclusive placement
	Moves      []time.Time     // times at which it moved because its place violated its SLA
	Position   *api.Position

	VolumeAt  api.ClusterID // the cluster that has its local volumes; "": none has
	VolumesMB int64         // the sum of their sizes
}

func (in *Instance) ended() bool { return api.Ended(in.State, in.Reason) }

func (in *Instance) seed() uint64 { return sched.SeedOf(in.ID, in.Epoch, in.Tries) }

// Facts are what a cluster reported, in addition to its sched.Candidate.
type Facts struct {
	Live          bool // it has reported, and is not silent
	Free, Largest api.Resources
	Preemptible   []api.Preemptible
	Kinds         uint64 // counts the changes of its kinds of nodes
	Places        uint64 // counts the changes of its nodes' positions
}

// Service is a service with its newest SLA. Spec is only read.
type Service struct {
	ID   api.ServiceID
	Spec *api.Microservice
	Rev  api.Revision
}

// Decision is the decision about an instance. If Cluster and Ask are both unset, the instance waits
// or needs no place.
type Decision struct {
	Cluster  api.ClusterID // where the instance is placed
	Score    float64
	Preempts bool // the cluster has to evict less urgent instances

	Ask *sched.Ask // the question for the external scheduler; the core sets its Key and calls Asked

	Why   string        // why it waits; "" keeps the earlier reason
	Await api.ClusterID // the cluster that has to confirm the end of an exclusive placement first
}

// Doubt is a cluster that answered that it cannot take an instance. Searched says that the answer
// holds even if the placement may violate the instance's links.
type Doubt struct {
	Cluster  api.ClusterID
	Searched bool
}

// Machine holds the state that decisions depend on. Begin sets the time of a step for all other
// methods. It is not safe for concurrent use.
type Machine struct {
	cfg       Config
	clock     step.Clock
	now, wall time.Time

	table     sched.Table // one candidate per cluster
	facts     map[api.ClusterID]Facts
	services  map[api.ServiceID]*service
	instances map[api.InstanceID]*instance
	waiting   extsched.Queue
	exchange  *extsched.Exchange // with the external scheduler
	timers    step.Timers[Due]
	noFit     noFit                  // the finding of this step
	retry     map[api.ClusterID]bool // clusters that may take more than before without a report

	outdated map[api.ServiceID]bool // services whose targets have to be compared with what was sent
	inAreas  map[api.ServiceID]bool // services with links to areas

	dryRun bool
	doubts map[api.InstanceID][]Doubt // of a dry run
}

type service struct {
	id        api.ServiceID
	spec      *api.Microservice // nil if no application has the service any more
	rev       api.Revision
	instances int
	peers     map[string]int // instances per cluster
	links     links
	refusals  refusals
	places    places
}

type instance struct {
	refusals    map[api.ClusterID]refusal // those that apply to this instance only
	refused     int                       // refusals in a row
	pausedUntil time.Time                 // it is offered to no cluster before
	until       time.Time                 // end of the search for a place that meets its links; zero: no search
	skipped     time.Duration             // the rest of its search that a dry run skipped

	spot      *spot         // its position among its service's places; nil: not known
	countedIn api.ClusterID // the cluster that it is counted for; "": it is not counted
}

// DueKind is the purpose of a timer.
type DueKind uint8

// The kinds of timers.
const (
	DueRetry  DueKind = iota // decide about the instance again
	DueSearch                // the search for a place that meets the instance's links is over
	DueAsk                   // the external scheduler has not answered in time
	DueProbe                 // ask a cluster again that refused the service
	dueTell                  // compare the service's targets with what was sent
)

// Due is a timer that has expired, or the key of one.
type Due struct {
	Kind     DueKind
	Instance api.InstanceID
	Service  api.ServiceID
	Cluster  api.ClusterID
}

func New(cfg Config) *Machine {
	return &Machine{
		cfg:       cfg,
		facts:     map[api.ClusterID]Facts{},
		services:  map[api.ServiceID]*service{},
		instances: map[api.InstanceID]*instance{},
		exchange:  extsched.New(),
		retry:     map[api.ClusterID]bool{},
		outdated:  map[api.ServiceID]bool{},
		inAreas:   map[api.ServiceID]bool{},
	}
}

// Begin begins a step. now excludes pauses of the process, wall does not.
func (m *Machine) Begin(clock step.Clock, now, wall time.Time) {
	m.clock, m.now, m.wall, m.noFit = clock, now, wall, noFit{}
}

// Next returns when the next timer expires, or the zero time.
func (m *Machine) Next() time.Time { return m.timers.Next() }

// Pop returns a timer that has expired, the earliest first.
func (m *Machine) Pop(now time.Time) (Due, bool) {
	d, ok := m.timers.Pop(now)
	if ok && d.Kind == dueTell {
		m.outdated[d.Service] = true
	}
	return d, ok
}

func (m *Machine) SetFacts(id api.ClusterID, f Facts) { m.facts[id] = f }

func (m *Machine) SetCandidate(c sched.Candidate) { m.table.Put(c) }

// Candidate returns a cluster's candidate, or nil. It is only read.
func (m *Machine) Candidate(id api.ClusterID) *sched.Candidate { return m.table.Get(string(id)) }

// Candidates returns the candidates of all clusters. They are only read.
func (m *Machine) Candidates() []sched.Candidate { return m.table.All() }

// RemoveCluster removes a cluster. No instance may be counted for it any more.
func (m *Machine) RemoveCluster(id api.ClusterID) {
	delete(m.facts, id)
	delete(m.retry, id)
	m.table.Drop(string(id))
	for _, s := range m.services {
		delete(s.refusals.by, id)
		delete(s.refusals.accepted, id)
		delete(s.refusals.probes, id)
	}
}

func (m *Machine) service(id api.ServiceID) *service {
	s := m.services[id]
	if s == nil {
		s = &service{id: id, peers: map[string]int{}}
		m.services[id] = s
	}
	return s
}

func (m *Machine) of(id api.InstanceID) *service { return m.service(id.Service()) }

// SetApp replaces the services of an application, sorted by id, and the relations between them.
// withdrawn are the services that it no longer has.
func (m *Machine) SetApp(services []Service, withdrawn []api.ServiceID) {
	all := make([]*service, len(services))
	for i, v := range services {
		all[i] = m.service(v.ID)
		all[i].spec, all[i].rev = v.Spec, v.Rev
	}
	m.relate(all)
	for _, id := range withdrawn {
		s := m.service(id)
		s.spec, s.places.reaches = nil, nil
		s.links = links{limitsClusters: s.links.limitsClusters}
		m.RemoveService(id)
	}
}

// RemoveService removes a service if it has no instances.
func (m *Machine) RemoveService(id api.ServiceID) {
	if s := m.services[id]; s != nil && s.instances == 0 {
		delete(m.services, id)
		delete(m.inAreas, id)
	}
}

func (m *Machine) Add(id api.InstanceID) {
	m.instances[id] = &instance{}
	m.of(id).instances++
}

// Remove removes an instance, which must not be in any desired set.
func (m *Machine) Remove(id api.InstanceID) {
	m.StopWaiting(id)
	delete(m.instances, id)
	s := m.of(id)
	if s.instances--; s.spec == nil {
		m.RemoveService(s.id)
	}
}

// Enlisted records that an instance was put into a cluster's desired set.
func (m *Machine) Enlisted(in Instance, cl api.ClusterID) {
	m.Count(in.ID, cl, 1)
	m.startProbe(in, cl)
	m.PlacesChanged(in.ID.Service())
}

// Withdrawn records that an instance was taken out of a cluster's desired set. freed says that this
// released a reservation.
func (m *Machine) Withdrawn(in Instance, cl api.ClusterID, freed bool) {
	m.PlacesChanged(in.ID.Service())
	m.endProbe(in, cl)
	if freed || m.of(in.ID).links.limitsClusters {
		// No report shows these resources as new, or that a domain can take one more.
		m.retry[cl] = true
	}
	m.Count(in.ID, cl, -1)
	if in.Spec.InOneCluster() && len(m.of(in.ID).peers) == 0 {
		for _, c := range m.table.All() { // those that are waiting may go to any cluster now
			m.retry[api.ClusterID(c.ID)] = true
		}
	}
}

// Count adds by to the number of the instance's siblings in a cluster.
func (m *Machine) Count(id api.InstanceID, cl api.ClusterID, by int) {
	peers := m.of(id).peers
	if peers[string(cl)] += by; peers[string(cl)] <= 0 {
		delete(peers, string(cl))
	}
}

// Peers returns how many instances of a service are in each cluster's desired set. The map is only
// read.
func (m *Machine) Peers(id api.ServiceID) map[string]int {
	if s := m.services[id]; s != nil {
		return s.peers
	}
	return nil
}

func (m *Machine) Waits(id api.InstanceID) bool { return m.waiting.Has(id) }

// Waiting returns how many instances wait for a place.
func (m *Machine) Waiting() int { return m.waiting.Len() }

func (m *Machine) Wait(in Instance) { m.waiting.Add(in.ID, in.Spec.Urgency()) }

// StopWaiting removes an instance from the queue and cancels its question and its timer.
func (m *Machine) StopWaiting(id api.InstanceID) {
	m.waiting.Remove(id)
	m.forgetQuestion(id)
	m.timers.Clear(Due{Kind: DueRetry, Instance: id})
}

// ForgetRefusals removes the refusals of an instance, except those because a place violated its
// SLA.
func (m *Machine) ForgetRefusals(id api.InstanceID) {
	it := m.instances[id]
	maps.DeleteFunc(it.refusals, func(_ api.ClusterID, r refusal) bool { return !r.violated })
	it.refused, it.pausedUntil = 0, time.Time{}
}

// Updated records that an instance has a new SLA, in.Spec. If the instance had a place, it is
// placed without a search, which could take it off its place.
func (m *Machine) Updated(in Instance, hadPlace bool) {
	it := m.instances[in.ID]
	it.refusals, it.refused, it.pausedUntil = nil, 0, time.Time{}
	m.EndSearch(in.ID)
	if req := m.baseRequest(in); hadPlace && req.SearchTime() > 0 {
		it.until = m.now
	}
}

// KeepsRunning reports whether an instance that moves continues in its cluster until it runs
// elsewhere.
func (m *Machine) KeepsRunning(in Instance) bool {
	return in.Cluster != "" && m.facts[in.Cluster].Live && in.State == api.Running && !in.Spec.Exclusive
}

// Admits reports whether the cluster could take the instance if all its resources were free.
func (m *Machine) Admits(in Instance, cl api.ClusterID) bool {
	if slices.ContainsFunc(m.doubts[in.ID], func(d Doubt) bool { return d.Cluster == cl }) {
		return false
	}
	req := m.baseRequest(in)
	req.Needs, req.Devices = api.Resources{}, nil
	cand := *m.Candidate(cl)
	cand.Out = ""
	_, ok := sched.PlaceBest(&req, []sched.Candidate{cand}, m.cfg.Plugin, 0)
	return ok
}
