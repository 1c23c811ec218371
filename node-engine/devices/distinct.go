package devices

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/treeline-edge/treeline/api"
)

// described is one entry of a CDI specification.
type described struct {
	kind  string
	file  string
	model string
	// parts are the machine's device nodes and network devices that it consists of, without those that
	// the specification adds to all its devices.
	parts []string
}

func describe(dev *cdi.Device) described {
	s := dev.GetSpec()
	d := described{kind: s.GetVendor() + "/" + s.GetClass(), file: s.GetPath()}
	if s.GetVendor() == testVendor {
		d.model = "test device: no hardware"
		return d // all have the same harmless node
	}
	for _, n := range dev.ContainerEdits.DeviceNodes {
		path := cmp.Or(n.HostPath, n.Path)
		d.parts = append(d.parts, path)
	}
	for _, n := range dev.ContainerEdits.NetDevices {
		d.parts = append(d.parts, "net:"+n.HostInterfaceName)
	}
	slices.Sort(d.parts)
	d.parts = slices.Compact(d.parts)
	return d
}

// distinct returns the devices that can be allocated to different instances, and in aside those that
// represent others: NVIDIA's specification lists a GPU by number, by UUID and in "all". Of devices with
// the same parts, the one with the shortest name is offered. A device with all parts of another and more
// represents several.
func distinct(all map[string]described) (offered []api.NodeDevice, aside []string) {
	ids := slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		if n := len(all[a].parts) - len(all[b].parts); n != 0 {
			return n
		}
		if n := len(a) - len(b); n != 0 {
			return n
		}
		return strings.Compare(a, b)
	})
	kinds := map[string]int{}
	for _, d := range all {
		kinds[d.kind]++
	}
	for i, id := range ids {
		d := all[id]
		_, name, _ := strings.Cut(id, "=")
		represents := name == "all" && kinds[d.kind] > 1 || len(d.parts) > 0 && slices.ContainsFunc(ids[:i], func(other string) bool {
			parts := all[other].parts
			return len(parts) > 0 && !slices.ContainsFunc(parts, func(p string) bool { return !slices.Contains(d.parts, p) })
		})
		if represents {
			aside = append(aside, id)
			continue
		}
		offered = append(offered, api.NodeDevice{ID: id, Kinds: kindsOf(d.kind), Model: d.model})
	}
	slices.Sort(aside)
	slices.SortFunc(offered, func(a, b api.NodeDevice) int { return strings.Compare(a.ID, b.ID) })
	return offered, aside
}

// kindsOf returns the names by which an SLA can require a device of a CDI kind, sorted.
func kindsOf(kind string) []string {
	vendor, class, _ := strings.Cut(kind, "/")
	kinds := []string{kind}
	switch {
	case slices.Contains([]string{"nvidia.com/gpu", "amd.com/gpu", "intel.com/gpu", testVendor + "/gpu"}, kind), vendor == "gpu.intel.com":
		kinds = append(kinds, api.DeviceGPU)
	case class == "tpu", class == "edgetpu", vendor == "coral.ai":
		kinds = append(kinds, api.DeviceTPU)
	}
	slices.Sort(kinds)
	return kinds
}
