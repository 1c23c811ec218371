package api

// Device is a number of devices of one kind that an instance asks for, or has.
type Device struct {
	Name  string `json:"name"` // "gpu", "tpu", or a CDI kind, "vendor.com/class"
	Count int    `json:"count"`
}

// The kinds that `vgpus` and `vtpus` of an SLA stand for. A node's GPU counts as
// "gpu" beside its CDI kind, and is the same one device.
const (
	DeviceGPU = "gpu"
	DeviceTPU = "tpu"
)

// NodeDevice is one device that a node offers. It is given to one instance at a time.
type NodeDevice struct {
	ID    string   `json:"id"`              // unique on the node: the CDI name, "vendor.com/class=0", or the test device's
	Kinds []string `json:"kinds"`           // by which it may be asked for, sorted
	Model string   `json:"model,omitempty"` // for people
}
