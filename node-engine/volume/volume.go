// Package volume keeps the volumes of a node's workloads that are on disk. Each is a file of its full
// size with an ext4 file system, mounted through a loop device, so that a full volume takes nothing
// from the node or from other volumes.
//
// The state of a volume is in its directory: the file, a record, and the mount point. A volume is
// created under another name and renamed, and is deleted after it was renamed. After a crash at any
// point, Open and Sweep remove what is left.
//
// A volume is mounted for one placement at a time.
package volume

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/durable"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/helper"
)

// Manager keeps the volumes in one directory. It is safe for concurrent use; callers do not overlap
// calls for one placement.
type Manager struct {
	dir    string
	types  []string
	log    *slog.Logger
	copies *fairshare.Pool

	mu      sync.Mutex         // guards the fields below and the records of volumes; not held during I/O
	volumes map[string]*volume // by record.name
	live    map[wire.Key]bool  // placements that this process has prepared
}

// volume is a volume on disk. Only the holder of busy changes it and its record.
type volume struct {
	busy    sync.Mutex
	dir     string
	tenant  api.Tenant // the topmost
	sending *sending   // guarded by Manager.mu
	record
}

var onDisk = fairshare.Bound{
	Per: "tenant", Beyond: "the instance fails with disk_full and is placed on another node, if it has no volume here",
	Attack: "TestVolumesOfOneTenantLeaveRoomForOthers",
}.Declare("volumes on the disk of a node", api.MaxNodeVolumes, api.MaxNodeVolumes/4)

// record is the content of recordFile. The zero record is that of a volume that does not exist.
type record struct {
	Type     string         `json:"type"`
	Instance api.InstanceID `json:"instance"`
	Name     string         `json:"name"`
	SizeMB   int64          `json:"size_mb"`
	Epoch    api.Epoch      `json:"epoch"`           // of the last placement that had it
	Held     bool           `json:"held"`            // a workload of this placement may have it
	Used     api.Epoch      `json:"used,omitempty"`  // the last placement of which a workload was started; 0: none
	Moved    api.Epoch      `json:"moved,omitempty"` // placements up to this one do not get it: it was sent to another node
	Created  time.Time      `json:"created"`
}

const (
	recordFile = "volume.json"
	imageFile  = "disk.img"
	mountDir   = "mnt"
	dataDir    = "data" // in the file system; what the workload gets

	triedFile = "tried" // the boot in which a volume was tried out with success

	newPrefix = "new-" // of volumes that are being created
	oldPrefix = "old-" // of volumes that are being deleted
)

// Open opens the volumes in a directory, which it creates. It removes what an earlier process did not
// complete, and tries out which types of volumes the machine supports.
func Open(ctx context.Context, dir string, log *slog.Logger) (*Manager, error) {
	m := &Manager{
		dir: dir, log: log, types: []string{api.VolumeTmpfs}, copies: fairshare.NewPool(copies, fairshare.Policy{Fixed: true}),
		volumes: map[string]*volume{}, live: map[wire.Key]bool{},
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open volumes: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open volumes: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if strings.HasPrefix(e.Name(), newPrefix) || strings.HasPrefix(e.Name(), oldPrefix) {
			if err := remove(path); err != nil {
				log.Warn("rest of a volume not removed", "path", path, "err", err)
			}
			continue
		}
		if e.Name() == triedFile {
			continue
		}
		v, err := load(path)
		if err == nil {
			err = v.rename(m.dir)
		}
		if err != nil {
			log.Warn("volume ignored", "path", path, "err", err)
			continue
		}
		if err := thawLeft(filepath.Join(path, mountDir)); err != nil {
			log.Warn("volume not thawed after a snapshot that was interrupted", "volume", v.id(), "err", err)
		}
		m.volumes[v.name()] = v
	}
	if err := m.try(ctx); err != nil {
		log.Warn("volumes on disk are not supported on this machine", "err", err)
		return m, nil
	}
	m.types = api.BuiltInVolumes
	return m, nil
}

// try creates, mounts and deletes a volume, once in each boot of the machine.
func (m *Manager) try(ctx context.Context) error {
	if _, err := exec.LookPath(mkfs); err != nil {
		return err
	}
	boot, err := helper.BootID()
	if err != nil {
		return err
	}
	tried := filepath.Join(m.dir, triedFile)
	if last, err := os.ReadFile(tried); err == nil && string(last) == boot {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp(m.dir, newPrefix)
	if err != nil {
		return err
	}
	if err := errors.Join(format(ctx, dir, api.MinDiskVolumeMB), remove(dir)); err != nil {
		return err
	}
	return os.WriteFile(tried, []byte(boot), 0o600)
}

func load(dir string) (*volume, error) {
	text, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return nil, err
	}
	v := &volume{dir: dir}
	if err := json.Unmarshal(text, &v.record); err != nil {
		return nil, fmt.Errorf("decode %s: %w", recordFile, err)
	}
	v.tenant = v.Instance.Tenant().Top()
	return v, nil
}

// rename completes a seal that was interrupted. It fails if there is another volume of that name.
func (v *volume) rename(in string) error {
	want := filepath.Join(in, v.name())
	if want == v.dir {
		return nil
	}
	if err := unix.Renameat2(unix.AT_FDCWD, v.dir, unix.AT_FDCWD, want, unix.RENAME_NOREPLACE); err != nil {
		return &os.LinkError{Op: "rename", Old: v.dir, New: want, Err: err}
	}
	v.dir = want
	return durable.SyncDir(in)
}

// name returns the name of the directory of the volume.
func (r record) name() string {
	owner := string(r.Instance)
	if r.Type != api.VolumeLocal {
		owner = wire.Key{Instance: r.Instance, Epoch: r.Epoch}.String()
	}
	sum := sha256.Sum256([]byte(r.Type + "\x00" + owner + "\x00" + r.Name))
	return hex.EncodeToString(sum[:16])
}

func (r record) id() api.VolumeID { return r.Instance.Volume(r.Name) }

func (r record) key() wire.Key { return wire.Key{Instance: r.Instance, Epoch: r.Epoch} }

// Types returns the types of volumes that the machine supports.
func (m *Manager) Types() []string { return m.types }

// List returns the local volumes that workloads may have written to, in the order of their ids.
func (m *Manager) List() (out []api.NodeVolume) {
	for _, v := range m.all() {
		if v.Type == api.VolumeLocal && v.Used > 0 {
			out = append(out, api.NodeVolume{ID: v.id(), SizeMB: v.SizeMB, Epoch: v.Used})
		}
	}
	slices.SortFunc(out, func(a, b api.NodeVolume) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// all returns the records of all volumes.
func (m *Manager) all() (out []record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.volumes {
		if v.Instance != "" {
			out = append(out, v.record)
		}
	}
	return out
}

// Prepare creates and mounts the volumes of a placement, and returns what the runtime mounts. It does
// nothing for those that are mounted for the placement already. Errors are *runtime.Error.
func (m *Manager) Prepare(ctx context.Context, k wire.Key, spec []api.Volume) (mounts []runtime.Mount, err error) {
	m.mu.Lock()
	m.live[k] = true
	m.mu.Unlock()
	for _, s := range spec {
		at := runtime.Mount{Target: s.MountPath, ReadOnly: s.ReadOnly, SizeMB: s.SizeMB}
		if s.Type != api.VolumeTmpfs {
			if at.Source, err = m.mount(ctx, k, s); err != nil {
				return nil, runtime.Errorf(reasonOf(err), "volume %s of %s: %w", s.Name, k.Instance, err)
			}
		}
		mounts = append(mounts, at)
	}
	return mounts, nil
}

// layerType is the type of the volumes that hold what containers write outside their volumes.
const layerType = "layer"

// Layer returns the directory for what an attempt of a placement writes outside its volumes, up to a
// size of at least api.MinDiskVolumeMB. It is empty at first, and deleted with the placement.
func (m *Manager) Layer(ctx context.Context, k wire.Key, attempt int, sizeMB int64) (string, error) {
	m.mu.Lock()
	m.live[k] = true
	m.mu.Unlock()
	dir, err := m.mount(ctx, k, api.Volume{Name: layerType, Type: layerType, SizeMB: max(sizeMB, api.MinDiskVolumeMB)})
	if err == nil {
		dir, err = attemptDir(dir, strconv.Itoa(attempt))
	}
	if err != nil {
		return "", runtime.Errorf(reasonOf(err), "storage of %s: %w", k.Instance, err)
	}
	return dir, nil
}

// attemptDir returns the directory of an attempt. It deletes those of earlier ones.
func attemptDir(dir, attempt string) (string, error) {
	all, err := os.ReadDir(dir)
	for _, e := range all {
		if e.Name() != attempt {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	own := filepath.Join(dir, attempt)
	if err == nil {
		err = os.MkdirAll(own, 0o700)
	}
	return own, err
}

func reasonOf(err error) api.Reason {
	if runtime.IsDiskFull(err) || errors.Is(err, api.ErrFull) || errors.Is(err, unix.EFBIG) {
		return api.ReasonDiskFull
	}
	return api.ReasonVolume
}

// mount creates and mounts a volume for a placement, and returns the directory with its data.
func (m *Manager) mount(ctx context.Context, k wire.Key, s api.Volume) (string, error) {
	want := record{Type: s.Type, Instance: k.Instance, Name: s.Name, SizeMB: s.SizeMB, Epoch: k.Epoch}
	if kind := s.Type; !slices.Contains(m.types, kind) && (kind != layerType || !slices.Contains(m.types, api.VolumeEphemeral)) {
		return "", fmt.Errorf("this node does not support volumes of type %s: %w", s.Type, api.ErrUnavailable)
	}
	v, err := m.take(want)
	if err != nil {
		return "", err
	}
	defer v.busy.Unlock()
	switch {
	case v.Instance == "":
		if err := m.create(ctx, v, want); err != nil {
			m.forget(v)
			return "", err
		}
	case v.Instance != k.Instance || v.Name != s.Name || v.Type != s.Type:
		return "", fmt.Errorf("it belongs to %s: %w", v.Instance, api.ErrConflict)
	case v.SizeMB != s.SizeMB:
		return "", fmt.Errorf("its size is %d MiB, not %d MiB, and cannot change: %w", v.SizeMB, s.SizeMB, api.ErrConflict)
	case k.Epoch <= v.Moved:
		return "", fmt.Errorf("it has moved to another node: %w", api.ErrConflict)
	case v.Held && v.Epoch != k.Epoch:
		return "", fmt.Errorf("the placement %s still has it: %w", v.Epoch, api.ErrConflict)
	}
	if !v.Held || v.Epoch != k.Epoch {
		next := v.record
		next.Held, next.Epoch = true, k.Epoch
		if err := m.save(v, next); err != nil {
			return "", err
		}
	}
	return filepath.Join(v.dir, mountDir, dataDir), attach(v.dir)
}

// take returns the volume of a record, locked. It adds one that does not exist yet.
func (m *Manager) take(r record) (*volume, error) {
	for {
		v, err := m.entry(r)
		if err != nil {
			return nil, err
		}
		v.busy.Lock()
		m.mu.Lock()
		same := m.volumes[filepath.Base(v.dir)] == v
		m.mu.Unlock()
		if same {
			return v, nil
		}
		v.busy.Unlock() // it was deleted meanwhile
	}
}

func (m *Manager) entry(r record) (*volume, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name := r.name()
	v := m.volumes[name]
	if v == nil {
		v = &volume{dir: filepath.Join(m.dir, name), tenant: r.Instance.Tenant().Top()}
		own := 0
		for _, o := range m.volumes {
			if o.tenant == v.tenant {
				own++
			}
		}
		switch {
		case len(m.volumes) >= onDisk.Total:
			return nil, fmt.Errorf("this node has %d volumes, the most that it may have: %w", len(m.volumes), api.ErrFull)
		case own >= onDisk.Share[0]:
			return nil, fmt.Errorf("tenant %s has %d volumes on this node, the most that it may have: %w", v.tenant, own, api.ErrFull)
		}
		m.volumes[name] = v
	}
	return v, nil
}

func (m *Manager) forget(v *volume) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v.record = record{}
	if name := filepath.Base(v.dir); m.volumes[name] == v {
		delete(m.volumes, name)
	}
}

func (m *Manager) set(v *volume, r record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v.record = r
}

// create creates a volume under another name and renames it.
func (m *Manager) create(ctx context.Context, v *volume, r record) (err error) {
	dir, err := os.MkdirTemp(m.dir, newPrefix)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, remove(dir))
		}
	}()
	if err := format(ctx, dir, r.SizeMB); err != nil {
		return err
	}
	r.Held, r.Created = r.Type != incomingType, time.Now().UTC()
	if err := durable.WriteJSON(dir, recordFile, r); err != nil {
		return err
	}
	if err := os.Rename(dir, v.dir); err != nil {
		return err
	}
	m.set(v, r)
	return durable.SyncDir(m.dir)
}

// save replaces the record of a volume.
func (m *Manager) save(v *volume, r record) error {
	if err := durable.WriteJSON(v.dir, recordFile, r); err != nil {
		return err
	}
	m.set(v, r)
	return nil
}

// Started mounts the volumes of a placement if they are not, and records that a workload is being
// started, which may write to them. It reports whether List has changed.
func (m *Manager) Started(k wire.Key) (changed bool, err error) {
	err = m.each(k, func(v *volume) error {
		if err := attach(v.dir); err != nil { // the machine may have restarted since Prepare
			return err
		}
		if v.Used == k.Epoch {
			return nil
		}
		next := v.record
		next.Used = k.Epoch
		changed = changed || v.Type == api.VolumeLocal
		return m.save(v, next)
	})
	if err != nil {
		err = runtime.Errorf(api.ReasonVolume, "mount the volumes of %s: %w", k, err)
	}
	return changed, err
}

// each calls fn for the volumes that a placement has.
func (m *Manager) each(k wire.Key, fn func(*volume) error) (errs error) {
	for _, r := range m.all() {
		if r.key() != k {
			continue
		}
		v, err := m.take(r)
		if err != nil {
			return err
		}
		if v.Held && v.key() == k {
			errs = errors.Join(errs, fn(v))
		}
		if v.Instance == "" { // take has added it, or fn has deleted it
			m.forget(v)
		}
		v.busy.Unlock()
	}
	return errs
}

// Release unmounts the volumes of a placement of which no workload exists any more. It deletes those
// that do not outlive it: ephemeral ones, and those that no workload was started with.
func (m *Manager) Release(k wire.Key) error {
	err := m.each(k, func(v *volume) error {
		m.endSending(v)
		if err := detach(v.dir); err != nil {
			return err
		}
		if v.Type != api.VolumeLocal || v.Used == 0 {
			return m.delete(v)
		}
		next := v.record
		next.Held = false
		return m.save(v, next)
	})
	if err != nil {
		return runtime.Errorf(api.ReasonVolume, "release the volumes of %s: %w", k, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.live, k)
	return nil
}

// delete deletes an unmounted volume.
func (m *Manager) delete(v *volume) error {
	old := filepath.Join(m.dir, oldPrefix+filepath.Base(v.dir))
	if err := remove(old); err != nil {
		return err
	}
	if err := os.Rename(v.dir, old); err != nil {
		return err
	}
	m.forget(v)
	return errors.Join(durable.SyncDir(m.dir), remove(old))
}

// Delete deletes a local volume, and succeeds if there is none. It fails with ErrConflict while a
// placement has it.
func (m *Manager) Delete(id api.VolumeID) error {
	v, err := m.take(record{Type: api.VolumeLocal, Instance: id.Instance(), Name: id.Label()})
	if err != nil {
		return nil // there is no such volume and no room for another one
	}
	defer v.busy.Unlock()
	switch {
	case v.Instance == "":
		m.forget(v)
		return nil
	case v.Held:
		return fmt.Errorf("delete volume %s: the placement %s still has it: %w", id, v.Epoch, api.ErrConflict)
	}
	m.endSending(v)
	if err := detach(v.dir); err != nil {
		return fmt.Errorf("delete volume %s: %w", id, err)
	}
	if err := m.delete(v); err != nil {
		return fmt.Errorf("delete volume %s: %w", id, err)
	}
	return nil
}

// Sweep releases the volumes of placements that an earlier process prepared and of which the runtime
// has no workload. keep are the placements of the runtime's workloads.
func (m *Manager) Sweep(keep []wire.Key) {
	m.expireIncoming(time.Now())
	for _, r := range m.all() {
		k := r.key()
		m.mu.Lock()
		live := m.live[k]
		m.mu.Unlock()
		if !r.Held || live || slices.Contains(keep, k) {
			continue
		}
		m.log.Info("releasing a volume without a workload", "volume", r.id())
		if err := m.Release(k); err != nil {
			m.log.Warn("volume not released", "volume", r.id(), "err", err)
		}
	}
}

// Purge unmounts and deletes all volumes in a directory, and the directory.
func Purge(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete the volumes: %w", err)
	}
	for _, e := range entries {
		if e.Name() == triedFile {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if err := errors.Join(thawLeft(filepath.Join(path, mountDir)), remove(path)); err != nil {
			return fmt.Errorf("delete the volumes: %w", err)
		}
	}
	return os.RemoveAll(dir)
}
