package api

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Grant is what the installation grants to a cluster: the tenants whose services it may run, and
// the maximum capacity that counts for it.
type Grant struct {
	// Open admits the services of all tenants. Only the admins of the system set it.
	Open bool `json:"open"`
	// Tenants are admitted in addition to the owner, each with the tenants below it.
	Tenants []Tenant `json:"tenants,omitempty"`
	// Caps limit the capacity that the cluster reports.
	Caps Caps `json:"caps,omitzero"`
}

// Caps are upper limits for the capacity that a cluster or a node reports. The zero value of a
// field is no limit.
type Caps struct {
	MilliCPU     int64          `json:"milli_cpu,omitempty"`
	MemoryMB     int64          `json:"memory_mb,omitempty"`
	StorageMB    int64          `json:"storage_mb,omitempty"`
	Nodes        int            `json:"nodes,omitempty"`         // of a cluster
	Devices      map[string]int `json:"devices,omitempty"`       // by kind; kinds that are absent have no limit
	NoPrivileged bool           `json:"no_privileged,omitempty"` // it gets no privileged workloads
}

// The maximum numbers of entries of a Grant.
const (
	MaxGrantTenants = 256
	MaxGrantDevices = 64
)

// Validate returns ErrInvalid if g exceeds a limit or contains an invalid tenant.
func (g Grant) Validate() error {
	if len(g.Tenants) > MaxGrantTenants {
		return fmt.Errorf("grant names %d tenants, at most %d: %w", len(g.Tenants), MaxGrantTenants, ErrInvalid)
	}
	for _, t := range g.Tenants {
		if !ValidTenant(t) {
			return fmt.Errorf("grant names tenant %q, want a tenant's path such as acme/lab: %w", t, ErrInvalid)
		}
	}
	return g.Caps.Validate()
}

// Validate returns ErrInvalid if a value of c is out of range.
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

// ValidateNode is Validate for the caps of one node.
func (c Caps) ValidateNode() error {
	if c.Nodes != 0 {
		return fmt.Errorf("cap nodes is %d, want 0: one node has no number of nodes: %w", c.Nodes, ErrInvalid)
	}
	return c.Validate()
}

// Admits reports whether a cluster of this owner, with this grant, may run services of tenant t:
// the grant is open, or t is the owner, a tenant in Tenants, or below one of these. The owner does
// not admit its parent tenants.
func (g Grant) Admits(owner, t Tenant) bool {
	return g.Open || owner != "" && t.Within(owner) || slices.ContainsFunc(g.Tenants, t.Within)
}

// Top returns the topmost tenant above t, or t itself. Fair shares are per topmost tenant, because
// a tenant can create any number of tenants below it.
func (t Tenant) Top() Tenant {
	top, _, _ := strings.Cut(string(t), "/")
	return Tenant(top)
}

// Within reports whether t is above, or below it. Nothing is within "".
func (t Tenant) Within(above Tenant) bool {
	return above != "" && (t == above || strings.HasPrefix(string(t), string(above)+"/"))
}

// Limit returns r with each part limited to its cap, and the names of the parts that exceeded
// theirs.
func (c Caps) Limit(r Resources) (_ Resources, above []string) {
	limit := func(name string, have *int64, maximum int64) {
		if maximum > 0 && *have > maximum {
			*have = maximum
			above = append(above, name)
		}
	}
	limit("vcpus", &r.MilliCPU, c.MilliCPU)
	limit("memory", &r.MemoryMB, c.MemoryMB)
	limit("storage", &r.StorageMB, c.StorageMB)
	return r, above
}

// Device returns the cap for devices of a kind, math.MaxInt if there is none.
func (c Caps) Device(kind string) int {
	if n, ok := c.Devices[kind]; ok {
		return n
	}
	return math.MaxInt
}
