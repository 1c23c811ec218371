package cluster

import (
	"math"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Nodes lists the cluster's nodes in the order of their ids.
func (c *Core) Nodes() []api.Node {
	out := make([]api.Node, 0, len(c.nodes))
	for _, id := range step.Keys(c.nodes) {
		n, _ := c.Node(id)
		out = append(out, n)
	}
	return out
}

// Node is one node, if there is such.
func (c *Core) Node(id api.NodeID) (api.Node, bool) {
	n := c.nodes[id]
	if n == nil {
		return api.Node{}, false
	}
	v := api.Node{
		NodeInfo: n.info, Cluster: c.cfg.ID, Status: api.NodeReady, Allocated: n.used, Instances: len(n.assigned),
		CPUUsed: int(n.cpu), MemUsed: int(n.mem), Joined: n.joined,
		Subnet: n.net.subnet,
	}
	switch {
	case n.silent:
		v.Status = api.NodeSilent
	case !n.heard:
		v.Status = api.NodeJoining
	case n.draining:
		v.Status = api.NodeDraining
	case n.cordoned:
		v.Status = api.NodeCordoned
	}
	if n.heard {
		v.Heard = c.clock.Real(n.lastAlive)
	}
	return v, true
}

// Instances lists the cluster's instances, with their nodes, in the order of their ids.
func (c *Core) Instances() []api.Instance {
	out := make([]api.Instance, 0, len(c.instances))
	for _, id := range step.Keys(c.instances) {
		in, _ := c.Instance(id)
		out = append(out, in)
	}
	return out
}

// Instance is one instance, if the cluster has it.
func (c *Core) Instance(id api.InstanceID) (api.Instance, bool) {
	in := c.instances[id]
	if in == nil {
		return api.Instance{}, false
	}
	o := in.view()
	return api.Instance{
		ID: id, Service: id.Service(), Number: id.Number(), State: o.State, Reason: o.Reason, Detail: o.Detail,
		Cluster: c.cfg.ID, Node: in.Node, Epoch: in.Epoch, Restarts: in.Restarts, ExitCode: in.ExitCode,
		Spec: in.Want.SpecRev, Leaving: in.Leaving || in.Withdrawn, Address: in.Address,
	}, true
}

// Why explains, node by node, where an instance could be placed now. ok is
// false for an instance that the cluster does not have.
func (c *Core) Why(id api.InstanceID) (ex api.Explanation, ok bool) {
	in := c.instances[id]
	if in == nil {
		return api.Explanation{}, false
	}
	req := c.request(in)
	return sched.Explain(c.rank(&req, in.seed())), true
}

// WhyOf is Why for an instance that the cluster does not have, because the root
// never offered it.
func (c *Core) WhyOf(id api.InstanceID, spec *api.Microservice) api.Explanation {
	req := sched.RequestFor(id, spec)
	return sched.Explain(c.rank(&req, sched.SeedOf(id, 0)))
}

// Gen is the generation of the root's desired set that the cluster holds.
func (c *Core) Gen() api.Generation { return c.root.gen }

// Digests are those of the root's desired set and of all observations.
func (c *Core) Digests() (desired, observed api.Digest) { return c.root.wanted, c.root.known }

// RootUp reports whether the stream from the root is up.
func (c *Core) RootUp() bool { return c.root.up }

// Aggregate is ⟨Σ, μ, σ⟩ of what is free on the nodes that take work, and per
// kind of node the most that one instance can get.
func (c *Core) Aggregate() api.Aggregate {
	var a api.Aggregate
	var sqCPU, sqMem float64
	slots := map[string]*api.Slot{}
	cands := c.table.All()
	for i := range cands {
		cand := &cands[i]
		if cand.Out != "" {
			continue
		}
		free := atLeastZero(cand.Free)
		a.Nodes++
		a.Capacity = a.Capacity.Plus(cand.Capacity)
		a.Free = a.Free.Plus(free)
		a.Largest = a.Largest.Max(free)
		sqCPU += float64(free.MilliCPU) * float64(free.MilliCPU)
		sqMem += float64(free.MemoryMB) * float64(free.MemoryMB)
		for _, r := range cand.Rooms {
			for _, runtime := range r.Runtimes {
				key := strings.Join([]string{runtime, r.Arch, boolKey(r.Privileged), boolKey(r.Network)}, "\x00")
				s := slots[key]
				if s == nil {
					s = &api.Slot{Runtime: runtime, Arch: r.Arch, Privileged: r.Privileged, Network: r.Network}
					slots[key] = s
				}
				s.Nodes++
				s.Free = s.Free.Plus(free)
				s.Largest = s.Largest.Max(free)
			}
		}
	}
	if a.Nodes > 0 {
		n := float64(a.Nodes)
		meanCPU, meanMem := float64(a.Free.MilliCPU)/n, float64(a.Free.MemoryMB)/n
		a.Mean = api.Resources{MilliCPU: int64(meanCPU), MemoryMB: int64(meanMem)}
		a.StdDev = api.Resources{
			MilliCPU: int64(math.Sqrt(max(0, sqCPU/n-meanCPU*meanCPU))),
			MemoryMB: int64(math.Sqrt(max(0, sqMem/n-meanMem*meanMem))),
		}
	}
	for _, key := range step.Keys(slots) {
		a.Slots = append(a.Slots, *slots[key])
	}
	slices.SortStableFunc(a.Slots, func(x, y api.Slot) int { return strings.Compare(x.Runtime, y.Runtime) })
	return a
}

func boolKey(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

func atLeastZero(r api.Resources) api.Resources { return r.Max(api.Resources{}) }
