package wiring

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/node-engine/devices"
	"github.com/treeline-edge/treeline/node-engine/probe"
	"github.com/treeline-edge/treeline/node-engine/runtime/containerd"
)

// validName reports whether s has 1 to 63 letters, digits and characters of inner, and begins and ends with
// a letter or digit. SLAs can require only such names, see api.Fields.
func validName(s, inner string) bool {
	for i, r := range []byte(s) {
		plain := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !plain && (i == 0 || i == len(s)-1 || strings.IndexByte(inner, r) < 0) {
			return false
		}
	}
	return s != "" && len(s) <= 63
}

const (
	maxNames            = 64 // of addons, or of areas
	maxMbit             = 100_000_000
	maxDefaultReserveMB = 10 << 10 // of the disk, unless storage_reserve is set
)

// checkOffer returns the first error in the settings of the node's capacity and properties (ErrInvalid).
func (c Config) checkOffer() error {
	if c.CPUs < 0 || c.CPUs > 1e6 {
		return daemon.Invalid("cpus", "%g, want 0 to 1000000", c.CPUs)
	}
	for _, k := range []struct {
		key   string
		value int64
	}{{"memory", c.Memory}, {"storage", c.Storage}, {"storage_reserve", c.StorageReserve}} {
		if k.value < 0 {
			return daemon.Invalid(k.key, "%d, want 0 or more", k.value)
		}
	}
	for _, k := range []struct {
		key, inner, want string
		names            []string
	}{
		{"addons", "._/-", "want letters, digits and inner . _ - /, at most 63", c.Addons},
		{"areas", " ._/-", "want a place's name or a country's code, such as munich or de", names(c.Areas)},
	} {
		if len(k.names) > maxNames {
			return daemon.Invalid(k.key, "%d of them, at most %d", len(k.names), maxNames)
		}
		for _, n := range k.names {
			if !validName(n, k.inner) {
				return daemon.Invalid(k.key, "%q, %s", n, k.want)
			}
		}
	}
	if _, _, err := parseBandwidth(c.Bandwidth); err != nil {
		return fmt.Errorf("bandwidth: %w", err)
	}
	if _, err := api.ParsePortRanges(c.Publish); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	if c.Location != "" {
		if _, err := api.ParseGeo(c.Location); err != nil {
			return fmt.Errorf("location: %w", err)
		}
	}
	for _, d := range c.DeviceDirs {
		if !strings.HasPrefix(d, "/") {
			return daemon.Invalid("device_dirs", "%q is no absolute path", d)
		}
	}
	tests, err := c.testDevices()
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, t := range tests {
		if seen[t.Class] {
			return daemon.Invalid("test_devices", "%s is listed twice", t.Class)
		}
		seen[t.Class] = true
	}
	return nil
}

// parseBandwidth parses "100/20", in before out, or one number for both, in Mbit/s.
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
	if err1 != nil || err2 != nil || min(in, out) < 0 || max(in, out) > maxMbit {
		return 0, 0, fmt.Errorf("%q: want Mbit/s as IN/OUT or one number, such as 100/20, at most %d: %w", text, maxMbit, api.ErrInvalid)
	}
	return in, out, nil
}

// names returns the names trimmed, sorted, and each once.
func names(all []string) []string {
	var out []string
	for _, a := range all {
		out = append(out, strings.TrimSpace(a))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func lower(all []string) (out []string) {
	for _, a := range all {
		out = append(out, strings.ToLower(a))
	}
	return out
}

// offer returns the node's info with its capacity, which is configured or that of the machine. Storage
// and bandwidth are reserved when instances are placed; the node does not limit how much of its disk an
// instance uses.
func (c Config) offer(log *slog.Logger) (api.NodeInfo, error) {
	hostname, err := os.Hostname()
	if err != nil {
		return api.NodeInfo{}, fmt.Errorf("get the host name: %w", err)
	}
	info := c.info(hostname)
	have, err := probe.Capacity()
	if err != nil && (c.CPUs == 0 || c.Memory == 0) {
		return info, err
	}
	if c.CPUs > 0 {
		have.MilliCPU = int64(c.CPUs*1000 + 0.5)
	}
	have.MemoryMB = cmp.Or(c.Memory, have.MemoryMB)
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
	return info, nil
}

// disk returns the size of the runtime's disk in MiB, less the reserve.
func (c Config) disk(log *slog.Logger) int64 {
	root := c.Data
	if slices.Contains(c.names(), "containerd") {
		root = containerd.Root(context.Background(), c.containerdConfig())
	}
	all, err := probe.Disk(root)
	if err != nil {
		log.Warn("disk unknown and offered as 0: services that require storage are not placed here until the key storage is configured", "err", err)
		return 0
	}
	return max(0, all-cmp.Or(c.StorageReserve, min(all/10, maxDefaultReserveMB)))
}

func (c Config) testDevices() (out []devices.Test, err error) {
	for _, text := range c.TestDevices {
		t, err := devices.ParseTest(text)
		if err != nil {
			return nil, fmt.Errorf("test_devices: %w", err)
		}
		out = append(out, t)
	}
	return out, nil
}

// openDevices finds the node's devices.
func openDevices(c Config, log *slog.Logger) (*devices.Devices, error) {
	tests, err := c.testDevices()
	if err != nil {
		return nil, err
	}
	return devices.Open(devices.Options{Dirs: c.DeviceDirs, Own: filepath.Join(c.Data, "cdi"), Test: tests, Log: log})
}
