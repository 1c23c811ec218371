package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// planRounds limits how often a plan tries other clusters after refusals.
const planRounds = 4

type planIn struct {
	Tenant api.Tenant `query:"tenant" doc:"The owner of the applications; without it, the user's tenant."`
	IntoInput
	ContentType string `header:"Content-Type"`
	RawBody     []byte
}

func (a *API) plan(ctx context.Context, p rights.Principal, in *planIn) (api.Plan, error) {
	tenant, err := a.applier(p, in.Tenant)
	if err != nil {
		return api.Plan{}, err
	}
	into, _, err := a.into(ctx, p, tenant, in.Application)
	if err != nil {
		return api.Plan{}, err
	}
	sla, err := a.parsing.sla(ctx, tenant, document{in.ContentType, in.RawBody, into})
	if err != nil {
		return api.Plan{}, err
	}
	t := combinedPlan{
		api: a, who: p, views: map[api.ClusterID]api.ClusterView{},
		doubts: map[api.InstanceID][]root.Doubt{}, whys: map[api.InstanceID]api.Explanation{},
	}
	for range planRounds {
		var refused error
		err := a.owner.Read(ctx, func() { t.plan, refused = a.core.Plan(a.opt.Now(), tenant, sla.Applications, t.doubts) })
		if err := cmp.Or(err, refused); err != nil {
			return api.Plan{}, err
		}
		if !t.ask(ctx) {
			break
		}
	}
	plan := t.whole()
	if err := a.scalingNow(ctx, plan.Apps); err != nil {
		return api.Plan{}, err
	}
	return plan, nil
}

// scalingNow adds what scaling does now with the applications' services, as their clusters say. A user who may
// change an application may see that, as in why.
func (a *API) scalingNow(ctx context.Context, apps []api.AppPlan) error {
	type ask struct {
		app int
		via api.InstanceID // one of those in the cluster
		now api.ScalingNow
	}
	var asks []ask
	err := a.owner.Read(ctx, func() {
		for i, planned := range apps {
			app, _ := a.core.App(planned.ID)
			for _, m := range app.Spec.Services {
				if m.Scale == nil {
					continue
				}
				id := planned.ID.Service(m.Name, m.Namespace)
				via := a.core.PerCluster(id)
				for _, c := range slices.Sorted(maps.Keys(via)) {
					asks = append(asks, ask{i, via[c], api.ScalingNow{Service: id, Cluster: c}})
				}
			}
		}
	})
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	concurrently(min(maxAsked, len(asks)), func(i int) { asks[i].now.Now = a.scaleOf(ctx, asks[i].now.Cluster, asks[i].via) })
	for _, x := range asks {
		apps[x.app].Scaling = append(apps[x.app].Scaling, x.now)
	}
	return err
}

// combinedPlan is a plan that combines the root's decision with the answers of clusters.
type combinedPlan struct {
	api    *API
	who    rights.Principal
	plan   root.Planned
	views  map[api.ClusterID]api.ClusterView   // of all chosen clusters
	places map[api.InstanceID]api.InstancePlan // the answers of clusters that can place them
	doubts map[api.InstanceID][]root.Doubt     // the clusters that cannot place them
	whys   map[api.InstanceID]api.Explanation  // the latest refusal of each
}

// ask requests the plans of the chosen clusters, and reports whether some instances need another
// cluster. If a cluster does not answer, the root's plan is kept, and the cluster's view has the
// error.
func (t *combinedPlan) ask(ctx context.Context) (again bool) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	t.places = map[api.InstanceID]api.InstancePlan{}
	for _, view := range t.plan.Clusters[min(maxAsked, len(t.plan.Clusters)):] {
		view.Error = fmt.Sprintf("not asked: a plan asks %d clusters at most", maxAsked)
		t.views[view.Cluster] = view
	}
	var mu sync.Mutex // guards t and again
	concurrently(min(maxAsked, len(t.plan.Clusters)), func(i int) {
		view := t.plan.Clusters[i]
		asks := t.plan.Asks[view.Cluster]
		got, err := t.api.askPlan(ctx, view.Cluster, asks, t.plan.Gone[view.Cluster])
		mu.Lock()
		defer mu.Unlock()
		if view.Asked = err == nil; err != nil {
			view.Error = err.Error()
		}
		t.views[view.Cluster] = view
		for k, v := range got {
			if v.Action != root.PlanWait {
				t.places[v.ID] = v
				delete(t.whys, v.ID)
				continue
			}
			again = true
			t.doubts[v.ID] = append(t.doubts[v.ID], root.Doubt{Cluster: view.Cluster, Searched: asks[k].Searched})
			if v.Why != nil {
				t.whys[v.ID] = t.shown(view.Cluster, *v.Why)
			}
		}
	})
	return again
}

// askPlan requests a cluster's plan for the user's own instances. The cluster gets no more than an
// apply would send it, without commands and environments, so no other right is checked.
func (a *API) askPlan(ctx context.Context, c api.ClusterID, asks []api.WhyRequest, gone []api.InstanceID) ([]api.InstancePlan, error) {
	body := api.ClusterPlanRequest{Instances: slices.Clone(asks), Gone: gone}
	for i := range body.Instances {
		body.Instances[i].Spec = *placementSpec(body.Instances[i].Spec)
	}
	var got api.ClusterPlan
	if err := a.ask(ctx, c, http.MethodPost, "/v1/plan", body, &got); err != nil {
		a.opt.Log.Debug("cluster does not plan", "cluster", c, "err", err)
		return nil, err
	}
	if len(got.Instances) != len(asks) {
		return nil, fmt.Errorf("the plan of cluster %s has %d instances, want %d: %w", c, len(got.Instances), len(asks), api.ErrUnavailable)
	}
	for i := range got.Instances {
		got.Instances[i].ID = asks[i].Instance
	}
	return got.Instances, nil
}

// shown returns a cluster's explanation, without the names of nodes that the user must not see.
func (t *combinedPlan) shown(c api.ClusterID, ex api.Explanation) api.Explanation {
	if t.api.sees(t.who, c) {
		return ex
	}
	return sched.Redact(ex)
}

// whole returns the plan with the answers of the clusters.
func (t *combinedPlan) whole() api.Plan {
	p := t.plan.Plan
	p.Clusters = nil
	for _, id := range slices.Sorted(maps.Keys(t.views)) {
		p.Clusters = append(p.Clusters, t.views[id])
	}
	for i := range p.Apps {
		for k := range p.Apps[i].Instances {
			v := &p.Apps[i].Instances[k]
			if v.Why != nil {
				why := t.api.shownClusters(t.who, *v.Why)
				v.Why = &why
			}
			asked := t.doubts[v.ID]
			if why, ok := t.whys[v.ID]; ok && slices.ContainsFunc(asked, func(d root.Doubt) bool { return d.Cluster == v.Cluster }) || ok && v.Action == root.PlanWait {
				*v = api.InstancePlan{ID: v.ID, Action: root.PlanWait, Cluster: asked[len(asked)-1].Cluster, Why: &why}
				continue
			}
			at, ok := t.places[v.ID]
			if !ok || v.Action != root.PlanPlace && v.Action != root.PlanReplace {
				continue
			}
			if len(at.Headroom) > 0 {
				v.Headroom = at.Headroom
			}
			v.Preempts, v.Preempted, v.Others = at.Preempts, at.Preempted, at.Others
			v.After = max(v.After, min(at.After, api.MaxConvergence))
			if t.api.sees(t.who, v.Cluster) {
				v.Node = at.Node
				continue
			}
			v.Preempted = slices.DeleteFunc(slices.Clone(at.Preempted), func(id api.InstanceID) bool {
				return rights.Allowed(t.who, rights.AppsRead, id.Tenant()) != nil
			})
			v.Others += len(at.Preempted) - len(v.Preempted)
		}
	}
	return p
}
