package root

import (
	"fmt"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/eventlog"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root/applications"
)

// Within reports whether tenant is of or below it. The tenant "" contains all.
func Within(tenant, of api.Tenant) bool {
	return of == "" || tenant == of || strings.HasPrefix(string(tenant), string(of)+"/")
}

func (s *state) Revision() api.Revision { return api.Revision(s.counter.Last()) }

func (s *state) App(id api.AppID) (api.App, bool) {
	if s.apps.App(id) == nil {
		return api.App{}, false
	}
	return s.apps.ViewApp(id), true
}

// Apps returns the applications of a tenant and the tenants below it, sorted by id.
func (s *state) Apps(tenant api.Tenant) []api.App { return list(s.apps.Apps(), tenant, s.App) }

func list[T any, ID interface{ Tenant() api.Tenant }](ids []ID, tenant api.Tenant, view func(ID) (T, bool)) (out []T) {
	for _, id := range ids {
		if !Within(id.Tenant(), tenant) {
			continue
		}
		if v, ok := view(id); ok {
			out = append(out, v)
		}
	}
	return out
}

func (s *state) Service(id api.ServiceID) (api.Service, bool) {
	v, ok := s.apps.ViewService(id)
	if state, replaces := s.rollouts.State(id); replaces && state != api.RollOutHealthy {
		v.RollOut = state
	}
	return v, ok
}

// Services returns the services of a tenant and the tenants below it, sorted by id.
func (s *state) Services(tenant api.Tenant) []api.Service {
	return list(s.apps.Services(), tenant, s.Service)
}

func (s *state) Instance(id api.InstanceID) (api.Instance, bool) {
	in, ok := s.apps.Instance(id)
	if !ok {
		return api.Instance{}, false
	}
	return s.view(&in), true
}

// Instances returns the instances of a tenant and the tenants below it, sorted by id.
func (s *state) Instances(tenant api.Tenant) []api.Instance {
	return list(s.apps.Instances(), tenant, s.Instance)
}

// PerCluster returns one instance of a service in each of its clusters.
func (s *state) PerCluster(id api.ServiceID) map[api.ClusterID]api.InstanceID {
	out := map[api.ClusterID]api.InstanceID{}
	for in := range s.apps.EachOf(id) {
		if had, has := out[in.Cluster]; in.Cluster != "" && (!has || in.ID < had) {
			out[in.Cluster] = in.ID
		}
	}
	return out
}

func (s *state) view(in *applications.Instance) api.Instance {
	v := in.View()
	v.Stale = s.copies && in.Reason == api.ReasonClusterLost || s.clusters.Known(in.Cluster) && !s.clusters.Live(in.Cluster)
	return v
}

func (s *state) Cluster(id api.ClusterID) (api.Cluster, bool) {
	if !s.clusters.Known(id) {
		return api.Cluster{}, false
	}
	v := s.clusters.View(id)
	v.Heard = s.clock.Real(v.Heard)
	v.Shares, v.NetworkError = s.net.Shares(id), s.net.ShareError(id)
	return v, true
}

func (s *state) Clusters() []api.Cluster {
	out := []api.Cluster{}
	for _, id := range s.clusters.IDs() {
		v, _ := s.Cluster(id)
		out = append(out, v)
	}
	return out
}

// RefusedValues returns, for each cluster, how many values of its messages were out of bounds since
// the root started.
func (s *state) RefusedValues() map[api.ClusterID]uint64 { return s.clusters.RefusedValues() }

// Events returns the events that f selects, oldest first.
func (s *state) Events(f eventlog.Filter) []api.Event { return s.events.List(f) }

// Interest returns how many network subscriptions clusters have, and how many of them are
// unanswered.
func (s *state) Interest() (all, open int) { return s.net.Totals() }

// Why explains why an instance is where it is or why it has no place, and what would change that.
// now determines the age of its state.
func (s *state) Why(id api.InstanceID, now time.Time) (api.Why, bool) {
	in, ok := s.apps.Instance(id)
	if !ok {
		return api.Why{}, false
	}
	w := api.Why{Instance: s.view(&in), Placements: append([]api.Placement(nil), in.Placements...)}
	s.placement.Explain(facts(&in), &w, now.Sub(in.Since).Round(time.Second))
	if state, replaces := s.rollouts.State(id.Service()); replaces && state != api.RollOutHealthy {
		r, _ := s.RollOut(id.Service())
		if w.Summary += fmt.Sprintf("; the roll-out of version %d is ", r.Version) + r.Standing(); in.SpecRev != r.Version {
			w.Summary += fmt.Sprintf("; this instance has version %d", in.SpecRev)
		}
	}
	return w, true
}

// MaxUnavailable returns the disruption budget of a service, and whether it has one.
func (s *state) MaxUnavailable(id api.ServiceID) (n int, limited bool) {
	if b := s.apps.MaxUnavailable(id); b != nil {
		return *b, true
	}
	return 0, false
}

func (s *state) assignment(in *applications.Instance, at api.ClusterID) wire.Assignment {
	a := in.Assignment(at, s.wall)
	a.Watched, a.Targets = s.placement.Targets(in.ID.Service(), at)
	a.MaxUnavailable = s.apps.MaxUnavailable(in.ID.Service())
	return a
}
