package wire

import "github.com/treeline-edge/treeline/api"

// NodeSample is a node's answer to a stream of kind StreamUsage: what its machine and its running
// workloads use. Rates are means since the sample before, at least a second.
type NodeSample struct {
	Machine   api.Usage        `json:"machine"`
	Workloads []WorkloadSample `json:"workloads,omitempty"`
}

// WorkloadSample is what one placement uses.
type WorkloadSample struct {
	Key
	api.Usage
}

// StreamUsage is the kind of streams that carry one NodeSample, between cluster and node only.
const StreamUsage = "usage"

// StreamRenew is the kind of streams that ask a node to renew its certificate now, between cluster and node only. The bytes are
// empty; the node opens the stream with its new certificate.
const StreamRenew = "renewcertificate"
