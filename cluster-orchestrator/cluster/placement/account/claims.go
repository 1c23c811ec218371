package account

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// Claim is what an instance takes on a node, without ports.
type Claim struct {
	Resources api.Resources `json:"room,omitzero"`
	Devices   []api.Device  `json:"devices,omitempty"` // each kind once, sorted by name; read-only
	Address   bool          `json:"address,omitempty"` // an address on the overlay network, if the node has one
	Volumes   []string      `json:"volumes,omitempty"` // names of local volumes whose disk is in Resources, sorted; read-only
}

func Of(m *api.Microservice) Claim {
	k := Claim{Resources: m.Needs(), Devices: m.NeedsDevices(), Address: m.TakesAddress()}
	for _, v := range m.LocalVolumes() {
		k.Volumes = append(k.Volumes, v.Name)
	}
	slices.Sort(k.Volumes)
	return k
}

func (k Claim) IsZero() bool {
	return k.Resources == api.Resources{} && len(k.Devices) == 0 && !k.Address
}

func (k Claim) Equal(o Claim) bool {
	return k.Resources == o.Resources && slices.Equal(k.Devices, o.Devices) && k.Address == o.Address && slices.Equal(k.Volumes, o.Volumes)
}

// Ended returns the claim of an instance that has ended for good: its address, if its node
// still reports one.
func (k Claim) Ended(at netip.Addr) Claim { return Claim{Address: k.Address && at.IsValid()} }

// Max returns the maximum of two claims for each resource and kind of device. It contains the volumes
// that both contain.
func (k Claim) Max(o Claim) Claim {
	r := Claim{Resources: k.Resources.Max(o.Resources), Devices: k.Devices, Address: k.Address || o.Address}
	switch {
	case k.IsZero():
		r.Volumes = o.Volumes
	case o.IsZero():
		r.Volumes = k.Volumes
	default:
		r.Volumes = slices.DeleteFunc(slices.Clone(k.Volumes), func(name string) bool { return !slices.Contains(o.Volumes, name) })
	}
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

// Devices are the devices of a node by kind.
type Devices struct {
	total map[string]int            // by kind
	both  map[string]map[string]int // number of devices that are of two different kinds at once
	kinds map[string][]string       // by id
}

func DevicesOf(have []api.NodeDevice) Devices {
	var d Devices
	for _, dev := range have {
		if d.kinds[dev.ID] != nil || len(dev.Kinds) == 0 {
			continue // a device that is listed twice counts once
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

// takes returns how many devices of kind b a claim of n devices of kind a can take at most.
func (d Devices) takes(a string, n int, b string) int {
	if a == b {
		return n
	}
	return min(n, d.both[a][b])
}

// Free returns, by kind, how many devices one more instance can certainly get. For instances
// whose device ids the node has reported (given), these devices count. The claims of other
// instances count against every kind that their devices may be of.
func (d Devices) Free(booked map[api.InstanceID]Claim, given map[api.InstanceID][]string) map[string]int {
	if len(d.total) == 0 {
		return nil
	}
	free := maps.Clone(d.total)
	for id, k := range booked {
		if len(k.Devices) == 0 {
			continue
		}
		if ids := given[id]; d.cover(ids, k) {
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
		free[kind] = max(n, 0) // devices in use may have disappeared from the node
	}
	return free
}

// cover reports whether ids are devices of the node and as many as claimed.
func (d Devices) cover(ids []string, k Claim) bool {
	sum := 0
	for _, want := range k.Devices {
		sum += want.Count
	}
	return len(ids) == sum && !slices.ContainsFunc(ids, func(id string) bool { return d.kinds[id] == nil })
}

// FitTogether reports whether one instance can get all devices of want at once: a device of two
// kinds serves as one of them only. The caller has checked each kind by itself.
func (d Devices) FitTogether(want []api.Device, free map[string]int) bool {
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
