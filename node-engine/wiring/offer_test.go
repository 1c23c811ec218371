package wiring

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/node-engine/probe"
)

func load(t *testing.T, args ...string) (Config, error) {
	t.Helper()
	return daemon.Load("node-engine", Defaults(), daemon.Source{Args: args, Stdout: &bytes.Buffer{}})
}

func TestValidateOffer(t *testing.T) {
	for _, c := range []struct{ arg, want string }{
		{"--location=munich", "location: "},
		{"--location=91,0", "location: "},
		{"--location=11.58", "location: "},
		{"--areas=mün chen", "areas: "},
		{"--address=10.0.0.1:80", "address: "},
		{"--address=a b", "address: "},
		{"--areas=" + strings.Repeat("a", 64), "areas: "},
		{"--addons=two words", "addons: "},
		{"--addons=-x", "addons: "},
		{"--bandwidth=fast", "bandwidth: "},
		{"--bandwidth=1/2/3", "bandwidth: "},
		{"--bandwidth=-1", "bandwidth: "},
		{"--bandwidth=99999999999", "bandwidth: "},
		{"--storage=-1", "storage: "},
		{"--storage-reserve=-1", "storage_reserve: "},
		{"--device-dirs=cdi", "device_dirs: "},
		{"--test-devices=nvidia.com/gpu=1", "test_devices: "},
		{"--containerd-root=here", "containerd.root: "},
	} {
		if _, err := load(t, c.arg); !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want ErrInvalid with %q", c.arg, err, c.want)
		}
	}
	if _, err := load(t, "--test-devices=test.treeline.dev/x=1", "--test-devices=test.treeline.dev/x=2"); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("a class of test devices twice: got %v, want ErrInvalid", err)
	}
}

func TestOffer(t *testing.T) {
	cfg, err := load(
		t, "--location=48.14, 11.58", "--areas=Munich", "--areas=de", "--areas=bavaria", "--areas=DE",
		"--addons=mqtt", "--addons=Coral/v2", "--bandwidth=100/20", "--storage=2048", "--cpus=2", "--memory=512",
	)
	if err != nil {
		t.Fatal(err)
	}
	info, err := cfg.offer(slog.New(slog.DiscardHandler))
	if info.Location == nil || *info.Location != (api.Geo{Lat: 48.14, Lon: 11.58}) {
		t.Errorf("location: got %v, want 48.14,11.58", info.Location)
	}
	if !slices.Equal(info.Areas, []string{"bavaria", "de", "munich"}) || !slices.Equal(info.Addons, []string{"Coral/v2", "mqtt"}) {
		t.Errorf("got areas %q, addons %q, want them sorted and unique", info.Areas, info.Addons)
	}
	if want := (api.Resources{MilliCPU: 2000, MemoryMB: 512, StorageMB: 2048, InMbit: 100, OutMbit: 20}); err != nil || info.Capacity != want || info.BandwidthUnknown {
		t.Errorf("offer: got %+v, bandwidth unknown: %t, %v; want %+v", info.Capacity, info.BandwidthUnknown, err, want)
	}
}

// TestUnknownBandwidthIsNotZero: the configuration can set 0; an interface whose driver does not
// report its speed leaves the bandwidth unknown.
func TestUnknownBandwidthIsNotZero(t *testing.T) {
	_, mbit, speedErr := probe.Speed()
	for text, unknown := range map[string]bool{"0": false, "100/20": false, "": speedErr != nil} {
		cfg := Config{Data: t.TempDir(), Runtime: "process", CPUs: 1, Memory: 1, Storage: 1, Bandwidth: text}
		info, err := cfg.offer(slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if info.BandwidthUnknown != unknown || text == "" && info.Capacity.InMbit != mbit {
			t.Errorf("bandwidth %q: got capacity %+v, unknown: %t, want unknown: %t", text, info.Capacity, info.BandwidthUnknown, unknown)
		}
		encoded, err := json.Marshal(info)
		if err != nil {
			t.Fatal(err)
		}
		if unknown && (strings.Contains(string(encoded), "mbit") || !strings.Contains(string(encoded), `"bandwidth_unknown":true`)) {
			t.Errorf("unknown bandwidth: got %s, want bandwidth_unknown and no mbit", encoded)
		}
	}
}

func TestDiskIsOfferedLessAReserve(t *testing.T) {
	cfg := Config{Data: t.TempDir(), Runtime: "process", StorageReserve: 1}
	log := slog.New(slog.DiscardHandler)
	all := cfg.disk(log) + 1
	cfg.StorageReserve = 0
	if got, want := cfg.disk(log), all-min(all/10, maxDefaultReserveMB); got != want || got <= 0 {
		t.Errorf("offer of a disk of %[2]d MiB: got %[1]d, want %[3]d", got, all, want)
	}
	cfg.StorageReserve = 2 * all
	if got := cfg.disk(log); got != 0 {
		t.Errorf("offer with a reserve larger than the disk: got %d MiB, want 0", got)
	}
}
