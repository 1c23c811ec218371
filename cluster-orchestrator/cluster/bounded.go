package cluster

import (
	"fmt"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bounds"
)

// within calls take with a node's message without the values that are out of bounds. It
// counts these, and gives at most one notice a minute that names them and the node. A
// message that is refused as a whole is api.ErrInvalid.
func within[M bounds.Message](c *Core, id api.NodeID, m M, take func(M)) error {
	m, bad, ok := bounds.Take(m)
	if n := c.nodes[id]; n != nil && bad.Total > 0 {
		c.refusedValues += uint64(bad.Total)
		if text := n.refusals.Add(c.now, bad); text != "" {
			c.notice(api.ReasonOutOfBounds, fmt.Sprintf("node %s: %s", id, text))
		}
	}
	if !ok {
		return bad.Err()
	}
	take(m)
	return nil
}

// RefusedValues returns how many values of nodes' messages were out of bounds since the
// start of the process.
func (c *Core) RefusedValues() uint64 { return c.refusedValues }
