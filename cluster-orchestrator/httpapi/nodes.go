package httpapi

import (
	"cmp"
	"context"
	"fmt"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/rest"
)

// Status is the answer to GET /v1/status.
type Status struct {
	api.ClusterInfo
	Root      bool          `json:"root_connected"`
	Nodes     int           `json:"nodes"` // number of nodes, in any status
	Instances int           `json:"instances"`
	Aggregate api.Aggregate `json:"aggregate"`
}

type nodeIn struct {
	ID string `path:"id" maxLength:"63" doc:"The node's id."`
}

type capIn struct {
	ID   string `path:"id" maxLength:"63" doc:"The node's id."`
	Body api.Caps
}

func (a *API) registerNodes() {
	nodes := rest.Tag("nodes")
	answer(a, rest.Tag("cluster").Get("/v1/status", "Show the cluster").Named("status"), rights.ClustersRead, a.status)
	answer(a, nodes.Get("/v1/nodes", "List nodes").Named("listNodes"), rights.NodesRead, a.nodes)
	answer(a, nodes.Get("/v1/nodes/{id}", "Show a node", 404).Named("getNode"), rights.NodesRead, a.node)
	for _, o := range []struct {
		name, id, summary string
		input             func(api.NodeID) cluster.Input
	}{
		{"cordon", "cordonNode", "Place no new instances on a node", func(n api.NodeID) cluster.Input { return cluster.Cordon{Node: n, On: true} }},
		{"uncordon", "uncordonNode", "Place new instances on a node again", func(n api.NodeID) cluster.Input { return cluster.Cordon{Node: n} }},
		{
			"drain", "drainNode", "Cordon a node and move its instances elsewhere, as far as other nodes have capacity",
			func(n api.NodeID) cluster.Input { return cluster.Drain{Node: n} },
		},
		{
			"force-drain", "forcedrainNode", "Drain a node, and stop the instances that fit nowhere else",
			func(n api.NodeID) cluster.Input { return cluster.Drain{Node: n, Force: true} },
		},
		{
			"purge", "purgeNode", "Have a node stop and delete all that it has, and remove it when it has confirmed that",
			func(n api.NodeID) cluster.Input { return cluster.PurgeNode{Node: n} },
		},
	} {
		answer(a, nodes.Post("/v1/nodes/{id}/"+o.name, o.summary, 404).Named(o.id), rights.NodesWrite,
			func(ctx context.Context, p rights.Principal, in *nodeIn) (api.Node, error) {
				return a.order(ctx, p, in.ID, o.name, o.input(api.NodeID(in.ID)))
			})
	}
	limit := nodes.Put("/v1/nodes/{id}/caps", "Limit what a node may report", 404).Named("capNode").
		About("Replaces the caps that an earlier request set; 0 is no cap. The caps of the cluster's configuration " +
			"stay in force: of each value the lower cap counts.")
	answer(a, limit, rights.NodesWrite, func(ctx context.Context, p rights.Principal, in *capIn) (api.Node, error) {
		return a.order(ctx, p, in.ID, "cap", cluster.CapNode{Node: api.NodeID(in.ID), Caps: in.Body})
	})
	remove := nodes.Delete("/v1/nodes/{id}", "Remove a node and refuse its certificates", 404, 409)
	act(a, remove.Named("removeNode"), rights.NodesWrite, a.removeNode)
}

func (a *API) status(ctx context.Context, _ rights.Principal, _ *rest.None) (Status, error) {
	return read(ctx, a, a.statusNow)
}

// statusNow runs on the core's owner.
func (a *API) statusNow() Status {
	c := a.opt.Core
	return Status{
		ClusterInfo: a.opt.Info(), Root: c.RootUp(), Nodes: len(c.Nodes()), Instances: len(c.Instances()), Aggregate: c.Aggregate(),
	}
}

func (a *API) nodes(ctx context.Context, _ rights.Principal, _ *rest.None) (api.Page[api.Node], error) {
	return page(readAll(ctx, a, a.opt.Core.Nodes))
}

func (a *API) node(ctx context.Context, _ rights.Principal, in *nodeIn) (n api.Node, err error) {
	ended := a.opt.Owner.Read(ctx, func() {
		var ok bool
		if n, ok = a.opt.Core.Node(api.NodeID(in.ID)); !ok {
			err = a.opt.Core.NoSuchNode(api.NodeID(in.ID))
		}
	})
	return n, cmp.Or(ended, err)
}

func (a *API) order(ctx context.Context, p rights.Principal, id, name string, in cluster.Input) (n api.Node, err error) {
	if err := a.opt.Owner.Do(ctx, in, func() { n, _ = a.opt.Core.Node(api.NodeID(id)) }); err != nil {
		return n, fmt.Errorf("%s node %q: %w", name, id, err)
	}
	a.opt.Log.Info("node "+name+" ordered", "node", id, "by", p.User)
	return n, nil
}

func (a *API) removeNode(ctx context.Context, p rights.Principal, in *nodeIn) error {
	id := api.NodeID(in.ID)
	if err := a.opt.Owner.Do(ctx, cluster.RemoveNode{Node: id}, nil); err != nil {
		return fmt.Errorf("remove node %q: %w", in.ID, err)
	}
	a.opt.Log.Info("node removed", "node", id, "by", p.User)
	return a.opt.Nodes.Remove(ctx, id)
}
