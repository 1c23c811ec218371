package httpapi

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bounds"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// link is a latency link of an instance.
type link struct {
	from api.InstanceID
	to   string // the service, as the SLA names it
}

// latencies asks the clusters that have the application's instances. A cluster says something about the
// links of the instances that the root has placed there, and nothing else.
func (a *API) latencies(ctx context.Context, p rights.Principal, in *struct {
	ID string `path:"id" doc:"The application's id, with ~ for /."`
},
) (out api.Latencies, err error) {
	id := api.AppID(api.FromPath(in.ID))
	app, err := read(ctx, a, p, rights.AppsRead, "application", id, a.core.App)
	if err != nil {
		return out, err
	}
	at := map[api.ClusterID]map[link]time.Duration{} // the demanded round trips
	if err := a.owner.Read(ctx, func() {
		for _, s := range app.Services {
			a.linksOf(s, at)
		}
	}); err != nil {
		return out, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	clusters := step.Keys(at)
	out.Links, out.Silent = []api.LinkStatus{}, clusters[min(len(clusters), maxAsked):]
	clusters = clusters[:min(len(clusters), maxAsked)]
	answers := make([]*api.ClusterLatencies, len(clusters))
	concurrently(len(clusters), func(i int) {
		var answer api.ClusterLatencies
		if err := a.ask(ctx, clusters[i], http.MethodGet, "/v1/apps/"+api.PathOf(id)+"/latency", nil, &answer); err != nil {
			a.opt.Log.Debug("cluster does not tell latencies", "cluster", clusters[i], "app", id, "err", err)
			return
		}
		if bounded, _, ok := bounds.Apply(answer); ok {
			answers[i] = &bounded
		}
	})
	for i, c := range clusters {
		if answers[i] == nil {
			out.Silent = append(out.Silent, c)
			continue
		}
		for _, l := range answers[i].Links {
			key := link{l.Instance, l.To}
			if limit, asked := at[c][key]; asked && len(out.Links) < api.MaxLatencies {
				l.Limit = limit
				out.Links = append(out.Links, l)
				delete(at[c], key)
			}
		}
	}
	slices.SortFunc(out.Links, func(x, y api.LinkStatus) int {
		return cmp.Or(cmp.Compare(x.Instance.Service(), y.Instance.Service()), cmp.Compare(x.Instance.Number(), y.Instance.Number()), cmp.Compare(x.To, y.To))
	})
	return out, nil
}

// linksOf adds the latency links of a service's running instances to those of their clusters. It runs
// on the core's owner.
func (a *API) linksOf(id api.ServiceID, at map[api.ClusterID]map[link]time.Duration) {
	s, ok := a.core.Service(id)
	if !ok {
		return
	}
	links := slices.DeleteFunc(sched.LinksOf(&s.Spec), func(l sched.Link) bool { return l.Service == "" || l.RTT == 0 })
	if len(links) == 0 {
		return
	}
	for n := range min(s.Replicas, api.MaxLatencies) {
		i, ok := a.core.Instance(id.Instance(n))
		if !ok || i.Cluster == "" || i.State != api.Running {
			continue
		}
		if at[i.Cluster] == nil {
			at[i.Cluster] = map[link]time.Duration{}
		}
		for _, l := range links {
			at[i.Cluster][link{i.ID, l.Service}] = l.RTT
		}
	}
}
