package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Net is a node's part in the network.
func (n Nodes) Net(ctx context.Context, id api.NodeID) (api.NetStatus, error) {
	return get[api.NetStatus](ctx, n.c, n.path(id)+"/net")
}

// Routes are the services that a node has routes to.
func (n Nodes) Routes(ctx context.Context, id api.NodeID) ([]api.RouteStatus, error) {
	all, _, err := List[api.RouteStatus](ctx, n.c, n.path(id)+"/net/routes", nil)
	return all, err
}

// Peers are the nodes that a node talks to.
func (n Nodes) Peers(ctx context.Context, id api.NodeID) ([]api.PeerStatus, error) {
	all, _, err := List[api.PeerStatus](ctx, n.c, n.path(id)+"/net/peers", nil)
	return all, err
}

// Trace says what would become of a new flow of an instance to a name or an address.
func (c *Client) Trace(ctx context.Context, from api.InstanceID, to string) (out api.NetTrace, err error) {
	_, err = c.Do(ctx, Request{
		Method: http.MethodGet, Path: string(Instances) + "/" + api.PathOf(from) + "/trace", Query: url.Values{"to": {to}},
	}, &out)
	return out, err
}

// Capture streams the packets of an instance as pcap, for at most that long and
// that many bytes. The caller closes it.
func (c *Client) Capture(ctx context.Context, id api.InstanceID, most time.Duration, bytes int) (io.ReadCloser, error) {
	began := time.Now()
	resp, err := c.send(ctx, Request{
		Method: http.MethodGet, Path: string(Instances) + "/" + api.PathOf(id) + "/capture",
		Query: url.Values{"seconds": {strconv.Itoa(int((most + time.Second - 1) / time.Second))}, "bytes": {strconv.Itoa(bytes)}},
	})
	if err != nil {
		return nil, err
	}
	return c.renewed(ctx, began, resp), nil
}
