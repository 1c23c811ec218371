package lab_test

import (
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

const unencrypted = "--network-unencrypted=203.0.113.0/24"

// Nodes send unencrypted packets only if both allow it, on a path that both have. While they
// agree on it, and afterwards, no request is lost.
func TestNodesAgreeOnTheClear(t *testing.T) {
	for _, c := range []struct {
		name   string
		second bool // the other node is of another cluster
		clear  bool // which declares the network as unencrypted, too
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
			o := lab.NewOverlay(t, lab.Options{}, unencrypted)
			other := o.First
			if c.second {
				var args []string
				if c.clear {
					args = append(args, unencrypted)
				}
				other = o.NewCluster("c2", 2, args...)
			}
			o.ClearNode(o.First, c.single[0], c.args[0]...)
			o.ClearNode(other, c.single[1], c.args[1]...)
			if c.second {
				o.Ready(o.First, 1)
				o.Ready(other, 1)
			} else {
				o.Ready(o.First, 2)
			}
			seen := []*netlab.Capture{o.Hosts[0].Capture("eth0"), o.Hosts[1].Capture("eth0")}
			calls := o.Calling("c1", other.ID)
			o.Takes(c.want, c.want)
			calls.More(t, 1000)
			o.Takes(c.want, c.want)
			if f := calls.Failures(); len(f) > 0 {
				t.Errorf("%d requests were lost: %v", len(f), f)
			}
			for i, s := range seen {
				if plain := s.Contains([]byte("GET / HTTP")) || s.Contains([]byte(o.ID("shop", "web", 0))); plain && c.want == api.PathDirect {
					t.Errorf("n%d received unencrypted packets that should be encrypted", i)
				}
			}
		})
	}
}

// On an agreed kernel path nothing may arrive, for example because a switch drops unknown
// addresses. The tunnel is used then, and flows continue. When the path works again it is used
// again, and killing a netmanager ends no flow.
func TestClearPathsThatCarryNothingAreLeft(t *testing.T) {
	for _, plane := range []string{"ebpf", "nft"} {
		t.Run(plane, func(t *testing.T) {
			t.Parallel()
			clearPathThatCarriesNothing(t, "--plane="+plane)
		})
	}
}

func clearPathThatCarriesNothing(t *testing.T, plane string) {
	o := lab.NewOverlay(t, lab.Options{}, unencrypted)
	o.ClearNode(o.First, false, plane)
	o.ClearNode(o.First, false, plane)
	o.Ready(o.First, 2)
	c := o.Calling("c1", "c1")
	o.Takes(api.PathRoute, api.PathRoute)
	c.More(t, 100)
	o.Nodes[1].Net.Kill9()
	c.More(t, 200)
	o.Nodes[1].Net.Start()
	c.More(t, 500)
	o.Takes(api.PathRoute, api.PathRoute)
	if f := c.Failures(); len(f) > 0 {
		t.Errorf("%d requests were lost during a restart, want 0: %v", len(f), f)
	}
	o.WAN.Nft("table bridge strangers {\nchain none {\ntype filter hook forward priority 0\nip saddr 10.16.0.0/13 drop\n}\n}\n")
	o.Takes(api.PathDirect, api.PathDirect)
	c.Forget()
	c.More(t, 100)
	if _, why := o.Paths(); !strings.Contains(why, "nothing gets through by route") && !strings.Contains(why, "nothing comes back by route") {
		t.Error(why)
	}
	o.WAN.Nft("delete table bridge strangers")
	o.Takes(api.PathRoute, api.PathRoute)
	c.Forget()
	c.More(t, 100)
	if f := c.Failures(); len(f) > 0 {
		t.Errorf("%d requests were lost during the change back to the kernel path, want 0: %v", len(f), f)
	}
}
