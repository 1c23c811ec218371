package api

import (
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"
)

// Volume is a file system of a service's instances.
type Volume struct {
	Name      string `json:"name,omitempty"`
	VolumeID  string `json:"volume_id,omitempty"`  // Oakestra's name of Name; empty after ParseSLA
	Type      string `json:"type,omitempty"`       // one of VolumeTypes
	Driver    string `json:"csi_driver,omitempty"` // Oakestra's name of Type; empty after ParseSLA
	MountPath string `json:"mount_path"`
	SizeMB    int64  `json:"size"` // MiB
	ReadOnly  bool   `json:"read_only,omitempty"`
}

// The types of volumes.
const (
	VolumeLocal     = "local"     // on a node's disk; outlives the instance
	VolumeEphemeral = "ephemeral" // on a node's disk; deleted with the placement of the instance
	VolumeTmpfs     = "tmpfs"     // in memory; empty after each restart
)

// VolumeTypes are the values of Volume.Type.
var VolumeTypes = []string{VolumeLocal, VolumeEphemeral, VolumeTmpfs}

// The limits of volumes.
const (
	MaxVolumes      = 16      // of a service
	MaxVolumeMB     = 1 << 24 // MiB of one volume
	MinDiskVolumeMB = 16      // MiB of a volume on disk: a smaller ext4 has no journal
	MaxNodeVolumes  = 1024    // local volumes on one node
)

// VolumeID names a local volume: "<instance id>:<name>". It contains the path of the tenant, so that
// a volume never belongs to an instance of another tenant.
type VolumeID string

// Volume returns the id of the instance's local volume of a name.
func (i InstanceID) Volume(name string) VolumeID { return VolumeID(string(i) + ":" + name) }

// Instance returns the instance that the volume belongs to.
func (v VolumeID) Instance() InstanceID { return InstanceID(beforeLast(string(v), ':')) }

// Tenant returns the tenant that owns the volume.
func (v VolumeID) Tenant() Tenant { return v.Instance().Tenant() }

// Name returns the volume's name without its tenant: "app.ns.service.ns#0:data".
func (v VolumeID) Name() string { return afterLast(string(v), '/') }

// Label returns the volume's name in the SLA: "data".
func (v VolumeID) Label() string { return afterLast(string(v), ':') }

// ParseVolumeID parses and validates the id of a volume. A malformed id is ErrInvalid.
func ParseVolumeID(s string) (VolumeID, error) {
	id := VolumeID(s)
	if _, err := ParseInstanceID(string(id.Instance())); err != nil || !ValidMachineName(id.Label()) {
		return "", fmt.Errorf("volume %q is not <tenant>/<app>.<ns>.<service>.<ns>#<n>:<name>: %w", s, ErrInvalid)
	}
	return id, nil
}

// VolumeFromPath reverses PathOf for a volume.
func VolumeFromPath(segment string) VolumeID {
	instance, name, _ := strings.Cut(segment, ":")
	return InstanceFromPath(instance).Volume(name)
}

// NodeVolume is a local volume that a node has. A volume counts from the first start of a workload
// that may have written to it.
type NodeVolume struct {
	ID     VolumeID `json:"id"`
	SizeMB int64    `json:"size_mb"`
	Epoch  Epoch    `json:"epoch"` // of the newest placement that had it
}

// VolumeStatus is a local volume in the API of the root.
type VolumeStatus struct {
	ID       VolumeID  `json:"id"`
	Tenant   Tenant    `json:"tenant"`
	Cluster  ClusterID `json:"cluster"` // where it is; its instance is only placed there
	SizeMB   int64     `json:"size_mb"`
	Created  time.Time `json:"created"`
	InUse    bool      `json:"in_use"` // an instance has it, or will have it
	Revision Revision  `json:"revision"`
}

// LocalVolumes returns the service's volumes that outlive an instance.
func (m Microservice) LocalVolumes() (out []Volume) {
	for _, v := range m.Volumes {
		if v.Type == VolumeLocal {
			out = append(out, v)
		}
	}
	return out
}

// KeepsData reports whether the service has a local volume. Its instances never run twice, and only
// where their volumes are.
func (m Microservice) KeepsData() bool { return len(m.LocalVolumes()) > 0 }

// TmpfsMB returns the sum of the service's volumes in memory.
func (m Microservice) TmpfsMB() (sum int64) {
	for _, v := range m.Volumes {
		if v.Type == VolumeTmpfs {
			sum += v.SizeMB
		}
	}
	return sum
}

// complete replaces the names of Oakestra.
func (v *Volume) complete() {
	if v.Name == "" {
		v.Name = v.VolumeID
	}
	if v.Type == "" {
		v.Type = v.Driver
	}
	v.VolumeID, v.Driver = "", ""
}

// occupied are the paths in a container on which no volume may be mounted, also not below or above
// them.
var occupied = []string{"/proc", "/sys", "/dev", "/etc/hosts", "/etc/resolv.conf"}

// contains reports whether a clean absolute path is the other one or contains it.
func contains(dir, other string) bool {
	return dir == "/" || other == dir || strings.HasPrefix(other, dir+"/")
}

// mountPathFault returns why a volume cannot be mounted at a path, or "".
func mountPathFault(p string) string {
	switch {
	case !strings.HasPrefix(p, "/"):
		return "is not absolute"
	case path.Clean(p) != p:
		return "is not in its shortest form, " + path.Clean(p)
	case strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "contains a control character"
	}
	for _, o := range occupied {
		if contains(p, o) || contains(o, p) {
			return "covers or is in " + o + " of the container"
		}
	}
	if contains(FilesDir, p) {
		return "is in " + FilesDir + " of the container, which has its files"
	}
	return ""
}

func volumeRule(c checker, at string, v *value) {
	kind, driver := v.get("type"), v.get("csi_driver")
	switch {
	case v.get("name").text == "" && v.get("volume_id").text == "":
		c.fault(at+"/name", "give it: "+fixPattern[machinePattern], "name is missing")
	case v.get("name").text != "" && v.get("volume_id").text != "" && v.get("name").text != v.get("volume_id").text:
		c.fault(at+"/volume_id", "leave one of them out", "volume_id contradicts name")
	}
	switch {
	case kind.text == "" && driver.text == "":
		c.fault(at+"/type", fixEnum(lookup[volumePath+"/type"], ""), "type is missing")
	case kind.text != "" && driver.text != "" && kind.text != driver.text:
		c.fault(at+"/csi_driver", "leave one of them out", "csi_driver contradicts type")
	case driver.text != "" && !isVolumeType(driver.text):
		c.fault(at+"/csi_driver", "use one of the built-in drivers: "+strings.Join(VolumeTypes, ", "),
			"csi_driver %q is not built in, and other CSI drivers are not supported yet", shorten(driver.text))
	}
	is := kind.text
	if is == "" {
		is = driver.text
	}
	if n, err := strconv.ParseInt(v.get("size").text, 10, 64); err == nil && n > 0 && n < MinDiskVolumeMB && (is == VolumeLocal || is == VolumeEphemeral) {
		c.fault(at+"/size", fmt.Sprintf("%d to %d MiB", MinDiskVolumeMB, MaxVolumeMB), "size is %d, too small for a volume of type %s", n, is)
	}
	if v.get("read_only").truth && is != VolumeLocal && isVolumeType(is) {
		c.fault(at+"/read_only", "leave read_only out", "a volume of type %s is empty at first: read_only would make it useless", is)
	}
	if p := v.get("mount_path"); p.kind == StringField && len(p.text) <= maxMountPath {
		if why := mountPathFault(p.text); why != "" {
			c.fault(at+"/mount_path", "an absolute path such as /data, not over /proc, /sys, /dev, /etc/hosts or /etc/resolv.conf", "mount_path %q %s", shorten(p.text), why)
		}
	}
}

func isVolumeType(s string) bool {
	return s == VolumeLocal || s == VolumeEphemeral || s == VolumeTmpfs
}

// FeatureOfVolume returns the feature that a node announces if it supports a type of volumes.
func FeatureOfVolume(kind string) string { return "volume_" + kind }

const maxMountPath = 256

// volumesRule refuses two volumes of one name, and a mount path in another one.
func volumesRule(c checker, at string, v *value) {
	c.once(at, "name", "rename one of them", v.items, func(v *value) string {
		if name := v.get("name").text; name != "" {
			return name
		}
		return v.get("volume_id").text
	})
	for i := range v.items {
		p := v.items[i].get("mount_path").text
		if mountPathFault(p) != "" {
			continue // has a fault already
		}
		for k := range v.items[:i] {
			if o := v.items[k].get("mount_path").text; mountPathFault(o) == "" && (contains(o, p) || contains(p, o)) {
				c.fault(at+"/"+itoa(i)+"/mount_path", "choose paths of which none contains another", "mount_path %q and %q of %s/%d contain one another", shorten(p), shorten(o), at, k)
				break
			}
		}
	}
}

// containersOnlyRule refuses volumes of a service that is not a container.
func containersOnlyRule(c checker, at string, v *value) {
	if is := v.get("virtualization"); is.kind == StringField && is.text != "container" && is.text != "docker" && len(v.get("volumes").items) > 0 {
		c.fault(at+"/volumes", "run it as a container, or leave volumes out", "volumes are not supported for virtualization: %s", shorten(is.text))
	}
}
