// Package autoscale decides how many instances of each service run in a cluster, within the number
// that the root assigned: by the load that nodes report, and by packets that wait for a service of
// which no instance runs. The caller wakes and puts to sleep what the Machine chooses.
//
// It is a sub-machine of the cluster's core and not safe for concurrent use. It saves nothing: after
// a start an instance's load is unknown until its node reports it, and unknown is not idle.
//
//	m.Set(now, id, autoscale.State{Scale: spec.Scale, Awake: true})
//	m.Sample(now, id, sample)
//	m.Demand(now, service, autoscale.Any)
//	for _, d := range m.Decide(now) {
//		…
//	}
package autoscale

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/step"
)

const (
	// period is the interval at which a service's number is decided, as that of Kubernetes' HPA.
	period = 15 * time.Second
	// Fresh is the age up to which a sample counts. Nodes send one every 5 s.
	Fresh = 20 * time.Second
	// tolerance is the share by which a mean may differ from its target without a change.
	tolerance = 0.1
	// demandLasts is how long a demand keeps a service awake beyond its idle time, since it may not
	// have led to a packet at the instance yet.
	demandLasts = 30 * time.Second
	// startTime is how long an instance that was woken counts as a cold start.
	startTime = 30 * time.Second
)

// Any is the number in a Demand that any instance satisfies.
const Any = -1

var coldBound = fairshare.Declare(fairshare.Bound{
	Resource: "cold starts at the same time in a cluster", Total: 32, Share: []int{8}, Per: "topmost tenant",
	Beyond: "the packet waits until another start is over; the next start is that of the tenant with the fewest",
	Attack: "TestColdStartsOfOneTenantLeaveTurnsForOthers",
})

var demandBound = fairshare.Declare(fairshare.Bound{
	Resource: "services that wait for a cold start in a cluster", Total: 1024, Share: []int{128}, Per: "topmost tenant",
	Beyond: "the demand is dropped; the node repeats it while packets wait",
	Attack: "TestDemandsOfOneTenantLeaveRoomForOthers",
})

// The bounds of services whose expressions are evaluated.
const (
	MaxExpressions       = 1024
	MaxTenantExpressions = 64
)

var exprBound = fairshare.Declare(fairshare.Bound{
	Resource: "services of a cluster that scale by a Prometheus expression", Total: MaxExpressions, Share: []int{MaxTenantExpressions}, Per: "topmost tenant",
	Beyond: "the value is unknown, so that the service keeps its number of instances, and why says so",
	Attack: "TestExpressionsOfOneTenantLeaveRoomForOthers",
})

// Queries are the expressions to evaluate.
type Queries map[api.ServiceID]string

// State is what the caller knows about an instance.
type State struct {
	Scale   *api.Scale
	Limits  api.Resources // of the instance, for percentages
	Awake   bool
	Placed  bool // on a node
	Running bool // and takes flows
}

// Sample is the load of one instance, as its node reports it.
type Sample struct {
	MilliCPU    int64 // below 0: unknown
	MemoryMB    int64 // below 0: unknown
	Connections int
	Requests    int64         // thousandths per second; below 0: unknown
	Fault       string        // why Requests are unknown
	Idle        time.Duration // how long it had neither an open connection nor a packet; below 0: unknown
}

// Decision wakes an instance or puts it to sleep.
type Decision struct {
	Instance api.InstanceID
	Wake     bool
	Why      string // for people
}

type instance struct {
	State
	sample  Sample
	at      time.Time // of sample; zero: none
	woken   time.Time
	expects bool // woken by a demand, and not running yet
}

type service struct {
	all      map[api.InstanceID]*instance
	decided  time.Time // last time that the load was considered
	up, down window
	demand   time.Time // last one
	awaited  map[int]time.Time
	place    *fairshare.Place // among the waiting services
	refused  string           // why the last demand was dropped

	query     string           // nil scale.prometheus: empty
	asked     *fairshare.Place // among the services with an expression; nil: its expression is not evaluated
	value     float64          // of query
	valueAt   time.Time        // zero: there is none
	valueFail string           // why the last evaluation failed

	why   string // of the last decision
	fault string // the last one that was passed on
}

// Machine has the services of a cluster that scale.
type Machine struct {
	services map[api.ServiceID]*service
	due      step.Timers[api.ServiceID]
	queue    []api.ServiceID // services that wait for a cold start, in the order of their demands
	waiting  *fairshare.Pool
	cold     map[api.Tenant]int // cold starts by topmost tenant
	colds    int

	expressions *fairshare.Pool
	queries     Queries
	changed     bool                    // queries
	faults      map[api.ServiceID]Fault // that began or ended
}

// New returns a machine without services.
func New() *Machine {
	return &Machine{
		services: map[api.ServiceID]*service{}, waiting: fairshare.NewPool(demandBound, fairshare.Policy{}), cold: map[api.Tenant]int{},
		expressions: fairshare.NewPool(exprBound, fairshare.Policy{Fixed: true}), queries: Queries{}, faults: map[api.ServiceID]Fault{},
	}
}

// Set adds an instance or changes its state.
func (m *Machine) Set(now time.Time, id api.InstanceID, st State) {
	if st.Scale == nil {
		m.Remove(id)
		return
	}
	s := m.services[id.Service()]
	if s == nil {
		s = &service{all: map[api.InstanceID]*instance{}, awaited: map[int]time.Time{}, decided: now}
		m.services[id.Service()] = s
	}
	in := s.all[id]
	if in == nil {
		in = &instance{woken: now}
		s.all[id] = in
	}
	if st.Awake && !in.Awake {
		in.woken, in.at = now, time.Time{}
	} else if in.Placed && !st.Placed {
		in.woken = now // it looks for another node
	}
	in.State = st
	m.setQuery(now, id.Service(), s, st.Scale)
	if st.Running || !st.Awake {
		m.started(id, in)
	}
	m.due.SetEarlier(id.Service(), now.Add(period))
}

// Remove removes an instance that the cluster does not have any more.
func (m *Machine) Remove(id api.InstanceID) {
	s := m.services[id.Service()]
	if s == nil || s.all[id] == nil {
		return
	}
	m.started(id, s.all[id])
	if delete(s.all, id); len(s.all) == 0 {
		m.satisfied(id.Service(), s)
		m.setQuery(time.Time{}, id.Service(), s, nil)
		m.due.Clear(id.Service())
		delete(m.faults, id.Service())
		delete(m.services, id.Service())
	}
}

// started ends the cold start of an instance.
func (m *Machine) started(id api.InstanceID, in *instance) {
	if !in.expects {
		return
	}
	in.expects = false
	m.colds--
	if t := id.Tenant().Top(); m.cold[t] > 1 {
		m.cold[t]--
	} else {
		delete(m.cold, t)
	}
}

// satisfied ends the wait of a service for a cold start.
func (m *Machine) satisfied(id api.ServiceID, s *service) {
	clear(s.awaited)
	if s.place != nil {
		s.place.Release()
		s.place = nil
		m.queue = slices.DeleteFunc(m.queue, func(q api.ServiceID) bool { return q == id })
	}
}

// Sample stores the load of an instance. It ignores instances that do not scale or sleep.
func (m *Machine) Sample(now time.Time, id api.InstanceID, x Sample) {
	if s := m.services[id.Service()]; s != nil && s.all[id] != nil && s.all[id].Awake {
		in := s.all[id]
		in.sample, in.at = x, now
		if s.mayIdle() && x.Idle >= in.Scale.Idle() {
			m.due.SetEarlier(id.Service(), now)
		}
	}
}

// Demand records that packets wait for a service, or for the instance of a number. known is false
// if no instance here can serve them. Repeated demands cost nothing more.
func (m *Machine) Demand(now time.Time, id api.ServiceID, number int) (known bool) {
	s := m.services[id]
	if s == nil {
		return false
	}
	if _, has := s.all[id.Instance(max(number, 0))]; number != Any && !has {
		return false
	}
	s.demand = now
	if s.serves(number) {
		return true
	}
	if !s.canWake(number) {
		return false
	}
	if s.place == nil {
		p, err := m.waiting.Take(now, []string{string(id.Tenant().Top())}, nil)
		if err != nil {
			s.refused = err.Error()
			return true
		}
		s.place, s.refused = p, ""
		m.queue = append(m.queue, id)
	}
	s.awaited[number] = now
	m.due.SetEarlier(id, now)
	return true
}

// serves reports whether an instance runs, or is being started, that satisfies a demand.
func (s *service) serves(number int) bool {
	for id, in := range s.all {
		if in.Awake && (number == Any || id.Number() == number) {
			return true
		}
	}
	return false
}

func (s *service) canWake(number int) bool {
	for id, in := range s.all {
		if !in.Awake && (number == Any || id.Number() == number) {
			return true
		}
	}
	return false
}

func (s *service) mayIdle() bool {
	for _, in := range s.all {
		return in.Scale.ToZero()
	}
	return false
}

// Next returns when Decide has to be called; zero: never.
func (m *Machine) Next() time.Time { return m.due.Next() }

// Decide returns what to change now. The caller passes the new states to Set.
func (m *Machine) Decide(now time.Time) (out []Decision) {
	out = m.wakeDemanded(now)
	for {
		id, ok := m.due.Pop(now)
		if !ok {
			return out
		}
		s := m.services[id]
		if s == nil {
			continue
		}
		for _, in := range s.all { // a start that takes too long does not keep others waiting
			if in.expects && now.Sub(in.woken) >= startTime {
				m.started(s.idOf(in), in)
			}
		}
		if len(m.queue) > 0 {
			out = append(out, m.wakeDemanded(now)...)
		}
		out = append(out, s.decide(now, id)...)
		m.noteFault(now, id, s)
		if s.anyAwake() {
			m.due.SetEarlier(id, now.Add(period))
		}
	}
}

func (s *service) idOf(in *instance) api.InstanceID {
	for id, x := range s.all {
		if x == in {
			return id
		}
	}
	return ""
}

// wakeDemanded starts instances for the demands that wait, fairly between tenants.
func (m *Machine) wakeDemanded(now time.Time) (out []Decision) {
	for m.colds < coldBound.Total {
		best := -1
		for i, id := range m.queue {
			n := m.cold[id.Tenant().Top()]
			if n < coldBound.Share[0] && (best < 0 || n < m.cold[m.queue[best].Tenant().Top()]) {
				best = i
			}
		}
		if best < 0 {
			return out
		}
		id := m.queue[best]
		s := m.services[id]
		number := Any
		for _, n := range slices.Sorted(keys(s.awaited)) {
			number = n
			break
		}
		if d, ok := s.wake(now, id, number); ok {
			in := s.all[d.Instance]
			in.expects = true
			m.due.SetEarlier(id, now.Add(period))
			m.colds++
			m.cold[id.Tenant().Top()]++
			out = append(out, d)
		}
		if delete(s.awaited, number); len(s.awaited) == 0 {
			m.satisfied(id, s)
		}
	}
	return out
}

func keys[V any](m map[int]V) func(func(int) bool) {
	return func(yield func(int) bool) {
		for n := range m {
			if !yield(n) {
				return
			}
		}
	}
}

// wake chooses the sleeping instance with the lowest number, or that of a number.
func (s *service) wake(now time.Time, id api.ServiceID, number int) (d Decision, ok bool) {
	if s.serves(number) {
		return d, false
	}
	for _, in := range s.sorted() {
		if x := s.all[in]; !x.Awake && (number == Any || in.Number() == number) {
			x.Awake, x.woken, s.why = true, now, "packets wait for the service"
			return Decision{Instance: in, Wake: true, Why: s.why}, true
		}
	}
	return d, false
}

func (s *service) sorted() []api.InstanceID {
	return slices.SortedFunc(func(yield func(api.InstanceID) bool) {
		for id := range s.all {
			if !yield(id) {
				return
			}
		}
	}, func(a, b api.InstanceID) int { return cmp.Compare(a.Number(), b.Number()) })
}

func (s *service) anyAwake() bool {
	for _, in := range s.all {
		if in.Awake {
			return true
		}
	}
	return false
}

// mayStop reports whether the instance's own SLA lets it sleep. During a roll-out that of others may differ,
// and the root does not accept that an instance sleeps against its SLA.
func (in *instance) mayStop(id api.InstanceID) bool { return in.Scale.Sleeps(id.Number()) }

// decide compares the number of instances that run with the one that the load asks for.
func (s *service) decide(now time.Time, id api.ServiceID) (out []Decision) {
	all := s.sorted()
	if len(all) == 0 {
		return nil
	}
	scale := s.all[all[0]].Scale
	least, awake := 0, 0
	for _, in := range all {
		if !s.all[in].mayStop(in) {
			least++
		}
		if s.all[in].Awake {
			awake++
		}
	}
	want, why := max(awake, least), ""
	if now.Sub(s.decided) >= period || s.decided.IsZero() {
		s.decided = now
		want, why = s.wanted(now, scale, awake, max(least, min(awake, 1)), len(all))
	}
	if want == awake && awake == 1 && least == 0 && s.idle(now, scale) && s.unasked(now, scale) {
		want, why = 0, fmt.Sprintf("idle for %s", scale.Idle())
	}
	if why != "" {
		s.why = why
	}
	for _, in := range all { // the lowest numbers wake first
		if x := s.all[in]; awake < want && !x.Awake {
			x.Awake, x.woken = true, now
			awake++
			out = append(out, Decision{Instance: in, Wake: true, Why: cmp.Or(why, "it always runs")})
		}
	}
	sleepers := slices.DeleteFunc(slices.Clone(all), func(in api.InstanceID) bool { return !s.all[in].Awake || !s.all[in].mayStop(in) })
	running := func(in api.InstanceID) int {
		if s.all[in].Running {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(sleepers, func(a, b api.InstanceID) int { // those that wait for room first
		return cmp.Or(running(a)-running(b), cmp.Compare(s.all[a].sample.Connections, s.all[b].sample.Connections), b.Number()-a.Number())
	})
	for _, in := range sleepers[:max(0, min(awake-want, len(sleepers)))] {
		s.all[in].Awake = false
		out = append(out, Decision{Instance: in, Why: why})
	}
	return out
}

// idle reports whether every instance that is awake is known to have been idle for long enough, and nobody
// has asked for the service meanwhile. One that finds no room is idle.
func (s *service) idle(now time.Time, scale *api.Scale) bool {
	if !s.demand.IsZero() && now.Sub(s.demand) < max(scale.Idle(), demandLasts) {
		return false
	}
	for _, in := range s.all {
		if !in.Awake || !in.Placed && now.Sub(in.woken) >= scale.Idle() {
			continue
		}
		if !in.Running || in.at.IsZero() || now.Sub(in.at) > Fresh || in.sample.Idle < scale.Idle() || now.Sub(in.woken) < scale.Idle() {
			return false
		}
	}
	return true
}

// wanted returns the number of instances for the load of those that run, within [least, most].
func (s *service) wanted(now time.Time, scale *api.Scale, awake, least, most int) (want int, why string) {
	want, why = least, "the load needs fewer instances"
	for _, g := range goals(scale) {
		n, mean, ok := s.wantedBy(now, g, awake)
		if !ok {
			n = max(awake, least)
		}
		if n > want {
			want = n
			if why = fmt.Sprintf("%s is %.0f%s on average, the target is %d%s", g.name, mean, g.unit, g.target, g.unit); !ok {
				why = g.name + " is not known"
			}
		}
	}
	if q := scale.Prometheus; q != nil {
		n, ok := s.wantedByQuery(now, scale, awake)
		if !ok {
			n = max(awake, least)
		}
		if n > want {
			want = n
			if why = fmt.Sprintf("the value of prometheus is %.6g, the target is %d", s.value, q.Target); !ok {
				why = "the value of prometheus is not known"
			}
		}
	}
	if limit := max(2*awake, 4); want > limit { // a wrong sample does not start everything
		want = limit
	}
	up, down := scale.Windows()
	want = min(max(want, least), most)
	low, high := s.up.least(now, up, want), s.down.most(now, down, want)
	switch {
	case low > awake:
		return low, why
	case high < awake:
		return max(high, least), why
	}
	return max(awake, least), ""
}

// goal is one measure of load and its target.
type goal struct {
	name, unit string
	target     int
	of         func(in *instance) (float64, bool)
}

func goals(s *api.Scale) (out []goal) {
	percent := func(used, limit int64) (float64, bool) {
		return 100 * float64(used) / float64(limit), limit > 0 && used >= 0
	}
	if s.CPU > 0 {
		out = append(out, goal{"cpu", "%", s.CPU, func(in *instance) (float64, bool) { return percent(in.sample.MilliCPU, in.Limits.MilliCPU) }})
	}
	if s.Memory > 0 {
		out = append(out, goal{"memory", "%", s.Memory, func(in *instance) (float64, bool) { return percent(in.sample.MemoryMB, in.Limits.MemoryMB) }})
	}
	if s.Connections > 0 {
		out = append(out, goal{"connections", "", s.Connections, func(in *instance) (float64, bool) { return float64(in.sample.Connections), true }})
	}
	if s.Requests != nil {
		out = append(out, goal{"requests", "/s", s.Requests.Target, func(in *instance) (float64, bool) {
			return float64(in.sample.Requests) / 1000, in.sample.Requests >= 0
		}})
	}
	return out
}

// wantedBy returns the number of instances that one goal asks for. As in Kubernetes' HPA, an instance
// whose load is unknown counts as idle when the number would grow, and as at the target when it would
// shrink. ok is false if no load is known.
func (s *service) wantedBy(now time.Time, g goal, awake int) (n int, mean float64, ok bool) {
	sum, known := 0.0, 0
	for _, in := range s.all {
		if v, has := g.of(in); in.Awake && has && !in.at.IsZero() && now.Sub(in.at) <= Fresh {
			sum += v
			known++
		}
	}
	if known == 0 {
		return 0, 0, false
	}
	mean = sum / float64(known)
	if mean < float64(g.target) {
		sum += float64((awake - known) * g.target)
	}
	ratio := sum / float64(awake) / float64(g.target)
	if math.Abs(ratio-1) <= tolerance {
		return awake, mean, true
	}
	return int(math.Ceil(math.Min(ratio*float64(awake), api.MaxScale) - 1e-9)), mean, true
}
