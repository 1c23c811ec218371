// Package devices finds the devices of a node by their CDI specifications
// (Container Device Interface, tags.cncf.io/container-device-interface), and puts
// those that an instance was given into its container. NVIDIA's, AMD's and
// Intel's tools write such files, /etc/cdi holds those of people; what is
// described there is offered, and nothing else is looked for.
//
// For machines without any device there are test devices, which are asked for,
// given and injected in the same way and are files like the others.
//
// Who gets which device is the core's to say (package node).
//
//	d, err := devices.Open(devices.Options{Dirs: devices.Dirs, Own: "/var/lib/treeline/node/cdi"})
//	d.List()                                         // for NodeInfo
//	g.Go(func() error { return d.Run(ctx, changed) })
//	err = d.Inject(spec, []string{"nvidia.com/gpu=0"})
package devices

import (
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

// Dirs are the directories that CDI's tools write to; the later goes before the
// earlier where both describe a device.
var Dirs = []string{"/etc/cdi", "/var/run/cdi"}

const (
	quiet   = time.Second     // without a change, before the files are read: tools write several
	confirm = 3 * time.Second // until a device that is gone is looked for once more
	again   = time.Minute     // until a directory that is not there is looked for once more
)

// Options are what it needs.
type Options struct {
	Dirs []string     // absolute; none: the node has test devices at most
	Own  string       // directory of its own, for the test devices' file
	Test []Test       // test devices to offer
	Log  *slog.Logger // slog.Default
}

// Devices are those of this machine. It is safe for concurrent use.
type Devices struct {
	opt   Options
	cache *cdi.Cache

	mu    sync.Mutex // guards the fields below
	list  []api.NodeDevice
	files map[string]string // by device, the file that described it last
	said  string            // the faults that were logged last
}

// Open writes the test devices' file and reads all of them. A file that cannot be
// read is logged and offers nothing.
func Open(o Options) (*Devices, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if err := writeTests(o.Own, o.Test); err != nil {
		return nil, fmt.Errorf("write the test devices: %w", err)
	}
	dirs := slices.Clone(o.Dirs)
	if len(o.Test) > 0 {
		dirs = append(dirs, o.Own)
	}
	d := &Devices{opt: o}
	if len(dirs) == 0 { // the library would take its defaults
		return d, nil
	}
	var err error
	if d.cache, err = cdi.NewCache(cdi.WithAutoRefresh(false), cdi.WithSpecDirs(dirs...)); err != nil {
		return nil, fmt.Errorf("read CDI specifications: %w", err)
	}
	d.read(nil)
	return d, nil
}

// List are the devices that the node offers, in the order of their ids.
func (d *Devices) List() []api.NodeDevice {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.list)
}

// Inject makes the devices part of a container as their specifications say: device
// nodes, which its cgroup then allows, mounts, environment and hooks. One that is
// not described now is ErrNotFound, and the container is as it was.
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

// Run reads the files again when they change, and calls changed, which must not
// block, when that changes the list. It returns when ctx ends.
func (d *Devices) Run(ctx context.Context, changed func()) error {
	if d.cache == nil || len(d.opt.Dirs) == 0 {
		<-ctx.Done()
		return nil
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		d.opt.Log.Warn("devices are not watched: changes are seen when the engine starts anew", "err", err)
		<-ctx.Done()
		return nil
	}
	defer w.Close()
	watched := map[string]bool{}
	// Directories that came since the last look were not heard of.
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
			d.opt.Log.Warn("changes of devices may have been missed; looking", "err", err)
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

// watchAll watches the directories that are there, and reports whether one of
// them was not watched before.
func (d *Devices) watchAll(w *fsnotify.Watcher, watched map[string]bool) (grew bool) {
	for _, dir := range d.opt.Dirs {
		dir = filepath.Clean(dir)
		if !watched[dir] && w.Add(dir) == nil {
			watched[dir], grew = true, true
		}
	}
	return grew
}

// read reads the files. A device that is gone is offered until it was gone at two
// looks, since tools remove files and write them anew; gone names those of this
// look, suspects those of the one before. One whose file is there and cannot be
// read is offered still: a slip of somebody's editor ends no workload.
func (d *Devices) read(suspects []string) (gone []string, changed bool) {
	_ = d.cache.Refresh() // its errors are told by file, below
	faults := d.cache.GetErrors()
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
		_, broken := faults[file]
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
	d.tell(changed, aside, faults)
	return gone, changed
}

// tell logs what is offered now and what is wrong, once per change.
func (d *Devices) tell(changed bool, aside []string, faults map[string][]error) {
	if changed {
		ids := make([]string, len(d.list))
		for i, dev := range d.list {
			ids[i] = dev.ID
		}
		d.opt.Log.Info("devices", "offered", ids, "not_offered", aside)
	}
	var all []string
	for file, errs := range faults {
		all = append(all, file+": "+errors.Join(errs...).Error())
	}
	slices.Sort(all)
	said := strings.Join(all, "\n")
	if said != d.said && said != "" {
		d.opt.Log.Warn("CDI specifications cannot be read; devices that they described stay offered", "err", said)
	}
	d.said = said
}
