package api

import (
	"cmp"
	"slices"
	"strings"
)

// The features of an SLA that a node announces in NodeInfo.Features. A node or cluster of an
// earlier release announces none and would ignore the fields, so that it does not get such instances.
const (
	FeatureFiles         = "files"            // files besides those of the image
	FeatureHealth        = "health"           // health checks
	FeatureHealthCommand = "health_command"   // health checks by a command in the workload
	FeatureInput         = "input"            // stdin and tty of workloads
	FeatureStorage       = "storage"          // what a container writes is limited to the storage of its SLA
	FeatureScale         = "scale"            // reports of the load of instances
	FeatureRequests      = "scale_requests"   // reports of the requests that instances count
	FeaturePrometheus    = "scale_prometheus" // expressions for scaling; the cluster has it, if it has a Prometheus server
	FeatureDeadline      = "deadline"         // deadlines of one-shots
	FeatureSchedule      = "schedule"         // schedules; the cluster has it, and reports it for its nodes
	FeatureTurns         = "schedule_turns"   // instances of a schedule that take turns; as FeatureSchedule
	FeatureMoveVolume    = "move_volume"      // moves with local volumes; the cluster has it, and reports it for nodes with FeatureVolumeCopy
)

// featureTexts are the names of features for people.
var featureTexts = map[string]string{
	FeatureFiles:                     "files of the SLA",
	FeatureHealth:                    "health checks",
	FeatureHealthCommand:             "health checks by command",
	FeatureStorage:                   "a limit of storage",
	FeatureOfVolume(VolumeLocal):     "volumes of type local",
	FeatureOfVolume(VolumeEphemeral): "volumes of type ephemeral",
	FeatureOfVolume(VolumeTmpfs):     "volumes of type tmpfs",
	FeatureInput:                     "stdin and tty",
	FeatureScale:                     "reports of the load of instances, which scale needs",
	FeatureRequests:                  "reports of the requests of instances, which scale.requests needs",
	FeaturePrometheus:                "a Prometheus server for scale.prometheus (key prometheus of the cluster)",
	FeatureDeadline:                  "deadlines",
	FeatureSchedule:                  "schedules",
	FeatureTurns:                     "schedules with overlap: allow or parallelism",
	FeatureMoveVolume:                "moves with local volumes",
	FeatureVolumeCopy:                "copies of volumes",
	FeatureVolumeSnapshot:            "CSI volumes from snapshots",
	FeatureVolumeShared:              "CSI volumes that several instances share",
	FeatureCSIShared:                 "CSI volumes that several instances share",
}

// FeatureText returns the name of a feature for people.
func FeatureText(feature string) string {
	if driver, ok := CSIDriverOf(feature); ok {
		return "CSI driver " + driver + " (key csi of the node and of the cluster)"
	}
	if driver, ok := strings.CutPrefix(feature, csiEphemeralFeature); ok {
		return "ephemeral volumes of CSI driver " + driver + " (keys csi and csi_ephemeral of the node)"
	}
	return cmp.Or(featureTexts[feature], feature)
}

// Features returns the features that a node needs for the service, sorted.
func (m Microservice) Features() []string {
	var out []string
	if m.Deadline > 0 {
		out = append(out, FeatureDeadline)
	}
	if len(m.Files) > 0 {
		out = append(out, FeatureFiles)
	}
	if checks := m.Health.checks(); len(checks) > 0 {
		out = append(out, FeatureHealth)
		if slices.ContainsFunc(checks, func(c *Check) bool { return len(c.Command) > 0 }) {
			out = append(out, FeatureHealthCommand)
		}
	}
	if m.MovesVolumes() {
		out = append(out, FeatureMoveVolume)
	}
	if m.Scale != nil {
		out = append(out, FeatureScale)
		if m.Scale.Requests != nil {
			out = append(out, FeatureRequests)
		}
		if m.Scale.Prometheus != nil {
			out = append(out, FeaturePrometheus)
		}
	}
	if m.Stdin || m.TTY {
		out = append(out, FeatureInput)
	}
	if m.Storage > 0 {
		out = append(out, FeatureStorage)
	}
	for _, v := range m.Volumes {
		f := FeatureOfVolume(v.Type)
		switch v.Type {
		case VolumeCSI:
			f = FeatureOfCSI(v.Driver)
		case VolumeCSIEphemeral:
			f = FeatureOfEphemeralCSI(v.Driver)
		}
		if !slices.Contains(out, f) {
			out = append(out, f)
		}
		if v.Snapshot != "" && !slices.Contains(out, FeatureVolumeSnapshot) {
			out = append(out, FeatureVolumeSnapshot)
		}
		if v.Shared() && !slices.Contains(out, FeatureVolumeShared) {
			out = append(out, FeatureVolumeShared)
		}
	}
	if m.Schedule != nil {
		out = append(out, FeatureSchedule)
	}
	if m.Together() {
		out = append(out, FeatureTurns)
	}
	slices.Sort(out)
	return out
}
