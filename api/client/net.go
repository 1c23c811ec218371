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

func (n Nodes) Net(ctx context.Context, id api.NodeID) (api.NetStatus, error) {
	return Get[api.NetStatus](ctx, n.c, n.path(id)+"/net")
}

func (n Nodes) Routes(ctx context.Context, id api.NodeID) ([]api.RouteStatus, error) {
	all, _, err := List[api.RouteStatus](ctx, n.c, n.path(id)+"/net/routes", ListOptions{})
	return all, err
}

// Peers lists the nodes that a node exchanges packets with, and the path to each.
func (n Nodes) Peers(ctx context.Context, id api.NodeID) ([]api.PeerStatus, error) {
	all, _, err := List[api.PeerStatus](ctx, n.c, n.path(id)+"/net/peers", ListOptions{})
	return all, err
}

// Trace returns what would happen to a new connection of an instance to a service name or address:
// the backend and path that it would get, or the rule that would reject it.
func (c *Client) Trace(ctx context.Context, from api.InstanceID, to string) (api.NetTrace, error) {
	return send[api.NetTrace](ctx, c, Request{Method: http.MethodGet, Path: pathOf(Instances, from) + "/trace", Query: url.Values{"to": {to}}})
}

// Capture streams the packets of an instance in pcap format, for at most duration, rounded up to
// seconds, and at most maxBytes. The caller closes the stream. ErrTooMany: the limit of captures on
// the node or of the tenant is reached.
func (c *Client) Capture(ctx context.Context, id api.InstanceID, duration time.Duration, maxBytes int) (io.ReadCloser, error) {
	seconds := int((duration + time.Second - 1) / time.Second)
	return c.stream(ctx, pathOf(Instances, id)+"/capture", url.Values{"seconds": {strconv.Itoa(seconds)}, "bytes": {strconv.Itoa(maxBytes)}})
}
