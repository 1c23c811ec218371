package root

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/store"
)

// event tells the story of a change, durably. The newest EventsKept are kept.
func (c *Core) event(e api.Event) {
	if c.dry {
		return
	}
	e.Seq, e.Time, e.Tier = c.nextRev(), c.wall, "root"
	c.events = append(c.events, e)
	if len(c.events) > 2*c.cfg.EventsKept {
		c.events = slices.Clone(c.events[len(c.events)-c.cfg.EventsKept:])
	}
	c.journal.Put(kindEvent, strconv.Itoa(c.eventSlot), e)
	c.eventSlot = (c.eventSlot + 1) % c.cfg.EventsKept
	c.show(api.Change{Kind: "event", ID: strconv.FormatUint(uint64(e.Seq), 10), Tenant: e.Tenant, Revision: e.Seq, Object: e})
}

func (c *Core) restoreEvent(d store.Doc) error {
	var e api.Event
	if err := json.Unmarshal(d.Data, &e); err != nil {
		return err
	}
	slot, err := strconv.Atoi(d.Key)
	if err != nil {
		return err
	}
	if n := len(c.events); n == 0 || e.Seq > c.events[n-1].Seq {
		c.eventSlot = (slot + 1) % c.cfg.EventsKept
	}
	c.events = append(c.events, e)
	if n := len(c.events); n > 1 && c.events[n-1].Seq < c.events[n-2].Seq {
		// Keep the newest last, so that the comparison above stays right.
		c.events[n-1], c.events[n-2] = c.events[n-2], c.events[n-1]
	}
	return nil
}

func (c *Core) orderEvents() {
	slices.SortFunc(c.events, func(a, b api.Event) int { return cmp.Compare(a.Seq, b.Seq) })
}
