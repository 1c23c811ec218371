package client

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Nodes accesses the nodes of one cluster, directly or through the root. Through the root,
// ErrUnavailable also means that the root cannot reach the cluster.
type Nodes struct {
	c    *Client
	base string
}

// NodesOf returns the nodes of a cluster. Requests go through the root, unless the client is connected to
// the cluster.
func (c *Client) NodesOf(id api.ClusterID) Nodes {
	if c.own != "" && c.own == id {
		return c.OwnNodes()
	}
	return Nodes{c, pathOf(Clusters, id) + "/nodes"}
}

// ClusterEvents lists who reached instances through a cluster's own port, oldest first.
func (c *Client) ClusterEvents(ctx context.Context, id api.ClusterID) ([]api.Event, error) {
	all, _, err := List[api.Event](ctx, c, c.inCluster(id)+"/events", ListOptions{})
	return all, err
}

// InstancesOn lists what runs in a cluster, of all tenants, for those who may see its nodes.
func (c *Client) InstancesOn(ctx context.Context, id api.ClusterID) ([]api.Instance, error) {
	all, _, err := List[api.Instance](ctx, c, c.inCluster(id)+"/instances", ListOptions{})
	return all, err
}

// inCluster returns the path below which a cluster's objects are.
func (c *Client) inCluster(id api.ClusterID) string {
	if c.own != "" && c.own == id {
		return "/v1"
	}
	return pathOf(Clusters, id)
}

// ClusterStatus is what a cluster says of itself.
type ClusterStatus struct {
	api.ClusterInfo
	Root      bool          `json:"root_connected"`
	Nodes     int           `json:"nodes"`
	Instances int           `json:"instances"`
	Aggregate api.Aggregate `json:"aggregate"`
}

// Status returns the status of the cluster that the client is connected to.
func (c *Client) Status(ctx context.Context) (ClusterStatus, error) {
	return Get[ClusterStatus](ctx, c, "/v1/status")
}

// OwnNodes returns the nodes of the cluster that the client is connected to.
func (c *Client) OwnNodes() Nodes { return Nodes{c, "/v1/nodes"} }

func (n Nodes) path(id api.NodeID) string { return n.base + "/" + api.PathOf(id) }

func (n Nodes) post(ctx context.Context, id api.NodeID, verb string) error {
	return n.c.do(ctx, Request{Method: http.MethodPost, Path: n.path(id) + "/" + verb})
}

func (n Nodes) List(ctx context.Context) ([]api.Node, error) {
	all, _, err := List[api.Node](ctx, n.c, n.base, ListOptions{})
	return all, err
}

func (n Nodes) Get(ctx context.Context, id api.NodeID) (api.Node, error) {
	return Get[api.Node](ctx, n.c, n.path(id))
}

// Cordon marks a node unschedulable: it gets no new instances.
func (n Nodes) Cordon(ctx context.Context, id api.NodeID) error { return n.post(ctx, id, "cordon") }

// Uncordon marks a node schedulable again.
func (n Nodes) Uncordon(ctx context.Context, id api.NodeID) error { return n.post(ctx, id, "uncordon") }

// Drain cordons a node and moves its instances to other nodes. It returns before they have
// moved. Instances that fit nowhere else stay.
func (n Nodes) Drain(ctx context.Context, id api.NodeID) error { return n.post(ctx, id, "drain") }

// ForceDrain drains a node and stops instances that fit nowhere else.
func (n Nodes) ForceDrain(ctx context.Context, id api.NodeID) error {
	return n.post(ctx, id, "force-drain")
}

// SetCaps replaces the upper limits for what a node reports. Zero Caps remove them. Clusters do not
// serve it directly: only Nodes of NodesOf have it.
func (n Nodes) SetCaps(ctx context.Context, id api.NodeID, caps api.Caps) (api.Node, error) {
	return send[api.Node](ctx, n.c, Request{Method: http.MethodPut, Path: n.path(id) + "/caps", Body: caps})
}

// Remove removes a node and revokes its certificates.
func (n Nodes) Remove(ctx context.Context, id api.NodeID) error {
	return n.c.do(ctx, Request{Method: http.MethodDelete, Path: n.path(id)})
}

// Purge orders a node to delete its workloads, keys and data. The node is removed when it
// has acknowledged that.
func (n Nodes) Purge(ctx context.Context, id api.NodeID) error { return n.post(ctx, id, "purge") }

// ClusterWhy returns, node by node, where a cluster could place an instance now. The client must be
// connected to the cluster (Options.Expect).
func (c *Client) ClusterWhy(ctx context.Context, id api.InstanceID) (api.Explanation, error) {
	return Get[api.Explanation](ctx, c, pathOf(Instances, id)+"/why")
}

// ScaleLocally sets how many instances of a service a cluster runs while its root is unreachable.
// The client must be connected to the cluster (Options.Expect).
func (c *Client) ScaleLocally(ctx context.Context, id api.ServiceID, replicas int) error {
	return c.do(ctx, Request{Method: http.MethodPost, Path: pathOf(Services, id) + "/scale", Body: api.Replicas{Replicas: replicas}})
}

// SetGrant replaces a cluster's grant: the tenants whose services it may run, and its caps.
// It fails with ErrPrecondition unless the cluster is at revision rev; 0 matches any.
func (c *Client) SetGrant(ctx context.Context, id api.ClusterID, g api.Grant, rev api.Revision) (api.Cluster, error) {
	r := Request{Method: http.MethodPut, Path: pathOf(Clusters, id) + "/grant", Body: g}
	if rev > 0 {
		r.Header = ifMatch(rev)
	}
	return send[api.Cluster](ctx, c, r)
}

// exchangeEarly is how long before its expiry a delegated token is replaced. It is longer than
// renewEarly, so that streams are renewed with a new token.
const exchangeEarly = 20 * time.Second

// exchanged supplies delegated tokens for one cluster.
type exchanged struct {
	root    *Client
	cluster api.ClusterID

	mu   sync.Mutex // guards have; also held during the request to the root, so that only one is sent
	have api.ClusterAccess
}

// TokensFor returns tokens for the API of a cluster (Options.Expect), which the root issues in
// exchange for the client's own tokens. It replaces them before they expire.
func (c *Client) TokensFor(cluster api.ClusterID) Tokens {
	return &exchanged{root: c, cluster: cluster}
}

func (e *exchanged) Token(ctx context.Context, refused string) (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.have.Token == "" || e.have.Token == refused || time.Until(e.have.Expires) < exchangeEarly {
		got, err := send[api.ClusterAccess](ctx, e.root, Request{Method: http.MethodPost, Path: pathOf(Clusters, e.cluster) + "/access"})
		if err != nil {
			return "", fmt.Errorf("exchange a token for cluster %s: %w", e.cluster, err)
		}
		e.have = got
	}
	return e.have.Token, nil
}

// CreateOperator makes a named token for the own API of the cluster that the client is connected to.
func (c *Client) CreateOperator(ctx context.Context, r api.OperatorRequest) (api.OperatorToken, error) {
	return send[api.OperatorToken](ctx, c, Request{Method: http.MethodPost, Path: "/v1/operators", Body: r})
}

// Operators lists the named tokens of the cluster that the client is connected to.
func (c *Client) Operators(ctx context.Context) ([]api.OperatorToken, error) {
	all, _, err := List[api.OperatorToken](ctx, c, "/v1/operators", ListOptions{})
	return all, err
}

// RevokeOperator makes a named token invalid, and the join tokens that were created with it.
func (c *Client) RevokeOperator(ctx context.Context, name string) error {
	return c.do(ctx, Request{Method: http.MethodDelete, Path: "/v1/operators/" + api.PathOf(name)})
}
