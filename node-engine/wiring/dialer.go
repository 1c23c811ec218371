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
	joined    mqtt.Endpoint // the broker from the join
	creds     clusterlink.Credentials
	endpoints atomic.Pointer[[]mqtt.Endpoint]
	hurry     atomic.Bool
}

// newDialer returns a dialer whose only endpoint is the broker from the join.
func newDialer(c clusterlink.Credentials) (*dialer, error) {
	addr, alpn, err := brokerOf(c)
	if err != nil {
		return nil, err
	}
	d := &dialer{creds: c, joined: mqtt.Endpoint{Addr: addr, NextProtos: alpn}}
	d.set(node.Dial{})
	return d, nil
}

// set sets the endpoints that the core chose. The broker from the join remains the last one, because
// a broker that the cluster announced may never start.
func (d *dialer) set(to node.Dial) {
	d.hurry.Store(to.Hurry)
	var all []mqtt.Endpoint
	add := func(e mqtt.Endpoint) {
		if !slices.ContainsFunc(all, func(o mqtt.Endpoint) bool { return o.Addr == e.Addr && slices.Equal(o.NextProtos, e.NextProtos) }) {
			all = append(all, e)
		}
	}
	for _, b := range to.Brokers {
		c := d.creds
		if c.MQTT = b; b == wire.EmbeddedBroker {
			c.MQTT = ""
		}
		if addr, alpn, err := brokerOf(c); err == nil { // otherwise no node can dial it
			add(mqtt.Endpoint{Addr: addr, NextProtos: alpn})
		}
	}
	add(d.joined)
	d.endpoints.Store(&all)
}

func (d *dialer) Endpoints() []mqtt.Endpoint { return *d.endpoints.Load() }

func (d *dialer) Hurry() bool { return d.hurry.Load() }

// brokerOf returns the address of the node's broker. On the cluster's own port, ALPN selects MQTT.
func brokerOf(c clusterlink.Credentials) (addr string, alpn []string, err error) {
	at, scheme, port := c.MQTT, "mqtts", "8883"
	if at == "" {
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
	broker, _, err := brokerOf(c)
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
