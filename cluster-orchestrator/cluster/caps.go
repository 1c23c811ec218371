package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// capping compares what a node reports with its caps.
type capping struct {
	existing bool         // it accepted privileged workloads before node caps existed
	ordered  api.Caps     // beside those of the configuration
	above    []api.Capped // values above their caps
	said     string       // the names in the last notice
	at       time.Time    // of the last notice; zero: none since the start
}

// cappedEvery is the least time between two notices about the caps of one node, and
// cappedAgain until the same notice is repeated.
const cappedEvery, cappedAgain = time.Minute, time.Hour

// capNode limits what a node counts for, beside the configuration. What runs there stays.
func (c *Core) capNode(id api.NodeID, caps api.Caps) error {
	n := c.nodes[id]
	if n == nil {
		return c.noNode(id)
	}
	if err := caps.ValidateNode(); err != nil {
		return err
	}
	n.caps.ordered = caps
	c.takeClaims(n, n.claims)
	c.claimed(n)
	return nil
}

// sayCapped gives notice of values of a node above its caps.
func (c *Core) sayCapped(n *node) {
	if len(n.caps.above) == 0 {
		return
	}
	var names, parts []string
	for _, a := range n.caps.above {
		names = append(names, a.What)
		parts = append(parts, fmt.Sprintf("%s (claims %s, %s counts)", a.What, a.Claims, cmp.Or(a.Counts, "none")))
	}
	what, since := strings.Join(names, ", "), c.now.Sub(n.caps.at)
	if !n.caps.at.IsZero() && since < cappedAgain && (what == n.caps.said || since < cappedEvery) {
		return
	}
	n.caps.at, n.caps.said = c.now, what
	c.notice(api.ReasonCapped, fmt.Sprintf("node %s claims more than its caps (treeline cap node, and node_caps of the cluster), which count instead: %s", n.info.ID, strings.Join(parts, ", ")))
}

// cappedFor says of each rejection where the constraint is about what a node claims
// and a cap does not let count. To placement it is a node that does not have it.
func (c *Core) cappedFor(rejected []api.Rejection) []api.Rejection {
	out := slices.Clone(rejected)
	for i, r := range out {
		n := c.nodes[api.NodeID(r.Candidate)]
		if n == nil {
			continue
		}
		what := strings.TrimPrefix(r.Constraint, sched.ConstraintDevice)
		if r.Constraint == sched.ConstraintVirtualization {
			what = "runtimes"
		}
		for _, a := range n.caps.above {
			switch {
			case a.What != what:
			case what == sched.ConstraintPrivileged && !n.caps.ordered.NoPrivileged:
				out[i].Have = "forbidden (node_caps.privileged of the cluster)"
			default:
				out[i].Have += " (capped)"
			}
		}
	}
	return out
}
