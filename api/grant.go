package api

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Grant is what the installation grants to a cluster: whose services it gets, and how
// much of what it claims counts.
type Grant struct {
	// Open admits the services of all tenants. Only the installation's admins set it.
	Open bool `json:"open"`
	// Tenants are admitted beside the owner, each with the tenants below it.
	Tenants []Tenant `json:"tenants,omitempty"`
	// Caps limit what the cluster's reports count for.
	Caps Caps `json:"caps,omitzero"`
}

// Caps limit what a cluster, or a node, counts for, whatever it claims. Of each field
// zero means no limit.
type Caps struct {
	MilliCPU     int64          `json:"milli_cpu,omitempty"`
	MemoryMB     int64          `json:"memory_mb,omitempty"`
	StorageMB    int64          `json:"storage_mb,omitempty"`
	Nodes        int            `json:"nodes,omitempty"`         // of a cluster
	Devices      map[string]int `json:"devices,omitempty"`       // by kind; of kinds that are not named, any number
	NoPrivileged bool           `json:"no_privileged,omitempty"` // it gets no privileged workloads, though it offers to run them
}

// The most entries of a Grant.
const (
	MaxGrantTenants = 256
	MaxGrantDevices = 64
)

// Validate reports what is wrong with g, as ErrInvalid.
func (g Grant) Validate() error {
	if len(g.Tenants) > MaxGrantTenants {
		return fmt.Errorf("grant names %d tenants, at most %d: %w", len(g.Tenants), MaxGrantTenants, ErrInvalid)
	}
	for _, t := range g.Tenants {
		if !ValidTenant(t) {
			return fmt.Errorf("grant names tenant %q, which is no path of a tenant: %w", t, ErrInvalid)
		}
	}
	return g.Caps.Validate()
}

// Validate reports what is wrong with c, as ErrInvalid.
func (c Caps) Validate() error {
	for _, part := range []struct {
		name string
		n    int64
	}{{"milli_cpu", c.MilliCPU}, {"memory_mb", c.MemoryMB}, {"storage_mb", c.StorageMB}, {"nodes", int64(c.Nodes)}} {
		if part.n < 0 {
			return fmt.Errorf("cap %s is %d, want 0 (no limit) or more: %w", part.name, part.n, ErrInvalid)
		}
	}
	if len(c.Devices) > MaxGrantDevices {
		return fmt.Errorf("caps name %d kinds of devices, at most %d: %w", len(c.Devices), MaxGrantDevices, ErrInvalid)
	}
	for kind, n := range c.Devices {
		if kind == "" || len(kind) > 256 || n < 0 {
			return fmt.Errorf("cap of device %q is %d, want a kind of at most 256 bytes and 0 or more: %w", kind, n, ErrInvalid)
		}
	}
	return nil
}

// ValidateNode is Validate of the caps of one node.
func (c Caps) ValidateNode() error {
	if c.Nodes != 0 {
		return fmt.Errorf("cap nodes is %d, want 0: one node has no number of nodes: %w", c.Nodes, ErrInvalid)
	}
	return c.Validate()
}

// Admits reports whether a cluster of this owner, with this grant, gets services of
// tenant t: it is open, t is the owner or below it, or t is named or below one that
// is. An owner's cluster does not serve the tenants above the owner unless they are
// named: whoever runs a part does not choose for the whole.
func (g Grant) Admits(owner, t Tenant) bool {
	return g.Open || owner != "" && t.Within(owner) || slices.ContainsFunc(g.Tenants, t.Within)
}

// Top is the topmost tenant above t, or t itself. What is shared among tenants is
// shared among these: tenants below cost nothing to make.
func (t Tenant) Top() Tenant {
	top, _, _ := strings.Cut(string(t), "/")
	return Tenant(top)
}

// Within reports whether t is the tenant above or is below it.
func (t Tenant) Within(above Tenant) bool {
	return above != "" && (t == above || strings.HasPrefix(string(t), string(above)+"/"))
}

// Limit returns r with each part at most the cap, and the names of the parts that
// were above it.
func (c Caps) Limit(r Resources) (_ Resources, above []string) {
	limit := func(name string, have *int64, most int64) {
		if most > 0 && *have > most {
			*have = most
			above = append(above, name)
		}
	}
	limit("vcpus", &r.MilliCPU, c.MilliCPU)
	limit("memory", &r.MemoryMB, c.MemoryMB)
	limit("storage", &r.StorageMB, c.StorageMB)
	return r, above
}

// Device returns the most devices of a kind that count.
func (c Caps) Device(kind string) int {
	if n, ok := c.Devices[kind]; ok {
		return n
	}
	return math.MaxInt
}
