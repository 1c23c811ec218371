package wiring

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/node-engine/devices"
	"github.com/treeline-edge/treeline/node-engine/probe"
	"github.com/treeline-edge/treeline/node-engine/runtime/containerd"
)

// named reports whether s is of letters and digits and, between them, of inner: what
// SLAs may ask for, see api.Fields. A regular expression would take more memory
// than all of the core.
func named(s, inner string) bool {
	for i, r := range []byte(s) {
		plain := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !plain && (i == 0 || i == len(s)-1 || strings.IndexByte(inner, r) < 0) {
			return false
		}
	}
	return s != "" && len(s) <= 63
}

const (
	mostNames     = 64 // of addons, or of areas
	mostMbit      = 100_000_000
	mostReserveMB = 10 << 10 // that are kept of a disk where the operator says nothing
)

// checkOffer reports what of the offer cannot work (ErrInvalid).
func (c Config) checkOffer() error {
	bad := func(key, format string, args ...any) error {
		return fmt.Errorf("%s: %s: %w", key, fmt.Sprintf(format, args...), api.ErrInvalid)
	}
	switch {
	case c.CPUs < 0 || c.CPUs > 1e6:
		return bad("cpus", "%g is out of range", c.CPUs)
	case c.Memory < 0:
		return bad("memory", "%d is less than nothing", c.Memory)
	case c.Storage < 0:
		return bad("storage", "%d is less than nothing", c.Storage)
	case c.StorageReserve < 0:
		return bad("storage_reserve", "%d is less than nothing", c.StorageReserve)
	case len(c.Addons) > mostNames:
		return bad("addons", "%d of them, at most %d", len(c.Addons), mostNames)
	case len(c.Areas) > mostNames:
		return bad("areas", "%d of them, at most %d", len(c.Areas), mostNames)
	}
	if _, _, err := parseBandwidth(c.Bandwidth); err != nil {
		return fmt.Errorf("bandwidth: %w", err)
	}
	if _, err := api.ParsePortRanges(c.Publish); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	for _, a := range c.Addons {
		if !named(a, "._/-") {
			return bad("addons", "%q is not letters, digits and inner . _ - /, at most 63", a)
		}
	}
	for _, a := range names(c.Areas, strings.ToLower) {
		if !named(a, " ._/-") {
			return bad("areas", "%q is no place's name or country's code, such as munich or de", a)
		}
	}
	if c.Location != "" {
		if _, err := api.ParseGeo(c.Location); err != nil {
			return fmt.Errorf("location: %w", err)
		}
	}
	for _, d := range c.DeviceDirs {
		if !strings.HasPrefix(d, "/") {
			return bad("device_dirs", "%q is no absolute path", d)
		}
	}
	seen := map[string]bool{}
	for _, text := range c.TestDevices {
		t, err := devices.ParseTest(text)
		if err != nil {
			return fmt.Errorf("test_devices: %w", err)
		}
		if seen[t.Class] {
			return bad("test_devices", "%s is there twice", t.Class)
		}
		seen[t.Class] = true
	}
	return nil
}

// parseBandwidth reads "100/20", in before out, or one number for both, in Mbit/s.
func parseBandwidth(text string) (in, out int64, err error) {
	if text == "" {
		return 0, 0, nil
	}
	a, b, two := strings.Cut(text, "/")
	if !two {
		b = a
	}
	in, err1 := strconv.ParseInt(strings.TrimSpace(a), 10, 64)
	out, err2 := strconv.ParseInt(strings.TrimSpace(b), 10, 64)
	if err1 != nil || err2 != nil || min(in, out) < 0 || max(in, out) > mostMbit {
		return 0, 0, fmt.Errorf("%q is not Mbit/s as IN/OUT or one number, such as 100/20: %w", text, api.ErrInvalid)
	}
	return in, out, nil
}

// names are trimmed, changed, sorted, and each once.
func names(all []string, change func(string) string) []string {
	var out []string
	for _, a := range all {
		out = append(out, change(strings.TrimSpace(a)))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// offered sets in info what the node offers: what the machine has, or what the
// configuration says instead. Storage and bandwidth are booked when instances are
// placed, and nothing at the node keeps an instance from using more of its disk.
func (c Config) offered(log *slog.Logger, info *api.NodeInfo) error {
	have, err := probe.Capacity()
	if err != nil && (c.CPUs == 0 || c.Memory == 0) {
		return err
	}
	if c.CPUs > 0 {
		have.MilliCPU = int64(c.CPUs*1000 + 0.5)
	}
	if c.Memory > 0 {
		have.MemoryMB = c.Memory
	}
	have.StorageMB = c.Storage
	if c.Storage == 0 {
		have.StorageMB = c.disk(log)
	}
	have.InMbit, have.OutMbit, _ = parseBandwidth(c.Bandwidth)
	if c.Bandwidth == "" {
		iface, mbit, err := probe.Speed()
		if err != nil {
			log.Warn("bandwidth unknown: services that reserve bandwidth are not placed here until the key bandwidth is configured", "interface", iface, "err", err)
		}
		have.InMbit, have.OutMbit, info.BandwidthUnknown = mbit, mbit, err != nil
	}
	info.Capacity = have
	return nil
}

// disk is the runtime's disk in MiB, less what is kept of it.
func (c Config) disk(log *slog.Logger) int64 {
	root := c.Data
	if c.runtimeName() == "containerd" {
		root = containerd.Root(context.Background(), c.containerdConfig())
	}
	all, err := probe.Disk(root)
	if err != nil {
		log.Warn("the disk is not known and counts as 0: services that ask for storage are not placed here until storage is configured", "err", err)
		return 0
	}
	keep := c.StorageReserve
	if keep == 0 {
		keep = min(all/10, mostReserveMB)
	}
	return max(0, all-keep)
}

// place is where the node is and what it has besides, as it is configured.
func (c Config) place(info *api.NodeInfo) {
	info.Addons = names(c.Addons, func(s string) string { return s })
	info.Areas = names(c.Areas, strings.ToLower)
	if g, err := api.ParseGeo(c.Location); err == nil {
		info.Location = &g
	}
}

// openDevices finds the node's devices.
func openDevices(c Config, log *slog.Logger) (*devices.Devices, error) {
	o := devices.Options{Dirs: c.DeviceDirs, Own: filepath.Join(c.Data, "cdi"), Log: log}
	for _, text := range c.TestDevices {
		t, err := devices.ParseTest(text)
		if err != nil {
			return nil, fmt.Errorf("test_devices: %w", err)
		}
		o.Test = append(o.Test, t)
	}
	return devices.Open(o)
}
