// Package csidriver is a CSI driver for tests. Its volumes are real directories in one place, which
// all its nodes share, and which it bind-mounts. It can be told to fail, to hang or to lie at each
// call, and it records what must never happen: a volume for one node that is mounted on two, or mounted on
// a node that it is not attached to.
//
//	s := csidriver.NewStorage(csidriver.Options{Name: "dirs.test.example", Dir: dir})
//	n1, err := csidriver.Serve(socket, s, "n1", map[string]string{"zone": "a"})
//	n1.Set("NodeStageVolume", csidriver.Fault{Hang: true})
package csidriver

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Options configure a Storage.
type Options struct {
	Name string
	Dir  string
	// TopologyKey: a volume is accessible from the nodes whose segments have the value of the node that
	// it was created for; empty: from all nodes.
	TopologyKey string
	// NoAttach leaves out ControllerPublishVolume; NoExpand leaves out expansion.
	NoAttach, NoExpand bool
	// OneNode refuses the access modes for several nodes.
	OneNode bool
	// NodeOnly leaves out the controller: volumes exist while they are published.
	NodeOnly bool
	// Uploads is how often CreateSnapshot is called until a snapshot is ready, besides the first call.
	Uploads int
}

// Storage has the volumes of a driver. It is safe for concurrent use.
type Storage struct {
	opt Options

	mu         sync.Mutex // guards the fields below
	next       int
	volumes    map[string]*volume   // by id
	snapshots  map[string]*snapshot // by id
	nodes      map[string]bool
	violations []string
	secrets    map[string]map[string]string // that calls must have, by method
}

type volume struct {
	id, name string
	bytes    int64
	params   map[string]string
	source   string            // the snapshot that it was created from
	topology string            // value of TopologyKey
	multi    bool              // its access mode is one for several nodes
	attached map[string]bool   // nodes
	mounts   map[string]string // target path → node

	ephemeral bool // exists while it is published
}

type snapshot struct {
	id, name, source string
	bytes            int64
	created          time.Time
	uploads          int // how often CreateSnapshot is called until it is ready
}

// NewStorage returns a storage without volumes.
func NewStorage(o Options) *Storage {
	return &Storage{opt: o, volumes: map[string]*volume{}, snapshots: map[string]*snapshot{}, nodes: map[string]bool{}}
}

// Volumes returns the ids of the volumes, sorted.
func (s *Storage) Volumes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.volumes))
}

// Snapshots returns the ids of the snapshots, sorted.
func (s *Storage) Snapshots() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.snapshots))
}

// Capacity returns the size of a volume in bytes.
func (s *Storage) Capacity(id string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.volumes[id]; v != nil {
		return v.bytes
	}
	return 0
}

// NodeOnly reports whether the driver has no controller.
func (s *Storage) NodeOnly() bool { return s.opt.NodeOnly }

// Data returns the directory with the data of a volume.
func (s *Storage) Data(id string) string { return filepath.Join(s.opt.Dir, id) }

// Attached returns the nodes that a volume is attached to, sorted, with commas; empty: none.
func (s *Storage) Attached(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.volumes[id]; v != nil {
		return v.at()
	}
	return ""
}

func (v *volume) at() string { return strings.Join(slices.Sorted(maps.Keys(v.attached)), ",") }

// multi reports whether a volume with these capabilities may be used on several nodes.
func multi(all []*csi.VolumeCapability) bool {
	return slices.ContainsFunc(all, func(c *csi.VolumeCapability) bool {
		m := c.GetAccessMode().GetMode()
		return m == csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER || m == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	})
}

// Mounts returns the node of each path at which a volume is mounted.
func (s *Storage) Mounts(id string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.volumes[id]; v != nil {
		return maps.Clone(v.mounts)
	}
	return nil
}

// Violations returns what happened although it must not.
func (s *Storage) Violations() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.violations)
}

// Require sets the secrets that calls must have, by method. Calls of other methods may have any.
func (s *Storage) Require(secrets map[string]map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secrets = secrets
}

// Forget removes a node's mounts, as a crash of its machine does.
func (s *Storage) Forget(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.volumes {
		for path, at := range v.mounts {
			if at == node {
				_ = unmount(path)
				delete(v.mounts, path)
			}
		}
	}
}

func (s *Storage) violate(format string, args ...any) {
	s.violations = append(s.violations, fmt.Sprintf(format, args...))
}

func (s *Storage) id(prefix string) string {
	s.next++
	return prefix + strconv.Itoa(s.next)
}

// volume returns a volume; s.mu is held.
func (s *Storage) volume(id string) (*volume, error) {
	if id == "" {
		return nil, status.Error(codes.InvalidArgument, "volume id is missing")
	}
	if v := s.volumes[id]; v != nil {
		return v, nil
	}
	return nil, status.Errorf(codes.NotFound, "volume %s does not exist", id)
}

func (s *Storage) answer(v *volume) *csi.Volume {
	out := &csi.Volume{VolumeId: v.id, CapacityBytes: v.bytes, VolumeContext: v.params}
	if v.source != "" {
		out.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: v.source}}}
	}
	if v.topology != "" {
		out.AccessibleTopology = []*csi.Topology{{Segments: map[string]string{s.opt.TopologyKey: v.topology}}}
	}
	return out
}

// mount bind-mounts a directory; it succeeds if something is mounted there already.
func mount(from, to string, readOnly bool) error {
	if err := os.MkdirAll(to, 0o750); err != nil {
		return status.Errorf(codes.Internal, "create %s: %v", to, err)
	}
	if mounted, err := mountinfo.Mounted(to); err != nil || mounted {
		return err
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return status.Errorf(codes.Internal, "mount %s: %v", to, err)
	}
	if !readOnly {
		return nil
	}
	if err := unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return status.Errorf(codes.Internal, "mount %s read-only: %v", to, err)
	}
	return nil
}

func unmount(path string) error {
	for {
		mounted, err := mountinfo.Mounted(path)
		if err != nil || !mounted {
			if os.IsNotExist(err) {
				err = nil
			}
			return err
		}
		if err := unix.Unmount(path, 0); err != nil {
			return status.Errorf(codes.Internal, "unmount %s: %v", path, err)
		}
	}
}
