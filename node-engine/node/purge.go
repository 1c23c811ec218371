package node

import (
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// ToPurger is the address of the component that deletes the node's data. It gets an Empty
// with each heartbeat while the desired set has the purge flag and no instance is left
// on the node.
const ToPurger api.Addr = "purger"

// Empty reports that every instance is gone, so that the node may ask its cluster whether
// to purge itself. The desired set alone is not an order: a broker retains it, and it does
// not name the join that it was meant for.
type Empty struct{}

// reportEmpty sends an Empty if the node has no instance, which is unknown while the runtime
// does not answer.
func (c *Core) reportEmpty() {
	if c.purge && !c.runtimeSilent && len(c.works)+len(c.leaving)+len(c.unclaimed) == 0 {
		c.emit(wire.Envelope{To: ToPurger, Msg: Empty{}, Volatile: true})
	}
}
