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

// Instances of another cluster move between its nodes while the root, which forwards routes
// between clusters, is down. Callers lose nothing, because the nodes announce draining
// instances to their peers.
func TestInstancesLeaveWithoutARoot(t *testing.T) {
	t.Parallel()
	o := lab.NewOverlay(t, lab.Options{})
	second := o.NewCluster("c2", 2)
	o.Node(o.First, netlab.PortRestricted)
	o.Node(second, netlab.PortRestricted)
	o.Node(second, netlab.None)
	o.Ready(o.First, 1)
	o.Ready(second, 2)
	o.Apply(lab.App("shop", lab.On(o.Container("client", 1), "c1", ""), lab.On(o.Server("web", 4), "c2", "")))
	o.Wait("all run", func(v lab.View) bool { return o.Running("shop", "client", 1)(v) && o.Running("shop", "web", 4)(v) })
	on := map[string][]api.InstanceID{}
	for _, w := range o.Service("shop", "web", 4) {
		on[w.Node] = append(on[w.Node], w.Instance)
	}
	if len(on["n1"]) == 0 || len(on["n2"]) == 0 {
		t.Fatalf("the instances are on %v", on)
	}
	c := lab.Call(o.Inside(o.ID("shop", "client", 0)), netip.AddrPortFrom(o.Addresses("shop", "web").RoundRobin, 80).String())
	defer c.Stop()
	c.So(t, "all answer", func(m map[api.InstanceID]int) bool { return len(m) == 4 })
	o.Root.Kill9()
	c.Forget()
	if err := second.API.OwnNodes().Drain(t.Context(), "n1"); err != nil {
		t.Fatal(err)
	}
	lab.Within(t, 90*time.Second, "n1 is empty", func() error {
		if slices.ContainsFunc(o.Workloads(), func(w lab.Workload) bool { return w.Node == "n1" }) {
			return errors.New(o.Story())
		}
		return nil
	})
	c.More(t, 100)
	if f := c.Failures(); len(f) > 0 {
		t.Errorf("%d requests were lost: %v", len(f), f)
	}
}
