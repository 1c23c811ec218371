package devices

import (
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
	// parts are what makes it a device of its own: device nodes and network devices
	// of the machine. What the whole specification adds to each is not among them.
	parts []string
}

func describe(dev *cdi.Device) described {
	s := dev.GetSpec()
	d := described{kind: s.GetVendor() + "/" + s.GetClass(), file: s.GetPath()}
	if s.GetVendor() == testVendor {
		d.model = "test device: no hardware"
		return d // all of them are one and the same harmless node
	}
	for _, n := range dev.ContainerEdits.DeviceNodes {
		path := n.HostPath
		if path == "" {
			path = n.Path
		}
		d.parts = append(d.parts, path)
	}
	for _, n := range dev.ContainerEdits.NetDevices {
		d.parts = append(d.parts, "net:"+n.HostInterfaceName)
	}
	slices.Sort(d.parts)
	d.parts = slices.Compact(d.parts)
	return d
}

// distinct are the devices that can be given to different instances, and those
// that cannot, because they stand for others: a specification of NVIDIA's names a
// GPU by number and by UUID, and has "all" besides. One that has exactly the parts
// of another is the same, and goes by the shorter name; one that has all the parts
// of another and more stands for several.
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
		stands := name == "all" && kinds[d.kind] > 1 || len(d.parts) > 0 && slices.ContainsFunc(ids[:i], func(other string) bool {
			parts := all[other].parts
			return len(parts) > 0 && !slices.ContainsFunc(parts, func(p string) bool { return !slices.Contains(d.parts, p) })
		})
		if stands {
			aside = append(aside, id)
			continue
		}
		offered = append(offered, api.NodeDevice{ID: id, Kinds: kindsOf(d.kind), Model: d.model})
	}
	slices.Sort(aside)
	slices.SortFunc(offered, func(a, b api.NodeDevice) int { return strings.Compare(a.ID, b.ID) })
	return offered, aside
}

// kindsOf are the names that a device of a CDI kind may be asked for by, sorted.
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
