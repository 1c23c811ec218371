package netbench

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/proof"
	"github.com/treeline-edge/treeline/internal/netsock"
	"github.com/treeline-edge/treeline/internal/wire"
)

func init() { roles["touch"] = as(touch) }

// Crowd adds routes to the first node: to so many services on so many further nodes, which do
// not exist. It must be called before Up.
func (d *DaemonPath) Crowd(services, nodes int) *DaemonPath {
	d.services, d.nodes = services, nodes
	return d
}

// crowd adds the services and the nodes to the cluster.
func (c *cluster) crowd(services, nodes int) error {
	subnet := netip.MustParsePrefix("10.17.0.0/26")
	first := len(c.hosts)
	for i := range nodes {
		self, err := c.absent(api.NodeID(fmt.Sprintf("far-%d", i)))
		if err != nil {
			return err
		}
		at := subnet.Addr().As4()
		at[2] = byte(i)
		c.mu.Lock()
		c.hosts = append(c.hosts, &host{c: c, self: self, lease: wire.NetLease{
			Node: api.NodeID(fmt.Sprintf("far-%d", i)), Subnet: netip.PrefixFrom(netip.AddrFrom4(at), subnet.Bits()),
		}})
		c.mu.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range services {
		svc := serviceID(fmt.Sprintf("far%d", i))
		at := c.hosts[first+i%nodes].lease.Subnet.Addr().As4()
		at[3] += byte(1 + i/nodes)
		c.routes = append(c.routes, api.Route{
			Service: svc, Addresses: api.ServiceAddresses{RoundRobin: crowdAddr(i)},
			Backends: []api.Backend{{Instance: svc.Instance(0), Epoch: 1, Address: netip.AddrFrom4(at), State: api.BackendUp}},
		})
	}
	return nil
}

// crowdAddr returns the semantic address of the crowd's i-th service.
func crowdAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 30, byte(1 + i>>8), byte(i)}) }

// absent returns the announcement of a node that does not run.
func (c *cluster) absent(id api.NodeID) (*wire.NetSelf, error) {
	key, csr, err := ca.NewRequest()
	if err != nil {
		return nil, err
	}
	chain, err := c.ca.SignNode(time.Now(), csr, id)
	if err != nil {
		return nil, err
	}
	overlay, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	self := &wire.NetSelf{Key: api.PeerKey(overlay.PublicKey().Bytes()), Endpoints: []netip.AddrPort{netip.MustParseAddrPort("203.0.113.9:9")}}
	for _, cert := range chain[:len(chain)-1] {
		self.Chain = append(self.Chain, cert.Raw)
	}
	self.Proof, err = proof.Sign(key, self.Key)
	return self, err
}

// Crowded returns an error unless the first node still has all routes of the crowd, because it
// drops routes that are unused for some minutes.
func (d *DaemonPath) Crowded(ctx context.Context) error {
	if d.services == 0 {
		return nil
	}
	have, err := d.cluster.hosts[0].routes(ctx)
	if err == nil && have < d.services {
		err = fmt.Errorf("the node has %d of %d routes", have, d.services)
	}
	return err
}

// touched makes the first container use each service of the crowd, until the node has all
// routes.
func (d *DaemonPath) touched(ctx context.Context, b *Bed) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for have := 0; ; {
		var n int
		if err := b.Container[0].run(ctx, "touch", d.services, &n); err != nil {
			return err
		}
		all, err := d.cluster.hosts[0].routes(ctx)
		if err != nil {
			return fmt.Errorf("the node got %d of %d routes: %w; %s", have, d.services, err, tail(filepath.Join(d.cluster.hosts[0].dir, "log")))
		}
		if have = all; have >= d.services {
			return nil
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return fmt.Errorf("the node has %d of %d routes: %w", have, d.services, ctx.Err())
		}
	}
}

func touch(_ context.Context, n int, _ func()) (any, error) {
	c, err := net.ListenPacket("udp4", ":0")
	if err != nil {
		return nil, err
	}
	defer c.Close()
	for i := range n {
		if _, err := c.WriteTo([]byte("?"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(crowdAddr(i), 9))); err != nil {
			return nil, err
		}
		time.Sleep(time.Millisecond) // the packet queue is bounded
	}
	return n, nil
}

// routes returns the number of routes of a node.
func (h *host) routes(ctx context.Context) (int, error) {
	body, err := h.sock.Open(ctx, netsock.Routes)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	var list struct{ Items []json.RawMessage }
	err = json.NewDecoder(body).Decode(&list)
	return len(list.Items), err
}
