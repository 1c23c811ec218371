// Package nodecaps limits the capacity and features that nodes report to the caps that
// the cluster's operator sets.
//
//	counts, capped := policy.Of(info.ID).Limit(info, false)
package nodecaps

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// Caps limit what one node reports. The zero Caps limit nothing.
type Caps struct {
	Max        api.Resources  // 0: no limit
	Devices    map[string]int // by kind; absent kinds have no limit
	Runtimes   []string       // accepted runtimes; empty: all
	Privileged Privileged
}

// Privileged decides whether a node that accepts privileged workloads gets them.
type Privileged int

// The values of Privileged.
const (
	Allow    Privileged = iota // always
	Existing                   // if the node accepted them before its cluster had node caps
	Deny                       // never
)

// Policy has the caps of all nodes.
type Policy struct {
	Default Caps
	Nodes   map[api.NodeID]Caps // in place of Default
}

func (p Policy) Of(id api.NodeID) Caps {
	if c, ok := p.Nodes[id]; ok {
		return c
	}
	return p.Default
}

// With returns c combined with the caps of an order. The lower limit of both applies.
func (c Caps) With(order api.Caps) Caps {
	for _, p := range []struct {
		most  *int64
		order int64
	}{{&c.Max.MilliCPU, order.MilliCPU}, {&c.Max.MemoryMB, order.MemoryMB}, {&c.Max.StorageMB, order.StorageMB}} {
		if p.order > 0 && (*p.most == 0 || p.order < *p.most) {
			*p.most = p.order
		}
	}
	if len(order.Devices) > 0 {
		devices := maps.Clone(order.Devices)
		for kind, n := range c.Devices {
			if o, ok := devices[kind]; !ok || n < o {
				devices[kind] = n
			}
		}
		c.Devices = devices
	}
	if order.NoPrivileged {
		c.Privileged = Deny
	}
	return c
}

// Limit returns claims limited by c, and the claims that exceeded c in a fixed order. It does
// not modify claims. existing: see Existing.
func (c Caps) Limit(claims api.NodeInfo, existing bool) (counts api.NodeInfo, capped []api.Capped) {
	counts = claims
	above := func(what, claimed, count string) {
		capped = append(capped, api.Capped{What: what, Claims: claimed, Counts: count})
	}
	for _, p := range []struct {
		name string
		have *int64
		most int64
		text func(int64) string
	}{
		{"vcpus", &counts.Capacity.MilliCPU, c.Max.MilliCPU, func(n int64) string { return fmt.Sprintf("%.15g", float64(n)/1000) }},
		{"memory", &counts.Capacity.MemoryMB, c.Max.MemoryMB, api.MiB},
		{"storage", &counts.Capacity.StorageMB, c.Max.StorageMB, api.MiB},
		{"bandwidth_in", &counts.Capacity.InMbit, c.Max.InMbit, mbits},
		{"bandwidth_out", &counts.Capacity.OutMbit, c.Max.OutMbit, mbits},
	} {
		if p.most > 0 && *p.have > p.most {
			above(p.name, p.text(*p.have), p.text(p.most))
			*p.have = p.most
		}
	}
	counts.Devices, capped = c.limitDevices(claims.Devices, capped)
	if len(c.Runtimes) > 0 {
		counts.Runtimes = slices.DeleteFunc(slices.Clone(claims.Runtimes), func(r string) bool { return !slices.Contains(c.Runtimes, r) })
		if len(counts.Runtimes) < len(claims.Runtimes) {
			above("runtimes", strings.Join(claims.Runtimes, ", "), strings.Join(counts.Runtimes, ", "))
		}
	}
	if claims.Privileged && (c.Privileged == Deny || c.Privileged == Existing && !existing) {
		counts.Privileged = false
		above("privileged", "allowed", "forbidden")
	}
	return counts, capped
}

func mbits(n int64) string { return fmt.Sprintf("%d Mbit/s", n) }

// limitDevices keeps the first devices that are within the caps of all their kinds. A device
// of several kinds counts against the cap of each.
func (c Caps) limitDevices(claims []api.NodeDevice, capped []api.Capped) ([]api.NodeDevice, []api.Capped) {
	if len(c.Devices) == 0 {
		return claims, capped
	}
	have, counts := map[string]int{}, map[string]int{}
	var out []api.NodeDevice
	seen := map[string]bool{}
	for _, d := range claims {
		if seen[d.ID] {
			continue // a device that is listed twice counts once
		}
		seen[d.ID] = true
		kinds := slices.Compact(slices.Sorted(slices.Values(d.Kinds)))
		full := false
		for _, k := range kinds {
			most, limited := c.Devices[k]
			have[k]++
			full = full || limited && counts[k] >= most
		}
		if full {
			continue
		}
		for _, k := range kinds {
			counts[k]++
		}
		out = append(out, d)
	}
	if len(out) == len(seen) {
		return claims, capped
	}
	for _, k := range slices.Sorted(maps.Keys(c.Devices)) {
		if have[k] > counts[k] {
			capped = append(capped, api.Capped{What: k, Claims: fmt.Sprint(have[k]), Counts: fmt.Sprint(counts[k])})
		}
	}
	return out, capped
}
