package lab_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

const callItClear = "--network-clear=203.0.113.0/24"

// clearNode adds a node on the common link. A single one has an address of its own
// alone and a route to the link, as some clouds give them: it is on no network.
func (o *overlay) clearNode(c *lab.Cluster, single bool, netArgs ...string) *lab.Node {
	o.t.Helper()
	i := len(o.nodes)
	at := fmt.Sprintf("203.0.113.%d", 10+i)
	h := o.net.Site(fmt.Sprintf("h%d", i), netlab.None, o.wan, at+"/24", "")
	if single {
		h.Run("ip", "addr", "add", at+"/32", "dev", "eth0")
		h.Run("ip", "addr", "del", at+"/24", "dev", "eth0")
		h.Run("ip", "route", "replace", "203.0.113.0/24", "dev", "eth0", "src", at)
	}
	n := c.Node(fmt.Sprintf("n%d", i), lab.NodeOptions{Containers: true, CPUs: 4, Host: h, Overlay: true, NetArgs: netArgs})
	o.nodes, o.hosts = append(o.nodes, n), append(o.hosts, h)
	return n
}

// calling has a client on the first node call a server on the second.
func (o *overlay) calling(client, server api.ClusterID) *caller {
	o.t.Helper()
	o.Apply(lab.App("shop", lab.On(o.Container("client", 1), string(client), "n0"), lab.On(o.server("web", 1), string(server), "n1")))
	o.Wait("both run", func(v lab.View) bool { return o.Running("shop", "client", 1)(v) && o.Running("shop", "web", 1)(v) })
	c := call(o.Inside(o.ID("shop", "client", 0)), netip.AddrPortFrom(o.Addresses("shop", "web").RoundRobin, 80).String())
	o.t.Cleanup(c.stop)
	return c
}

// paths says by which way each node sends to the other, and why.
func (o *overlay) paths() (kinds []api.PathKind, reasons string) {
	o.t.Helper()
	for _, n := range o.nodes {
		for _, p := range n.Peers() {
			kinds = append(kinds, p.Path)
			reasons += fmt.Sprintf("%s sees %s %s by %s at %s: %q; ", n.ID, p.Cluster, p.Node, p.Path, p.Endpoint, p.Reason)
		}
	}
	return kinds, reasons
}

// takes waits until the nodes send to each other by these ways.
func (o *overlay) takes(want ...api.PathKind) {
	o.t.Helper()
	within(o.t, 60*time.Second, fmt.Sprintf("the nodes send by %v", want), func() error {
		if got, why := o.paths(); !slices.Equal(got, want) {
			return errors.New(why)
		}
		return nil
	})
}

// Nodes send in the clear where both want it, by a way that both have, and nowhere
// else. While they come to agree, and afterwards, no request is lost.
func TestNodesAgreeOnTheClear(t *testing.T) {
	for _, c := range []struct {
		name   string
		second bool // the other node is of another cluster
		clear  bool // which calls the network clear as well
		single [2]bool
		args   [2][]string
		want   api.PathKind
	}{
		{name: "one cluster", want: api.PathRoute},
		{name: "two clusters that both call it clear", second: true, clear: true, want: api.PathRoute},
		{name: "two clusters of which one calls it clear", second: true, want: api.PathDirect},
		{name: "one node is not on the link", single: [2]bool{1: true}, want: api.PathVXLAN},
		{name: "one node has no VXLAN", single: [2]bool{true, true}, args: [2][]string{1: {"--vxlan-port=0"}}, want: api.PathDirect},
		{name: "one node has neither", single: [2]bool{1: true}, args: [2][]string{1: {"--vxlan-port=0"}}, want: api.PathDirect},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := newOverlay(t, callItClear)
			other := o.cluster
			if c.second {
				var args []string
				if c.clear {
					args = append(args, callItClear)
				}
				other = o.newCluster("c2", 2, args...)
			}
			o.clearNode(o.cluster, c.single[0], c.args[0]...)
			o.clearNode(other, c.single[1], c.args[1]...)
			if c.second {
				o.ready(o.cluster, 1)
				o.ready(other, 1)
			} else {
				o.ready(o.cluster, 2)
			}
			seen := []*netlab.Capture{o.hosts[0].Capture("eth0"), o.hosts[1].Capture("eth0")}
			calls := o.calling("c1", other.ID)
			o.takes(c.want, c.want)
			calls.more(t, 1000)
			o.takes(c.want, c.want)
			if f := calls.failures(); len(f) > 0 {
				t.Errorf("%d requests were lost: %v", len(f), f)
			}
			for i, s := range seen {
				if plain := s.Contains([]byte("GET / HTTP")) || s.Contains([]byte(o.ID("shop", "web", 0))); plain && c.want == api.PathDirect {
					t.Errorf("n%d got in the clear what is not", i)
				}
			}
		})
	}
}

// A way that both ends take may be one by which nothing arrives: a switch may forward
// no strangers' addresses. The tunnel carries then, and flows go on. Where the way
// works again it is found again, and a netmanager that is killed takes no flow along.
func TestClearPathsThatCarryNothingAreLeft(t *testing.T) {
	for _, plane := range []string{"ebpf", "nft"} {
		t.Run(plane, func(t *testing.T) {
			t.Parallel()
			clearPathThatCarriesNothing(t, "--plane="+plane)
		})
	}
}

func clearPathThatCarriesNothing(t *testing.T, plane string) {
	o := newOverlay(t, callItClear)
	o.clearNode(o.cluster, false, plane)
	o.clearNode(o.cluster, false, plane)
	o.ready(o.cluster, 2)
	c := o.calling("c1", "c1")
	o.takes(api.PathRoute, api.PathRoute)
	c.more(t, 100)
	o.nodes[1].Net.Kill9()
	c.more(t, 200)
	o.nodes[1].Net.Start()
	c.more(t, 500)
	o.takes(api.PathRoute, api.PathRoute)
	if f := c.failures(); len(f) > 0 {
		t.Errorf("%d requests were lost by a restart: %v", len(f), f)
	}
	o.wan.Nft("table bridge strangers {\nchain none {\ntype filter hook forward priority 0\nip saddr 10.16.0.0/13 drop\n}\n}\n")
	o.takes(api.PathDirect, api.PathDirect)
	c.forget()
	c.more(t, 100)
	if _, why := o.paths(); !strings.Contains(why, "nothing gets through by route") && !strings.Contains(why, "nothing comes back by route") {
		t.Error(why)
	}
	o.wan.Nft("delete table bridge strangers")
	o.takes(api.PathRoute, api.PathRoute)
	c.forget()
	c.more(t, 100)
	if f := c.failures(); len(f) > 0 {
		t.Errorf("%d requests were lost on the way back: %v", len(f), f)
	}
}
