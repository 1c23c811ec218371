package account

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// Claim is what an instance takes on a node, beside ports.
type Claim struct {
	Room    api.Resources `json:"room,omitzero"`
	Devices []api.Device  `json:"devices,omitempty"` // each kind once, in the order of their names; read only
	Address bool          `json:"address,omitempty"` // on the node's overlay network, if it has one
}

// Of returns the claim of an SLA.
func Of(m *api.Microservice) Claim { return Claim{m.Needs(), m.NeedsDevices(), m.TakesAddress()} }

// IsZero reports whether nothing is claimed.
func (k Claim) IsZero() bool { return k.Room == api.Resources{} && len(k.Devices) == 0 && !k.Address }

// Equal reports whether both are the same.
func (k Claim) Equal(o Claim) bool {
	return k.Room == o.Room && slices.Equal(k.Devices, o.Devices) && k.Address == o.Address
}

// Ended is what is left of it when the workload has ended for good: its address, while
// its node says that it is still there.
func (k Claim) Ended(at netip.Addr) Claim { return Claim{Address: k.Address && at.IsValid()} }

// Max is the larger of both, part by part: what a node may have to keep for an
// instance that changes.
func (k Claim) Max(o Claim) Claim {
	r := Claim{k.Room.Max(o.Room), k.Devices, k.Address || o.Address}
	for _, d := range o.Devices {
		i, found := slices.BinarySearchFunc(r.Devices, d.Name, func(d api.Device, name string) int { return strings.Compare(d.Name, name) })
		switch {
		case found && r.Devices[i].Count < d.Count:
			r.Devices = slices.Clone(r.Devices)
			r.Devices[i].Count = d.Count
		case !found:
			r.Devices = slices.Insert(slices.Clone(r.Devices), i, d)
		}
	}
	return r
}

// Devices are those that a node has, by what they may be asked for.
type Devices struct {
	total map[string]int            // by kind
	both  map[string]map[string]int // that are of two different kinds at once
	kinds map[string][]string       // by id
}

// DevicesOf returns the devices that a node reports.
func DevicesOf(have []api.NodeDevice) Devices {
	var d Devices
	for _, dev := range have {
		if d.kinds[dev.ID] != nil || len(dev.Kinds) == 0 {
			continue // a node that says so twice has it once
		}
		if d.total == nil {
			d.total, d.kinds = map[string]int{}, map[string][]string{}
		}
		kinds := slices.Compact(slices.Sorted(slices.Values(dev.Kinds)))
		d.kinds[dev.ID] = kinds
		for _, a := range kinds {
			d.total[a]++
			for _, b := range kinds {
				if a == b {
					continue
				}
				if d.both == nil {
					d.both = map[string]map[string]int{}
				}
				if d.both[a] == nil {
					d.both[a] = map[string]int{}
				}
				d.both[a][b]++
			}
		}
	}
	return d
}

// takes is the most that claiming n devices of kind a can take of kind b.
func (d Devices) takes(a string, n int, b string) int {
	if a == b {
		return n
	}
	return min(n, d.both[a][b])
}

// Free is by kind how many devices one instance can still get for sure, whichever
// the node gave to those that it has: where it has said which, they count, and
// else each claim counts against every kind that its devices may be of as well.
// given are the ids that an instance has.
func (d Devices) Free(booked map[api.InstanceID]Claim, given map[api.InstanceID][]string) map[string]int {
	if len(d.total) == 0 {
		return nil
	}
	free := make(map[string]int, len(d.total))
	for kind, n := range d.total {
		free[kind] = n
	}
	for id, k := range booked {
		if len(k.Devices) == 0 {
			continue
		}
		if ids := given[id]; d.satisfy(ids, k) {
			for _, dev := range ids {
				for _, kind := range d.kinds[dev] {
					free[kind]--
				}
			}
			continue
		}
		for kind := range free {
			for _, want := range k.Devices {
				free[kind] -= d.takes(want.Name, want.Count, kind)
			}
		}
	}
	for kind, n := range free {
		free[kind] = max(n, 0) // some are lost that were given
	}
	return free
}

// satisfy reports whether ids are devices of the node, as many as are claimed.
func (d Devices) satisfy(ids []string, k Claim) bool {
	sum := 0
	for _, want := range k.Devices {
		sum += want.Count
	}
	return len(ids) == sum && !slices.ContainsFunc(ids, func(id string) bool { return d.kinds[id] == nil })
}

// Together reports whether one instance can get all of the devices at once: a
// device that is of two kinds serves for one of them. Each kind by itself has
// passed a filter.
func (d Devices) Together(want []api.Device, free map[string]int) bool {
	if len(d.both) == 0 {
		return true
	}
	for i, w := range want {
		left := free[w.Name]
		for _, before := range want[:i] {
			left -= d.takes(before.Name, before.Count, w.Name)
		}
		if w.Count > left {
			return false
		}
	}
	return true
}
