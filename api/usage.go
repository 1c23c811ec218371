package api

import "time"

// The highest usage that a machine or an instance is believed to have.
const (
	MaxUsedMilliCPU = 8192_000
	MaxUsedBytes    = 1 << 47 // of memory, and per second of a network
)

// Usage is what an instance or a machine uses. -1: unknown.
type Usage struct {
	MilliCPU int64 `json:"milli_cpu" doc:"Thousandths of a vCPU, the mean of the time of the measurement. -1: unknown."`
	Memory   int64 `json:"memory_bytes" doc:"Without the cache of files. -1: unknown."`
	In       int64 `json:"in_bytes_per_second" doc:"Received from the network. -1: unknown."`
	Out      int64 `json:"out_bytes_per_second" doc:"Sent to the network. -1: unknown."`
}

// UnknownUsage is the usage of something that cannot be measured.
var UnknownUsage = Usage{MilliCPU: -1, Memory: -1, In: -1, Out: -1}

// Bounded returns u with unknown in place of each value that no machine can have.
func (u Usage) Bounded() Usage {
	for _, v := range []struct {
		of   *int64
		most int64
	}{{&u.MilliCPU, MaxUsedMilliCPU}, {&u.Memory, MaxUsedBytes}, {&u.In, MaxUsedBytes}, {&u.Out, MaxUsedBytes}} {
		if *v.of < 0 || *v.of > v.most {
			*v.of = -1
		}
	}
	return u
}

// InstanceUsage is what a running instance uses.
type InstanceUsage struct {
	Instance InstanceID `json:"instance"`
	Epoch    Epoch      `json:"epoch"`
	Cluster  ClusterID  `json:"cluster"`
	Node     NodeID     `json:"node,omitempty"` // empty unless the user may see nodes
	Usage
	At time.Time `json:"at" doc:"When the node answered, by its cluster's clock."`
}

// NodeUsage is what a node's machine uses, with everything that runs on it, and of that the instances.
type NodeUsage struct {
	Node      NodeID    `json:"node"`
	Cluster   ClusterID `json:"cluster"`
	Machine   Usage     `json:"machine"`
	Instances Usage     `json:"instances"`
	Running   int       `json:"running" doc:"Instances whose usage is known."`
	Capacity  Resources `json:"capacity"`
	Allocated Resources `json:"allocated"`
	At        time.Time `json:"at" doc:"When the node answered, by its cluster's clock."`
}

// Usages are measurements, and what could not be measured.
type Usages[T any] struct {
	Items   []T          `json:"items"`
	Missing []Unmeasured `json:"missing,omitempty"`
}

// Unmeasured names what could not be measured: an instance, a node or a whole cluster.
type Unmeasured struct {
	Cluster  ClusterID  `json:"cluster,omitempty"`
	Node     NodeID     `json:"node,omitempty"` // empty unless the user may see nodes
	Instance InstanceID `json:"instance,omitempty"`
	Reason   string     `json:"reason"`
}

// MaxUsages bounds the instances of one answer, and of its nodes.
const MaxUsages = 1000
