package api

import "fmt"

// Resources is an amount of what a node has and an instance asks for.
type Resources struct {
	MilliCPU int64 `json:"milli_cpu"` // thousandths of a vCPU
	MemoryMB int64 `json:"memory_mb"` // MiB
}

// Plus is the sum of both.
func (r Resources) Plus(o Resources) Resources {
	return Resources{r.MilliCPU + o.MilliCPU, r.MemoryMB + o.MemoryMB}
}

// Minus is r less o; parts may turn negative.
func (r Resources) Minus(o Resources) Resources {
	return Resources{r.MilliCPU - o.MilliCPU, r.MemoryMB - o.MemoryMB}
}

// Fits reports whether r is available in free, every part of it.
func (r Resources) Fits(free Resources) bool {
	return r.MilliCPU <= free.MilliCPU && r.MemoryMB <= free.MemoryMB
}

// Max is the larger of both, part by part.
func (r Resources) Max(o Resources) Resources {
	return Resources{max(r.MilliCPU, o.MilliCPU), max(r.MemoryMB, o.MemoryMB)}
}

// String shows r for people: "0.5 vCPU, 64 MiB".
func (r Resources) String() string {
	return fmt.Sprintf("%g vCPU, %d MiB", float64(r.MilliCPU)/1000, r.MemoryMB)
}
