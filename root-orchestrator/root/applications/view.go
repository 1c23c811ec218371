package applications

import (
	"maps"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

func (m *Machine) ViewApp(id api.AppID) api.App {
	a := m.apps[id]
	v := api.App{
		ID: a.ID, Tenant: a.Tenant, Spec: a.Written(), Leaving: a.Leaving, Created: a.Created, By: a.By, Revision: a.Revision,
	}
	for i := range v.Spec.Services {
		v.Wanted += *v.Spec.Services[i].Replicas
	}
	for sid := range a.services() {
		v.Services = append(v.Services, sid)
		if s := m.services[sid]; s != nil {
			n := s.counts()
			v.Running, v.Completed, v.Failed, v.Dormant = v.Running+n.running, v.Completed+n.completed, v.Failed+n.failed, v.Dormant+n.dormant
		}
	}
	return v
}

// Written returns the application's SLA with the present numbers of replicas.
func (a *App) Written() api.Application {
	spec := a.Spec
	spec.Services = slices.Clone(a.Spec.Services)
	for i := range spec.Services {
		v := &spec.Services[i]
		n := a.Replicas[a.ID.Service(v.Name, v.Namespace)]
		v.Replicas = &n
	}
	return spec
}

type counts struct{ running, completed, failed, dormant int }

// counts counts the service's instances that run, have completed, have failed for good, and are
// dormant.
func (s *service) counts() (n counts) {
	for _, in := range s.instances {
		switch {
		case in.Leaving:
		case in.State == api.Running:
			n.running++
		case in.State == api.Completed:
			n.completed++
		case in.State == api.Dormant:
			n.dormant++
		case in.Ended():
			n.failed++
		}
	}
	return n
}

// versions returns the revisions of the SLA among the service's instances, the newest first; nil if
// there are fewer than two.
func (s *service) versions() []api.Version {
	by := map[api.Revision]*api.Version{}
	for _, in := range s.instances {
		if in.Leaving {
			continue
		}
		v := by[in.SpecRev]
		if v == nil {
			v = &api.Version{SpecRev: in.SpecRev, Code: in.Spec.Code}
			by[in.SpecRev] = v
		}
		if v.Instances++; in.State == api.Running {
			v.Running++
		}
	}
	if len(by) < 2 {
		return nil
	}
	out := make([]api.Version, 0, len(by))
	for _, rev := range slices.Backward(step.Keys(by)) {
		out = append(out, *by[rev])
	}
	return out
}

// labels returns the labels of a service: its own and those of the application.
func (a *App) labels(v *api.Microservice) api.Labels {
	if len(v.Labels) == 0 {
		return a.Spec.Labels
	}
	all := maps.Clone(v.Labels)
	for k, value := range a.Spec.Labels {
		if _, own := all[k]; !own {
			all[k] = value
		}
	}
	return all
}

func (m *Machine) ViewService(id api.ServiceID) (api.Service, bool) {
	s := m.services[id]
	if s == nil || s.app == nil {
		return api.Service{}, false
	}
	n := s.counts()
	return api.Service{
		ID: id, App: s.app.ID, Spec: *s.spec, Labels: s.app.labels(s.spec), Replicas: s.app.Replicas[id],
		Running: n.running, Completed: n.completed, Failed: n.failed, Dormant: n.dormant, Versions: s.versions(),
		SpecRev: s.app.SpecRevs[id], Revision: s.app.Revision, Addresses: s.app.Addresses[id],
	}, true
}

// View returns the instance as the API shows it, without Stale, which depends on its cluster.
func (in *Instance) View() api.Instance {
	return api.Instance{
		ID: in.ID, Service: in.ID.Service(), Number: in.ID.Number(), State: in.State, Reason: in.Reason,
		Detail: in.Detail, Cluster: in.Cluster, Epoch: in.Epoch, Restarts: in.Restarts, Failures: in.Failures, ExitCode: in.ExitCode,
		Spec: in.SpecRev, Leaving: in.Leaving, Since: in.Since, Created: in.Created, Revision: in.Revision, Tries: in.Tries,
		Address: in.Address, Ready: in.Ready && in.State == api.Running, Violated: in.Violated, Devices: in.Devices, Runs: in.Runs,
	}
}

// DryRun returns a copy with the given applications and services, and the instances of these.
func (m *Machine) DryRun(apps []api.AppID, services []api.ServiceID) *Machine {
	d := New()
	d.Begin(m.wall)
	for _, id := range services {
		s := m.services[id]
		if s == nil {
			continue
		}
		d.service(id)
		for _, in := range s.instances {
			n := *in
			// Placements grows in place; the other slices are replaced when they change.
			n.Placements = slices.Clone(in.Placements)
			d.enter(&n)
		}
	}
	for _, id := range apps {
		if a := m.apps[id]; a != nil {
			n := *a
			n.Replicas, n.SpecRevs, n.Addresses = maps.Clone(a.Replicas), maps.Clone(a.SpecRevs), maps.Clone(a.Addresses)
			d.RestoreApp(&n)
		}
	}
	return d
}
