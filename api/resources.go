package api

import (
	"fmt"
	"math"
	"strconv"
)

// Resources is an amount of a node's resources. Resources that are counted in pieces, such as GPUs,
// are Devices.
type Resources struct {
	MilliCPU  int64 `json:"milli_cpu"`            // thousandths of a vCPU
	MemoryMB  int64 `json:"memory_mb"`            // MiB
	StorageMB int64 `json:"storage_mb,omitempty"` // MiB of disk
	InMbit    int64 `json:"in_mbit,omitempty"`    // Mbit/s received
	OutMbit   int64 `json:"out_mbit,omitempty"`   // Mbit/s sent
}

func (r Resources) Plus(o Resources) Resources {
	return Resources{
		r.MilliCPU + o.MilliCPU, r.MemoryMB + o.MemoryMB, r.StorageMB + o.StorageMB,
		r.InMbit + o.InMbit, r.OutMbit + o.OutMbit,
	}
}

// Minus returns r less o; parts may be negative.
func (r Resources) Minus(o Resources) Resources {
	return Resources{
		r.MilliCPU - o.MilliCPU, r.MemoryMB - o.MemoryMB, r.StorageMB - o.StorageMB,
		r.InMbit - o.InMbit, r.OutMbit - o.OutMbit,
	}
}

// Fits reports whether no part of r exceeds that of free.
func (r Resources) Fits(free Resources) bool {
	return r.MilliCPU <= free.MilliCPU && r.MemoryMB <= free.MemoryMB && r.StorageMB <= free.StorageMB &&
		r.InMbit <= free.InMbit && r.OutMbit <= free.OutMbit
}

// Max returns the larger of both, part by part.
func (r Resources) Max(o Resources) Resources {
	return Resources{
		max(r.MilliCPU, o.MilliCPU), max(r.MemoryMB, o.MemoryMB), max(r.StorageMB, o.StorageMB),
		max(r.InMbit, o.InMbit), max(r.OutMbit, o.OutMbit),
	}
}

// Min returns the smaller of both, part by part.
func (r Resources) Min(o Resources) Resources {
	return Resources{
		min(r.MilliCPU, o.MilliCPU), min(r.MemoryMB, o.MemoryMB), min(r.StorageMB, o.StorageMB),
		min(r.InMbit, o.InMbit), min(r.OutMbit, o.OutMbit),
	}
}

// MiB formats n MiB for people: "512 MiB", from 10 GiB "15.6 GiB", from 10 TiB "12 TiB".
func MiB(n int64) string {
	v, units := float64(n), []string{"MiB", "GiB", "TiB", "PiB"}
	for (v >= 10<<10 || v <= -10<<10) && len(units) > 1 {
		v, units = v/1024, units[1:]
	}
	return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) + " " + units[0]
}

// String returns r for people: "0.5 vCPU, 64 MiB", and the other parts unless they are 0.
func (r Resources) String() string {
	s := fmt.Sprintf("%g vCPU, %s", float64(r.MilliCPU)/1000, MiB(r.MemoryMB))
	if r.StorageMB != 0 {
		s += ", " + MiB(r.StorageMB) + " disk"
	}
	if r.InMbit != 0 || r.OutMbit != 0 {
		s += fmt.Sprintf(", %d/%d Mbit/s in/out", r.InMbit, r.OutMbit)
	}
	return s
}
