package sched

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
)

type dimension struct {
	constraint string
	unit       string
	per        float64 // amount of api.Resources per unit
	of         func(api.Resources) int64
}

// dimensions are in the order of the stages from vcpusStage.
var dimensions = [...]dimension{
	{ConstraintVCPUs, "vCPU", 1000, func(r api.Resources) int64 { return r.MilliCPU }},
	{ConstraintMemory, "MiB", 1, func(r api.Resources) int64 { return r.MemoryMB }},
	{ConstraintStorage, "MiB", 1, func(r api.Resources) int64 { return r.StorageMB }},
	{ConstraintBandwidthIn, "Mbit/s", 1, func(r api.Resources) int64 { return r.InMbit }},
	{ConstraintBandwidthOut, "Mbit/s", 1, func(r api.Resources) int64 { return r.OutMbit }},
}

func (d *dimension) text(n int64) string {
	if d.unit == "MiB" {
		return api.MiB(n)
	}
	return strconv.FormatFloat(float64(n)/d.per, 'f', -1, 64) + " " + d.unit
}

// Headroom lists how much is left of each resource and kind of device that a request needs:
// "memory 512 MiB".
func Headroom(req *Request, left api.Resources, devices map[string]int) (out []string) {
	for i := range dimensions {
		if d := &dimensions[i]; d.of(req.Needs) > 0 {
			out = append(out, strings.TrimSuffix(d.constraint+" "+d.text(d.of(left)), " vCPU"))
		}
	}
	for _, d := range req.Devices {
		out = append(out, fmt.Sprintf("%s %d", d.Name, devices[d.Name]))
	}
	return out
}

// Margins lists, where known, how much of each bound of a request a node leaves unused:
// "latency 12.0 ms of 20 to pre.prod".
func Margins(req *Request, c *Candidate) (out []string) {
	var q query
	var at position
	q.read(req)
	at.read(c)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	for i := range q.bounds {
		b := &q.bounds[i]
		if b.Km > 0 {
			if chord := b.chordTo(&q, &at); !math.IsNaN(chord) {
				out = append(out, fmt.Sprintf("geo %.0f km of %g to %s", b.Km-kilometres(chord), b.Km, b.To))
			}
		} else if rtt, _, ok := b.nearest(&q, c.ID, &at); ok {
			out = append(out, fmt.Sprintf("latency %.1f ms of %g to %s", ms(b.RTT-rtt), ms(b.RTT), b.To))
		}
	}
	return out
}

// Causes returns the number of candidates that each constraint excludes, as text:
// " · 3 memory (need 512 MiB, best free 100 MiB)".
func Causes(ex api.Explanation) string {
	var s strings.Builder
	for _, c := range ex.Causes {
		if c.Constraint == Fits {
			continue
		}
		fmt.Fprintf(&s, " · %d %s", c.Count, c.Constraint)
		if c.Detail != "" {
			s.WriteString(" (" + c.Detail + ")")
		}
	}
	return s.String()
}
