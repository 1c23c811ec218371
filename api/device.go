package api

type Device struct {
	Name  string `json:"name"` // "gpu", "tpu", or a CDI kind, "vendor.com/class"
	Count int    `json:"count"`
}

// The kinds for `vgpus` and `vtpus` of an SLA. A node's GPU counts as "gpu" and under its CDI
// kind, and is one device.
const (
	DeviceGPU = "gpu"
	DeviceTPU = "tpu"
)

// NodeDevice is one device of a node. One instance at a time has it.
type NodeDevice struct {
	ID    string   `json:"id"`              // unique on the node: the CDI name, "vendor.com/class=0"
	Kinds []string `json:"kinds"`           // names under which it can be requested, sorted
	Model string   `json:"model,omitempty"` // for people
}
