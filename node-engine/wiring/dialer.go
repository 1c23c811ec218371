package wiring

import (
	"slices"
	"sync/atomic"

	"github.com/treeline-edge/treeline/internal/bus/mqtt"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/clusterlink"
	"github.com/treeline-edge/treeline/node-engine/node"
)

// dialer has the endpoints of the cluster's broker that the core chose. It is safe for
// concurrent use.
type dialer struct {
	joined    mqtt.Endpoint // the broker of the join
	creds     clusterlink.Credentials
	endpoints atomic.Pointer[[]mqtt.Endpoint]
	hurry     atomic.Bool
}

// newDialer returns a dialer with the broker of the node's join.
func newDialer(c clusterlink.Credentials) (*dialer, error) {
	addr, alpn, err := brokerOf(c)
	if err != nil {
		return nil, err
	}
	d := &dialer{creds: c, joined: mqtt.Endpoint{Addr: addr, NextProtos: alpn}}
	d.set(node.Dial{})
	return d, nil
}

// set takes the core's choice. The broker of the join stays the last resort: a broker
// that the cluster announced may never start.
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
		if addr, alpn, err := brokerOf(c); err == nil { // else the cluster named what no node can dial
			add(mqtt.Endpoint{Addr: addr, NextProtos: alpn})
		}
	}
	add(d.joined)
	d.endpoints.Store(&all)
}

// Endpoints is mqtt.Options'.
func (d *dialer) Endpoints() []mqtt.Endpoint { return *d.endpoints.Load() }

// Hurry is mqtt.Options'.
func (d *dialer) Hurry() bool { return d.hurry.Load() }
