package client

import (
	"context"
	"net/http"

	"github.com/treeline-edge/treeline/api"
)

func nodePath(c api.ClusterID, n api.NodeID) string {
	return string(Clusters) + "/" + api.PathOf(c) + "/nodes/" + api.PathOf(n)
}

// Node is one node of a cluster, which the root asks for it.
func (c *Client) Node(ctx context.Context, cluster api.ClusterID, id api.NodeID) (api.Node, error) {
	return get[api.Node](ctx, c, nodePath(cluster, id))
}

// Cordon keeps new work off a node.
func (c *Client) Cordon(ctx context.Context, cluster api.ClusterID, id api.NodeID) error {
	return c.onNode(ctx, http.MethodPost, nodePath(cluster, id)+"/cordon")
}

// Uncordon lets new work onto a node again.
func (c *Client) Uncordon(ctx context.Context, cluster api.ClusterID, id api.NodeID) error {
	return c.onNode(ctx, http.MethodPost, nodePath(cluster, id)+"/uncordon")
}

// Drain keeps new work off a node and has its instances placed elsewhere.
func (c *Client) Drain(ctx context.Context, cluster api.ClusterID, id api.NodeID) error {
	return c.onNode(ctx, http.MethodPost, nodePath(cluster, id)+"/drain")
}

// ForceDrain drains a node like Drain and stops instances that fit nowhere else.
func (c *Client) ForceDrain(ctx context.Context, cluster api.ClusterID, id api.NodeID) error {
	return c.onNode(ctx, http.MethodPost, nodePath(cluster, id)+"/force-drain")
}

// CapNode limits what a node counts for, whatever it claims. It replaces the caps that
// were set so before; zero Caps lift them.
func (c *Client) CapNode(ctx context.Context, cluster api.ClusterID, id api.NodeID, caps api.Caps) (n api.Node, err error) {
	_, err = c.Do(ctx, Request{Method: http.MethodPut, Path: nodePath(cluster, id) + "/caps", Body: caps}, &n)
	return n, err
}

// ForgetNode removes a node for good; its certificates count no more.
func (c *Client) ForgetNode(ctx context.Context, cluster api.ClusterID, id api.NodeID) error {
	return c.onNode(ctx, http.MethodDelete, nodePath(cluster, id))
}

// PurgeNode orders a node to delete its workloads, keys and data. The node is removed
// once it has acknowledged that.
func (c *Client) PurgeNode(ctx context.Context, cluster api.ClusterID, id api.NodeID) error {
	return c.onNode(ctx, http.MethodPost, nodePath(cluster, id)+"/purge")
}

func (c *Client) onNode(ctx context.Context, method, path string) error {
	_, err := c.Do(ctx, Request{Method: method, Path: path}, nil)
	return err
}
