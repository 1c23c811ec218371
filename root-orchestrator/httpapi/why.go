package httpapi

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/root-orchestrator/root/placement"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Limits of the requests to clusters for one explanation or plan round: concurrent, total, and
// time.
const (
	maxAskedAtOnce = 16
	maxAsked       = 64
	askTime        = 3 * time.Second
)

func (a *API) why(ctx context.Context, p rights.Principal, in *struct {
	ID string `path:"id" doc:"The instance's id, with ~ for / and #."`
},
) (w api.Why, err error) {
	id := api.InstanceFromPath(in.ID)
	if err := rights.Allowed(p, rights.AppsRead, id.Tenant()); err != nil {
		return w, err
	}
	var s api.Service
	var clusters []api.Cluster
	var ok, scales bool
	err = a.owner.Read(ctx, func() {
		if w, ok = a.core.Why(id, a.opt.Now()); ok && w.Instance.Cluster == "" {
			s, _ = a.core.Service(id.Service())
			clusters = a.core.Clusters()
		}
		if found, has := a.core.Service(id.Service()); has {
			scales = found.Spec.Scale != nil
		}
	})
	if err != nil {
		return w, err
	}
	if !ok {
		return w, missing("instance", id)
	}
	w.Clusters = slices.Clone(w.Clusters)
	if c := w.Instance.Cluster; c != "" {
		a.askClusters(ctx, p, &w, []api.ClusterID{c}, nil)
		if scales && !a.sees(p, c) {
			a.askScale(ctx, &w, c)
		}
	} else {
		a.askClusters(ctx, p, &w, worthAsking(w, clusters), placementSpec(s.Spec))
	}
	return a.shownWhy(p, w), nil
}

// worthAsking returns the clusters that the SLA's cluster constraint and the grants do not exclude.
func worthAsking(w api.Why, clusters []api.Cluster) (ask []api.ClusterID) {
	for _, c := range clusters {
		ruledOut := slices.ContainsFunc(w.Root.Candidates, func(r api.Rejection) bool {
			return r.Candidate == string(c.ID) && (r.Constraint == sched.ConstraintCluster || r.Constraint == sched.ConstraintTrust)
		})
		if !ruledOut {
			ask = append(ask, c.ID)
		}
	}
	return ask
}

// placementSpec returns the part of a spec that placement depends on. A cluster gets commands, environments
// and contents of files, which may contain secrets, only with the instance.
func placementSpec(m api.Microservice) *api.Microservice {
	m.ID, m.Code, m.Cmd, m.Environment = "", "", nil, nil
	files := make([]api.File, len(m.Files))
	for i, f := range m.Files {
		files[i].Path = f.Path
	}
	m.Files = files
	m.Update, m.Labels, m.Disruption = nil, nil, nil
	m.Replicas, m.StopGrace, m.OneShot, m.MaxAttempts, m.Platform = nil, 0, false, 0, ""
	return &m
}

// askClusters adds the explanations of those clusters whose nodes the principal may see. Without a
// spec, the clusters explain an instance that they have. If a cluster does not answer, the root's
// explanation is kept.
func (a *API) askClusters(ctx context.Context, p rights.Principal, w *api.Why, clusters []api.ClusterID, spec *api.Microservice) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	method, path := http.MethodGet, "/v1/instances/"+api.PathOf(w.Instance.ID)+"/why"
	var body any
	if spec != nil {
		method, path, body = http.MethodPost, "/v1/why", api.WhyRequest{Instance: w.Instance.ID, Spec: *spec}
	}
	clusters = slices.DeleteFunc(clusters, func(c api.ClusterID) bool { return !a.sees(p, c) })
	clusters = clusters[:min(len(clusters), maxAsked)]
	answers := make([]*api.ClusterWhy, len(clusters))
	concurrently(len(clusters), func(i int) {
		answer := &api.ClusterWhy{Cluster: clusters[i], At: a.opt.Now()}
		if err := a.call(ctx, p, rights.NodesRead, answer.Cluster, method, path, body, &answer.Answer); err != nil {
			a.opt.Log.Debug("cluster does not explain", "cluster", answer.Cluster, "instance", w.Instance.ID, "err", err)
			return
		}
		answers[i] = answer
	})
	for _, answer := range answers {
		if answer == nil {
			continue
		}
		w.Clusters = append(slices.DeleteFunc(w.Clusters, func(o api.ClusterWhy) bool { return o.Cluster == answer.Cluster }), *answer)
	}
	if spec != nil {
		nearestHelps(w)
	}
}

// askScale adds what scaling does with the instance's service, for somebody who may see the application and
// not the cluster's nodes.
func (a *API) askScale(ctx context.Context, w *api.Why, c api.ClusterID) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	if now := a.scaleOf(ctx, c, w.Instance.ID); now != nil {
		w.Clusters = append(slices.DeleteFunc(w.Clusters, func(o api.ClusterWhy) bool { return o.Cluster == c }),
			api.ClusterWhy{Cluster: c, At: a.opt.Now(), Answer: api.Explanation{Scale: now}})
	}
}

// scaleOf returns what scaling does in a cluster with the service of an instance there, or nil if the cluster does not
// say. The caller has checked that the user may see the application.
func (a *API) scaleOf(ctx context.Context, c api.ClusterID, id api.InstanceID) *api.ScaleStanding {
	var answer api.Explanation
	if err := a.ask(ctx, c, http.MethodGet, "/v1/instances/"+api.PathOf(id)+"/why", nil, &answer); err != nil {
		a.opt.Log.Debug("cluster does not say how a service scales", "cluster", c, "instance", id, "err", err)
		return nil
	}
	return answer.Scale
}

// concurrently calls fn with 0 to n-1, at most maxAskedAtOnce at the same time.
func concurrently(n int, fn func(i int)) {
	slots := make(chan struct{}, maxAskedAtOnce)
	var wg sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			fn(i)
		})
	}
	wg.Wait()
}

// nearestHelps sets the advice for the node that misses by least. The root's own explanation uses
// sums over nodes and may miss by less than any single node.
func nearestHelps(w *api.Why) {
	var near *api.ClusterWhy
	for i, c := range w.Clusters {
		if n := c.Answer.Nearest; n != nil && (near == nil || n.Shortfall < near.Answer.Nearest.Shortfall) {
			near = &w.Clusters[i]
		}
	}
	if near != nil {
		w.WouldHelp = placement.WouldHelp(api.Why{Root: w.Root, Clusters: []api.ClusterWhy{*near}})
	}
}

// shownClusters removes from an explanation the names and owners of clusters that exclude the
// tenant and that the principal must not see.
func (a *API) shownClusters(p rights.Principal, ex api.Explanation) api.Explanation {
	hidden := func(r api.Rejection) bool {
		return r.Constraint == sched.ConstraintTrust && !a.sees(p, api.ClusterID(r.Candidate))
	}
	ex.Candidates = slices.DeleteFunc(slices.Clone(ex.Candidates), hidden)
	if ex.Nearest != nil && hidden(*ex.Nearest) {
		near := *ex.Nearest
		near.Candidate, near.Have = "a cluster", "another owner"
		ex.Nearest = &near
	}
	return ex
}

// shownWhy returns the explanation without the names of nodes that the principal must not see.
func (a *API) shownWhy(p rights.Principal, w api.Why) api.Why {
	w.Instance = a.shownInstance(p, w.Instance)
	w.Root = a.shownClusters(p, w.Root)
	for i, c := range w.Clusters {
		if a.sees(p, c.Cluster) {
			continue
		}
		w.Clusters[i].Answer.Candidates = nil
		if n := c.Answer.Nearest; n != nil {
			unnamed := *n
			unnamed.Candidate = "a node"
			w.Clusters[i].Answer.Nearest = &unnamed
		}
	}
	return w
}
