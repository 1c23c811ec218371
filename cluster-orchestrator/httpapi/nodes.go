package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/identity/rights"
)

// Status is the answer to GET /v1/status.
type Status struct {
	api.ClusterInfo
	Root      bool          `json:"root_connected"`
	Nodes     int           `json:"nodes"` // all that are known
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
	handle(a, huma.Operation{OperationID: "status", Method: http.MethodGet, Path: "/v1/status", Summary: "Show the cluster", Tags: []string{"cluster"}}, a.status)
	handle(a, huma.Operation{OperationID: "listNodes", Method: http.MethodGet, Path: "/v1/nodes", Summary: "List nodes", Tags: []string{"nodes"}}, a.nodes)
	handle(a, huma.Operation{OperationID: "getNode", Method: http.MethodGet, Path: "/v1/nodes/{id}", Summary: "Show a node", Tags: []string{"nodes"}, Errors: []int{404}}, a.node)
	for name, make := range map[string]func(api.NodeID) cluster.Input{
		"cordon":   func(n api.NodeID) cluster.Input { return cluster.Cordon{Node: n, On: true} },
		"uncordon": func(n api.NodeID) cluster.Input { return cluster.Cordon{Node: n} },
		"drain":    func(n api.NodeID) cluster.Input { return cluster.Drain{Node: n} },

		"force-drain": func(n api.NodeID) cluster.Input { return cluster.Drain{Node: n, Force: true} },
		"purge":       func(n api.NodeID) cluster.Input { return cluster.PurgeNode{Node: n} },
	} {
		handle(a, huma.Operation{
			OperationID: strings.ReplaceAll(name, "-", "") + "Node", Method: http.MethodPost, Path: "/v1/nodes/{id}/" + name,
			Summary: orders[name], Tags: []string{"nodes"}, Errors: []int{404},
		}, func(ctx context.Context, p rights.Principal, in *nodeIn) (*body[api.Node], error) {
			return a.order(ctx, p, in.ID, name, make(api.NodeID(in.ID)))
		})
	}
	handle(a, huma.Operation{
		OperationID: "capNode", Method: http.MethodPut, Path: "/v1/nodes/{id}/caps",
		Summary: "Limit what a node counts for, whatever it claims", Tags: []string{"nodes"}, Errors: []int{404},
		Description: "Replaces the caps that an earlier request set; 0 is no limit. The caps of the cluster's configuration hold beside them: of each part the lower one counts.",
	}, func(ctx context.Context, p rights.Principal, in *capIn) (*body[api.Node], error) {
		return a.order(ctx, p, in.ID, "cap", cluster.CapNode{Node: api.NodeID(in.ID), Caps: in.Body})
	})
	handle(a, huma.Operation{
		OperationID: "removeNode", Method: http.MethodDelete, Path: "/v1/nodes/{id}", DefaultStatus: http.StatusNoContent,
		Summary: "Forget a node and refuse its certificates", Tags: []string{"nodes"}, Errors: []int{404, 409},
	}, a.removeNode)
}

var orders = map[string]string{
	"cordon":   "Keep new instances off a node",
	"uncordon": "Let instances on a node again",
	"drain":    "Cordon a node and move its instances elsewhere, as far as there is room",

	"force-drain": "Drain a node, and stop what fits nowhere else",
	"purge":       "Have a node stop and delete all that it has, and remove it when it has acknowledged that",
}

func (a *API) status(ctx context.Context, p rights.Principal, _ *none) (*body[Status], error) {
	if err := a.allowed(p, rights.ClustersRead); err != nil {
		return nil, err
	}
	s := Status{ClusterInfo: a.opt.Info()}
	err := a.opt.Owner.Read(ctx, func() {
		s.Root, s.Aggregate = a.opt.Core.RootUp(), a.opt.Core.Aggregate()
		s.Nodes, s.Instances = len(a.opt.Core.Nodes()), len(a.opt.Core.Instances())
	})
	return &body[Status]{s}, err
}

func (a *API) nodes(ctx context.Context, p rights.Principal, _ *none) (*body[api.Page[api.Node]], error) {
	if err := a.allowed(p, rights.NodesRead); err != nil {
		return nil, err
	}
	out := api.Page[api.Node]{Items: []api.Node{}}
	err := a.opt.Owner.Read(ctx, func() { out.Items = append(out.Items, a.opt.Core.Nodes()...) })
	return &body[api.Page[api.Node]]{out}, err
}

func (a *API) node(ctx context.Context, p rights.Principal, in *nodeIn) (*body[api.Node], error) {
	if err := a.allowed(p, rights.NodesRead); err != nil {
		return nil, err
	}
	var n api.Node
	var ok bool
	var all []api.Node
	err := a.opt.Owner.Read(ctx, func() {
		if n, ok = a.opt.Core.Node(api.NodeID(in.ID)); !ok {
			all = a.opt.Core.Nodes()
		}
	})
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("node %q: cluster %s has %s: %w", in.ID, a.opt.Info().ID, names(all), api.ErrNotFound)
	}
	return &body[api.Node]{n}, nil
}

// names lists the first nodes, for an error about a mistyped one.
func names(nodes []api.Node) string {
	const most = 20
	if len(nodes) == 0 {
		return "no nodes"
	}
	var text []string
	for _, n := range nodes[:min(most, len(nodes))] {
		text = append(text, string(n.ID))
	}
	list := strings.Join(text, ", ")
	if more := len(nodes) - most; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return list
}

func (a *API) order(ctx context.Context, p rights.Principal, id, name string, in cluster.Input) (*body[api.Node], error) {
	if err := a.allowed(p, rights.NodesWrite); err != nil {
		return nil, err
	}
	var n api.Node
	if err := a.opt.Owner.Do(ctx, in, func() { n, _ = a.opt.Core.Node(api.NodeID(id)) }); err != nil {
		return nil, fmt.Errorf("%s node %q: %w", name, id, err)
	}
	a.opt.Log.Info("node "+name+" ordered", "node", id, "by", p.User)
	return &body[api.Node]{n}, nil
}

func (a *API) removeNode(ctx context.Context, p rights.Principal, in *nodeIn) (*none, error) {
	if err := a.allowed(p, rights.NodesWrite); err != nil {
		return nil, err
	}
	id := api.NodeID(in.ID)
	if err := a.opt.Owner.Do(ctx, cluster.RemoveNode{Node: id}, nil); err != nil {
		return nil, fmt.Errorf("remove node %q: %w", in.ID, err)
	}
	a.opt.Log.Info("node removed", "node", id, "by", p.User)
	return &none{}, a.opt.Nodes.Remove(ctx, id)
}
