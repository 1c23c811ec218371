package containerd

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/runtimetest"
	"github.com/treeline-edge/treeline/node-engine/volume"
	"github.com/treeline-edge/treeline/testbed/ociimage/image"
)

// withVolumes opens a runtime that supports volumes and storage, and the volumes of its node.
func withVolumes(t *testing.T) (*Runtime, *volume.Manager) {
	r, volumes, _, _ := volumesOf(t)
	return r, volumes
}

// volumesOf is withVolumes. It also returns their directory, and the containerd of the runtime.
func volumesOf(t *testing.T) (*Runtime, *volume.Manager, string, *runtimetest.Containerd) {
	t.Helper()
	programtest.Need(t, "mkfs.ext4")
	daemon, images := runtimetest.StartContainerd(t), t.TempDir()
	err := image.WriteFile(filepath.Join(images, "hello.tar"), image.Image{Ref: hello, Binary: runtimetest.Program(t), User: "0:0"})
	if err != nil {
		t.Fatal(err)
	}
	r := openRuntime(t, testConfig(t, daemon, images))
	if info, err := r.Info(t.Context()); err != nil || !info.Mounts || !info.Layers {
		t.Fatalf("info: got %+v, %v, want mounts and layers", info, err)
	}
	dir := filepath.Join(t.TempDir(), "volumes")
	t.Cleanup(func() {
		if err := volume.Purge(dir); err != nil {
			t.Error(err)
		}
	})
	volumes, err := volume.Open(t.Context(), dir, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return r, volumes, dir, daemon
}

// TestVolumesInContainers runs containers with volumes on a real disk.
func TestVolumesInContainers(t *testing.T) {
	r, volumes := withVolumes(t)
	var source string
	// output runs an attempt of instance 0 with volumes under an epoch to its end.
	output := func(epoch api.Epoch, readOnly bool, args ...string) string {
		t.Helper()
		w := newWorkload(0, args...)
		w.Epoch = epoch
		mounts, err := volumes.Prepare(t.Context(), w.Key, []api.Volume{
			{Name: "data", Type: api.VolumeLocal, MountPath: "/data", SizeMB: 16, ReadOnly: readOnly},
			{Name: "scratch", Type: api.VolumeEphemeral, MountPath: "/deep/er/scratch", SizeMB: 16},
			{Name: "memory", Type: api.VolumeTmpfs, MountPath: "/memory", SizeMB: 4},
		})
		if err != nil {
			t.Fatal(err)
		}
		w.Mounts = mounts
		source = w.Mounts[0].Source
		if err := r.Create(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		if _, err := volumes.Started(w.Key); err != nil {
			t.Fatal(err)
		}
		if err := r.Start(t.Context(), w.Key); err != nil {
			t.Fatal(err)
		}
		var text []byte
		for deadline := time.Now().Add(30 * time.Second); len(text) == 0 && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
			logs, err := r.Logs(t.Context(), w.Key, -1, true)
			if err != nil {
				t.Fatal(err)
			}
			if text, err = io.ReadAll(logs); err != nil {
				t.Fatal(err)
			}
			_ = logs.Close()
		}
		if len(text) == 0 {
			all, err := r.List(t.Context())
			for _, st := range all {
				t.Errorf("%v wrote nothing within 30 s; %s is %s with code %d, OOM %t", args, st.Key, st.Phase, st.ExitCode, st.OOM)
			}
			if err != nil {
				t.Error(err)
			}
		}
		if err := r.Stop(t.Context(), w.Key, time.Second); err != nil {
			t.Fatal(err)
		}
		if err := volumes.Release(w.Key); err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for i, c := range []struct {
		readOnly bool
		args     []string
		want     string
	}{
		{false, []string{"write", "/data/file", "1"}, "wrote /data/file"},
		{false, []string{"write", "/data/big", "17"}, "no space left on device"},
		{false, []string{"write", "/deep/er/scratch/file", "1"}, "wrote"},
		{false, []string{"write", "/deep/er/scratch/big", "17"}, "no space left on device"},
		{false, []string{"write", "/memory/file", "3"}, "wrote"},
		{false, []string{"write", "/memory/big", "5"}, "no space left on device"},
		{false, []string{"open", "/data/file", "/deep/er/scratch/file"}, "open /data/file <nil>\nopen /deep/er/scratch/file open /deep/er/scratch/file: no such file"},
		{true, []string{"open", "/data/file"}, "read-only file system"},
		{true, []string{"write", "/deep/er/scratch/file", "1"}, "wrote"},
	} {
		if got := output(api.Epoch(i+1), c.readOnly, c.args...); !strings.Contains(got, c.want) {
			t.Errorf("%v: got %q, want %q in it", c.args, got, c.want)
		}
	}
	if _, err := os.Stat(source); err == nil {
		t.Errorf("%s exists after the volume was unmounted", source)
	}
	// A container whose volume is not mounted is not created, rather than given an empty directory.
	w := newWorkload(1, "sleep")
	w.Mounts = []runtime.Mount{{Target: "/data", Source: source}}
	if err := r.Create(t.Context(), w); err == nil {
		t.Error("container with an unmounted volume: got no error")
	}
	if err := r.Stop(t.Context(), w.Key, 0); err != nil {
		t.Error(err)
	}
}

func TestMountsOfVolumes(t *testing.T) {
	got := volumes([]runtime.Mount{{Target: "/data", Source: "/v/data", ReadOnly: true}, {Target: "/tmp/x", SizeMB: 8}})
	for i, want := range []string{"bind /v/data /data bind rprivate nosuid nodev ro", "tmpfs tmpfs /tmp/x nosuid nodev mode=1777 size=8m"} {
		m := got[i]
		if text := strings.Join(append([]string{m.Type, m.Source, m.Destination}, m.Options...), " "); text != want {
			t.Errorf("mount %d: got %q, want %q", i, text, want)
		}
	}
}

// TestStorageOfContainersIsLimited writes more to a container's own files than its storage.
func TestStorageOfContainersIsLimited(t *testing.T) {
	r, volumes := withVolumes(t)
	for attempt, want := range []string{"wrote /file", "no space left on device", "wrote /file"} {
		size := []string{"8", "17", "8"}[attempt]
		w := newWorkload(0, "write", "/file", size)
		w.Attempt = attempt
		layer, err := volumes.Layer(t.Context(), w.Key, attempt, 16)
		if err != nil {
			t.Fatal(err)
		}
		w.Layer = layer
		if err := r.Create(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		if err := r.Start(t.Context(), w.Key); err != nil {
			t.Fatal(err)
		}
		logs, err := r.Logs(t.Context(), w.Key, -1, true)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(logs)
		if err = errors.Join(err, logs.Close()); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), want) {
			t.Errorf("attempt %d writes %s MiB: got %q, want %q", attempt, size, text, want)
		}
	}
	k := newWorkload(0).Key
	if err := r.Stop(t.Context(), k, 0); err != nil {
		t.Fatal(err)
	}
	if err := volumes.Release(k); err != nil {
		t.Fatal(err)
	}
}
