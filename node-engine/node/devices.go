package node

import (
	"fmt"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// A device is allocated to one instance at a time. An instance's devices are saved before
// its creation is ordered, and stay the same over attempts and restarts of the engine.
// They are released only when nothing of the placement can exist: the runtime confirmed
// this after the last creation that was ordered (work.orderedWithDevices), or none was ordered and the
// runtime has nothing. A completed placement releases its devices.

// mayRemain reports whether the runtime may have something of the placement, now or after a
// pending order.
func (w *work) mayRemain() bool { return w.remains || w.orderedWithDevices }

// allocate allocates the devices that w needs, and reports whether w can be created now.
// If not, it has stopped the existing placement, or reported the lack of devices.
func (c *Core) allocate(w *work) bool {
	needs := w.haveSpec.NeedsDevices()
	if len(needs) == 0 && len(w.devices) == 0 {
		return true
	}
	if taken := c.takenDevices(w); !c.devicesMatch(w, needs, taken) {
		if w.mayRemain() {
			c.revoke(w)
			return false
		}
		chosen, lacks := chooseDevices(needs, c.info.Devices, taken)
		w.devices = chosen
		if lacks != "" {
			c.failed(w, api.ReasonNoDevice, lacks, nil)
			return false
		}
		c.saveWork(w)
	}
	w.orderedWithDevices = len(w.devices) > 0
	return true
}

// revoke stops a workload whose devices are lost or do not match its spec.
func (c *Core) revoke(w *work) {
	detail := "its devices do not match its spec"
	if lost := c.lostDevices(w); len(lost) > 0 {
		detail = "the node lost " + strings.Join(lost, ", ")
	}
	c.observe(w, api.Observed{State: api.Failed, Reason: api.ReasonNoDevice, Detail: detail})
	c.stop(w, graceOf(w.haveSpec))
}

// revokeLostDevices stops workloads whose devices have disappeared.
func (c *Core) revokeLostDevices() {
	for _, id := range step.Keys(c.works) {
		w := c.works[id]
		switch w.phase {
		case creating, created, starting, running, unsure:
			if len(c.lostDevices(w)) > 0 {
				c.revoke(w)
			}
		}
	}
}

// lostDevices returns the devices of w that the node does not have any more.
func (c *Core) lostDevices(w *work) (ids []string) {
	for _, id := range w.devices {
		if !slices.ContainsFunc(c.info.Devices, func(d api.NodeDevice) bool { return d.ID == id }) {
			ids = append(ids, id)
		}
	}
	return ids
}

// devicesMatch reports whether the devices of w are exactly those that it needs, present, and not
// taken.
func (c *Core) devicesMatch(w *work, needs []api.Device, taken map[string]bool) bool {
	if slices.ContainsFunc(w.devices, func(id string) bool { return taken[id] }) {
		return false // the store was restored from a copy
	}
	has := slices.DeleteFunc(slices.Clone(c.info.Devices), func(d api.NodeDevice) bool { return !slices.Contains(w.devices, d.ID) })
	chosen, lacks := chooseDevices(needs, has, nil)
	return lacks == "" && slices.Equal(chosen, w.devices)
}

// takenDevices returns the devices that instances other than but have or may have.
func (c *Core) takenDevices(but *work) map[string]bool {
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

func (w *work) addDevices(ids []string) {
	if len(ids) > 0 {
		w.devices = slices.Compact(slices.Sorted(slices.Values(slices.Concat(w.devices, ids))))
	}
}

// chooseDevices picks a device that is not taken for each need, and prefers low ids. lacks describes
// a need that cannot be met. A device may have several kinds, so this is a bipartite matching
// (Kuhn's algorithm), which finds an assignment if there is one.
func chooseDevices(needs []api.Device, offered []api.NodeDevice, taken map[string]bool) (ids []string, lacks string) {
	var units []string // the kind of each device that is needed
	for _, n := range needs {
		for range n.Count {
			if len(units) > len(offered) { // bounds the cost of an excessive count
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
			return nil, shortage(units[u], needs, offered, taken)
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

func shortage(kind string, needs []api.Device, offered []api.NodeDevice, taken map[string]bool) string {
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
