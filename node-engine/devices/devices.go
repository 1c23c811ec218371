// Package devices finds the devices of a node by their CDI specifications (Container Device Interface,
// tags.cncf.io/container-device-interface), and adds those that were allocated to an instance to its
// container. Tools of NVIDIA, AMD and Intel write such files, and operators write them to /etc/cdi.
// Test devices have such files too, and need no hardware.
//
// Package node allocates the devices.
//
//	d, err := devices.Open(devices.Options{Dirs: devices.Dirs, Own: "/var/lib/treeline/node/cdi"})
//	d.List()                                         // for NodeInfo
//	g.Go(func() error { return d.Run(ctx, changed) })
//	err = d.Inject(spec, []string{"nvidia.com/gpu=0"})
package devices

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/treeline-edge/treeline/api"
)

// Dirs are the directories of CDI. A later one has precedence if both describe a device.
var Dirs = []string{"/etc/cdi", "/var/run/cdi"}

const (
	quiet   = time.Second     // pause after a change before the files are read: tools write several
	confirm = 3 * time.Second // pause before a missing device is looked for again
	again   = time.Minute     // pause before a missing directory is looked for again
)

type Options struct {
	Dirs []string     // absolute; none: only test devices
	Own  string       // directory for the files of test devices
	Test []Test       // test devices to offer
	Log  *slog.Logger // default slog.Default
}

// Devices has the devices of this machine. It is safe for concurrent use.
type Devices struct {
	opt   Options
	cache *cdi.Cache

	mu     sync.Mutex // guards the fields below
	list   []api.NodeDevice
	files  map[string]string // by device, the file that described it last
	logged string            // the errors that were logged last
}

// Open writes the files of test devices and reads all files. It logs files that it cannot read.
func Open(o Options) (*Devices, error) {
	o.Log = cmp.Or(o.Log, slog.Default())
	if err := writeTests(o.Own, o.Test); err != nil {
		return nil, fmt.Errorf("write the test devices: %w", err)
	}
	dirs := slices.Clone(o.Dirs)
	if len(o.Test) > 0 {
		dirs = append(dirs, o.Own)
	}
	d := &Devices{opt: o}
	if len(dirs) == 0 { // the library would use its default directories
		return d, nil
	}
	var err error
	if d.cache, err = cdi.NewCache(cdi.WithAutoRefresh(false), cdi.WithSpecDirs(dirs...)); err != nil {
		return nil, fmt.Errorf("read CDI specifications: %w", err)
	}
	d.read(nil)
	return d, nil
}

// List returns the devices that the node offers, sorted by id.
func (d *Devices) List() []api.NodeDevice {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.list)
}

// Inject adds the devices to a container's specification: device nodes, which its cgroup then allows,
// mounts, environment and hooks. It fails with ErrNotFound if a device is not described, and then
// changes nothing.
func (d *Devices) Inject(s *specs.Spec, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	if d.cache == nil {
		return fmt.Errorf("this node has no devices: %w", api.ErrNotFound)
	}
	missing, err := d.cache.InjectDevices(s, ids...)
	if len(missing) > 0 {
		return fmt.Errorf("no CDI specification describes %s: %w", strings.Join(missing, ", "), api.ErrNotFound)
	}
	return err
}

// Run reads the files again when they change, until ctx ends. It calls changed, which must not block,
// when the list changes.
func (d *Devices) Run(ctx context.Context, changed func()) error {
	if d.cache == nil || len(d.opt.Dirs) == 0 {
		<-ctx.Done()
		return nil
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		d.opt.Log.Warn("devices are not watched: restart the engine after changes", "err", err)
		<-ctx.Done()
		return nil
	}
	defer w.Close()
	watched := map[string]bool{}
	// There is no event for a directory that appeared before it was watched.
	look := time.NewTimer(0)
	defer look.Stop()
	later := time.NewTicker(again)
	defer later.Stop()
	var suspects []string
	for {
		select {
		case e, ok := <-w.Events:
			if !ok {
				return nil
			}
			if watched[e.Name] && e.Has(fsnotify.Remove|fsnotify.Rename) {
				_ = w.Remove(e.Name)
				delete(watched, e.Name)
			}
			if !e.Has(fsnotify.Chmod) || e.Op != fsnotify.Chmod {
				look.Reset(quiet)
			}
		case err := <-w.Errors:
			d.opt.Log.Warn("changes of devices may have been missed, reading all files", "err", err)
			look.Reset(quiet)
		case <-later.C:
			if d.watchAll(w, watched) {
				look.Reset(0)
			}
		case <-look.C:
			d.watchAll(w, watched)
			var isNew bool
			if suspects, isNew = d.read(suspects); isNew {
				changed()
			}
			if len(suspects) > 0 {
				look.Reset(confirm)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// watchAll watches the directories that exist, and reports whether one was not watched before.
func (d *Devices) watchAll(w *fsnotify.Watcher, watched map[string]bool) (grew bool) {
	for _, dir := range d.opt.Dirs {
		dir = filepath.Clean(dir)
		if !watched[dir] && w.Add(dir) == nil {
			watched[dir], grew = true, true
		}
	}
	return grew
}

// read reads the files. A device is offered until two reads in sequence miss it, because tools remove
// files and write them again. suspects are the devices that the previous read missed for the first time,
// gone those that this read does. A device whose file exists but cannot be read is still offered, so
// that an editing error stops no workload.
func (d *Devices) read(suspects []string) (gone []string, changed bool) {
	_ = d.cache.Refresh() // GetErrors returns its errors by file
	failed := d.cache.GetErrors()
	now := map[string]described{}
	for _, id := range d.cache.ListDevices() {
		if dev := d.cache.GetDevice(id); dev != nil {
			now[id] = describe(dev)
		}
	}
	offered, aside := distinct(now)

	d.mu.Lock()
	defer d.mu.Unlock()
	list, files := offered, map[string]string{}
	for _, dev := range offered {
		files[dev.ID] = now[dev.ID].file
	}
	for _, dev := range d.list {
		if _, there := files[dev.ID]; there {
			continue
		}
		file := d.files[dev.ID]
		_, broken := failed[file]
		_, known := now[dev.ID]
		if !broken && (known || slices.Contains(suspects, dev.ID)) {
			continue
		}
		if !broken {
			gone = append(gone, dev.ID)
		}
		list, files[dev.ID] = append(list, dev), file
	}
	slices.SortFunc(list, func(a, b api.NodeDevice) int { return strings.Compare(a.ID, b.ID) })
	changed = !slices.EqualFunc(list, d.list, func(a, b api.NodeDevice) bool {
		return a.ID == b.ID && a.Model == b.Model && slices.Equal(a.Kinds, b.Kinds)
	})
	d.list, d.files = list, files
	d.log(changed, aside, failed)
	return gone, changed
}

// log logs changes of the offered devices and of the errors.
func (d *Devices) log(changed bool, aside []string, failed map[string][]error) {
	if changed {
		ids := make([]string, len(d.list))
		for i, dev := range d.list {
			ids[i] = dev.ID
		}
		d.opt.Log.Info("devices", "offered", ids, "not_offered", aside)
	}
	var all []string
	for file, errs := range failed {
		all = append(all, file+": "+errors.Join(errs...).Error())
	}
	slices.Sort(all)
	text := strings.Join(all, "\n")
	if text != d.logged && text != "" {
		d.opt.Log.Warn("CDI specifications cannot be read; devices that they described stay offered", "err", text)
	}
	d.logged = text
}
