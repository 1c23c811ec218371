package api

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Volume is a file system of a service's instances.
type Volume struct {
	Name     string `json:"name,omitempty"`
	VolumeID string `json:"volume_id,omitempty"` // Oakestra's name of Name; empty after ParseSLA
	Type     string `json:"type,omitempty"`      // one of VolumeTypes
	// Driver is the CSI driver of a volume of type VolumeCSI, otherwise empty after ParseSLA. Oakestra's
	// documents have the other types in it, too.
	Driver    string `json:"csi_driver,omitempty"`
	MountPath string `json:"mount_path"`
	SizeMB    int64  `json:"size,omitempty"` // MiB; 0: VolumeCSIEphemeral
	ReadOnly  bool   `json:"read_only,omitempty"`

	Config map[string]string `json:"config,omitempty"` // parameters for the CSI driver
	// Access is AccessManyWriters or AccessManyReaders for a CSI volume that all instances of the service use
	// together, and empty after ParseSLA for one that each instance has to itself.
	Access string `json:"access_mode,omitempty"`
	// Snapshot is the name of the snapshot that a CSI volume is created from, without its tenant, which is
	// that of the service.
	Snapshot string `json:"snapshot,omitempty"`
}

// The types of volumes.
const (
	VolumeLocal     = "local"     // on a node's disk; outlives the instance
	VolumeEphemeral = "ephemeral" // on a node's disk; deleted with the placement of the instance
	VolumeTmpfs     = "tmpfs"     // in memory; empty after each restart
	VolumeCSI       = "csi"       // of a CSI driver; outlives the instance and moves between nodes
	// VolumeCSIEphemeral is made by a CSI driver on the node when it is mounted, and removed with the placement. Its
	// driver needs no controller.
	VolumeCSIEphemeral = "csi_ephemeral"
)

// The values of Volume.Access, in the terms of the CSI specification.
const (
	AccessOneWriter   = "single_node_writer"
	AccessManyWriters = "multi_node_multi_writer"
	AccessManyReaders = "multi_node_reader_only"
)

// FeatureCSIShared is announced by nodes that mount one CSI volume for several instances. Their cluster reports
// FeatureVolumeShared for them if it can attach volumes to several nodes, too.
const (
	FeatureCSIShared    = "csi_shared"
	FeatureVolumeShared = "volume_shared"
)

// VolumeTypes are the values of Volume.Type.
var VolumeTypes = []string{VolumeLocal, VolumeEphemeral, VolumeTmpfs, VolumeCSI, VolumeCSIEphemeral}

// BuiltInVolumes are the types of volumes that nodes provide without a driver.
var BuiltInVolumes = []string{VolumeLocal, VolumeEphemeral, VolumeTmpfs}

// defaultCSIVolumeMB is the size of a volume of type VolumeCSI whose document has none, as Oakestra's have.
const defaultCSIVolumeMB = "1024"

// The limits of volumes.
const (
	MaxVolumes      = 16      // of a service
	MaxVolumeMB     = 1 << 24 // MiB of one volume
	MinDiskVolumeMB = 16      // MiB of a volume on disk: a smaller ext4 has no journal
	MaxNodeVolumes  = 1024    // local volumes on one node
)

// VolumeID names a volume that outlives its instance: "<instance id>:<name>", or "<service id>:<name>" if the instances of
// the service share it. It contains the path of the tenant, so that a volume never belongs to an instance of another tenant.
type VolumeID string

// IDFor returns the id of a volume in the SLA of an instance's service that outlives the instance.
func (v Volume) IDFor(i InstanceID) VolumeID {
	if v.Shared() {
		return i.Service().Volume(v.Name)
	}
	return i.Volume(v.Name)
}

// Shared reports whether the instances of the service use the volume together.
func (v Volume) Shared() bool { return v.Access != "" }

// Volume returns the id of the service's shared volume of a name.
func (s ServiceID) Volume(name string) VolumeID { return VolumeID(string(s) + ":" + name) }

// Volume returns the id of the instance's local volume of a name.
func (i InstanceID) Volume(name string) VolumeID { return VolumeID(string(i) + ":" + name) }

// Shared reports whether the volume belongs to a service and not to one instance.
func (v VolumeID) Shared() bool { return !strings.Contains(string(v), "#") }

// Instance returns the instance that the volume belongs to, "" if it is shared.
func (v VolumeID) Instance() InstanceID {
	if v.Shared() {
		return ""
	}
	return InstanceID(beforeLast(string(v), ':'))
}

// Service returns the service whose instance or instances the volume belongs to.
func (v VolumeID) Service() ServiceID {
	if v.Shared() {
		return ServiceID(beforeLast(string(v), ':'))
	}
	return v.Instance().Service()
}

// Owner describes what the volume belongs to, for people: "instance …" or "service …".
func (v VolumeID) Owner() string {
	if v.Shared() {
		return "service " + string(v.Service())
	}
	return "instance " + string(v.Instance())
}

// Tenant returns the tenant that owns the volume.
func (v VolumeID) Tenant() Tenant { return v.Service().Tenant() }

// Name returns the volume's name without its tenant: "app.ns.service.ns#0:data".
func (v VolumeID) Name() string { return afterLast(string(v), '/') }

// Label returns the volume's name in the SLA: "data".
func (v VolumeID) Label() string { return afterLast(string(v), ':') }

// ParseVolumeID parses and validates the id of a volume. A malformed id is ErrInvalid.
func ParseVolumeID(s string) (VolumeID, error) {
	id := VolumeID(s)
	owner := string(id.Instance())
	if id.Shared() {
		owner = string(id.Service().Instance(0))
	}
	if _, err := ParseInstanceID(owner); err != nil || !ValidMachineName(id.Label()) {
		return "", fmt.Errorf("volume %q is not <tenant>/<app>.<ns>.<service>.<ns>#<n>:<name>, without #<n> for a shared one: %w", s, ErrInvalid)
	}
	return id, nil
}

// VolumeFromPath reverses PathOf for a volume.
func VolumeFromPath(segment string) VolumeID {
	owner, name, _ := strings.Cut(segment, ":")
	if !strings.Contains(owner, "#") && strings.Contains(afterLast(owner, '~'), ".") { // a service's name has dots, a number none
		return ServiceID(FromPath(owner)).Volume(name)
	}
	return InstanceFromPath(owner).Volume(name)
}

// NodeVolume is a local volume that a node has. A volume counts from the first start of a workload
// that may have written to it.
type NodeVolume struct {
	ID     VolumeID `json:"id"`
	SizeMB int64    `json:"size_mb"`
	Epoch  Epoch    `json:"epoch"` // of the newest placement that had it
}

// NodeCSI is a CSI driver of a node.
type NodeCSI struct {
	Driver   string            `json:"driver"`
	NodeID   string            `json:"node_id"`            // the node's id at the driver
	Topology map[string]string `json:"topology,omitempty"` // where the node is, in the driver's terms
}

// VolumeStatus is a volume that outlives its instance, in the API of the root.
type VolumeStatus struct {
	ID       VolumeID  `json:"id"`
	Driver   string    `json:"csi_driver,omitempty"`  // empty: it is local
	Access   string    `json:"access_mode,omitempty"` // empty: one instance has it
	Tenant   Tenant    `json:"tenant"`
	Cluster  ClusterID `json:"cluster"` // where it is; its instance is only placed there
	SizeMB   int64     `json:"size_mb"`
	Created  time.Time `json:"created"`
	InUse    bool      `json:"in_use"` // an instance has it, or will have it
	Revision Revision  `json:"revision"`
}

// LocalVolumes returns the service's volumes that outlive an instance on the disk of its node.
func (m Microservice) LocalVolumes() (out []Volume) {
	for _, v := range m.Volumes {
		if v.Type == VolumeLocal {
			out = append(out, v)
		}
	}
	return out
}

// CSIVolumes returns the service's volumes of CSI drivers.
func (m Microservice) CSIVolumes() (out []Volume) {
	for _, v := range m.Volumes {
		if v.Type == VolumeCSI {
			out = append(out, v)
		}
	}
	return out
}

// OfDriver reports whether a CSI driver mounts the volume.
func (v Volume) OfDriver() bool { return v.Type == VolumeCSI || v.Type == VolumeCSIEphemeral }

// KeptVolumes returns the service's volumes that outlive an instance.
func (m Microservice) KeptVolumes() []Volume { return append(m.LocalVolumes(), m.CSIVolumes()...) }

// KeepsData reports whether the service has volumes that outlive an instance. Its instances run only where
// their volumes are, and never twice if they have volumes to themselves.
func (m Microservice) KeepsData() bool { return len(m.KeptVolumes()) > 0 }

// OwnVolumes returns the service's volumes that outlive an instance and that each instance has to itself.
func (m Microservice) OwnVolumes() []Volume {
	return slices.DeleteFunc(m.KeptVolumes(), Volume.Shared)
}

// SharesVolumes reports whether the instances of the service use a volume together. They are in one cluster.
func (m Microservice) SharesVolumes() bool { return slices.ContainsFunc(m.Volumes, Volume.Shared) }

// InOneCluster reports whether all instances of the service are in one cluster.
func (m Microservice) InOneCluster() bool { return m.Together() || m.SharesVolumes() }

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
	if len(v.Config) == 0 {
		v.Config = nil
	}
	if v.Access == AccessOneWriter {
		v.Access = ""
	}
	if v.Access == AccessManyReaders {
		v.ReadOnly = true
	}
	switch v.VolumeID = ""; {
	case slices.Contains(BuiltInVolumes, v.Driver):
		v.Driver = ""
	case v.Driver != "" && v.Type != VolumeCSIEphemeral:
		v.Type = VolumeCSI
	}
}

// ValidCSIDriver reports whether s can be the name of a CSI driver: a DNS name with a dot, as the
// specification recommends, so that it is not mistaken for a type of volumes.
func ValidCSIDriver(s string) bool {
	return len(s) <= 63 && strings.Contains(s, ".") && !strings.Contains(s, "..") && csiDriverText.MatchString(s)
}

// csiDriverPattern allows a slash, which Oakestra's drivers have in their names.
const csiDriverPattern = `[A-Za-z0-9]([-A-Za-z0-9./]*[A-Za-z0-9])?`

var csiDriverText = regexp.MustCompile(`^` + csiDriverPattern + `$`)

// csiFeature begins the feature that a node announces for each of its CSI drivers.
const csiFeature = "csi:"

// FeatureOfCSI returns the feature that a node announces if it has a CSI driver.
func FeatureOfCSI(driver string) string { return csiFeature + driver }

// CSIDriverOf returns the driver of a FeatureOfCSI.
func CSIDriverOf(feature string) (driver string, ok bool) {
	return strings.CutPrefix(feature, csiFeature)
}

// csiEphemeralFeature begins the feature that a node announces for each driver that may mount volumes of type
// VolumeCSIEphemeral.
const csiEphemeralFeature = "csi_ephemeral:"

// FeatureOfEphemeralCSI returns the feature that a node announces if a CSI driver may mount ephemeral volumes there.
func FeatureOfEphemeralCSI(driver string) string { return csiEphemeralFeature + driver }

// ReservedCSIConfig begins the names of parameters that say what a volume is and for whom it is mounted.
const ReservedCSIConfig = "csi.storage.k8s.io/"

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
	case (kind.text == VolumeCSI || kind.text == VolumeCSIEphemeral) && driver.text == "":
		c.fault(at+"/csi_driver", "name the driver, such as csi.example.org", "csi_driver is missing")
	case driver.text != "" && !isVolumeType(driver.text) && !ValidCSIDriver(driver.text), driver.text == VolumeCSI, driver.text == VolumeCSIEphemeral:
		c.fault(at+"/csi_driver", "use "+strings.Join(BuiltInVolumes, ", ")+" or the name of a CSI driver, such as csi.example.org",
			"csi_driver %q is not built in, and no name of a CSI driver", shorten(driver.text))
	case kind.text != "" && driver.text != "" && kind.text != driver.text && (kind.text != VolumeCSI && kind.text != VolumeCSIEphemeral || isVolumeType(driver.text)):
		c.fault(at+"/csi_driver", "leave one of them out", "csi_driver contradicts type")
	}
	is := kind.text
	if is == "" {
		is = driver.text
	}
	if ValidCSIDriver(driver.text) && !isVolumeType(driver.text) && is != VolumeCSIEphemeral {
		is = VolumeCSI
	}
	if n := len(v.get("config").members); n > 0 && isVolumeType(is) && is != VolumeCSI && is != VolumeCSIEphemeral {
		c.fault(at+"/config", "leave config out", "config is for CSI drivers; a volume of type %s takes size and read_only", is)
	}
	for _, m := range v.get("config").members {
		if is == VolumeCSIEphemeral && strings.HasPrefix(m.key, ReservedCSIConfig) {
			c.fault(at+"/config/"+escape(m.key), "leave it out", "parameter %q is set by the node: names with %s say for whom the volume is", shorten(m.key), ReservedCSIConfig)
		}
	}
	switch size := v.get("size"); {
	case is == VolumeCSIEphemeral && size.kind != "":
		c.fault(at+"/size", "leave size out; the driver may have a parameter for it, in config", "a volume of type %s has no size that Treeline knows", is)
	case is != VolumeCSIEphemeral && is != VolumeCSI && size.kind == "":
		c.fault(at+"/size", "give it", "size is missing")
	}
	if a := v.get("access_mode").text; a != "" && a != AccessOneWriter && is != VolumeCSI && isVolumeType(is) {
		c.fault(at+"/access_mode", "leave access_mode out, or use a CSI driver", "a volume of type %s belongs to one instance: access_mode %s is for type csi", is, shorten(a))
	}
	if s := v.get("snapshot").text; s != "" && isVolumeType(is) && is != VolumeCSI {
		c.fault(at+"/snapshot", "leave snapshot out, or restore the volume with treeline restore volume", "snapshot is for CSI drivers; a volume of type %s is created empty", is)
	} else if _, err := ParseSnapshotID("tenant/" + s); s != "" && (err != nil || strings.Contains(s, "/")) {
		c.fault(at+"/snapshot", "app.ns.service.ns#0:volume@name of the same tenant, see treeline get snapshots", "snapshot %q is no name of a snapshot", shorten(s))
	}
	if n, err := strconv.ParseInt(v.get("size").text, 10, 64); err == nil && n > 0 && n < MinDiskVolumeMB && (is == VolumeLocal || is == VolumeEphemeral) {
		c.fault(at+"/size", fmt.Sprintf("%d to %d MiB", MinDiskVolumeMB, MaxVolumeMB), "size is %d, too small for a volume of type %s", n, is)
	}
	if v.get("read_only").truth && is != VolumeLocal && is != VolumeCSI && is != VolumeCSIEphemeral && isVolumeType(is) {
		c.fault(at+"/read_only", "leave read_only out", "a volume of type %s is empty at first: read_only would make it useless", is)
	}
	if p := v.get("mount_path"); p.kind == StringField && len(p.text) <= maxMountPath {
		if why := mountPathFault(p.text); why != "" {
			c.fault(at+"/mount_path", "an absolute path such as /data, not over /proc, /sys, /dev, /etc/hosts or /etc/resolv.conf", "mount_path %q %s", shorten(p.text), why)
		}
	}
}

// csiVolume returns the index of the first volume of type VolumeCSI in a service, -1 if it has none.
func csiVolume(service *value) int {
	return slices.IndexFunc(service.get("volumes").items, value.ofCSI)
}

// ownCSIVolume returns the index of the first volume of type VolumeCSI that each instance has to itself, -1 if there is none.
func ownCSIVolume(service *value) int {
	return slices.IndexFunc(service.get("volumes").items, func(v value) bool { return v.ofCSI() && !v.shared() })
}

func (v value) ofCSI() bool {
	d := v.get("csi_driver").text
	return v.get("type").text == VolumeCSI || d != "" && !isVolumeType(d) && v.get("type").text != VolumeCSIEphemeral
}

func (v value) shared() bool {
	a := v.get("access_mode").text
	return a == AccessManyWriters || a == AccessManyReaders
}

func isVolumeType(s string) bool {
	return slices.Contains(VolumeTypes, s)
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
