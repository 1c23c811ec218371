package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/treeline-edge/treeline/api"
)

// UsageOptions choose the instances of InstanceUsage. Empty fields do not restrict them.
type UsageOptions struct {
	Tenant  api.Tenant
	Under   string // the id of an application, service or instance
	Cluster api.ClusterID
}

// InstanceUsage measures what running instances use. It takes about a second.
func (c *Client) InstanceUsage(ctx context.Context, o UsageOptions) (out api.Usages[api.InstanceUsage], err error) {
	q := url.Values{}
	for name, v := range map[string]string{"tenant": string(o.Tenant), "under": o.Under, "cluster": string(o.Cluster)} {
		if v != "" {
			q.Set(name, v)
		}
	}
	_, err = c.Do(ctx, Request{Method: http.MethodGet, Path: "/v1/usage/instances", Query: q}, &out)
	return out, err
}

// NodeUsage measures what the nodes of a cluster use, or one of them. It takes about a second.
func (c *Client) NodeUsage(ctx context.Context, cluster api.ClusterID, node api.NodeID) (out api.Usages[api.NodeUsage], err error) {
	q := url.Values{}
	if node != "" {
		q.Set("node", string(node))
	}
	_, err = c.Do(ctx, Request{Method: http.MethodGet, Path: c.inCluster(cluster) + "/usage/nodes", Query: q}, &out)
	return out, err
}
