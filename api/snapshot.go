package api

import (
	"fmt"
	"strings"
	"time"
)

// SnapshotID names a snapshot that the driver of a CSI volume keeps: "<volume id>@<name>". It contains the path
// of the tenant, so that no volume of another tenant is created from it.
type SnapshotID string

// MaxSnapshots is the number of snapshots of a topmost tenant with those below it.
const MaxSnapshots = 1 << 10

// FeatureVolumeSnapshot is reported by a cluster for its nodes if it creates CSI volumes from snapshots.
const FeatureVolumeSnapshot = "volume_snapshot"

// Snapshot returns the id of the volume's snapshot of a name.
func (v VolumeID) Snapshot(name string) SnapshotID { return SnapshotID(string(v) + "@" + name) }

// SnapshotOf returns the id of the snapshot that a volume in an SLA of the tenant is created from, "" if it is
// created empty.
func (v Volume) SnapshotOf(t Tenant) SnapshotID {
	if v.Snapshot == "" {
		return ""
	}
	return SnapshotID(string(t) + "/" + v.Snapshot)
}

// Volume returns the id of the volume that the snapshot was taken of.
func (s SnapshotID) Volume() VolumeID { return VolumeID(beforeLast(string(s), '@')) }

// Tenant returns the tenant that owns the snapshot.
func (s SnapshotID) Tenant() Tenant { return s.Volume().Tenant() }

// Name returns the snapshot's name without its tenant: "app.ns.service.ns#0:data@monday".
func (s SnapshotID) Name() string { return afterLast(string(s), '/') }

// Label returns the name that its creator gave it: "monday".
func (s SnapshotID) Label() string { return afterLast(string(s), '@') }

// ParseSnapshotID parses and validates the id of a snapshot. A malformed id is ErrInvalid.
func ParseSnapshotID(s string) (SnapshotID, error) {
	id := SnapshotID(s)
	if _, err := ParseVolumeID(string(id.Volume())); err != nil || !ValidMachineName(id.Label()) {
		return "", fmt.Errorf("snapshot %q is not <tenant>/<app>.<ns>.<service>.<ns>#<n>:<volume>@<name>: %w", s, ErrInvalid)
	}
	return id, nil
}

// SnapshotFromPath reverses PathOf for a snapshot.
func SnapshotFromPath(segment string) SnapshotID {
	volume, name, _ := strings.Cut(segment, "@")
	return VolumeFromPath(volume).Snapshot(name)
}

// NewSnapshot requests a snapshot of a CSI volume.
type NewSnapshot struct {
	Name string `json:"name" doc:"Its name among the snapshots of the volume: lower-case letters, digits and inner hyphens."`
}

// VolumeSnapshot is a snapshot that the driver of a CSI volume keeps, in the API of the root.
type VolumeSnapshot struct {
	ID       SnapshotID `json:"id"`
	Tenant   Tenant     `json:"tenant"`
	Cluster  ClusterID  `json:"cluster"` // volumes are created from it there
	Driver   string     `json:"csi_driver"`
	SizeMB   int64      `json:"size_mb"` // of a volume that is created from it, at least
	Ready    bool       `json:"ready"`   // a volume can be created from it
	Created  time.Time  `json:"created"`
	Revision Revision   `json:"revision"`
}

// SnapshotState is a cluster's answer to a request for a snapshot.
type SnapshotState struct {
	SizeMB int64 `json:"size_mb"`
	Ready  bool  `json:"ready"`
}
