package containerd

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/node-engine/devices"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/runtimetest"
)

// TestContainerCanOpenOnlyItsDevice gives two containers one real device node each, of a kind that
// no container may open by default.
func TestContainerCanOpenOnlyItsDevice(t *testing.T) {
	daemon := runtimetest.StartContainerd(t)
	cfg := testConfig(t, daemon, imageDir(t))
	dir := t.TempDir()
	var text string
	for n := range 2 {
		// The kernel's log needs only the mode of the node to be opened for writing.
		host := filepath.Join(dir, fmt.Sprint("host", n))
		if err := unix.Mknod(host, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 11))); err != nil {
			t.Skip("no device nodes can be made here: ", err)
		}
		text += fmt.Sprintf(`
- name: "%d"
  containerEdits:
    env: [WIDGET=%d]
    deviceNodes: [{path: /dev/widget%d, hostPath: %s, fileMode: 438}]
    mounts: [{hostPath: %s, containerPath: /etc/widget%d, options: [ro, bind]}]
`, n, n, n, host, filepath.Join(dir, "v.yaml"), n)
	}
	if err := os.WriteFile(filepath.Join(dir, "v.yaml"), []byte("cdiVersion: 0.6.0\nkind: vendor.test/widget\ndevices:"+text), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := devices.Open(devices.Options{Dirs: []string{dir}, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Devices = d
	r := openRuntime(t, cfg)
	want := []map[string]bool{{"/dev/widget0": true, "/dev/widget1": false}, {"/dev/widget0": false, "/dev/widget1": true}, {"/dev/widget0": false, "/dev/widget1": false}}
	for n := range 3 {
		w := newWorkload(n, "open", "/dev/widget0", "/dev/widget1")
		if n < 2 {
			w.Devices = []string{d.List()[n].ID}
		}
		start(t, r, w)
		got := map[string]bool{}
		out, err := r.Logs(t.Context(), w.Key, -1, true)
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		for s := bufio.NewScanner(out); len(got) < 2 && s.Scan(); {
			if f := strings.Fields(s.Text()); len(f) > 2 && f[0] == "open" {
				got[f[1]] = f[2] == "<nil>"
			}
		}
		for path, can := range want[n] {
			if got[path] != can {
				t.Errorf("container %d with %v opens %s: got %t, want %t", n, w.Devices, path, got[path], can)
			}
		}
	}
}

func TestErrorNamesTheMissingDevice(t *testing.T) {
	daemon := runtimetest.StartContainerd(t)
	r := openRuntime(t, testConfig(t, daemon, imageDir(t)))
	w := newWorkload(0, "sleep")
	w.Devices = []string{"nvidia.com/gpu=0"}
	err := r.Create(t.Context(), w)
	if runtime.Reason(err) != api.ReasonNoDevice || !strings.Contains(err.Error(), "nvidia.com/gpu=0") {
		t.Errorf("create: got %v, want no_device with the device's id", err)
	}
	if all, err := r.List(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("List: got %v, %v, want nothing", all, err)
	}
}

// TestDevicesInTheSpecification compares the specification with that of a container without
// devices.
func TestDevicesInTheSpecification(t *testing.T) {
	d, err := devices.Open(devices.Options{Own: t.TempDir(), Test: []devices.Test{{Class: "widget", Count: 2}}, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorkload(0)
	plain := generate(t, Config{Devices: d}, w, "65532:65532")
	w.Devices = []string{"test.treeline.dev/widget=1"}
	s := generate(t, Config{Devices: d}, w, "65532:65532")
	if n := len(s.Linux.Devices) - len(plain.Linux.Devices); n != 1 {
		t.Fatalf("additional devices: got %d, want 1", n)
	}
	dev := s.Linux.Devices[len(s.Linux.Devices)-1]
	if dev.Path != "/dev/treeline-test-widget1" || dev.Major != 1 || dev.Minor != 3 || dev.UID == nil || *dev.UID != 65532 {
		t.Errorf("device: got %+v, want test widget 1 of user 65532", dev)
	}
	if n := len(s.Linux.Resources.Devices) - len(plain.Linux.Resources.Devices); n != 1 {
		t.Errorf("additional rules of the cgroup: got %d, want 1", n)
	}
	for _, env := range []string{"TREELINE_TEST_WIDGET_1=test.treeline.dev/widget=1", "TREELINE_DEVICES=test.treeline.dev/widget=1"} {
		if !slices.Contains(s.Process.Env, env) {
			t.Errorf("environment: got %q, want %s in it", s.Process.Env, env)
		}
	}
	if len(s.Mounts) != len(plain.Mounts) || s.Hooks != plain.Hooks || s.Process.Capabilities.Bounding != nil {
		t.Error("the container got mounts, hooks or capabilities besides the device")
	}
}
