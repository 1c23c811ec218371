package httpapi

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/rest"
)

// usageTime bounds the answer of one cluster, whose nodes measure for a second.
const usageTime = 10 * time.Second

type usageIn struct {
	Tenant  api.Tenant    `query:"tenant" doc:"Only instances of this tenant; without it, all that the user may see."`
	Under   string        `query:"under" doc:"Only instances of this application or service, or this instance, by its id."`
	Cluster api.ClusterID `query:"cluster" doc:"Only instances in this cluster."`
}

type nodeUsageIn struct {
	ID   api.ClusterID `path:"id" doc:"The cluster."`
	Node string        `query:"node" doc:"Only this node."`
}

func (a *API) registerUsage(clusters rest.Tag) {
	answer(a, rest.Tag("instances").Get("/v1/usage/instances", "Measure instances", 503).Named("instanceUsage").
		About("What running instances use now: processor, memory, network. Their clusters have their nodes measure; what does not answer in time is in missing."),
		rights.AppsRead, a.instanceUsage)
	answer(a, clusters.Get("/v1/clusters/{id}/usage/nodes", "Measure nodes", 404, 503, 504).Named("nodeUsage").
		About("What the cluster's nodes use now. The root passes the request on to the cluster, which checks the user's rights again."),
		rights.NodesRead, a.nodeUsage)
}

func (a *API) nodeUsage(ctx context.Context, p rights.Principal, in *nodeUsageIn) (out api.Usages[api.NodeUsage], err error) {
	path := "/v1/usage/nodes"
	if in.Node != "" {
		path += "?" + url.Values{"node": {in.Node}}.Encode()
	}
	if err := a.call(ctx, p, rights.NodesRead, in.ID, http.MethodGet, path, nil, &out); err != nil {
		return out, err
	}
	out.Items = append([]api.NodeUsage{}, out.Items...)
	for i := range out.Items {
		u := &out.Items[i]
		u.Cluster, u.Machine, u.Instances = in.ID, u.Machine.Bounded(), u.Instances.Bounded()
	}
	for i := range out.Missing {
		out.Missing[i] = api.Unmeasured{Cluster: in.ID, Node: out.Missing[i].Node, Reason: shortened(out.Missing[i].Reason)}
	}
	return out, nil
}

// shortened returns a cluster's reason for people.
func shortened(reason string) string {
	const most = 512
	return strings.ToValidUTF8(reason[:min(len(reason), most)], "")
}

// instanceUsage asks the clusters of the instances that p may see. Of their answers it takes what is about
// these instances only.
func (a *API) instanceUsage(ctx context.Context, p rights.Principal, in *usageIn) (out api.Usages[api.InstanceUsage], err error) {
	out.Items = []api.InstanceUsage{}
	tenant, err := tenantOf(p, rights.AppsRead, in.Tenant)
	if err != nil {
		return out, err
	}
	var all []api.Instance
	if err := a.owner.Read(ctx, func() { all = a.core.Instances(tenant) }); err != nil {
		return out, err
	}
	all = slices.DeleteFunc(visible(p, rights.AppsRead, all, func(i api.Instance) api.Tenant { return i.ID.Tenant() }), func(i api.Instance) bool {
		return i.State != api.Running || i.Cluster == "" || !api.Under(string(i.ID), in.Under) || in.Cluster != "" && i.Cluster != in.Cluster
	})
	slices.SortFunc(all, func(a, b api.Instance) int { return strings.Compare(instanceKey(a), instanceKey(b)) })
	if more := len(all) - api.MaxUsages; more > 0 {
		all = all[:api.MaxUsages]
		out.Missing = append(out.Missing, api.Unmeasured{
			Reason: fmt.Sprintf("%d more instances are left out, %d is the most at once: ask for an application or service", more, api.MaxUsages),
		})
	}
	at := map[api.ClusterID]bool{}
	for _, i := range all {
		at[i.Cluster] = true
	}
	got, failed := a.usageOf(ctx, slices.Sorted(maps.Keys(at)), tenant, in.Under)
	for _, i := range all {
		sees := a.sees(p, i.Cluster)
		if u, ok := got[i.Cluster][i.ID]; ok && u.Epoch == i.Epoch {
			u.Cluster, u.Usage = i.Cluster, u.Usage.Bounded()
			if !sees {
				u.Node = ""
			}
			out.Items = append(out.Items, u)
			continue
		}
		if i.Leaving {
			continue // its cluster may have stopped it already
		}
		m := api.Unmeasured{Cluster: i.Cluster, Instance: i.ID, Reason: "its cluster has not measured it"}
		if reason, ok := failed[i.Cluster][i.ID]; ok {
			m.Reason = shortened(reason.Reason)
			if sees {
				m.Node = reason.Node
			}
		} else if all, ok := failed[i.Cluster][""]; ok {
			m.Reason = shortened(all.Reason)
		}
		out.Missing = append(out.Missing, m)
	}
	return out, nil
}

type (
	usageBy   map[api.ClusterID]map[api.InstanceID]api.InstanceUsage
	missingBy map[api.ClusterID]map[api.InstanceID]api.Unmeasured // "": the whole cluster
)

// usageOf asks clusters at the same time.
func (a *API) usageOf(ctx context.Context, clusters []api.ClusterID, tenant api.Tenant, under string) (usageBy, missingBy) {
	got, failed := usageBy{}, missingBy{}
	for _, c := range clusters[min(len(clusters), maxAsked):] {
		failed[c] = map[api.InstanceID]api.Unmeasured{"": {Reason: fmt.Sprintf("its cluster was not asked: %d are asked at most", maxAsked)}}
	}
	clusters = clusters[:min(len(clusters), maxAsked)]
	path := "/v1/usage/instances?" + url.Values{"tenant": {string(tenant)}, "under": {under}}.Encode()
	within, cancel := context.WithTimeout(ctx, usageTime)
	defer cancel()
	var mu sync.Mutex // guards got and failed
	concurrently(len(clusters), func(k int) {
		c := clusters[k]
		var u api.Usages[api.InstanceUsage]
		err := a.ask(within, c, http.MethodGet, path, nil, &u)
		items, missing := map[api.InstanceID]api.InstanceUsage{}, map[api.InstanceID]api.Unmeasured{}
		for _, i := range u.Items {
			items[i.Instance] = i
		}
		for _, m := range u.Missing {
			missing[m.Instance] = m
		}
		if err != nil {
			missing[""] = api.Unmeasured{Reason: err.Error()}
		}
		mu.Lock()
		defer mu.Unlock()
		got[c], failed[c] = items, missing
	})
	return got, failed
}
