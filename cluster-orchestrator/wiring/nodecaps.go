package wiring

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/membership/nodecaps"
)

// NodeCapsConfig has the caps of nodes. A number of 0 is no limit.
type NodeCapsConfig struct {
	VCPUs        float64             `yaml:"vcpus" usage:"the most vCPUs that a node counts for, whatever it claims; 0: what it claims"`
	Memory       int64               `yaml:"memory" usage:"the most MiB of memory that a node counts for; 0: what it claims"`
	Storage      int64               `yaml:"storage" usage:"the most MiB of disk that a node counts for; 0: what it claims"`
	BandwidthIn  int64               `yaml:"bandwidth_in" usage:"the most Mbit/s to it that a node counts for; 0: what it claims"`
	BandwidthOut int64               `yaml:"bandwidth_out" usage:"the most Mbit/s from it that a node counts for; 0: what it claims"`
	Devices      []string            `yaml:"devices" usage:"KIND=COUNT (gpu=2), the most devices of a kind that count of a node; of kinds that are not named, what it claims"`
	Runtimes     []string            `yaml:"runtimes" usage:"the values of virtualization (container, process, the names of handlers) that count of a node; empty: what it claims"`
	Privileged   string              `yaml:"privileged" usage:"whether nodes that offer to run privileged workloads get them: allow, deny, or existing, which is those nodes alone that offered to before the cluster had caps of nodes"`
	Nodes        map[string]NodeCaps `yaml:"nodes" usage:"other caps of nodes, by their ids. In the file alone"`
}

// NodeCaps are the caps of one node. Caps that are not set are those of all nodes.
type NodeCaps struct {
	VCPUs        *float64 `yaml:"vcpus,omitempty"`
	Memory       *int64   `yaml:"memory,omitempty"`
	Storage      *int64   `yaml:"storage,omitempty"`
	BandwidthIn  *int64   `yaml:"bandwidth_in,omitempty"`
	BandwidthOut *int64   `yaml:"bandwidth_out,omitempty"`
	Devices      []string `yaml:"devices,omitempty"` // empty, not absent: no limits
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

// of returns c with the values that a node's own caps replace.
func (c NodeCapsConfig) of(n NodeCaps) NodeCapsConfig {
	c.Nodes = nil
	if n.VCPUs != nil {
		c.VCPUs = *n.VCPUs
	}
	for _, p := range []struct {
		is *int64
		to *int64
	}{{n.Memory, &c.Memory}, {n.Storage, &c.Storage}, {n.BandwidthIn, &c.BandwidthIn}, {n.BandwidthOut, &c.BandwidthOut}} {
		if p.is != nil {
			*p.to = *p.is
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
		return fmt.Errorf("node_caps.nodes: names %d nodes, at most %d: %w", len(c.Nodes), maxNamedNodes, api.ErrInvalid)
	}
	for _, id := range slices.Sorted(maps.Keys(c.Nodes)) {
		at := "node_caps.nodes." + id
		if !api.ValidMachineName(id) {
			return fmt.Errorf("%s: %q is no node's id: %w", at, id, api.ErrInvalid)
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
		return out, fmt.Errorf("%s.%s: %s: %w", at, key, fmt.Sprintf(format, args...), api.ErrInvalid)
	}
	const mostVCPUs, mostOfAnything = 1_000_000, 1 << 40
	if !(c.VCPUs >= 0 && c.VCPUs <= mostVCPUs) || c.VCPUs > 0 && c.VCPUs < 0.001 {
		return bad("vcpus", "%g, want 0 (no limit) or 0.001 to %d", c.VCPUs, mostVCPUs)
	}
	for _, p := range []struct {
		key string
		n   int64
	}{{"memory", c.Memory}, {"storage", c.Storage}, {"bandwidth_in", c.BandwidthIn}, {"bandwidth_out", c.BandwidthOut}} {
		if p.n < 0 || p.n > mostOfAnything {
			return bad(p.key, "%d, want 0 (no limit) to %d", p.n, int64(mostOfAnything))
		}
	}
	out = nodecaps.Caps{
		Most: api.Resources{
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
			return bad("devices", "%s is named twice", kind)
		}
		out.Devices[kind] = n
	}
	if slices.Contains(c.Runtimes, "") {
		return bad("runtimes", "an empty name")
	}
	var ok bool
	if out.Privileged, ok = privileged[c.Privileged]; !ok {
		return bad("privileged", "%q, want %s, %s or %s", c.Privileged, privilegedAllow, privilegedExisting, privilegedDeny)
	}
	return out, nil
}
