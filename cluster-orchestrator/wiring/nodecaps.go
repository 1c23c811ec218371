package wiring

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/membership/nodecaps"
	"github.com/treeline-edge/treeline/internal/daemon"
)

// NodeCapsConfig configures the caps of nodes. A number of 0 is no cap.
type NodeCapsConfig struct {
	VCPUs        float64             `yaml:"vcpus" usage:"cap on the vCPUs that a node reports; 0: none"`
	Memory       int64               `yaml:"memory" usage:"cap on the MiB of memory that a node reports; 0: none"`
	Storage      int64               `yaml:"storage" usage:"cap on the MiB of disk that a node reports; 0: none"`
	BandwidthIn  int64               `yaml:"bandwidth_in" usage:"cap on the Mbit/s to it that a node reports; 0: none"`
	BandwidthOut int64               `yaml:"bandwidth_out" usage:"cap on the Mbit/s from it that a node reports; 0: none"`
	Devices      []string            `yaml:"devices" usage:"KIND=COUNT (gpu=2), caps on the devices of a kind that a node reports; kinds that are not named have none"`
	Runtimes     []string            `yaml:"runtimes" usage:"values of virtualization (container, process, names of handlers) that are accepted of a node; empty: all that it reports"`
	Privileged   string              `yaml:"privileged" usage:"whether nodes that offer to run privileged workloads get them: allow, deny, or existing, which is only the nodes that offered to before the cluster had caps"`
	Nodes        map[string]NodeCaps `yaml:"nodes" usage:"other caps of single nodes, by their ids. In the file only"`
}

// NodeCaps are the caps of one node. Unset caps are inherited from NodeCapsConfig.
type NodeCaps struct {
	VCPUs        *float64 `yaml:"vcpus,omitempty"`
	Memory       *int64   `yaml:"memory,omitempty"`
	Storage      *int64   `yaml:"storage,omitempty"`
	BandwidthIn  *int64   `yaml:"bandwidth_in,omitempty"`
	BandwidthOut *int64   `yaml:"bandwidth_out,omitempty"`
	Devices      []string `yaml:"devices,omitempty"` // empty: no caps; absent: inherited
	Runtimes     []string `yaml:"runtimes,omitempty"`
	Privileged   string   `yaml:"privileged,omitempty"`
}

// The values of NodeCapsConfig.Privileged.
const (
	privilegedAllow    = "allow"
	privilegedExisting = "existing"
	privilegedDeny     = "deny"
)

var privileged = map[string]nodecaps.Privileged{
	privilegedAllow: nodecaps.Allow, privilegedExisting: nodecaps.Existing, privilegedDeny: nodecaps.Deny,
}

// maxNamedNodes bounds NodeCapsConfig.Nodes.
const maxNamedNodes = 10_000

// of returns c overridden by the caps of one node.
func (c NodeCapsConfig) of(n NodeCaps) NodeCapsConfig {
	c.Nodes = nil
	if n.VCPUs != nil {
		c.VCPUs = *n.VCPUs
	}
	for to, value := range map[*int64]*int64{
		&c.Memory: n.Memory, &c.Storage: n.Storage, &c.BandwidthIn: n.BandwidthIn, &c.BandwidthOut: n.BandwidthOut,
	} {
		if value != nil {
			*to = *value
		}
	}
	if n.Devices != nil {
		c.Devices = n.Devices
	}
	if n.Runtimes != nil {
		c.Runtimes = n.Runtimes
	}
	if n.Privileged != "" {
		c.Privileged = n.Privileged
	}
	return c
}

func (c NodeCapsConfig) validate() error {
	if _, err := c.caps("node_caps"); err != nil {
		return err
	}
	if len(c.Nodes) > maxNamedNodes {
		return daemon.Invalid("node_caps.nodes", "names %d nodes, at most %d", len(c.Nodes), maxNamedNodes)
	}
	for _, id := range slices.Sorted(maps.Keys(c.Nodes)) {
		at := "node_caps.nodes." + id
		if !api.ValidMachineName(id) {
			return daemon.Invalid(at, "%q is not a node's id", id)
		}
		if _, err := c.of(c.Nodes[id]).caps(at); err != nil {
			return err
		}
	}
	return nil
}

// core returns the policy; c is valid.
func (c NodeCapsConfig) core() nodecaps.Policy {
	p := nodecaps.Policy{Nodes: map[api.NodeID]nodecaps.Caps{}}
	p.Default, _ = c.caps("")
	for id, n := range c.Nodes {
		p.Nodes[api.NodeID(id)], _ = c.of(n).caps("")
	}
	return p
}

// caps validates and converts c without Nodes. at is its key in the configuration.
func (c NodeCapsConfig) caps(at string) (out nodecaps.Caps, err error) {
	bad := func(key, format string, args ...any) (nodecaps.Caps, error) {
		return out, daemon.Invalid(at+"."+key, format, args...)
	}
	const maxVCPUs, maxAmount = 1_000_000, 1 << 40
	if !(c.VCPUs >= 0 && c.VCPUs <= maxVCPUs) || c.VCPUs > 0 && c.VCPUs < 0.001 {
		return bad("vcpus", "%g, want 0 (no cap) or 0.001 to %d", c.VCPUs, maxVCPUs)
	}
	if err := cmp.Or(
		inRange(at+".memory", float64(c.Memory), 0, maxAmount),
		inRange(at+".storage", float64(c.Storage), 0, maxAmount),
		inRange(at+".bandwidth_in", float64(c.BandwidthIn), 0, maxAmount),
		inRange(at+".bandwidth_out", float64(c.BandwidthOut), 0, maxAmount),
	); err != nil {
		return out, err
	}
	out = nodecaps.Caps{
		Max: api.Resources{
			MilliCPU: int64(c.VCPUs*1000 + 0.5), MemoryMB: c.Memory, StorageMB: c.Storage, InMbit: c.BandwidthIn, OutMbit: c.BandwidthOut,
		},
		Runtimes: c.Runtimes,
	}
	if len(c.Devices) > api.MaxGrantDevices {
		return bad("devices", "names %d kinds, at most %d", len(c.Devices), api.MaxGrantDevices)
	}
	for _, text := range c.Devices {
		kind, count, ok := strings.Cut(text, "=")
		n, err := strconv.Atoi(count)
		if !ok || kind == "" || err != nil || n < 0 {
			return bad("devices", "%q is not KIND=COUNT such as gpu=2", text)
		}
		if out.Devices == nil {
			out.Devices = map[string]int{}
		}
		if _, twice := out.Devices[kind]; twice {
			return bad("devices", "kind %s is named twice", kind)
		}
		out.Devices[kind] = n
	}
	if slices.Contains(c.Runtimes, "") {
		return bad("runtimes", "contains an empty name")
	}
	var ok bool
	if out.Privileged, ok = privileged[c.Privileged]; !ok {
		return bad("privileged", "%q, want %s, %s or %s", c.Privileged, privilegedAllow, privilegedExisting, privilegedDeny)
	}
	return out, nil
}
