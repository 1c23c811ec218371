package wiring

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bus/mqtt"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/clusterlink"
	"github.com/treeline-edge/treeline/node-engine/node"
)

// dialer has the endpoints of the cluster's broker. It is safe for concurrent use.
type dialer struct {
	creds     clusterlink.Credentials
	endpoints atomic.Pointer[[]mqtt.Endpoint]
	hurry     atomic.Bool
}

// newDialer returns a dialer whose endpoints are the brokers from the join.
func newDialer(c clusterlink.Credentials) (*dialer, error) {
	d := &dialer{creds: c}
	d.set(node.Dial{})
	if len(d.Endpoints()) == 0 {
		_, _, err := brokerOf(c, joinedWith(c)[0])
		return nil, err
	}
	return d, nil
}

// otherKeepAlive is the keep-alive while the cluster has several brokers: a node goes on at the next one before the cluster
// counts it as dead.
const otherKeepAlive = 2 * time.Second

// set sets the endpoints that the core chose. The brokers from the join remain the last ones, because
// a broker that the cluster announced may never start.
func (d *dialer) set(to node.Dial) {
	d.hurry.Store(to.Hurry)
	joined := joinedWith(d.creds)
	var keepAlive time.Duration
	if len(to.Brokers) > 1 || len(to.Brokers) == 0 && len(joined) > 1 {
		keepAlive = otherKeepAlive
	}
	var all []mqtt.Endpoint
	add := func(e mqtt.Endpoint) {
		if !slices.ContainsFunc(all, func(o mqtt.Endpoint) bool { return o.Addr == e.Addr && slices.Equal(o.NextProtos, e.NextProtos) }) {
			all = append(all, e)
		}
	}
	for _, b := range slices.Concat(to.Brokers, joined) {
		if addr, alpn, err := brokerOf(d.creds, b); err == nil { // otherwise no node can dial it
			add(mqtt.Endpoint{Addr: addr, NextProtos: alpn, KeepAlive: keepAlive})
		}
	}
	d.endpoints.Store(&all)
}

func (d *dialer) Endpoints() []mqtt.Endpoint { return *d.endpoints.Load() }

func (d *dialer) Hurry() bool { return d.hurry.Load() }

// joinedWith returns the brokers from the join, at least one. Clusters of earlier releases have told one, as a URL or none.
func joinedWith(c clusterlink.Credentials) []string {
	switch {
	case len(c.Brokers) > 0:
		return c.Brokers
	case c.MQTT != "":
		return []string{c.MQTT}
	}
	return []string{wire.EmbeddedBroker}
}

// brokerOf returns the address of a broker, as in wire.Desired.Brokers. On the cluster's own port, ALPN selects MQTT.
func brokerOf(c clusterlink.Credentials, at string) (addr string, alpn []string, err error) {
	scheme, port := "mqtts", "8883"
	if at == wire.EmbeddedBroker {
		at, scheme, port, alpn = c.URL, "https", "443", []string{"mqtt"}
	}
	u, err := url.Parse(at)
	if err != nil || u.Scheme != scheme || u.Hostname() == "" {
		return "", nil, fmt.Errorf("broker URL %q: want %s://host:port: %w", at, scheme, api.ErrInvalid)
	}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port)), alpn, nil
}

// lookupTime limits the search of the cluster's name in ownAddress, which delays the start.
const lookupTime = 2 * time.Second

// ownAddress returns the machine's address on the route to the cluster's broker; empty: unknown. It sends
// no packet to the broker.
func ownAddress(ctx context.Context, c clusterlink.Credentials) string {
	broker, _, err := brokerOf(c, joinedWith(c)[0])
	if err != nil {
		return ""
	}
	conn, err := (&net.Dialer{Timeout: lookupTime}).DialContext(ctx, "udp", broker)
	if err != nil {
		return ""
	}
	defer conn.Close()
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	if err != nil {
		return ""
	}
	return host
}
