package netbench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/netsock"
	"github.com/treeline-edge/treeline/internal/wire"
)

// cluster implements the part of a cluster and of node engines that netmanagers need: it signs
// certificates, leases subnets and answers subscriptions.
type cluster struct {
	ca          *ca.Authority
	dir         string
	unencrypted []netip.Prefix // networks without encryption
	relayed     bool           // there is a relay
	hosts       []*host

	ctx context.Context // of the engines
	end context.CancelFunc

	mu     sync.Mutex // guards the fields below, and those of hosts that say so
	routes []api.Route
	rev    uint64
}

// host is a node.
type host struct {
	c      *cluster
	dir    string // data of node engine and netmanager
	socket string
	sock   *netsock.Client
	lease  wire.NetLease
	ready  chan struct{} // closed when the netmanager attaches

	self      *wire.NetSelf // the cluster's
	boot, seq uint64        // the cluster's
}

const clusterID = api.ClusterID("bench")

func serviceID(name string) api.ServiceID {
	return api.Tenant("bench").App("net", "prod").Service(name, "prod")
}

func newCluster() (_ *cluster, err error) {
	c := &cluster{}
	now := time.Now()
	root, err := ca.NewRoot(now)
	if err != nil {
		return nil, err
	}
	key, csr, err := ca.NewRequest()
	if err != nil {
		return nil, err
	}
	chain, err := root.SignCluster(now, csr, clusterID)
	if err != nil {
		return nil, err
	}
	if c.ca, err = ca.New(ca.Pair{Chain: chain, Key: key}); err != nil {
		return nil, err
	}
	if c.dir, err = os.MkdirTemp("", "netbench-"); err != nil {
		return nil, err
	}
	c.ctx, c.end = context.WithCancel(context.Background())
	return c, nil
}

func (c *cluster) close() error {
	c.end()
	return os.RemoveAll(c.dir)
}

// host adds the i-th node, with a certificate in its directory.
func (c *cluster) host(i int) (*host, error) {
	id := api.NodeID(fmt.Sprintf("n%d", i+1))
	h := &host{c: c, dir: filepath.Join(c.dir, string(id)), ready: make(chan struct{})}
	h.socket = filepath.Join(h.dir, "net.sock")
	h.sock = netsock.New(h.socket)
	h.lease = wire.NetLease{Rev: 1, Node: id, Cluster: clusterID, Ranges: ranges, Subnet: subnets[i], Unencrypted: c.unencrypted}
	if c.relayed {
		slot := uint32(i + 1)
		h.lease.Relay, h.lease.Secret = api.Relay{Addr: relayAddr.String(), Slot: slot, Ticket: ticketOf(slot)}, relaySecret
	}
	if err := os.Mkdir(h.dir, 0o700); err != nil {
		return nil, err
	}
	key, csr, err := ca.NewRequest()
	if err != nil {
		return nil, err
	}
	chain, err := c.ca.SignNode(time.Now(), csr, id)
	if err != nil {
		return nil, err
	}
	dir, err := os.OpenRoot(h.dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	meta, err := json.Marshal(map[string]any{"id": id, "cluster": clusterID, "url": "https://" + hostBetween.String() + ":1"})
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.hosts = append(c.hosts, h)
	c.mu.Unlock()
	return h, errors.Join(ca.SavePair(dir, "node.pem", ca.Pair{Chain: chain, Key: key}), dir.WriteFile("node.json", meta, 0o600))
}

// engine is the node engine's part: it forwards messages until ctx ends.
func (h *host) engine(ctx context.Context) {
	attaches := sync.OnceFunc(func() { close(h.ready) })
	for ctx.Err() == nil {
		linked := false
		_ = h.sock.Events(ctx, func(e wire.NetEvent) error { // ends with the netmanager, or if that does not run yet
			if !linked {
				linked = true
				if err := h.sock.Link(ctx, true); err != nil {
					return err
				}
			}
			if e.Ready != nil && e.Ready.Ready {
				attaches()
			}
			if e.Up == nil {
				return nil
			}
			var up wire.NetUp
			if err := json.Unmarshal(e.Up, &up); err != nil {
				return err
			}
			return h.answer(ctx, up)
		})
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// answer returns the cluster's answer: the node's lease, and the routes of its new subscriptions.
func (h *host) answer(ctx context.Context, up wire.NetUp) error {
	h.c.mu.Lock()
	if up.Self != nil {
		h.self = up.Self
	}
	h.boot, h.seq = up.Boot, up.Seq
	d := h.down()
	for _, w := range up.Subscribe {
		if r, ok := h.c.leadsTo(w); ok {
			d.Routes = append(d.Routes, r)
		} else if p, ok := h.c.peer(w.Address); ok {
			d.Peers = append(d.Peers, p)
		} else {
			d.Refused = append(d.Refused, wire.Refusal{Subscription: w})
		}
	}
	h.c.mu.Unlock()
	return h.tell(ctx, d)
}

// down returns an empty message. mu is held.
func (h *host) down() wire.NetDown {
	h.c.rev++
	return wire.NetDown{Boot: h.boot, Seq: h.seq, Rev: h.c.rev, Lease: &h.lease}
}

func (h *host) tell(ctx context.Context, d wire.NetDown) error {
	slices.SortFunc(d.Routes, func(a, b api.Route) int { return cmp.Compare(a.Service, b.Service) })
	d.Routes = slices.CompactFunc(d.Routes, func(a, b api.Route) bool { return a.Service == b.Service })
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	return h.sock.Down(ctx, text)
}

// leadsTo returns the route of a subscription. mu is held.
func (c *cluster) leadsTo(w wire.Subscription) (api.Route, bool) {
	for _, r := range c.routes {
		if w.Service == r.Service || w.Address.IsValid() && (w.Address == r.Addresses.RoundRobin ||
			slices.ContainsFunc(r.Backends, func(b api.Backend) bool { return b.Address == w.Address })) {
			return c.filled(r), true
		}
	}
	return api.Route{}, false
}

// filled returns a route with the present peers of its backends. mu is held.
func (c *cluster) filled(r api.Route) api.Route {
	r.Rev, r.Backends = c.rev, slices.Clone(r.Backends)
	for i, b := range r.Backends {
		p, ok := c.peer(b.Address)
		if !ok {
			continue
		}
		r.Backends[i].Peer = p.Key
		if !slices.ContainsFunc(r.Peers, func(q api.Peer) bool { return q.Key == p.Key }) {
			r.Peers = append(r.Peers, p)
		}
	}
	return r
}

// peer returns the node of an instance's address. mu is held.
func (c *cluster) peer(a netip.Addr) (api.Peer, bool) {
	for _, h := range c.hosts {
		if h.lease.Subnet.Contains(a) && h.self != nil {
			return api.Peer{
				Key: h.self.Key, Cluster: clusterID, Node: h.lease.Node, Subnets: []netip.Prefix{h.lease.Subnet},
				Endpoints: h.self.Endpoints, Relay: h.lease.Relay, Chain: h.self.Chain, Proof: h.self.Proof, Rev: c.rev,
			}, true
		}
	}
	return api.Peer{}, false
}

// attach makes a node's netmanager attach a namespace as an instance, behind a semantic address
// unless that is zero, and publishes the route.
func (c *cluster) attach(ctx context.Context, node int, n *Namespace, name string, number int, vip netip.Addr) error {
	svc := serviceID(name)
	a := wire.Attach{
		Key: wire.Key{Instance: svc.Instance(number), Epoch: 1}, NetNS: n.Path(),
		Addresses: api.ServiceAddresses{RoundRobin: vip},
	}
	at, err := c.hosts[node].sock.Attach(ctx, a)
	if err != nil {
		return err
	}
	c.mu.Lock()
	i := slices.IndexFunc(c.routes, func(r api.Route) bool { return r.Service == svc })
	if i < 0 {
		i = len(c.routes)
		c.routes = append(c.routes, api.Route{Service: svc, Addresses: a.Addresses})
	}
	r := &c.routes[i]
	r.Backends = append(r.Backends, api.Backend{Instance: a.Instance, Epoch: a.Epoch, Address: at.Address, State: api.BackendUp})
	c.mu.Unlock()
	for _, h := range c.hosts {
		c.mu.Lock()
		d := h.down()
		if h.self != nil && c.known(h, svc) {
			d.Routes = append(d.Routes, c.filled(*r))
		}
		c.mu.Unlock()
		if err := h.tell(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// known reports whether a node already has the route. mu is held.
func (c *cluster) known(h *host, svc api.ServiceID) bool {
	i := slices.IndexFunc(c.routes, func(r api.Route) bool { return r.Service == svc })
	return slices.ContainsFunc(c.routes[i].Backends, func(b api.Backend) bool { return h.lease.Subnet.Contains(b.Address) })
}

// peers returns the peers of the node's netmanager.
func (h *host) peers(ctx context.Context) (all []api.PeerStatus, err error) {
	body, err := h.sock.Open(ctx, netsock.Peers)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	var list struct{ Items []api.PeerStatus }
	err = json.NewDecoder(body).Decode(&list)
	return list.Items, err
}
