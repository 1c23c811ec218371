package lab

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// Overlay is a lab whose clusters and nodes are separate hosts on one network,
// 203.0.113.0/24. Each node has a netmanager.
//
//	o := lab.NewOverlay(t, lab.Options{})
//	o.Node(o.First, netlab.Symmetric)
//	o.Node(o.First, netlab.None)
//	o.Ready(o.First, 2)
//	c := o.Calling("c1", "c1")
//	c.More(t, 100)
type Overlay struct {
	*Lab
	Net   *netlab.Lab
	WAN   *netlab.Host
	First *Cluster // c1
	Nodes []*Node  // n0, n1, …
	Hosts []*netlab.Host
}

// NewOverlay returns a lab with the cluster c1, which gets the flags.
func NewOverlay(t interface {
	T
	Skip(args ...any)
}, lo Options, args ...string,
) *Overlay {
	t.Helper()
	o := &Overlay{Lab: New(t, lo), Net: netlab.New(t)}
	o.WAN = o.Net.Switch("wan")
	o.First = o.NewCluster("c1", 1, args...)
	return o
}

// NewCluster adds a cluster at 203.0.113.n.
func (o *Overlay) NewCluster(id api.ClusterID, n int, args ...string) *Cluster {
	o.t.Helper()
	h := o.Net.Host(string(id))
	at := fmt.Sprintf("203.0.113.%d", n)
	h.Plug(o.WAN, "eth0", at+"/24")
	return o.Cluster(id, ClusterOptions{Host: h, Address: at, Args: args})
}

// Node adds a node behind a NAT of a kind: its public address is 203.0.113.10 for
// the first, and its own network 192.168.10.0/24.
func (o *Overlay) Node(c *Cluster, kind netlab.Kind, args ...string) *Node {
	o.t.Helper()
	return o.Site(c, kind, NodeOptions{Args: args})
}

// Site is Node with options. Options of its place on the network must not be set.
func (o *Overlay) Site(c *Cluster, kind netlab.Kind, no NodeOptions) *Node {
	o.t.Helper()
	i := len(o.Nodes)
	h := o.Net.Site(fmt.Sprintf("h%d", i), kind, o.WAN, fmt.Sprintf("203.0.113.%d/24", 10+i), fmt.Sprintf("192.168.%d.0/24", 10+i))
	return o.add(c, h, no)
}

// ClearNode adds a node on the common link. A single node has a /32 address and a route to the
// link, like machines in some clouds, and is on no network.
func (o *Overlay) ClearNode(c *Cluster, single bool, netArgs ...string) *Node {
	o.t.Helper()
	i := len(o.Nodes)
	at := fmt.Sprintf("203.0.113.%d", 10+i)
	h := o.Net.Site(fmt.Sprintf("h%d", i), netlab.None, o.WAN, at+"/24", "")
	if single {
		h.Run("ip", "addr", "add", at+"/32", "dev", "eth0")
		h.Run("ip", "addr", "del", at+"/24", "dev", "eth0")
		h.Run("ip", "route", "replace", "203.0.113.0/24", "dev", "eth0", "src", at)
	}
	return o.add(c, h, NodeOptions{NetArgs: netArgs})
}

func (o *Overlay) add(c *Cluster, h *netlab.Host, no NodeOptions) *Node {
	o.t.Helper()
	no.Containers, no.CPUs, no.Host, no.Overlay = true, 4, h, true
	n := c.Node(cmp.Or(no.Name, fmt.Sprintf("n%d", len(o.Nodes))), no)
	o.Nodes, o.Hosts = append(o.Nodes, n), append(o.Hosts, h)
	return n
}

// Ready waits until every node takes work on the network.
func (o *Overlay) Ready(c *Cluster, n int) {
	o.t.Helper()
	o.Wait("all nodes are on the network", Nodes(c.ID, n))
}

// Container is Lab.Container with an SLA's default network, the overlay network.
func (o *Overlay) Container(name string, replicas int) api.Microservice {
	m := o.Lab.Container(name, replicas)
	m.Network = ""
	return m
}

// Server returns a service whose instances answer HTTP on port 80 with their name.
func (o *Overlay) Server(name string, replicas int) api.Microservice {
	m := o.Container(name, replicas)
	m.Cmd = []string{"/app", "serve"}
	m.Environment = []string{"PORT=80"}
	return m
}

// Calling makes a client on the first node call a server on the second.
func (o *Overlay) Calling(client, server api.ClusterID) *Caller {
	o.t.Helper()
	o.Apply(App("shop", On(o.Container("client", 1), string(client), "n0"), On(o.Server("web", 1), string(server), "n1")))
	o.Wait("both run", func(v View) bool { return o.Running("shop", "client", 1)(v) && o.Running("shop", "web", 1)(v) })
	c := Call(o.Inside(o.ID("shop", "client", 0)), netip.AddrPortFrom(o.Addresses("shop", "web").RoundRobin, 80).String())
	o.t.Cleanup(c.Stop)
	return c
}

// Paths returns the path from each node to the others, with the reason.
func (o *Overlay) Paths() (kinds []api.PathKind, reasons string) {
	o.t.Helper()
	for _, n := range o.Nodes {
		for _, p := range n.Peers() {
			kinds = append(kinds, p.Path)
			reasons += fmt.Sprintf("%s sees %s %s by %s at %s: %q; ", n.ID, p.Cluster, p.Node, p.Path, p.Endpoint, p.Reason)
		}
	}
	return kinds, reasons
}

// Takes waits until the nodes use these paths to each other.
func (o *Overlay) Takes(want ...api.PathKind) {
	o.t.Helper()
	Within(o.t, 60*time.Second, fmt.Sprintf("the nodes send by %v", want), func() error {
		if got, why := o.Paths(); !slices.Equal(got, want) {
			return errors.New(why)
		}
		return nil
	})
}
