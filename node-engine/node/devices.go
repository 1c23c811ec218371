package node

import (
	"fmt"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// A device is given to one instance at a time. Which ones an instance has is
// saved before its creation is ordered, stays the same over attempts and lives of
// the engine, and is taken back only when nothing of the placement can be left:
// the runtime said so after the last creation that was ordered (work.dealt), or
// there was none and it has nothing. A placement that completed uses its devices
// no more, as it uses no room.

// mayRemain reports whether something of the placement may exist, or still come
// to exist by an order that is on its way.
func (w *work) mayRemain() bool { return w.remains || w.dealt }

// deal sees to it that w has the devices that it needs, and reports whether it
// can be created now. Where it cannot, what follows is ordered.
func (c *Core) deal(w *work) bool {
	needs := w.haveSpec.NeedsDevices()
	if len(needs) == 0 && len(w.devices) == 0 {
		return true
	}
	if taken := c.taken(w); !c.suits(w, needs, taken) {
		if w.mayRemain() {
			c.undeal(w)
			return false
		}
		chosen, lacks := choose(needs, c.info.Devices, taken)
		w.devices = chosen
		if lacks != "" {
			c.failed(w, api.ReasonNoDevice, lacks, nil)
			return false
		}
		c.saveWork(w)
	}
	w.dealt = len(w.devices) > 0
	return true
}

// undeal ends what has devices that it cannot keep.
func (c *Core) undeal(w *work) {
	detail := "its devices are not those that it needs"
	if lost := c.lost(w); len(lost) > 0 {
		detail = "the node lost " + strings.Join(lost, ", ")
	}
	c.observe(w, api.Observed{State: api.Failed, Reason: api.ReasonNoDevice, Detail: detail})
	c.stop(w, graceOf(w.haveSpec))
}

// missDevices ends what runs with devices that are not there any more.
func (c *Core) missDevices() {
	for _, id := range step.Keys(c.works) {
		w := c.works[id]
		switch w.phase {
		case creating, created, starting, running, unsure:
			if len(c.lost(w)) > 0 {
				c.undeal(w)
			}
		}
	}
}

// lost are the devices of w that the node does not offer now.
func (c *Core) lost(w *work) (ids []string) {
	for _, id := range w.devices {
		if !slices.ContainsFunc(c.info.Devices, func(d api.NodeDevice) bool { return d.ID == id }) {
			ids = append(ids, id)
		}
	}
	return ids
}

// suits reports whether what w has is exactly what it needs, there, and its own.
func (c *Core) suits(w *work, needs []api.Device, taken map[string]bool) bool {
	if slices.ContainsFunc(w.devices, func(id string) bool { return taken[id] }) {
		return false // an older copy of the store was put back
	}
	has := slices.DeleteFunc(slices.Clone(c.info.Devices), func(d api.NodeDevice) bool { return !slices.Contains(w.devices, d.ID) })
	chosen, lacks := choose(needs, has, nil)
	return lacks == "" && slices.Equal(chosen, w.devices)
}

// taken are the devices that anything but w has or may have.
func (c *Core) taken(but *work) map[string]bool {
	taken := map[string]bool{}
	add := func(ids []string) {
		for _, id := range ids {
			taken[id] = true
		}
	}
	for _, w := range c.works {
		if w != but {
			add(w.devices)
		}
	}
	for _, e := range c.unclaimed {
		add(e.Devices)
	}
	for _, ids := range c.leaving {
		add(ids)
	}
	return taken
}

// join adds ids to those that w has, in their order.
func (w *work) join(ids []string) {
	if len(ids) > 0 {
		w.devices = slices.Compact(slices.Sorted(slices.Values(slices.Concat(w.devices, ids))))
	}
}

// choose picks devices for all needs out of those that are not taken, each for
// one need, the first ids where there is a choice; lacks says which need nobody
// can meet. A device may count for several kinds, so one that was picked for a
// need is passed on where another need would get none (Kuhn's matching).
func choose(needs []api.Device, offered []api.NodeDevice, taken map[string]bool) (ids []string, lacks string) {
	var units []string // the kind of each device that is needed
	for _, n := range needs {
		for range n.Count {
			if len(units) > len(offered) { // and an absurd count costs nothing
				break
			}
			units = append(units, n.Name)
		}
	}
	owner := make([]int, len(offered)) // the unit that has the device, from 1
	var give func(u int, tried []bool) bool
	give = func(u int, tried []bool) bool {
		for i, d := range offered {
			if tried[i] || taken[d.ID] || !slices.Contains(d.Kinds, units[u-1]) {
				continue
			}
			tried[i] = true
			if owner[i] == 0 || give(owner[i], tried) {
				owner[i] = u
				return true
			}
		}
		return false
	}
	for u := range units {
		if !give(u+1, make([]bool, len(offered))) {
			return nil, lacking(units[u], needs, offered, taken)
		}
	}
	for i, u := range owner {
		if u > 0 {
			ids = append(ids, offered[i].ID)
		}
	}
	slices.Sort(ids)
	return ids, ""
}

// lacking says for people of which kind there are too few.
func lacking(kind string, needs []api.Device, offered []api.NodeDevice, taken map[string]bool) string {
	want, all, free := 0, 0, 0
	for _, n := range needs {
		if n.Name == kind {
			want += n.Count
		}
	}
	for _, d := range offered {
		if slices.Contains(d.Kinds, kind) {
			all++
			if !taken[d.ID] {
				free++
			}
		}
	}
	return fmt.Sprintf("needs %d of device %s; the node has %d, %d of them free", want, kind, all, free)
}
