package wire

import "github.com/treeline-edge/treeline/api"

// WantVolume requests a CSI volume of a placement: POST /v1/node/volumes/attach of a cluster. The cluster
// creates it and attaches it to the node. The node repeats the request until it has an answer.
//
// POST /v1/node/volumes/detach says that the node has nothing of the volume mounted any more for the placement.
type WantVolume struct {
	Key
	Name string `json:"name"`
}

// IDs returns the ids that the volume may have: of the instance, and of its service if the instances share it. Which
// of them it is, is in the SLA.
func (w WantVolume) IDs() (own, shared api.VolumeID) {
	return w.Instance.Volume(w.Name), w.Instance.Service().Volume(w.Name)
}

// VolumeAttached answers an attach.
type VolumeAttached struct {
	Handle     string            `json:"handle"` // the driver's id of the volume
	Context    map[string]string `json:"context,omitempty"`
	Attachment map[string]string `json:"attachment,omitempty"` // what the controller says to the node's driver
	SizeMB     int64             `json:"size_mb"`
	Expand     bool              `json:"expand,omitempty"` // the node has to expand it, once it is published
}
