package node

import "github.com/treeline-edge/treeline/api"

// ToPurger is what deletes all that the node has. It gets an Empty with each sign of
// life while the cluster's desired set says that the node is to be purged and nothing
// of any instance is left.
const ToPurger api.Addr = "purger"

// Empty says that the node has stopped everything and may ask its cluster whether it
// is to purge itself. The desired set alone is no order: it comes over a broker that
// keeps messages, and says nothing of the join that it was meant for.
type Empty struct{}

// mayPurge tells the purger when the node is empty. While the runtime does not answer,
// the core does not know that.
func (c *Core) mayPurge() {
	if c.purge && !c.blind && len(c.works)+len(c.leaving)+len(c.unclaimed) == 0 {
		c.emitVolatile(ToPurger, Empty{})
	}
}
