package root

import (
	"strconv"

	"github.com/treeline-edge/treeline/api"
)

// event stores and publishes an event, unless the limit of the cluster whose report caused it is
// reached.
func (c *effects) event(e api.Event) {
	if !c.dry && c.eventLimit.Allow(c.now, c.reporter, e) {
		c.writeEvent(e)
	}
}

func (c *effects) writeEvent(e api.Event) {
	e.Seq, e.Time, e.Tier = c.nextRev(), c.wall, "root"
	slot, deleted := c.events.Add(e)
	c.deleteEvents(deleted)
	c.journal.Put(kindEvent, strconv.Itoa(slot), e)
	c.publish(api.Change{Kind: "event", ID: strconv.FormatUint(uint64(e.Seq), 10), Tenant: e.Tenant, Revision: e.Seq, Object: e})
}

func (c *effects) deleteEvents(slots []int) {
	for _, slot := range slots {
		c.journal.Delete(kindEvent, strconv.Itoa(slot))
	}
}
