package cluster

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// best is the node that the request goes to, if there is one.
func (c *Core) best(req *sched.Request, seed uint64) (sched.Choice, bool) {
	avoid := req.Avoid
	for {
		choice, ok := c.table.Best(req, c.cfg.Plugin, seed)
		if !ok || c.together(req, choice.ID) {
			req.Avoid = avoid
			return choice, ok
		}
		req.Avoid = append(slices.Clip(req.Avoid), choice.ID)
	}
}

// rank is all nodes, those first that the request may go to.
func (c *Core) rank(req *sched.Request, seed uint64) sched.Result {
	res := c.table.Place(req, c.cfg.Plugin, seed)
	if len(req.Devices) < 2 {
		return res
	}
	res.Ranked = slices.DeleteFunc(res.Ranked, func(choice sched.Choice) bool {
		if c.together(req, choice.ID) {
			return false
		}
		last := req.Devices[len(req.Devices)-1]
		res.Rejected = append(res.Rejected, api.Rejection{
			Candidate: choice.ID, Constraint: sched.ConstraintDevice + last.Name, Shortfall: 1,
			Need: "one device for each", Have: "devices that are of several kinds at once",
		})
		return true
	})
	return res
}

// together reports whether the node has all of the devices for one instance.
func (c *Core) together(req *sched.Request, id string) bool {
	if len(req.Devices) < 2 {
		return true
	}
	n := c.nodes[api.NodeID(id)]
	return n.traits.devices.together(req.Devices, n.devices())
}
