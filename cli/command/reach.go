package command

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/cli/ref"
)

// reach finds the nodes of instances, which the root does not know, and where their published ports are
// reached, for users who may see nodes.
type reach struct {
	c        *cli
	a        *client.Client
	ports    map[api.ServiceID][]api.PortMap
	clusters map[api.ClusterID]clusterView
	errs     []error
}

type clusterView struct {
	nodes     map[api.NodeID]api.Node
	instances map[api.InstanceID]api.Instance
	at        time.Time
	err       error
}

func (c *cli) reach(a *client.Client) *reach {
	return &reach{c: c, a: a, ports: map[api.ServiceID][]api.PortMap{}, clusters: map[api.ClusterID]clusterView{}}
}

// prepare asks the clusters of several instances at once, and reads all services if there may be many of
// them. Without it, urls asks one by one.
func (r *reach) prepare(ctx context.Context, all []api.Instance) {
	var clusters []api.ClusterID
	for _, i := range all {
		if i.Cluster != "" && !slices.Contains(clusters, i.Cluster) {
			clusters = append(clusters, i.Cluster)
		}
	}
	views := make([]clusterView, len(clusters))
	var wg sync.WaitGroup
	for k, id := range clusters {
		wg.Go(func() { views[k] = r.ask(ctx, id) })
	}
	wg.Wait()
	seen := false
	for k, id := range clusters {
		seen = r.keep(id, views[k]) || seen
	}
	if !seen || len(all) < 2 || r.c.own() != "" {
		return
	}
	services, _, err := r.a.Services(ctx, client.ListOptions{})
	if err != nil {
		r.errs = append(r.errs, fmt.Errorf("published ports unknown: %w", err))
	}
	for _, s := range services {
		r.ports[s.ID] = s.Spec.Ports()
	}
}

func (r *reach) ask(ctx context.Context, id api.ClusterID) clusterView {
	v := clusterView{nodes: map[api.NodeID]api.Node{}, instances: map[api.InstanceID]api.Instance{}, at: r.c.Now()}
	nodes, err := r.c.nodes(ctx, r.a, id)
	for _, n := range nodes {
		v.nodes[n.ID] = n
	}
	if err == nil {
		var instances []api.Instance
		instances, err = r.a.InstancesOn(ctx, id)
		for _, i := range instances {
			v.instances[i.ID] = i
		}
	}
	if errors.Is(err, api.ErrForbidden) || errors.Is(err, api.ErrNotFound) {
		err = nil // the user may not see the cluster's nodes
	}
	v.err = err
	return v
}

// keep reports whether the user sees nodes of the cluster.
func (r *reach) keep(id api.ClusterID, v clusterView) bool {
	if r.clusters[id] = v; v.err != nil {
		r.errs = append(r.errs, fmt.Errorf("nodes of cluster %s unknown: %w", id, v.err))
	}
	return len(v.nodes) > 0
}

// staleAfter is how old a cluster's answer may be when an instance has moved since.
const staleAfter = time.Second

// node returns where an instance is; false: unknown.
func (r *reach) node(ctx context.Context, i api.Instance) (n api.Node, ok bool) {
	if i.Cluster == "" {
		return n, false
	}
	v, asked := r.clusters[i.Cluster]
	here := v.instances[i.ID]
	if !asked || here.Epoch != i.Epoch && len(v.nodes) > 0 && r.c.Now().Sub(v.at) > staleAfter {
		v = r.ask(ctx, i.Cluster)
		r.keep(i.Cluster, v)
		here = v.instances[i.ID]
	}
	if here.Epoch != i.Epoch {
		return n, false
	}
	n, ok = v.nodes[here.Node]
	return n, ok
}

// urls returns host:port of each published port, with its protocol unless that is TCP.
func (r *reach) urls(ctx context.Context, i api.Instance) (out []string) {
	n, ok := r.node(ctx, i)
	if !ok || n.Address == "" || i.State != api.Running || r.c.own() != "" { // nodes of earlier releases have no address
		return nil
	}
	ports, known := r.ports[i.Service]
	if !known {
		s, err := r.a.Service(ctx, i.Service)
		if err != nil {
			r.errs = append(r.errs, fmt.Errorf("published ports of %s unknown: %w", i.Service, err))
		}
		ports = s.Spec.Ports()
		r.ports[i.Service] = ports
	}
	for _, p := range ports {
		at := net.JoinHostPort(n.Address, strconv.Itoa(int(p.Host)))
		if p.Protocol != "tcp" {
			at += "/" + p.Protocol
		}
		out = append(out, at)
	}
	return out
}

func (r *reach) err() error { return errors.Join(r.errs...) }

// runs returns the instances on the nodes of clusters, by CLUSTER/NODE.
func (c *cli) runs(ctx context.Context, a *client.Client, nodes []api.Node) (map[string][]api.InstanceID, error) {
	out := map[string][]api.InstanceID{}
	var clusters []api.ClusterID
	for _, n := range nodes {
		if n.Instances > 0 && !slices.Contains(clusters, n.Cluster) {
			clusters = append(clusters, n.Cluster)
		}
	}
	return out, each(clusters, func(id api.ClusterID) error {
		all, err := a.InstancesOn(ctx, id)
		if err != nil {
			return fmt.Errorf("list what runs in cluster %s: %w", id, err)
		}
		slices.SortFunc(all, func(x, y api.Instance) int { return ref.Compare(x.ID, y.ID) })
		for _, i := range all {
			if i.Node != "" && !api.Ended(i.State, i.Reason) {
				at := string(id) + "/" + string(i.Node)
				out[at] = append(out[at], i.ID)
			}
		}
		return nil
	})
}
