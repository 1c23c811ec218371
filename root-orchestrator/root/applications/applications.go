// Package applications keeps applications, their services and the instances of these, with their
// states. It is a sub-machine of the root's core. It records where an instance runs, but does not
// decide it.
//
//	m := applications.New()
//	m.Begin(wall)
//	v, err := m.Apply(request, nextRevision)
package applications

import (
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// MaxReplicas limits the instances of one service.
const MaxReplicas = 10_000

// App is the saved state of an application.
type App struct {
	ID        api.AppID                              `json:"id"`
	Tenant    api.Tenant                             `json:"tenant"`
	Spec      api.Application                        `json:"spec"`
	Replicas  map[api.ServiceID]int                  `json:"replicas"`
	SpecRevs  map[api.ServiceID]api.Revision         `json:"spec_revisions"`
	Created   time.Time                              `json:"created"`
	By        string                                 `json:"by,omitempty"`
	Addresses map[api.ServiceID]api.ServiceAddresses `json:"addresses,omitempty"`
	Leaving   bool                                   `json:"leaving,omitempty"`
	Revision  api.Revision                           `json:"revision"`
}

// service is a service of an application, or one that its application no longer has but that still
// has instances.
type service struct {
	id        api.ServiceID
	app       *App              // nil if no application has the service
	spec      *api.Microservice // nil if app is nil
	extra     int               // instances in addition to the replicas, during a roll-out
	instances map[api.InstanceID]*Instance
}

// Machine has all applications. Begin sets the time of a step for all other methods. A method that
// takes the id of an application or an instance panics if there is none, unless its comment says
// otherwise. Machine is not safe for concurrent use.
type Machine struct {
	wall      time.Time
	apps      map[api.AppID]*App
	services  map[api.ServiceID]*service
	instances map[api.InstanceID]*Instance

	changedApps      step.Queue[api.AppID]
	changedInstances step.Queue[api.InstanceID]
	toReconcile      step.Queue[api.ServiceID]
	budgetsDue       step.Queue[api.ServiceID] // see TakeBudgets
	rebudgeted       map[api.ServiceID]bool    // of budgetsDue, those whose budget has changed
}

// New returns a Machine without applications.
func New() *Machine {
	return &Machine{
		apps: map[api.AppID]*App{}, services: map[api.ServiceID]*service{}, instances: map[api.InstanceID]*Instance{}, rebudgeted: map[api.ServiceID]bool{},
	}
}

// Begin begins a step at the time wall.
func (m *Machine) Begin(wall time.Time) { m.wall = wall }

func (m *Machine) service(id api.ServiceID) *service {
	s := m.services[id]
	if s == nil {
		s = &service{id: id, instances: map[api.InstanceID]*Instance{}}
		m.services[id] = s
	}
	return s
}

// services yields the application's services in the order of its SLA.
func (a *App) services() iter.Seq2[api.ServiceID, *api.Microservice] {
	return func(yield func(api.ServiceID, *api.Microservice) bool) {
		for i := range a.Spec.Services {
			v := &a.Spec.Services[i]
			if !yield(a.ID.Service(v.Name, v.Namespace), v) {
				return
			}
		}
	}
}

// index sets the application and the SLA of the application's services.
func (m *Machine) index(a *App) {
	for id, v := range a.services() {
		s := m.service(id)
		s.app, s.spec = a, v
	}
}

// RestoreApp adds a saved application. It replaces an earlier version of it.
func (m *Machine) RestoreApp(a *App) {
	m.ForgetApp(a.ID)
	m.apps[a.ID] = a
	m.index(a)
}

// ForgetApp is the reverse of RestoreApp. Its services stay while they have instances. It ignores an unknown
// application.
func (m *Machine) ForgetApp(id api.AppID) {
	a := m.apps[id]
	if a == nil {
		return
	}
	for sid := range a.services() {
		if s := m.services[sid]; s != nil {
			s.app, s.spec = nil, nil
			m.tidy(s)
		}
	}
	delete(m.apps, id)
}

// tidy forgets a service without an application and instances.
func (m *Machine) tidy(s *service) {
	if s.app == nil && len(s.instances) == 0 {
		delete(m.services, s.id)
	}
}

// Apps returns the ids of all applications, sorted.
func (m *Machine) Apps() []api.AppID { return step.Keys(m.apps) }

// Services returns the ids of all services, sorted. It includes services that no application has
// any more and that still have instances.
func (m *Machine) Services() []api.ServiceID { return step.Keys(m.services) }

// Written returns the services of an application in the order of its SLA.
func (m *Machine) Written(id api.AppID) (out []api.ServiceID) {
	for s := range m.apps[id].services() {
		out = append(out, s)
	}
	return out
}

// Indexed returns the present services of an application, sorted by id.
func (m *Machine) Indexed(id api.AppID) (out []api.ServiceID) {
	for _, sid := range step.Keys(m.apps[id].Replicas) {
		if s := m.services[sid]; s != nil && s.spec != nil {
			out = append(out, sid)
		}
	}
	return out
}

// App returns an application, or nil. It is only read.
func (m *Machine) App(id api.AppID) *App { return m.apps[id] }

// Service returns the application and the newest SLA of a service, or nil if no application has it.
// They are only read.
func (m *Machine) Service(id api.ServiceID) (*App, *api.Microservice) {
	if s := m.services[id]; s != nil {
		return s.app, s.spec
	}
	return nil, nil
}

// Known reports whether an application has the service or instances of it are left.
func (m *Machine) Known(id api.ServiceID) bool { return m.services[id] != nil }

// ByUrgency returns the services of an application, the most urgent first, and services of the same
// urgency in the order of the SLA.
func (m *Machine) ByUrgency(id api.AppID) []api.ServiceID {
	out := m.Written(id)
	slices.SortStableFunc(out, func(x, y api.ServiceID) int {
		return cmp.Compare(m.services[y].spec.Urgency(), m.services[x].spec.Urgency())
	})
	return out
}

// Request is the request to create or update an application. The zero IfMatch sets no condition.
type Request struct {
	Tenant       api.Tenant
	Spec         api.Application
	IfMatch      api.Revision
	MustNotExist bool
	By           string
}

// precondition returns ErrPrecondition if want is set and differs from have.
func precondition(object string, have, want api.Revision) error {
	if want == 0 || have == want {
		return nil
	}
	return fmt.Errorf("%s is at revision %d, not %d; get it again and repeat: %w", object, have, want, api.ErrPrecondition)
}

// CheckApply returns ErrPrecondition (IfMatch, MustNotExist) or ErrConflict (the application is
// being deleted) if the request must be refused. Apply does not check this.
func (m *Machine) CheckApply(r *Request) error {
	id := r.Tenant.App(r.Spec.Name, r.Spec.Namespace)
	a := m.apps[id]
	switch {
	case a == nil && r.IfMatch != 0:
		return fmt.Errorf("application %s does not exist: %w", id, api.ErrPrecondition)
	case a == nil:
		return nil
	case r.MustNotExist:
		return fmt.Errorf("application %s exists: %w", id, api.ErrPrecondition)
	case a.Leaving:
		return fmt.Errorf("application %s is being deleted; wait until it is gone (treeline wait --for=deleted): %w", id, api.ErrConflict)
	}
	return precondition("application "+string(id), a.Revision, r.IfMatch)
}

// Create adds an application without services. Apply has to follow.
func (m *Machine) Create(id api.AppID, tenant api.Tenant) {
	m.apps[id] = &App{ID: id, Tenant: tenant, Created: m.wall}
}

// Apply replaces an application's SLA. Each service whose SLA differs gets a new revision from
// next, or that of instances which have the same SLA, so that a return to it does not replace them.
// Apply returns the services that the application no longer has, and whether the new SLA differs.
func (m *Machine) Apply(r *Request, next func() api.Revision) (gone []api.ServiceID, differs bool) {
	a := m.apps[r.Tenant.App(r.Spec.Name, r.Spec.Namespace)]
	before := maps.Collect(a.services())
	differs = a.Replicas == nil || a.Spec.Description != r.Spec.Description || !maps.Equal(a.Spec.Labels, r.Spec.Labels)
	replicas, revs := map[api.ServiceID]int{}, map[api.ServiceID]api.Revision{}
	spec := r.Spec
	spec.ID, spec.Services = "", slices.Clone(r.Spec.Services)
	for i := range spec.Services {
		v := &spec.Services[i]
		id := a.ID.Service(v.Name, v.Namespace)
		want, had := a.Replicas[id]
		if !had {
			want = 1
		}
		if v.Replicas != nil {
			want = *v.Replicas
		}
		if v.Scale != nil {
			want = v.Scale.Max
		}
		v.Replicas, v.ID = nil, ""
		replicas[id], revs[id] = want, a.SpecRevs[id]
		if old := before[id]; old == nil || !same(old, v) {
			if revs[id] = m.revisionOf(id, old, v); revs[id] == 0 {
				revs[id] = next()
			}
			differs = true
		} else if !reflect.DeepEqual(old.Update, v.Update) || !reflect.DeepEqual(old.Disruption, v.Disruption) || !maps.Equal(old.Labels, v.Labels) {
			differs = true
			if !reflect.DeepEqual(old.Disruption, v.Disruption) {
				m.rebudgeted[id] = true
				m.budgetsDue.Add(id)
			}
		}
		differs = differs || !had || a.Replicas[id] != want
		delete(before, id)
	}
	a.Spec, a.Replicas, a.SpecRevs = spec, replicas, revs
	m.index(a)
	gone = step.Keys(before)
	for _, id := range gone {
		m.services[id].app, m.services[id].spec = nil, nil
	}
	if differs = differs || len(gone) > 0; differs {
		a.By = r.By
		m.changedApps.Add(a.ID)
	}
	return gone, differs
}

// Revise gives a service a new revision of its unchanged SLA, so that its instances are replaced. It
// ignores a service without an application.
func (m *Machine) Revise(id api.ServiceID, next func() api.Revision) {
	if a, _ := m.Service(id); a != nil && !a.Leaving {
		a.SpecRevs[id] = next()
		m.changedApps.Add(a.ID)
	}
}

// forInstances returns the SLA without the fields that only the root reads and instances do not depend on.
func forInstances(m *api.Microservice) api.Microservice {
	x := *m
	x.Update, x.Labels, x.Disruption = nil, nil, nil
	return x
}

// same reports whether two SLAs are the same for instances.
func same(a, b *api.Microservice) bool {
	p, _ := json.Marshal(forInstances(a))
	q, _ := json.Marshal(forInstances(b))
	return string(p) == string(q)
}

// revisionOf returns the revision of instances of a service that have the SLA is, or 0. The service
// has the SLA was at present. The addresses of the instances must not differ from those that the
// service has with is.
func (m *Machine) revisionOf(id api.ServiceID, was, is *api.Microservice) api.Revision {
	s := m.services[id]
	if s == nil || was == nil || !reflect.DeepEqual(was.Addresses, is.Addresses) {
		return 0
	}
	seen := map[api.Revision]bool{}
	for _, k := range step.Keys(s.instances) {
		in := s.instances[k]
		if in.Leaving || seen[in.SpecRev] {
			continue
		}
		now := m.AddressesOf(id, k.Number())
		if seen[in.SpecRev] = true; same(in.Spec, is) && in.Addresses.RoundRobin == now.RoundRobin && in.Addresses.Closest == now.Closest {
			return in.SpecRev
		}
	}
	return 0
}

// Scale sets the number of a service's replicas and returns the earlier one. Errors: ErrNotFound,
// ErrInvalid, ErrConflict (the application is being deleted), ErrPrecondition.
func (m *Machine) Scale(id api.ServiceID, replicas int, ifMatch api.Revision) (was int, err error) {
	a, spec := m.Service(id)
	switch {
	case a == nil:
		return 0, fmt.Errorf("service %s: %w", id, api.ErrNotFound)
	case spec.Scale != nil:
		return 0, fmt.Errorf("scale %s: its SLA has scale, which decides the number: change min and max there: %w", id, api.ErrConflict)
	case replicas < 0 || replicas > MaxReplicas:
		return 0, fmt.Errorf("%d replicas of %s: want 0 to %d: %w", replicas, id, MaxReplicas, api.ErrInvalid)
	case a.Leaving:
		return 0, fmt.Errorf("application %s is being deleted: %w", a.ID, api.ErrConflict)
	}
	if err := precondition("application "+string(a.ID), a.Revision, ifMatch); err != nil {
		return 0, err
	}
	if was = a.Replicas[id]; was != replicas {
		a.Replicas[id] = replicas
		m.changedApps.Add(a.ID)
	}
	return was, nil
}

// AddReplicas adds by to the number of a service's replicas, if an application has the service and
// the result is not negative.
func (m *Machine) AddReplicas(id api.ServiceID, by int) {
	if a, _ := m.Service(id); a != nil && a.Replicas[id]+by >= 0 {
		a.Replicas[id] += by
		m.changedApps.Add(a.ID)
	}
}

// Delete marks an application as leaving, and reports whether it was not leaving before. Errors:
// ErrNotFound, ErrPrecondition.
func (m *Machine) Delete(id api.AppID, ifMatch api.Revision) (first bool, err error) {
	a := m.apps[id]
	if a == nil {
		return false, fmt.Errorf("application %s: %w", id, api.ErrNotFound)
	}
	if err := precondition("application "+string(id), a.Revision, ifMatch); err != nil {
		return false, err
	}
	if first = !a.Leaving; first {
		a.Leaving = true
		m.changedApps.Add(id)
	}
	return first, nil
}

// Finish removes and returns an application that is leaving and has no instances. Otherwise, or if
// there is no such application, it returns nil.
func (m *Machine) Finish(id api.AppID) *App {
	a := m.apps[id]
	if a == nil || !a.Leaving {
		return nil
	}
	for sid := range a.services() {
		if s := m.services[sid]; s != nil && len(s.instances) > 0 {
			return nil
		}
	}
	for sid := range a.Replicas {
		delete(m.services, sid)
	}
	delete(m.apps, id)
	return a
}

// SetAddresses replaces the addresses of a service.
func (m *Machine) SetAddresses(a *App, id api.ServiceID, have api.ServiceAddresses) {
	old := a.Addresses[id]
	if old.RoundRobin == have.RoundRobin && old.Closest == have.Closest && maps.Equal(old.Instances, have.Instances) {
		return
	}
	if a.Addresses == nil {
		a.Addresses = map[api.ServiceID]api.ServiceAddresses{}
	}
	a.Addresses[id] = have
	m.changedApps.Add(a.ID)
}

// AddressesOf returns the addresses of a service for the assignment of its instance number n.
func (m *Machine) AddressesOf(id api.ServiceID, n int) api.ServiceAddresses {
	a, _ := m.Service(id)
	all := a.Addresses[id]
	own := api.ServiceAddresses{RoundRobin: all.RoundRobin, Closest: all.Closest}
	if at, ok := all.Instances[n]; ok {
		own.Instances = map[int]netip.Addr{n: at}
	}
	return own
}

// TakeChanged returns the applications and instances that changed since the last call, in the order
// of their first change. Some may have been removed.
func (m *Machine) TakeChanged() ([]api.AppID, []api.InstanceID) {
	return m.changedApps.Take(), m.changedInstances.Take()
}

// SavedApp sets the revision of an application and returns it to be saved.
func (m *Machine) SavedApp(id api.AppID, rev api.Revision) *App {
	a := m.apps[id]
	a.Revision = rev
	return a
}
