package cluster

import (
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bounds"
)

// within calls take with a node's message without the values that are out of bounds. It
// counts these, and gives at most one notice a minute that names them and the node. A
// message that is refused as a whole is api.ErrInvalid.
func within[M bounds.Message](c *Core, id api.NodeID, m M, take func(M)) error {
	m, bad, ok := bounds.Take(m)
	if text := c.members.Refused(id, bad); text != "" {
		c.uplink.Notice(api.ReasonOutOfBounds, text)
	}
	if !ok {
		return bad.Err()
	}
	take(m)
	return nil
}
