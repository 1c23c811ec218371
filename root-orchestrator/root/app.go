package root

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
)

// app is what the root keeps of an application.
type app struct {
	ID       api.AppID                      `json:"id"`
	Tenant   api.Tenant                     `json:"tenant"`
	Spec     api.Application                `json:"spec"`
	Replicas map[api.ServiceID]int          `json:"replicas"`
	SpecRevs map[api.ServiceID]api.Revision `json:"spec_revisions"`
	Created  time.Time                      `json:"created"`
	By       string                         `json:"by,omitempty"`
	// Addresses are the services' semantic ones. They are saved with what asks for them.
	Addresses map[api.ServiceID]api.ServiceAddresses `json:"addresses,omitempty"`
	Leaving   bool                                   `json:"leaving,omitempty"`
	Revision  api.Revision                           `json:"revision"`
}

// service is one service of an application, or what is left of one that its
// application no longer has.
type service struct {
	id        api.ServiceID
	app       *app              // nil once the application has it no more
	spec      *api.Microservice // nil then, too
	instances map[api.InstanceID]*instance
	peers     map[string]int // instances per cluster
	net       serviceNet
	link      serviceLinks
	refused   refusals
	places    places
}

func (c *Core) changedApp(a *app) {
	if c.dirty.first("app", string(a.ID)) {
		c.dirty.apps = append(c.dirty.apps, a.ID)
	}
}

func (c *Core) restoreApp(d store.Doc) error {
	a := new(app)
	if err := json.Unmarshal(d.Data, a); err != nil {
		return err
	}
	c.apps[a.ID] = a
	c.index(a)
	for _, id := range step.Keys(a.Addresses) {
		a.Addresses[id] = c.net.addresses.Mark(id, a.Addresses[id])
	}
	return nil
}

func (c *Core) service(id api.ServiceID) *service {
	s := c.services[id]
	if s == nil {
		s = &service{id: id, instances: map[api.InstanceID]*instance{}, peers: map[string]int{}}
		c.services[id] = s
	}
	return s
}

// index points the services at what the application says of them now.
func (c *Core) index(a *app) {
	for i := range a.Spec.Services {
		m := &a.Spec.Services[i]
		s := c.service(a.ID.Service(m.Name, m.Namespace))
		s.app, s.spec = a, m
	}
	c.relate(a)
}

func precondition(what string, have, want api.Revision) error {
	if want == 0 || have == want {
		return nil
	}
	return fmt.Errorf("%s is at revision %d, not %d; get it again and repeat: %w", what, have, want, api.ErrPrecondition)
}

func (c *Core) apply(in Apply) error {
	id := in.Tenant.App(in.Spec.Name, in.Spec.Namespace)
	a := c.apps[id]
	switch {
	case a == nil && in.IfMatch != 0:
		return fmt.Errorf("application %s does not exist: %w", id, api.ErrPrecondition)
	case a != nil && in.MustNotExist:
		return fmt.Errorf("application %s exists: %w", id, api.ErrPrecondition)
	case a != nil && a.Leaving:
		return leavingApp(id)
	case a != nil:
		if err := precondition("application "+string(id), a.Revision, in.IfMatch); err != nil {
			return err
		}
	}
	plans, err := c.planAddresses(id, in.Spec)
	if err != nil {
		return err
	}
	if a == nil {
		a = &app{ID: id, Tenant: in.Tenant, Created: c.wall}
		c.apps[id] = a
		c.event(api.Event{Tenant: in.Tenant, Kind: "app", Object: id.Name(), Detail: "created by " + in.By})
	}
	before := step.Keys(a.Replicas)
	if c.rewrite(a, in) {
		a.By = in.By
		c.changedApp(a)
	}
	c.commit(a, plans)
	c.namesChanged(a, before)
	for _, s := range c.servicesByUrgency(a) {
		c.reconcile(s)
	}
	return nil
}

func leavingApp(id api.AppID) error {
	return fmt.Errorf("application %s is being deleted; wait until it is gone (treeline wait --for=deleted): %w", id, api.ErrConflict)
}

// servicesByUrgency are the application's services, the most urgent first, and
// else as its SLA has them.
func (c *Core) servicesByUrgency(a *app) []*service {
	var out []*service
	for i := range a.Spec.Services {
		m := &a.Spec.Services[i]
		out = append(out, c.services[a.ID.Service(m.Name, m.Namespace)])
	}
	slices.SortStableFunc(out, func(x, y *service) int { return cmp.Compare(y.spec.Urgency(), x.spec.Urgency()) })
	return out
}

// rewrite makes the application what the SLA says, and reports whether anything
// differs from what it was.
func (c *Core) rewrite(a *app, in Apply) bool {
	before := map[api.ServiceID]*api.Microservice{}
	for i := range a.Spec.Services {
		m := &a.Spec.Services[i]
		before[a.ID.Service(m.Name, m.Namespace)] = m
	}
	differs := a.Replicas == nil || a.Spec.Description != in.Spec.Description
	replicas, revs := map[api.ServiceID]int{}, map[api.ServiceID]api.Revision{}
	spec := in.Spec
	spec.ID = ""
	spec.Services = append([]api.Microservice(nil), in.Spec.Services...)
	for i := range spec.Services {
		m := &spec.Services[i]
		id := a.ID.Service(m.Name, m.Namespace)
		want, had := a.Replicas[id]
		if !had {
			want = 1
		}
		if m.Replicas != nil {
			want = *m.Replicas
		}
		m.Replicas, m.ID = nil, ""
		replicas[id], revs[id] = want, a.SpecRevs[id]
		old := before[id]
		if old == nil || !same(old, m) {
			revs[id] = c.nextRev()
			differs = true
		}
		differs = differs || !had || a.Replicas[id] != want
		delete(before, id)
	}
	a.Spec, a.Replicas, a.SpecRevs = spec, replicas, revs
	c.index(a)
	for _, id := range step.Keys(before) {
		differs = true
		s := c.services[id]
		s.app, s.spec, s.link, s.places.reaches = nil, nil, serviceLinks{parted: s.link.parted}, nil
		c.reconcile(s)
	}
	return differs
}

func same(a, b *api.Microservice) bool {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return string(x) == string(y)
}

func (c *Core) scale(in Scale) error {
	s := c.services[in.Service]
	if s == nil || s.app == nil {
		return fmt.Errorf("service %s: %w", in.Service, api.ErrNotFound)
	}
	a := s.app
	switch {
	case in.Replicas < 0 || in.Replicas > MaxReplicas:
		return fmt.Errorf("%d replicas of %s: want 0 to %d: %w", in.Replicas, in.Service, MaxReplicas, api.ErrInvalid)
	case a.Leaving:
		return fmt.Errorf("application %s is being deleted: %w", a.ID, api.ErrConflict)
	}
	if err := precondition("application "+string(a.ID), a.Revision, in.IfMatch); err != nil {
		return err
	}
	if a.Replicas[s.id] != in.Replicas {
		c.event(api.Event{
			Tenant: a.Tenant, Kind: "service", Object: s.id.Name(),
			Detail: fmt.Sprintf("scaled from %d to %d by %s", a.Replicas[s.id], in.Replicas, in.By),
		})
		a.Replicas[s.id] = in.Replicas
		c.changedApp(a)
	}
	c.reconcile(s)
	return nil
}

func (c *Core) deleteApp(in DeleteApp) error {
	a := c.apps[in.App]
	if a == nil {
		return fmt.Errorf("application %s: %w", in.App, api.ErrNotFound)
	}
	if err := precondition("application "+string(a.ID), a.Revision, in.IfMatch); err != nil {
		return err
	}
	if !a.Leaving {
		a.Leaving = true
		c.changedApp(a)
		c.event(api.Event{Tenant: a.Tenant, Kind: "app", Object: a.ID.Name(), Detail: "deletion asked for by " + in.By})
	}
	for i := range a.Spec.Services {
		m := &a.Spec.Services[i]
		if s := c.services[a.ID.Service(m.Name, m.Namespace)]; s != nil {
			c.reconcile(s)
		}
	}
	c.finishApp(a)
	return nil
}

// finishApp forgets an application that is being deleted and has no instance left.
func (c *Core) finishApp(a *app) {
	if !a.Leaving || c.apps[a.ID] != a {
		return
	}
	for i := range a.Spec.Services {
		m := &a.Spec.Services[i]
		if len(c.service(a.ID.Service(m.Name, m.Namespace)).instances) > 0 {
			return
		}
	}
	had := step.Keys(a.Replicas)
	for _, id := range had {
		delete(c.services, id)
	}
	delete(c.apps, a.ID)
	c.commit(a, nil)
	c.namesChanged(a, had)
	c.journal.Delete(kindApp, string(a.ID))
	c.event(api.Event{Tenant: a.Tenant, Kind: "app", Object: a.ID.Name(), Detail: "deleted"})
	c.show(api.Change{Kind: "app", ID: string(a.ID), Tenant: a.Tenant, Revision: c.nextRev()})
}

// reconcileSoon has a service reconciled at the end of the step, for a report
// may bring news of thousands of its instances.
func (c *Core) reconcileSoon(id api.ServiceID) {
	if c.dirty.first("service", string(id)) {
		c.dirty.services = append(c.dirty.services, id)
	}
}

func (c *Core) reconcileChanged() {
	for _, id := range c.dirty.services {
		if s := c.services[id]; s != nil {
			c.reconcile(s)
		}
	}
}

// reconcile brings a service to its number of instances and to its newest spec.
func (c *Core) reconcile(s *service) {
	want := 0
	if s.app != nil && !s.app.Leaving {
		want = s.app.Replicas[s.id]
	}
	var live []*instance
	for _, id := range step.Keys(s.instances) {
		if in := s.instances[id]; !in.Leaving {
			live = append(live, in)
		}
	}
	for len(live) > want {
		i := leastMissed(live)
		reason := api.ReasonScaledDown
		if want == 0 && (s.app == nil || s.app.Leaving) {
			reason = api.ReasonDeleted
		}
		c.leave(live[i], reason)
		live = append(live[:i], live[i+1:]...)
	}
	for n := 0; len(live) < want; n++ {
		if id := s.id.Instance(n); s.instances[id] == nil {
			live = append(live, c.create(s, id))
		}
	}
	c.rollOut(s, live)
	if len(s.instances) == 0 && s.app == nil {
		delete(c.services, s.id)
	}
}

// leastMissed is the instance to give up first: one that neither runs nor has
// completed, else one that does not run, else any; of several, the highest number.
func leastMissed(live []*instance) int {
	worth := func(in *instance) int {
		switch in.State {
		case api.Running:
			return 2
		case api.Completed:
			return 1
		}
		return 0
	}
	at := 0
	for i, in := range live {
		if c := cmp.Compare(worth(in), worth(live[at])); c < 0 || c == 0 && in.ID.Number() > live[at].ID.Number() {
			at = i
		}
	}
	return at
}

// rollOut gives instances the service's newest spec: those that do not run at
// once, those that run one after another, each when the one before it runs, so
// that a spec that does not work stops at one instance.
func (c *Core) rollOut(s *service, live []*instance) {
	if s.app == nil {
		return
	}
	rev := s.app.SpecRevs[s.id]
	for _, in := range live {
		if in.SpecRev != rev && in.State != api.Running {
			c.update(in, s)
		}
	}
	settling := false
	for _, in := range live {
		settling = settling || in.SpecRev == rev && in.settles()
	}
	for _, in := range live {
		if in.SpecRev != rev && in.State == api.Running && !settling {
			c.update(in, s)
			settling = in.SpecRev == rev
		}
	}
}

// settles reports whether it is open yet if the instance's spec works. One that
// fits nowhere says nothing about that and holds nobody up.
func (in *instance) settles() bool {
	switch in.State {
	case api.Running, api.Completed:
		return false
	case api.Requested:
		return in.Fails > 0
	}
	return true
}

func (c *Core) create(s *service, id api.InstanceID) *instance {
	in := &instance{
		ID: id, State: api.Registered, Spec: *s.spec, SpecRev: s.app.SpecRevs[s.id], Addresses: s.addressesFor(id.Number()),
		Created: c.wall, Since: c.wall,
	}
	c.enter(in)
	c.become(in, lifecycle.Must(in.State, lifecycle.Request), api.ReasonNone, "")
	c.tryPlace(in)
	return in
}

// update gives the instance the newest spec, as a new placement on the cluster
// that has it, or anywhere.
func (c *Core) update(in *instance, s *service) {
	cl := c.clusters[in.Cluster]
	if cl != nil && (cl.silent || !cl.heard) && in.Spec.Exclusive {
		return // it may run there; when the cluster is heard again, the roll-out goes on
	}
	c.endTrial(in)
	c.stopWaiting(in) // and what was asked about it was about what it was
	if cl != nil {
		c.takeBack(in, cl)
		// What was exclusive before it was not may be on its way to its end there still.
		if in.Spec.Exclusive || s.spec.Exclusive {
			c.awaitStop(in, cl)
		}
	}
	in.Spec, in.SpecRev, in.Addresses = *s.spec, s.app.SpecRevs[s.id], s.addressesFor(in.ID.Number())
	in.forgetRefusals()
	in.refusals, in.Fails, in.Restarts, in.Failures = nil, 0, 0, 0
	c.endSearch(in)
	had := takes(in.State)
	in.State = api.Requested
	if req := c.wish(in); had && req.SearchTime() > 0 {
		in.until = c.now // no search takes it off a place that it has, though it breaks links
	}
	c.become(in, api.Requested, api.ReasonUpdated, "gets a new SLA")
	if cl != nil && cl.out() == "" && c.admits(cl, in) && (!in.Spec.Exclusive || !in.stopsBeside(cl)) {
		c.assign(in, cl, 0, false)
		return
	}
	c.tryPlace(in)
}
