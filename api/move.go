package api

// MoveVolume is the value of Microservice.Move for services whose local volumes are copied to another node when
// they leave their node. Empty: an instance stays where its volumes are.
const MoveVolume = "volume"

// FeatureVolumeCopy is announced by nodes that can copy volumes. Their cluster reports FeatureMoveVolume for them
// if it can move instances, too.
const FeatureVolumeCopy = "volume_copy"

// NotMoved begins the detail of an instance whose requested move failed. It runs where it was.
const NotMoved = "was not moved: "

// MoveRequest asks to move one instance within its cluster.
type MoveRequest struct {
	To NodeID `json:"to,omitempty" maxLength:"63" doc:"The node; left out: any other node."`
}

func moveField() Field {
	return Field{
		Pointer: servicePath + "/move", Type: StringField, Enum: []string{"", MoveVolume}, Default: "an instance stays with its volumes",
		Doc:  "What moves with an instance that leaves its node, in a drain or by request. `volume`: its local volumes are copied while it runs; then it is stopped, what has changed is copied, and it starts on the other node. It runs only on nodes that can do so. The contents of its memory never move (Treeline's own).",
		Rule: "needs a volume of type `local`; not with volumes of type `csi`, which follow their driver",
	}
}

func moveRule(c checker, at string, v *value) {
	if v.get("move").text != MoveVolume {
		return
	}
	if csi := csiVolume(v); csi >= 0 {
		c.fault(at+"/move", "leave move out, or volumes/"+itoa(csi), "move: volume copies local volumes; a CSI volume follows its driver to another node")
		return
	}
	for _, o := range v.get("volumes").items {
		if o.get("type").text == VolumeLocal || o.get("csi_driver").text == VolumeLocal {
			return
		}
	}
	c.fault(at+"/move", "add a volume of type local, or leave move out", "move: volume needs a volume of type local")
}

// MovesVolumes reports whether the service's instances move with their local volumes.
func (m Microservice) MovesVolumes() bool { return m.Move == MoveVolume && len(m.LocalVolumes()) > 0 }
