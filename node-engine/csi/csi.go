// Package csi mounts CSI volumes for placements: it asks the cluster to attach a volume to the node, and
// the driver on the node to stage and to publish it.
//
// A volume has a directory with a record and its mount points, from before the first request about it until
// the cluster has confirmed that it is detached. After a crash at any point, the placement's next creation
// mounts it again, or Run releases what no workload needs. A volume is mounted for one placement at a time.
//
// A volume that the instances of a service share has a record, a mount point and a detachment for each placement, like
// others, and is staged once, in a directory of its own: from the first of its placements on the node until the last.
//
// A volume of type api.VolumeCSIEphemeral is made by the driver when it is published, and removed when it is
// unpublished. As in Kubernetes, it is neither attached nor staged, and the cluster does not know of it.
//
// The package never accesses what is mounted, because the server of a file system may hang. A driver that
// does not answer delays only the placements with its volumes.
package csi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/csi"
	"github.com/treeline-edge/treeline/internal/durable"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// Options configure a Manager.
type Options struct {
	Dir     string
	Drivers map[string]*csi.Driver
	// Ephemeral are the drivers of which services may have ephemeral volumes.
	Ephemeral []string
	// Attach and Detach are requests to the cluster.
	Attach  func(context.Context, wire.WantVolume) (wire.VolumeAttached, error)
	Detach  func(context.Context, wire.WantVolume) error
	Changed func()        // Nodes has changed
	Pause   time.Duration // between attempts in the background; default 10 s
	Log     *slog.Logger
}

// Manager keeps the volumes in one directory. It is safe for concurrent use; callers do not overlap calls
// for one placement.
type Manager struct {
	opt  Options
	wake chan struct{}

	mu      sync.Mutex // guards the fields below and the records of volumes; not held during I/O
	known   map[string]csi.NodeService
	volumes map[api.VolumeID]*volume
	live    map[wire.Key]bool       // placements that this process has prepared
	working map[string]bool         // what Run does at present; true: it is to be repeated
	stages  map[api.VolumeID]*stage // of shared volumes, by their ids; those that somebody uses or that are staged
}

// stage is that of a shared volume. The holder of busy stages and unstages it, and changes the records that count.
type stage struct {
	busy  chan struct{} // capacity 1
	users int           // that hold busy or wait for it
	done  bool          // this process has staged it
}

// volume is a volume that the node has or asked for. Only the holder of busy changes its record.
type volume struct {
	busy chan struct{} // capacity 1
	dir  string
	record
	swept bool // no workload needs it, see Sweep
}

// record is the content of recordFile.
type record struct {
	ID         api.VolumeID      `json:"id"`
	Driver     string            `json:"driver"`
	Epoch      api.Epoch         `json:"epoch"`            // of the placement that has it
	Handle     string            `json:"handle,omitempty"` // empty: the driver was not called
	Context    map[string]string `json:"context,omitempty"`
	Attachment map[string]string `json:"attachment,omitempty"`
	Expand     bool              `json:"expand,omitempty"`   // the driver has to expand it, once it is published
	Released   bool              `json:"released,omitempty"` // nothing is mounted; the cluster has not confirmed that it is detached
	Ephemeral  bool              `json:"ephemeral,omitempty"`
	Shared     api.VolumeID      `json:"shared,omitempty"` // the volume of the service, which has the stage; empty: the placement has it to itself
	Access     string            `json:"access,omitempty"` // see api.Volume.Access
}

// holdsStage reports whether a shared volume may be staged because of the record.
func (r record) holdsStage(id api.VolumeID) bool {
	return r.Shared == id && r.Handle != "" && !r.Released
}

const (
	recordFile = "volume.json"
	stageDir   = "stage"
	targetDir  = "mnt"
)

// Open opens the volumes in a directory, which it creates.
func Open(o Options) (*Manager, error) {
	if o.Pause == 0 {
		o.Pause = 10 * time.Second
	}
	m := &Manager{opt: o, wake: make(chan struct{}, 1), known: map[string]csi.NodeService{}, volumes: map[api.VolumeID]*volume{}, live: map[wire.Key]bool{}, working: map[string]bool{}, stages: map[api.VolumeID]*stage{}}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open CSI volumes: %w", err)
	}
	found, err := filepath.Glob(filepath.Join(o.Dir, "*", recordFile))
	if err != nil {
		return nil, fmt.Errorf("open CSI volumes: %w", err)
	}
	for _, path := range found {
		v := newVolume(filepath.Dir(path))
		text, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(text, &v.record)
		}
		if err != nil || v.dir != m.dirOf(v.ID) {
			return nil, fmt.Errorf("open CSI volumes: %s is not the record of a volume: %w", path, errors.Join(err, api.ErrInvalid))
		}
		m.volumes[v.ID] = v
	}
	return m, nil
}

func newVolume(dir string) *volume { return &volume{dir: dir, busy: make(chan struct{}, 1)} }

func (m *Manager) dirOf(id api.VolumeID) string {
	sum := sha256.Sum256([]byte(id))
	return filepath.Join(m.opt.Dir, hex.EncodeToString(sum[:16]))
}

func (r record) key() wire.Key { return wire.Key{Instance: r.ID.Instance(), Epoch: r.Epoch} }

// Nodes returns what the drivers say about the node, of those that have answered, sorted by name.
func (m *Manager) Nodes() (out []api.NodeCSI) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(m.known)) {
		out = append(out, api.NodeCSI{Driver: name, NodeID: m.known[name].ID, Topology: m.known[name].Topology})
	}
	return out
}

// MayBeEphemeral reports whether services may have ephemeral volumes of a driver.
func (m *Manager) MayBeEphemeral(driver string) bool { return slices.Contains(m.opt.Ephemeral, driver) }

// service returns a driver, and what it says about the node.
func (m *Manager) service(ctx context.Context, name string) (*csi.Driver, csi.NodeService, error) {
	d := m.opt.Drivers[name]
	if d == nil {
		return nil, csi.NodeService{}, fmt.Errorf("this node does not have CSI driver %s in its configuration (key csi): %w", name, api.ErrUnavailable)
	}
	m.mu.Lock()
	s, ok := m.known[name]
	m.mu.Unlock()
	if ok {
		return d, s, nil
	}
	err := d.Check(ctx)
	if err == nil {
		s, err = d.Node(ctx)
	}
	if err != nil {
		return nil, s, err
	}
	m.mu.Lock()
	_, had := m.known[name]
	m.known[name] = s
	m.mu.Unlock()
	if !had && m.opt.Changed != nil {
		m.opt.Changed()
	}
	return d, s, nil
}

// Prepare mounts the CSI volumes of a placement and returns what the runtime mounts. It does nothing for
// those that are mounted for the placement already. Errors are *runtime.Error.
func (m *Manager) Prepare(ctx context.Context, k wire.Key, spec []api.Volume) (mounts []runtime.Mount, err error) {
	m.mu.Lock()
	m.live[k] = true
	m.mu.Unlock()
	for _, s := range spec {
		target, err := m.mount(ctx, k, s)
		if err != nil {
			return nil, runtime.Errorf(api.ReasonVolumeDriver, "volume %s of %s: %w", s.Name, k.Instance, err)
		}
		mounts = append(mounts, runtime.Mount{Source: target, Target: s.MountPath, ReadOnly: s.ReadOnly})
	}
	return mounts, nil
}

func (m *Manager) mount(ctx context.Context, k wire.Key, s api.Volume) (string, error) {
	d, node, err := m.service(ctx, s.Driver)
	if err != nil {
		return "", err
	}
	v, unlock, err := m.take(ctx, k.Instance.Volume(s.Name))
	if err != nil {
		return "", err
	}
	defer unlock()
	if v.ID != "" && v.Epoch != k.Epoch {
		m.mu.Lock()
		held := m.live[v.key()]
		m.mu.Unlock()
		if v.Epoch > k.Epoch || held {
			return "", fmt.Errorf("the placement %s has it: %w", v.Epoch, api.ErrConflict)
		}
	}
	ephemeral := s.Type == api.VolumeCSIEphemeral
	if ephemeral && !m.MayBeEphemeral(s.Driver) {
		return "", fmt.Errorf("this node does not permit ephemeral volumes of CSI driver %s (key csi_ephemeral): %w", s.Driver, api.ErrUnavailable)
	}
	var shared api.VolumeID
	if s.Shared() {
		shared = s.IDFor(k.Instance)
	}
	if v.ID != "" && (v.Ephemeral != ephemeral || v.Shared != shared || v.Access != s.Access) {
		if err := m.free(ctx, v); err != nil {
			return "", err
		}
		m.hurry()
		return "", fmt.Errorf("the earlier volume of this name, which had another type or access_mode, is not detached yet: %w", api.ErrConflict)
	}
	if v.ID != "" && (v.Epoch != k.Epoch || v.Driver != s.Driver || v.Released) {
		if err := m.unmount(ctx, v, func() error { m.set(v, record{}); return nil }); err != nil {
			return "", err
		}
	}
	if v.ID == "" {
		r := record{ID: k.Instance.Volume(s.Name), Driver: s.Driver, Epoch: k.Epoch, Ephemeral: ephemeral, Shared: shared, Access: s.Access}
		if ephemeral {
			r.Handle, r.Context = handleOf(k, s.Name), contextOf(k, s.Config)
		}
		if err := m.save(v, r); err != nil {
			return "", err
		}
	}
	target := filepath.Join(v.dir, targetDir)
	mounted, err := isMounted(target)
	if err != nil || mounted && v.Handle != "" && !v.Expand {
		return target, err
	}
	if v.Handle == "" {
		got, err := m.opt.Attach(ctx, wire.WantVolume{Key: k, Name: s.Name})
		if err != nil {
			return "", fmt.Errorf("attach it to this node: %w", err)
		}
		next := v.record
		next.Handle, next.Context, next.Attachment, next.Expand = got.Handle, got.Context, got.Attachment, got.Expand && node.Expand
		if err := m.save(v, next); err != nil {
			return "", err
		}
	}
	at := m.at(v)
	at.ReadOnly, at.Bytes = s.ReadOnly, s.SizeMB<<20
	if err := m.publish(ctx, d, node, v, at); err != nil {
		return "", err
	}
	if v.Expand {
		if err := d.ExpandNode(ctx, at); err != nil {
			return "", err
		}
		next := v.record
		next.Expand = false
		return target, m.save(v, next)
	}
	return target, nil
}

// handleOf returns the id of an ephemeral volume, which is the same at each attempt.
func handleOf(k wire.Key, name string) string {
	sum := sha256.Sum256([]byte(k.String() + "\x00" + name))
	return "csi-" + hex.EncodeToString(sum[:])
}

// contextOf returns what the driver of an ephemeral volume gets. Drivers know the names from Kubernetes.
func contextOf(k wire.Key, config map[string]string) map[string]string {
	out := maps.Clone(config)
	if out == nil {
		out = map[string]string{}
	}
	maps.DeleteFunc(out, func(name, _ string) bool { return strings.HasPrefix(name, api.ReservedCSIConfig) })
	out[api.ReservedCSIConfig+"ephemeral"] = "true"
	out[api.ReservedCSIConfig+"pod.namespace"] = string(k.Instance.Tenant())
	out[api.ReservedCSIConfig+"pod.name"] = k.Instance.Name()
	out[api.ReservedCSIConfig+"pod.uid"] = k.String()
	return out
}

// at returns the record as a driver's calls need it.
func (m *Manager) at(v *volume) csi.Mount {
	out := csi.Mount{
		Tenant: v.ID.Tenant(), Handle: v.Handle, Context: v.Context, Attachment: v.Attachment, Access: v.Access,
		Staging: filepath.Join(v.dir, stageDir), Target: filepath.Join(v.dir, targetDir),
	}
	switch {
	case v.Ephemeral:
		out.Staging = ""
	case v.Shared != "":
		out.Staging = filepath.Join(m.dirOf(v.Shared), stageDir)
	}
	return out
}

func (m *Manager) publish(ctx context.Context, d *csi.Driver, node csi.NodeService, v *volume, at csi.Mount) error {
	if node.Stage && at.Staging != "" {
		if err := m.stage(ctx, d, v, at); err != nil {
			return err
		}
	} else {
		at.Staging = ""
	}
	if err := d.Publish(ctx, at); err != nil {
		return err
	}
	mounted, err := isMounted(at.Target)
	if err == nil && !mounted {
		return fmt.Errorf("CSI driver %s reports that NodePublishVolume succeeded, but nothing is mounted at %s: %w", d.Name(), at.Target, api.ErrUnavailable)
	}
	return err
}

// stage stages a volume. Repeating it does no harm, but one that is shared and staged by this process is left as it is.
func (m *Manager) stage(ctx context.Context, d *csi.Driver, v *volume, at csi.Mount) error {
	s, unlock, err := m.takeStage(ctx, v.Shared)
	if err != nil {
		return err
	}
	defer unlock()
	if v.Shared != "" && m.otherHandle(v) {
		return fmt.Errorf("another placement on this node has the volume %s with another id of its driver, and it is not released yet: %w", v.Shared, api.ErrConflict)
	}
	staged, err := isMounted(at.Staging)
	if err != nil || staged && s.done {
		return err
	}
	if !staged {
		if err := os.MkdirAll(at.Staging, 0o700); err != nil {
			return err
		}
	}
	if err := d.Stage(ctx, at); err != nil {
		return err
	}
	s.done = true
	return nil
}

// otherHandle reports whether the stage of a shared volume may be that of an earlier volume of the same name.
func (m *Manager) otherHandle(v *volume) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range m.volumes {
		if o != v && o.holdsStage(v.Shared) && (o.Handle != v.Handle || o.Driver != v.Driver) {
			return true
		}
	}
	return false
}

// lastOfStage reports whether no other placement needs the stage of a volume.
func (m *Manager) lastOfStage(v *volume) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range m.volumes {
		if o != v && o.holdsStage(v.Shared) {
			return false
		}
	}
	return true
}

// takeStage returns the stage of a shared volume when nobody else uses it. For "", that of a volume that is not shared, it
// returns one that nobody else has.
func (m *Manager) takeStage(ctx context.Context, id api.VolumeID) (s *stage, unlock func(), err error) {
	if id == "" {
		return &stage{}, func() {}, nil
	}
	m.mu.Lock()
	s = m.stages[id]
	if s == nil {
		s = &stage{busy: make(chan struct{}, 1)}
		m.stages[id] = s
	}
	s.users++
	m.mu.Unlock()
	leave := func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if s.users--; s.users == 0 && !s.done {
			delete(m.stages, id)
		}
	}
	select {
	case s.busy <- struct{}{}:
		return s, func() { <-s.busy; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, nil, fmt.Errorf("wait for the earlier request about volume %s: %w", id, ctx.Err())
	}
}

// isMounted reports whether something is mounted at a path. It does not access the path.
func isMounted(path string) (bool, error) {
	found, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(path))
	if err != nil {
		return false, fmt.Errorf("read the mount table: %w", err)
	}
	return len(found) > 0, nil
}

// take returns the volume of an id when nobody else changes it. It adds one without a record if there is
// none.
func (m *Manager) take(ctx context.Context, id api.VolumeID) (v *volume, unlock func(), err error) {
	for {
		m.mu.Lock()
		v = m.volumes[id]
		if v == nil {
			v = newVolume(m.dirOf(id))
			m.volumes[id] = v
		}
		m.mu.Unlock()
		select {
		case v.busy <- struct{}{}:
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("wait for the earlier request about volume %s: %w", id, ctx.Err())
		}
		m.mu.Lock()
		same := m.volumes[id] == v
		m.mu.Unlock()
		if same {
			return v, func() { m.put(id, v) }, nil
		}
		<-v.busy // it was released meanwhile
	}
}

// put ends the use of a volume, and removes it if it has no record.
func (m *Manager) put(id api.VolumeID, v *volume) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v.ID == "" && m.volumes[id] == v {
		delete(m.volumes, id)
	}
	<-v.busy
}

func (m *Manager) save(v *volume, r record) error {
	if err := os.MkdirAll(v.dir, 0o700); err != nil {
		return err
	}
	if err := durable.WriteJSON(v.dir, recordFile, r); err != nil {
		return err
	}
	m.set(v, r)
	return nil
}

func (m *Manager) set(v *volume, r record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v.record = r
}

// Started fails if a volume of a placement is not mounted, because the machine restarted after Prepare.
func (m *Manager) Started(k wire.Key) error {
	for _, r := range m.all() {
		if r.key() != k {
			continue
		}
		if mounted, err := isMounted(filepath.Join(m.dirOf(r.ID), targetDir)); err != nil || !mounted {
			return runtime.Errorf(api.ReasonVolumeDriver, "volume %s is not mounted any more: %w", r.ID, errors.Join(err, api.ErrUnavailable))
		}
	}
	return nil
}

func (m *Manager) all() (out []record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(m.volumes)) {
		if v := m.volumes[id]; v.ID != "" {
			out = append(out, v.record)
		}
	}
	return out
}

// Release unmounts the volumes of a placement of which no workload exists any more. That the cluster
// detaches them is not waited for.
func (m *Manager) Release(ctx context.Context, k wire.Key) error {
	var errs error
	for _, r := range m.all() {
		if r.key() == k {
			errs = errors.Join(errs, m.release(ctx, r, always))
		}
	}
	if errs != nil {
		return runtime.Errorf(api.ReasonVolumeDriver, "release the volumes of %s: %w", k, errs)
	}
	m.mu.Lock()
	delete(m.live, k)
	m.mu.Unlock()
	m.hurry()
	return nil
}

func always(*volume) bool { return true }

// release unmounts a volume, if it still has the record and may be released.
func (m *Manager) release(ctx context.Context, r record, may func(*volume) bool) error {
	v, unlock, err := m.take(ctx, r.ID)
	if err != nil {
		return err
	}
	defer unlock()
	m.mu.Lock()
	ok := v.ID != "" && v.key() == r.key() && !v.Released && may(v)
	m.mu.Unlock()
	if !ok {
		return nil
	}
	return m.free(ctx, v)
}

// free unmounts a volume and saves that it is released.
func (m *Manager) free(ctx context.Context, v *volume) error {
	if v.Released {
		return nil
	}
	return m.unmount(ctx, v, func() error {
		next := v.record
		next.Released = true
		return m.save(v, next)
	})
}

// unmount takes a volume from the node, unless other placements need its stage, and calls done to record that. Nobody
// else counts the placements of the stage meanwhile.
func (m *Manager) unmount(ctx context.Context, v *volume, done func() error) error {
	at := m.at(v)
	s, unlock, err := m.takeStage(ctx, v.Shared)
	if err != nil {
		return err
	}
	defer unlock()
	last := v.Shared == "" || m.lastOfStage(v)
	if v.Handle != "" && !v.Released {
		d, node, err := m.service(ctx, v.Driver)
		if err != nil {
			return err
		}
		if err := d.Unpublish(ctx, at); err != nil {
			return err
		}
		if err := notMounted(d, "NodeUnpublishVolume", at.Target); err != nil {
			return err
		}
		if node.Stage && !v.Ephemeral && last {
			if err := d.Unstage(ctx, at); err != nil {
				return err
			}
			if err := notMounted(d, "NodeUnstageVolume", at.Staging); err != nil {
				return err
			}
			s.done = false
		}
	}
	paths := []string{at.Target} // never what is in them
	switch {
	case v.Shared == "":
		paths = append(paths, filepath.Join(v.dir, stageDir))
	case last && (v.Handle != "" && !v.Released):
		paths = append(paths, at.Staging, filepath.Dir(at.Staging))
	}
	for _, path := range paths {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return done()
}

func notMounted(d *csi.Driver, method, path string) error {
	mounted, err := isMounted(path)
	if err == nil && mounted {
		return fmt.Errorf("CSI driver %s reports that %s succeeded, but %s is still mounted: %w", d.Name(), method, path, api.ErrUnavailable)
	}
	return err
}

// Sweep lets Run release the volumes of placements that are not in keep and that this process did not
// prepare. keep are the placements of the runtime's workloads.
func (m *Manager) Sweep(keep []wire.Key) {
	m.mu.Lock()
	for _, v := range m.volumes {
		v.swept = v.ID != "" && !m.live[v.key()] && !slices.Contains(keep, v.key())
	}
	m.mu.Unlock()
	m.hurry()
}

func (m *Manager) hurry() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Run asks the drivers about the node until all have answered, releases what Sweep found, and has the
// cluster detach what was released. It does nothing while nothing is to be done, and nothing of this waits
// for anything else.
func (m *Manager) Run(ctx context.Context) error {
	var g sync.WaitGroup
	defer g.Wait()
	for {
		m.work(ctx, &g)
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		}
	}
}

func (m *Manager) work(ctx context.Context, g *sync.WaitGroup) {
	try := func(what string, fn func() error) {
		m.mu.Lock()
		_, busy := m.working[what]
		m.working[what] = busy
		m.mu.Unlock()
		if busy {
			return
		}
		g.Go(func() {
			err := fn()
			m.mu.Lock()
			again := m.working[what] // it may have ended for an earlier placement
			delete(m.working, what)
			m.mu.Unlock()
			if again {
				m.hurry()
			}
			if err != nil && ctx.Err() == nil {
				m.opt.Log.Warn("CSI: "+what+" failed, will be tried again", "err", err)
				time.AfterFunc(m.opt.Pause, m.hurry)
			}
		})
	}
	m.mu.Lock()
	var strange []string
	for name := range m.opt.Drivers {
		if _, ok := m.known[name]; !ok {
			strange = append(strange, name)
		}
	}
	var due []record
	for _, v := range m.volumes {
		if v.ID != "" && (v.Released || m.mayRelease(v)) {
			due = append(due, v.record)
		}
	}
	m.mu.Unlock()
	for _, name := range strange {
		try("ask driver "+name+" about this node", func() error {
			_, _, err := m.service(ctx, name)
			return err
		})
	}
	for _, r := range due {
		try("release volume "+string(r.ID), func() error {
			if err := m.release(ctx, r, m.mayRelease); err != nil {
				return err
			}
			return m.detach(ctx, r)
		})
	}
}

// mayRelease reports whether no workload needs a volume. m.mu is held.
func (m *Manager) mayRelease(v *volume) bool { return v.swept && !m.live[v.key()] }

// detach has the cluster detach a released volume, and deletes its record.
func (m *Manager) detach(ctx context.Context, r record) error {
	v, unlock, err := m.take(ctx, r.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if !v.Released || v.key() != r.key() {
		return nil
	}
	if !v.Ephemeral {
		if err := m.opt.Detach(ctx, wire.WantVolume{Key: v.key(), Name: v.ID.Label()}); err != nil {
			return err
		}
	}
	if err := errors.Join(os.Remove(filepath.Join(v.dir, recordFile)), os.Remove(v.dir)); err != nil {
		return err
	}
	m.set(v, record{})
	return nil
}

// Purge unmounts all volumes and deletes the directory. Their workloads have been deleted.
func (m *Manager) Purge(ctx context.Context) error {
	for _, r := range m.all() {
		if err := m.release(ctx, r, always); err != nil {
			return fmt.Errorf("release the CSI volumes: %w", err)
		}
		if err := os.Remove(filepath.Join(m.dirOf(r.ID), recordFile)); err != nil {
			return fmt.Errorf("release the CSI volumes: %w", err)
		}
		if err := os.Remove(m.dirOf(r.ID)); err != nil {
			return fmt.Errorf("release the CSI volumes: %w", err)
		}
	}
	return os.Remove(m.opt.Dir)
}
