package lab

import (
	"context"
	"net"

	"github.com/treeline-edge/treeline/testbed/promtest"
)

// Scraped returns what a Prometheus on the cluster's host scrapes.
func (c *Cluster) Scraped() promtest.Target {
	l := c.lab
	l.t.Helper()
	at := l.spaceOf(c.host)
	return promtest.Target{
		Root: c.Up.Addr(), RootToken: l.Access(), Cluster: l.address(c.Data), ClusterToken: operatorToken, CA: l.ca,
		Prefix: on(c.host, nil),
		Dial:   func(_ context.Context, _, address string) (net.Conn, error) { return at.dial(address) },
	}
}
