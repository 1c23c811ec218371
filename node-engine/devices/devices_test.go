package devices

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/leaktest"
)

var quietLog = slog.New(slog.DiscardHandler)

func TestMain(m *testing.M) { leaktest.Main(m) }

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	tmp := filepath.Join(dir, ".new")
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, o Options) *Devices {
	t.Helper()
	o.Log = quietLog
	d, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func ids(list []api.NodeDevice) (out []string) {
	for _, d := range list {
		out = append(out, d.ID)
	}
	return out
}

// nvidia is the output of nvidia-ctk for two GPUs, shortened.
const nvidia = `
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits: {deviceNodes: [{path: /dev/nvidia0}, {path: /dev/dri/card1}]}
- name: "1"
  containerEdits: {deviceNodes: [{path: /dev/nvidia1}, {path: /dev/dri/card2}]}
- name: GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c
  containerEdits: {deviceNodes: [{path: /dev/dri/card1}, {path: /dev/nvidia0}]}
- name: GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c
  containerEdits: {deviceNodes: [{path: /dev/nvidia1}, {path: /dev/dri/card2}]}
- name: all
  containerEdits: {deviceNodes: [{path: /dev/nvidia0}, {path: /dev/nvidia1}, {path: /dev/dri/card1}, {path: /dev/dri/card2}]}
containerEdits:
  env: [NVIDIA_VISIBLE_DEVICES=void]
  deviceNodes: [{path: /dev/nvidiactl}]
`

func TestOneGPUIsOfferedOnce(t *testing.T) {
	yaml, json := t.TempDir(), t.TempDir()
	write(t, yaml, "nvidia.yaml", nvidia)
	write(t, json, "other.json", `{"cdiVersion":"0.3.0","kind":"gpu.intel.com/flex","devices":[{"name":"a","containerEdits":{"deviceNodes":[{"path":"/dev/dri/card9"}]}}]}`)
	write(t, json, "manage.json", `{"cdiVersion":"0.5.0","kind":"management.nvidia.com/gpu","devices":[{"name":"all","containerEdits":{"deviceNodes":[{"path":"/dev/nvidia0"},{"path":"/dev/nvidia1"},{"path":"/dev/dri/card1"},{"path":"/dev/dri/card2"}]}}]}`)
	write(t, json, "broken.json", `{"cdiVersion":`)
	d := open(t, Options{Dirs: []string{yaml, json, "/does/not/exist"}})
	want := []string{"gpu.intel.com/flex=a", "nvidia.com/gpu=0", "nvidia.com/gpu=1"}
	if got := ids(d.List()); !slices.Equal(got, want) {
		t.Errorf("offered %v, want %v", got, want)
	}
	for _, dev := range d.List() {
		if len(dev.Kinds) != 2 || !slices.IsSorted(dev.Kinds) || !slices.Contains(dev.Kinds, api.DeviceGPU) {
			t.Errorf("%s is of the kinds %v", dev.ID, dev.Kinds)
		}
	}
}

func TestAllIsOfferedWhereThereIsNothingElse(t *testing.T) { // as on WSL
	got, aside := distinct(map[string]described{"nvidia.com/gpu=all": {kind: "nvidia.com/gpu", parts: []string{"/dev/dxg"}}})
	if len(got) != 1 || len(aside) > 0 {
		t.Errorf("offered %v, not %v", got, aside)
	}
}

func TestKinds(t *testing.T) {
	for kind, want := range map[string]string{
		"nvidia.com/gpu": api.DeviceGPU, "amd.com/gpu": api.DeviceGPU, "intel.com/gpu": api.DeviceGPU, "gpu.intel.com/max": api.DeviceGPU,
		"google.com/tpu": api.DeviceTPU, "coral.ai/apex": api.DeviceTPU, "test.treeline.dev/gpu": api.DeviceGPU,
		"nvidia.com/mig": "", "vendor.com/widget": "", "vendor.com/gpu-fan": "",
	} {
		got := kindsOf(kind)
		if !slices.Contains(got, kind) || want != "" && !slices.Contains(got, want) || want == "" && len(got) > 1 {
			t.Errorf("%s counts as %v, want %q too", kind, got, want)
		}
	}
}

func TestTestDevices(t *testing.T) {
	own := t.TempDir()
	d := open(t, Options{Own: own, Test: []Test{{"widget", 2}, {"tpu", 1}}})
	want := []string{"test.treeline.dev/tpu=0", "test.treeline.dev/widget=0", "test.treeline.dev/widget=1"}
	if got := ids(d.List()); !slices.Equal(got, want) {
		t.Fatalf("offered %v, want %v", got, want)
	}
	if !slices.Contains(d.List()[0].Kinds, api.DeviceTPU) || !strings.Contains(d.List()[0].Model, "test") {
		t.Errorf("the TPU is %+v", d.List()[0])
	}
	s := &specs.Spec{Version: specs.Version}
	if err := d.Inject(s, want[1:]); err != nil {
		t.Fatal(err)
	}
	if len(s.Linux.Devices) != 2 || len(s.Linux.Resources.Devices) != 2 || len(s.Process.Env) != 2 {
		t.Errorf("the container gets %+v, %v", s.Linux, s.Process.Env)
	}
	if err := d.Inject(s, []string{"test.treeline.dev/widget=2"}); !errors.Is(err, api.ErrNotFound) || !strings.Contains(err.Error(), "widget=2") {
		t.Errorf("a third: %v", err)
	}
	if d := open(t, Options{Own: own}); len(d.List()) > 0 {
		t.Errorf("without the configuration there is still %v", d.List())
	}
	if left, _ := os.ReadDir(own); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

func TestParseTest(t *testing.T) {
	for _, bad := range []string{"", "widget=2", "test.treeline.dev/widget", "test.treeline.dev/widget=0", "test.treeline.dev/widget=65", "nvidia.com/gpu=1", "test.treeline.dev/../x=1", "test.treeline.dev/=1"} {
		if got, err := ParseTest(bad); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%q is %v, %v", bad, got, err)
		}
	}
	if got, err := ParseTest("test.treeline.dev/widget=2"); err != nil || got != (Test{"widget", 2}) {
		t.Errorf("it is %v, %v", got, err)
	}
}

const one = `{"cdiVersion":"0.5.0","kind":"v.test/x","devices":[{"name":"0","containerEdits":{"deviceNodes":[{"path":"/dev/x0"}]}}]}`

// TestAFileThatIsGoneForAMomentTakesNothingAway changes files as tools and operators do, with a read
// after each change.
func TestAFileThatIsGoneForAMomentTakesNothingAway(t *testing.T) {
	dir := t.TempDir()
	d := open(t, Options{Dirs: []string{dir}})
	var suspects []string
	look := func(what string, changed bool, want ...string) {
		t.Helper()
		var got bool
		suspects, got = d.read(suspects)
		if got != changed || !slices.Equal(ids(d.List()), want) {
			t.Errorf("%s: changed %v, offered %v; want %v, %v", what, got, ids(d.List()), changed, want)
		}
	}
	file := filepath.Join(dir, "x.json")
	look("nothing yet", false)
	write(t, dir, "x.json", one)
	look("it came", true, "v.test/x=0")
	os.Remove(file)
	look("gone at the first look", false, "v.test/x=0")
	write(t, dir, "x.json", one)
	look("it was written anew", false, "v.test/x=0")
	write(t, dir, "x.json", one[:40])
	look("somebody is writing it", false, "v.test/x=0")
	look("and is slow", false, "v.test/x=0")
	os.Remove(file)
	look("gone", false, "v.test/x=0")
	look("and it stays away", true)
}

func TestChangesAreHeardOf(t *testing.T) {
	dir := t.TempDir()
	d := open(t, Options{Dirs: []string{dir, filepath.Join(dir, "later")}})
	ctx, cancel := context.WithCancel(t.Context())
	changed, ended := make(chan struct{}, 16), make(chan error)
	go func() { ended <- d.Run(ctx, func() { changed <- struct{}{} }) }()
	await := func(want ...string) {
		t.Helper()
		for limit := time.After(time.Minute); !slices.Equal(ids(d.List()), want); {
			select {
			case <-changed:
			case <-limit:
				t.Fatalf("offered %v, want %v", ids(d.List()), want)
			}
		}
	}
	// The first read includes a file that was written before the watch began.
	write(t, dir, "x.json", one)
	await("v.test/x=0")
	os.Remove(filepath.Join(dir, "x.json"))
	await()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
