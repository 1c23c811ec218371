package lab_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/netlab"
)

// Instances of another cluster move from one of its nodes to another while the root,
// by which routes go from cluster to cluster, is dead: who calls them loses nothing,
// because their node says by itself that they leave.
func TestInstancesLeaveWithoutARoot(t *testing.T) {
	o := newOverlay(t)
	second := o.newCluster("c2", 2)
	o.node(o.cluster, netlab.PortRestricted)
	o.node(second, netlab.PortRestricted)
	o.node(second, netlab.None)
	o.ready(o.cluster, 1)
	o.ready(second, 2)
	o.Apply(lab.App("shop", lab.On(o.Container("client", 1), "c1", ""), lab.On(o.server("web", 4), "c2", "")))
	o.Wait("all run", func(v lab.View) bool { return o.Running("shop", "client", 1)(v) && o.Running("shop", "web", 4)(v) })
	on := map[string][]api.InstanceID{}
	for _, w := range o.Workloads() {
		on[w.Node] = append(on[w.Node], w.Instance)
	}
	if len(on["n1"]) == 0 || len(on["n2"]) == 0 {
		t.Fatalf("the instances are on %v", on)
	}
	c := call(o.Inside(o.ID("shop", "client", 0)), netip.AddrPortFrom(o.Addresses("shop", "web").RoundRobin, 80).String())
	defer c.stop()
	c.so(t, "all answer", func(m map[api.InstanceID]int) bool { return len(m) == 4 })
	o.Root.Kill9()
	c.forget()
	if _, err := second.API.OwnNodes().Drain(t.Context(), "n1"); err != nil {
		t.Fatal(err)
	}
	within(t, 90*time.Second, "n1 is empty", func() error {
		if slices.ContainsFunc(o.Workloads(), func(w lab.Workload) bool { return w.Node == "n1" }) {
			return errors.New(o.Story())
		}
		return nil
	})
	c.more(t, 100)
	if f := c.failures(); len(f) > 0 {
		t.Errorf("%d requests were lost: %v", len(f), f)
	}
}
