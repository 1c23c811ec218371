// Package rollouts paces the roll-outs of new versions of services: it decides which instances get
// the new version now, from their observed readiness, and when a version has failed. It is a
// sub-machine of the root's core. A version is an SLA revision of a service.
//
// An instance is replaced only while enough others are ready. By default additional instances with
// the new version start first, so that as many instances as wanted are ready all the time.
//
//	m := rollouts.New(applications.VersionChanges)
//	m.Begin(now, wall)
//	d := m.Decide(service)
package rollouts

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// Service has the facts about a service that a roll-out depends on.
type Service struct {
	ID        api.ServiceID
	Version   api.Revision // the one that its instances should have
	Replicas  int
	Policy    api.UpdatePolicy
	Spec      *api.Microservice // of Version; only read
	By        string            // who applied it
	Instances []Instance        // without those that are leaving, sorted
}

// Instance has the facts about an instance that a roll-out depends on.
type Instance struct {
	ID      api.InstanceID
	Version api.Revision
	Epoch   api.Epoch
	Running bool
	Ready   bool   // it takes requests, and its cluster reports it
	Unknown bool   // its node cannot observe it; it may take requests
	Placed  bool   // a cluster has it
	Dormant bool   // its cluster starts it when it is due; meanwhile it takes no requests
	Open    bool   // of a one-shot: it is not known yet whether its version works
	Held    bool   // it cannot be replaced now: its cluster does not report, and it may still take requests
	InPlace bool   // the service's version fits where it is
	Broken  bool   // its image cannot run
	Doing   string // its state for people
}

// Decision is what to do now.
type Decision struct {
	Extra    int              // how many instances the service should have in addition to its replicas
	Replace  []api.InstanceID // that get the service's version now
	RollBack *Version         // the version to apply, because the service's version failed
	Events   []Event
}

// Event is a step of a roll-out that people should see.
type Event struct {
	Reason api.Reason
	Detail string
}

// Version is a version of a service in its history.
type Version struct {
	api.RollOutVersion
	Spec *api.Microservice `json:"spec"`
}

// Record is the saved state of the newest roll-out of a service, and the service's history.
type Record struct {
	Service api.ServiceID    `json:"service"`
	State   api.RollOutState `json:"state"`
	Detail  string           `json:"detail,omitempty"` // why it failed, or who paused it
	Version api.Revision     `json:"version"`
	Healthy api.Revision     `json:"healthy,omitempty"` // the version that was healthy last
	Failed  api.Revision     `json:"failed,omitempty"`  // the version that Version replaces because it failed
	Surge   int              `json:"surge,omitempty"`   // additional instances, as far as there is room; -1: as the policy says
	NoRoom  bool             `json:"no_room,omitempty"` // there is no room for any
	// Surging is set once instances that take requests had to be replaced, until it is over.
	Surging bool `json:"surging,omitempty"`
	// Replaces is set once any instance had to be replaced. Otherwise the service is new.
	Replaces bool `json:"replaces,omitempty"`
	Promoted bool `json:"promoted,omitempty"` // it does not wait for a promotion
	// Waiting is the number of instances that had no place when it began. They need not become
	// healthy.
	Waiting int       `json:"waiting,omitempty"`
	Began   time.Time `json:"began"`
	Ended   time.Time `json:"ended,omitzero"`
	History []Version `json:"history,omitempty"` // the oldest first; the last one is Version
}

// over reports whether the roll-out has ended.
func (r *Record) over() bool { return r.State == api.RollOutHealthy || r.State == api.RollOutFailed }

// pending reports whether the roll-out failed and the version that was healthy last is about to be
// applied.
func (r *Record) pending() bool { return r.State == api.RollOutRollingBack && r.Failed == 0 }

// rollOut is a Record with what is observed again after a restart.
type rollOut struct {
	Record
	ready    map[api.InstanceID]since // since when instances are ready
	unplaced map[api.InstanceID]since // since when instances of Version have no place
	proven   bool                     // an instance was ready for Policy.MinHealthy, or Version was healthy before
	best     int                      // the most instances that were healthy
	progress time.Time                // when best grew
}

type since struct {
	epoch api.Epoch
	at    time.Time
}

// roomWait is how long an additional instance may be without a place until the roll-out goes on
// without it.
const roomWait = 5 * time.Second

// maxHistoryBytes bounds the SLAs in a service's history.
const maxHistoryBytes = 256 << 10

// Machine has the roll-outs of all services. Begin sets the time of a step for all other methods.
// Times of the machine are the core's clock, which does not count pauses of the process. Machine is
// not safe for concurrent use.
type Machine struct {
	differ    func(service string, was, is *api.Microservice) []api.FieldChange
	now, wall time.Time
	rollOuts  map[api.ServiceID]*rollOut
	timers    step.Timers[api.ServiceID]
	changed   step.Queue[api.ServiceID]
}

// New returns a Machine without roll-outs. differ returns the differences between two SLAs of a
// service.
func New(differ func(service string, was, is *api.Microservice) []api.FieldChange) *Machine {
	return &Machine{differ: differ, rollOuts: map[api.ServiceID]*rollOut{}}
}

// Begin begins a step.
func (m *Machine) Begin(now, wall time.Time) { m.now, m.wall = now, wall }

// Restore adds a saved roll-out. What it had observed is observed again.
func (m *Machine) Restore(r Record) { m.rollOuts[r.Service] = m.observing(r) }

func (m *Machine) observing(r Record) *rollOut {
	return &rollOut{Record: r, ready: map[api.InstanceID]since{}, unplaced: map[api.InstanceID]since{}, progress: m.now}
}

// Services returns the services with a roll-out, sorted.
func (m *Machine) Services() []api.ServiceID { return step.Keys(m.rollOuts) }

// Remove removes the roll-outs of a service, and reports whether there were any.
func (m *Machine) Remove(id api.ServiceID) bool {
	_, had := m.rollOuts[id]
	delete(m.rollOuts, id)
	m.timers.Clear(id)
	m.changed.Remove(id)
	return had
}

// TakeChanged returns the services whose records changed since the last call.
func (m *Machine) TakeChanged() []api.ServiceID { return m.changed.Take() }

// Record returns the record of a service to be saved. It is only read.
func (m *Machine) Record(id api.ServiceID) Record { return m.rollOuts[id].Record }

// Next returns when Due returns a service; zero: never.
func (m *Machine) Next() time.Time { return m.timers.Next() }

// Due returns a service that Decide has to be called for, and whether there is one.
func (m *Machine) Due() (api.ServiceID, bool) { return m.timers.Pop(m.now) }

// Soon makes Due return the service, if its roll-out depends on its instances' states. n is the
// number of its instances: many changes of a large service are decided on together.
func (m *Machine) Soon(id api.ServiceID, n int) {
	if r := m.rollOuts[id]; r != nil && r.State != api.RollOutHealthy && r.State != api.RollOutPaused {
		m.timers.SetEarlier(id, m.now.Add(time.Duration(n/100)*10*time.Millisecond))
	}
}

// Decide returns what to do now for a service. It begins a roll-out if the service has a version
// that is not that of the newest one.
func (m *Machine) Decide(s Service) (d Decision) {
	r := m.rollOuts[s.ID]
	if r == nil || r.Version != s.Version {
		r = m.begin(r, s, &d)
	}
	if r.Surge < 0 {
		r.Surge = surge(s.Policy)
	}
	if r.progress.IsZero() { // after a restart the deadline begins again
		r.progress = m.now
	}
	m.observe(r, s)
	c := m.count(r, s)
	if s.Policy.OneByOne {
		m.oneByOne(r, s, c, &d)
	} else {
		m.pace(r, s, c, &d)
	}
	d.Extra = m.extra(r, s)
	m.wake(r, s)
	return d
}

// begin begins the roll-out of the service's version. It supersedes the one before.
func (m *Machine) begin(r *rollOut, s Service, d *Decision) *rollOut {
	var was Record
	if r != nil {
		was = r.Record
	}
	now := Record{
		Service: s.ID, State: api.RollOutProgressing, Version: s.Version, Healthy: was.Healthy,
		Surge: surge(s.Policy), Began: m.wall,
	}
	v := Version{Spec: s.Spec, RollOutVersion: api.RollOutVersion{
		Version: s.Version, Code: s.Spec.Code, By: s.By, Began: m.wall, Result: api.RollOutProgressing,
	}}
	if n := len(was.History); n > 0 {
		last := &was.History[n-1]
		v.Changes = m.differ(s.Spec.Name+"."+s.Spec.Namespace, last.Spec, s.Spec)
		healthy := r.version(was.Healthy)
		switch {
		case was.over():
		case was.pending() && healthy != nil && len(m.differ("", healthy.Spec, s.Spec)) == 0:
			last.Result, last.Ended = api.RollOutRolledBack, m.wall
			now.State, now.Failed, v.Result = api.RollOutRollingBack, was.Version, api.RollOutRollingBack
		case allReady(s, was.Version): // not for min_healthy_time, but there is nothing better to return to
			last.Result, last.Ended, now.Healthy = api.RollOutHealthy, m.wall, was.Version
		default:
			last.Result, last.Ended = api.RollOutSuperseded, m.wall
			d.event(api.ReasonNone, "the roll-out of version %d is superseded by version %d", was.Version, s.Version)
		}
	}
	returns := slices.ContainsFunc(was.History, func(old Version) bool {
		return old.Version == s.Version && (old.Result == api.RollOutHealthy || s.Version == was.Healthy)
	})
	now.Promoted = returns || now.State == api.RollOutRollingBack // a person asked for neither
	now.History = trimmed(append(slices.DeleteFunc(slices.Clone(was.History), func(old Version) bool { return old.Version == s.Version }), v), now.Healthy)
	for _, i := range s.Instances {
		if !i.Placed && i.Version != s.Version {
			now.Waiting++
		}
	}
	now.Waiting = max(0, now.Waiting-max(0, len(s.Instances)-s.Replicas)) // additional ones of the version before do not count
	r = m.observing(now)
	r.proven = returns
	m.rollOuts[s.ID] = r
	m.changed.Add(s.ID)
	return r
}

// allReady reports whether all instances have the version and take requests.
func allReady(s Service, v api.Revision) bool {
	other := func(i Instance) bool { return i.Version != v || !i.Ready }
	return len(s.Instances) > 0 && !slices.ContainsFunc(s.Instances, other)
}

// surge returns the number of additional instances. Canaries are additional instances too.
func surge(p api.UpdatePolicy) int {
	if p.Surge == 0 {
		return 0
	}
	return max(p.Surge, p.Canaries)
}

// trimmed drops the oldest versions above the limits. It keeps the newest one and the healthy one.
func trimmed(all []Version, healthy api.Revision) []Version {
	bytes := 0
	for i := len(all) - 1; i >= 0; i-- {
		b, _ := json.Marshal(all[i])
		bytes += len(b)
		if last := i == len(all)-1; !last && all[i].Version != healthy && (bytes > maxHistoryBytes || len(all)-i > api.MaxVersions) {
			all = slices.Delete(all, i, i+1)
			bytes -= len(b)
		}
	}
	return all
}

func (d *Decision) event(r api.Reason, format string, args ...any) {
	d.Events = append(d.Events, Event{r, fmt.Sprintf(format, args...)})
}

// observe records since when instances are ready, and since when they have no place.
func (m *Machine) observe(r *rollOut, s Service) {
	ready, unplaced := map[api.InstanceID]since{}, map[api.InstanceID]since{}
	keep := func(out, in map[api.InstanceID]since, i Instance) {
		if old, ok := in[i.ID]; ok && old.epoch == i.Epoch {
			out[i.ID] = old
		} else {
			out[i.ID] = since{i.Epoch, m.now}
		}
	}
	for _, i := range s.Instances {
		switch {
		case i.Version != r.Version:
		case i.Ready:
			keep(ready, r.ready, i)
		case !i.Placed:
			keep(unplaced, r.unplaced, i)
		}
	}
	r.ready, r.unplaced = ready, unplaced
	for _, at := range ready {
		r.proven = r.proven || !m.now.Before(at.at.Add(s.Policy.MinHealthy))
	}
}

// counts has numbers of instances.
type counts struct {
	updated   int // with the service's version
	succeeded int // of updated: healthy
	open      int // of updated: may become healthy; not those that are dormant or need not become healthy without a place
	dormant   int // of updated
	ready     int // of any version
	awake     int // of any version: not dormant
	old       int // with another version
	oldReady  int // of old: take requests
}

func (m *Machine) count(r *rollOut, s Service) (c counts) {
	unplaced := 0
	for _, i := range s.Instances {
		if i.Ready {
			c.ready++
		}
		if !i.Dormant {
			c.awake++
		}
		if i.Version != s.Version {
			c.old++
			if i.Ready {
				c.oldReady++
			}
			continue
		}
		c.updated++
		switch {
		case m.healthy(r, s, i):
			c.succeeded++
		case i.Dormant:
			c.dormant++
		case !i.Placed && unplaced < r.Waiting:
			unplaced++
		default:
			c.open++
		}
	}
	return c
}

// healthy reports whether an instance of the service's version is ready for long enough.
func (m *Machine) healthy(r *rollOut, s Service, i Instance) bool {
	at, ok := r.ready[i.ID]
	return ok && !m.now.Before(at.at.Add(r.minHealthy(s)))
}

// minHealthy returns how long an instance must be ready to be healthy.
func (r *rollOut) minHealthy(s Service) time.Duration {
	if r.proven {
		return s.Policy.NextHealthy
	}
	return s.Policy.MinHealthy
}

// oneByOne replaces the instances of a one-shot. Those that do not run are replaced at once.
func (m *Machine) oneByOne(r *rollOut, s Service, c counts, d *Decision) {
	open := false
	for _, i := range s.Instances {
		switch {
		case i.Version == s.Version:
			open = open || i.Open
		case !i.Running && !i.Held:
			d.Replace = append(d.Replace, i.ID)
		}
	}
	for _, i := range s.Instances {
		if i.Version != s.Version && i.Running && !i.Held && !open {
			d.Replace = append(d.Replace, i.ID)
			break
		}
	}
	if c.old == 0 && !open && r.State != api.RollOutHealthy {
		m.succeed(r, s, d)
	}
}

// pace decides on the next step of a roll-out.
func (m *Machine) pace(r *rollOut, s Service, c counts, d *Decision) {
	if r.over() {
		if r.State == api.RollOutFailed && done(s, c) {
			m.succeed(r, s, d)
		}
		return
	}
	if c.old > 0 && !r.Replaces {
		r.Replaces = true
		m.changed.Add(s.ID)
		d.event(api.ReasonNone, "the roll-out of version %d begins: %s", s.Version, s.Policy)
	}
	if c.oldReady > 0 && !r.Surging {
		r.Surging = true
		m.changed.Add(s.ID)
	}
	if r.State == api.RollOutPaused || r.pending() {
		return
	}
	m.shrink(r, s, d)
	if c.succeeded > r.best {
		r.best, r.progress = c.succeeded, m.now
	}
	switch {
	case done(s, c):
		m.succeed(r, s, d)
		return
	case m.canaries(r, s, c, d):
		return
	}
	for _, i := range s.Instances {
		if i.Version == s.Version && i.Broken && !i.Ready && r.mayRollBack(s) {
			m.fail(r, s, i.Doing, d)
			return
		}
	}
	if !m.now.Before(r.progress.Add(s.Policy.Deadline)) {
		m.fail(r, s, fmt.Sprintf("no further instance became healthy within %s: %s", s.Policy.Deadline, m.waitsFor(r, s, c)), d)
		return
	}
	d.Replace = m.choose(r, s, c)
}

// done reports whether all instances have the version and are healthy.
func done(s Service, c counts) bool {
	return c.old == 0 && c.open == 0 && len(s.Instances) >= s.Replicas
}

// shrink gives up additional instances for which there is no room.
func (m *Machine) shrink(r *rollOut, s Service, d *Decision) {
	if !r.Surging || r.Surge == 0 {
		return
	}
	lacking := -r.Waiting
	for _, at := range r.unplaced {
		if !m.now.Before(at.at.Add(roomWait)) {
			lacking++
		}
	}
	if lacking = min(lacking, r.Surge, len(s.Instances)-s.Replicas); lacking <= 0 {
		return
	}
	r.Surge -= lacking
	m.changed.Add(s.ID)
	if r.NoRoom = r.Surge == 0; r.NoRoom {
		r.progress = m.now
		d.event(api.ReasonNoCapacity, "no cluster has room for an additional instance: instances of version %d are replaced in place", s.Version)
	}
}

// canaries reports whether the roll-out waits for a promotion of its canaries.
func (m *Machine) canaries(r *rollOut, s Service, c counts, d *Decision) bool {
	if !r.onCanaries(s, c) || c.succeeded < min(r.canaries(s), c.awake) {
		if r.State == api.RollOutCanary { // one of them is not healthy any more
			m.proceed(r)
		}
		return false
	}
	if r.State != api.RollOutCanary {
		r.State = api.RollOutCanary
		m.changed.Add(s.ID)
		d.event(api.ReasonNone, "%d instances with version %d are healthy and wait for treeline rollout promote", c.succeeded, s.Version)
	}
	return true
}

// proceed continues a roll-out with a new deadline.
func (m *Machine) proceed(r *rollOut) {
	r.State = api.RollOutProgressing
	if r.Failed != 0 {
		r.State = api.RollOutRollingBack
	}
	r.Detail, r.progress = "", m.now
	m.changed.Add(r.Service)
}

func (r *rollOut) awaitsPromotion(s Service) bool {
	return s.Policy.Canaries > 0 && !r.Promoted && r.Replaces && r.Healthy != 0
}

// onCanaries reports whether only canaries are replaced. If all instances sleep, none of them proves anything.
func (r *rollOut) onCanaries(s Service, c counts) bool { return r.awaitsPromotion(s) && c.awake > 0 }

// floor returns how many instances must take requests. Those that sleep need not, also those with an earlier
// version that are not replaced before the promotion.
func (r *rollOut) floor(s Service, c counts) int {
	asleep := c.dormant
	if r.onCanaries(s, c) {
		asleep = len(s.Instances) - c.awake
	}
	return max(0, s.Replicas-r.Waiting-asleep)
}

func (r *rollOut) mayRollBack(s Service) bool {
	return s.Policy.AutoRollback && r.Healthy != 0 && r.Healthy != r.Version && r.Failed == 0 && r.version(r.Healthy) != nil
}

func (r *rollOut) version(v api.Revision) *Version {
	if i := slices.IndexFunc(r.History, func(o Version) bool { return o.Version == v }); i >= 0 {
		return &r.History[i]
	}
	return nil
}

// canaries returns the number of canaries: as far as there is room for them as additional instances.
func (r *rollOut) canaries(s Service) int {
	if r.Surge > 0 && r.Surging {
		return min(s.Policy.Canaries, r.Surge)
	}
	return s.Policy.Canaries
}

// extra returns how many instances the service should have in addition to its replicas.
func (m *Machine) extra(r *rollOut, s Service) int {
	switch {
	case r.over() || !r.Surging || r.Surge == 0 || m.onlyExtrasLeft(r, s):
		return 0
	case r.awaitsPromotion(s):
		return r.canaries(s)
	}
	return r.Surge
}

// onlyExtrasLeft reports whether as many instances as wanted have the version and are healthy, and
// those that have another have higher numbers: they were additional ones of a roll-out that was undone
// or failed, and are withdrawn instead of replaced.
func (m *Machine) onlyExtrasLeft(r *rollOut, s Service) bool {
	healthy := 0
	for _, i := range s.Instances { // sorted by number
		switch {
		case i.Version != s.Version:
			return healthy >= s.Replicas
		case m.healthy(r, s, i):
			healthy++
		}
	}
	return false
}

// choose returns the instances to replace now. An instance that takes requests is replaced only if
// as many as wanted remain ready. The first instance that becomes healthy proves the version, before
// others are replaced at once.
func (m *Machine) choose(r *rollOut, s Service, c counts) (out []api.InstanceID) {
	floor := r.floor(s, c)
	if r.Surge == 0 {
		floor -= s.Policy.Parallelism
	}
	budget, ready := s.Policy.Parallelism-c.open, c.ready
	if c.succeeded == 0 && r.Healthy != 0 {
		budget = min(budget, 1-c.open)
	}
	if m.onlyExtrasLeft(r, s) {
		return nil
	}
	most := len(s.Instances)
	canary := r.onCanaries(s, c)
	if canary {
		if most = r.canaries(s) - (c.updated - c.dormant); r.Surge > 0 && r.Surging { // those that are additional already
			most = min(most, len(s.Instances)-s.Replicas)
		}
	}
	for _, i := range r.inOrder(s) {
		if i.Held || len(out) >= most || canary && i.Dormant { // one that sleeps proves nothing
			continue
		}
		if !i.Ready && !i.Unknown && (i.Version != r.Healthy || !i.Placed || i.Dormant) {
			out = append(out, i.ID) // nothing is lost
			continue
		}
		if budget <= 0 || i.Ready && ready-1 < floor || i.Unknown && ready < floor || r.NoRoom && !i.InPlace {
			continue
		}
		budget--
		if i.Ready {
			ready--
		}
		out = append(out, i.ID)
	}
	return out
}

// inOrder returns the instances with an earlier version in the order in which they are replaced:
// first those that take no requests, then those that do not have the healthy version.
func (r *rollOut) inOrder(s Service) (out []Instance) {
	for _, i := range s.Instances {
		if i.Version != s.Version {
			out = append(out, i)
		}
	}
	rank := func(i Instance) int {
		switch {
		case !i.Ready:
			return 0
		case i.Version != r.Healthy:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(out, func(a, b Instance) int { return cmp.Compare(rank(a), rank(b)) })
	return out
}

// succeed ends a roll-out whose version is healthy.
func (m *Machine) succeed(r *rollOut, s Service, d *Decision) {
	r.State, r.Detail, r.Ended = api.RollOutHealthy, "", m.wall
	if v := r.version(r.Version); v != nil {
		v.Result, v.Detail, v.Ended = api.RollOutHealthy, "", m.wall
	}
	if len(s.Instances) > 0 {
		r.Healthy = r.Version
	}
	if r.Replaces {
		d.event(api.ReasonNone, "all instances have version %d and are healthy", r.Version)
	}
	m.changed.Add(s.ID)
}

// fail ends a roll-out that does not get its version healthy, or begins the return to the version
// that was healthy last.
func (m *Machine) fail(r *rollOut, s Service, why string, d *Decision) {
	why = step.Clip(why)
	back := r.mayRollBack(s)
	r.State, r.Detail, r.Ended = api.RollOutFailed, why, m.wall
	if v := r.version(r.Version); v != nil {
		v.Result, v.Detail, v.Ended = api.RollOutFailed, why, m.wall
	}
	m.changed.Add(s.ID)
	if !back {
		d.event(api.ReasonNone, "the roll-out of version %d failed: %s", r.Version, why)
		return
	}
	r.State, r.Ended = api.RollOutRollingBack, time.Time{}
	v := *r.version(r.Healthy)
	d.RollBack = &v
	d.event(api.ReasonRolledBack, "version %d failed: %s; version %d returns", r.Version, why, r.Healthy)
}

// Unrestored returns the version to apply for a service whose roll-out failed, if a crash prevented
// that; otherwise nil.
func (m *Machine) Unrestored(id api.ServiceID) *Version {
	r := m.rollOuts[id]
	if r == nil || !r.pending() {
		return nil
	}
	return r.version(r.Healthy)
}

// CannotRollBack records that the version that was healthy last cannot be applied.
func (m *Machine) CannotRollBack(id api.ServiceID, err error) {
	r := m.rollOuts[id]
	r.State, r.Ended = api.RollOutFailed, m.wall
	r.Detail = step.Clip(fmt.Sprintf("%s; version %d cannot return: %v", r.Detail, r.Healthy, err))
	m.changed.Add(id)
}

// wake sets the time at which the roll-out may go on without a change of an instance.
func (m *Machine) wake(r *rollOut, s Service) {
	m.timers.Clear(s.ID)
	if r.State == api.RollOutHealthy || r.State == api.RollOutPaused {
		return
	}
	set := func(at time.Time) {
		if at.After(m.now) {
			m.timers.SetEarlier(s.ID, at)
		}
	}
	for _, at := range r.ready {
		set(at.at.Add(r.minHealthy(s)))
	}
	if r.State == api.RollOutFailed || s.Policy.OneByOne {
		return
	}
	for _, at := range r.unplaced {
		set(at.at.Add(roomWait))
	}
	if r.State != api.RollOutCanary {
		set(r.progress.Add(s.Policy.Deadline))
	}
}
