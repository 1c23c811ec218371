package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/sys/mountinfo"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

const owner = api.InstanceID("acme/shop.prod.db.v1#0")

var (
	data    = api.Volume{Name: "data", Type: api.VolumeLocal, MountPath: "/data", SizeMB: 16}
	scratch = api.Volume{Name: "scratch", Type: api.VolumeEphemeral, MountPath: "/scratch", SizeMB: 16}
	memory  = api.Volume{Name: "memory", Type: api.VolumeTmpfs, MountPath: "/memory", SizeMB: 4}
)

func at(epoch api.Epoch) wire.Key { return wire.Key{Instance: owner, Epoch: epoch} }

// newDir returns a directory on a disk, whose volumes are removed at the end of the test.
func newDir(t *testing.T) string {
	t.Helper()
	programtest.NeedRoot(t)
	programtest.Need(t, "mkfs.ext4")
	dir := filepath.Join(t.TempDir(), "volumes")
	t.Cleanup(func() {
		if err := Purge(dir); err != nil {
			t.Errorf("purge: %v", err)
		}
		mounted(t, dir, 0)
	})
	return dir
}

func open(t *testing.T, dir string) *Manager {
	t.Helper()
	m, err := Open(t.Context(), dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Types()) != len(api.BuiltInVolumes) {
		t.Fatalf("types: got %v, want all", m.Types())
	}
	return m
}

func prepare(t *testing.T, m *Manager, k wire.Key, all ...api.Volume) []runtime.Mount {
	t.Helper()
	mounts, err := m.Prepare(t.Context(), k, all)
	if err != nil {
		t.Fatalf("prepare for %s: %v", k, err)
	}
	return mounts
}

func start(t *testing.T, m *Manager, k wire.Key) {
	t.Helper()
	if _, err := m.Started(k); err != nil {
		t.Fatal(err)
	}
}

func release(t *testing.T, m *Manager, k wire.Key) {
	t.Helper()
	if err := m.Release(k); err != nil {
		t.Fatal(err)
	}
}

// mounted checks the number of mounts below dir.
func mounted(t *testing.T, dir string, want int) {
	t.Helper()
	all, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil || len(all) != want {
		t.Errorf("mounts below %s: got %d (%v), want %d", dir, len(all), err, want)
	}
}

func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if e.Name() != triedFile {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestLocalVolumeOutlivesItsPlacement(t *testing.T) {
	dir := newDir(t)
	m := open(t, dir)
	mounts := prepare(t, m, at(1), data, scratch, memory)
	if len(mounts) != 3 || mounts[2].Source != "" || mounts[2].SizeMB != 4 || mounts[0].Target != "/data" {
		t.Fatalf("mounts: got %+v", mounts)
	}
	if again := prepare(t, m, at(1), data, scratch, memory); again[0] != mounts[0] {
		t.Errorf("second Prepare: got %+v, want %+v", again[0], mounts[0])
	}
	mounted(t, dir, 2)
	start(t, m, at(1))
	for _, v := range mounts[:2] {
		if err := os.WriteFile(filepath.Join(v.Source, "file"), []byte("kept"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	release(t, m, at(1))
	release(t, m, at(1))
	mounted(t, dir, 0)
	if left := entries(t, dir); len(left) != 1 {
		t.Errorf("left on disk: got %v, want the local volume", left)
	}

	m = open(t, dir) // another process
	want := api.NodeVolume{ID: owner.Volume("data"), SizeMB: 16, Epoch: 1}
	if got := m.List(); len(got) != 1 || got[0] != want {
		t.Errorf("volumes: got %+v, want %+v", got, want)
	}
	mounts = prepare(t, m, at(2), data, scratch)
	if b, err := os.ReadFile(filepath.Join(mounts[0].Source, "file")); err != nil || string(b) != "kept" {
		t.Errorf("file in the local volume: got %q, %v", b, err)
	}
	if _, err := os.Stat(filepath.Join(mounts[1].Source, "file")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("file in the ephemeral volume: got %v, want none", err)
	}
	release(t, m, at(2))
}

func TestFullVolumeHasNoSpaceLeft(t *testing.T) {
	m := open(t, newDir(t))
	mounts := prepare(t, m, at(1), data, scratch)
	f, err := os.Create(filepath.Join(mounts[0].Source, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, err := io.Copy(f, io.LimitReader(zeros{}, 64<<20))
	if !errors.Is(err, syscall.ENOSPC) || n < 8<<20 || n > 16<<20 {
		t.Errorf("write: got %d bytes and %v, want at most 16 MiB and ENOSPC", n, err)
	}
	if err := os.WriteFile(filepath.Join(mounts[1].Source, "file"), make([]byte, 1<<20), 0o600); err != nil {
		t.Errorf("write to another volume: %v", err)
	}
	_ = f.Close()
	release(t, m, at(1))
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestVolumeIsForOnePlacementAtATime(t *testing.T) {
	m := open(t, newDir(t))
	prepare(t, m, at(2), data)
	start(t, m, at(2))
	for _, epoch := range []api.Epoch{1, 3} {
		_, err := m.Prepare(t.Context(), at(epoch), []api.Volume{data})
		if !errors.Is(err, api.ErrConflict) || runtime.Reason(err) != api.ReasonVolume {
			t.Errorf("Prepare for epoch %d while epoch 2 has it: got %v, want ErrConflict", epoch, err)
		}
	}
	if err := m.Delete(owner.Volume("data")); !errors.Is(err, api.ErrConflict) {
		t.Errorf("Delete while it is mounted: got %v, want ErrConflict", err)
	}
	release(t, m, at(2))
	larger := data
	larger.SizeMB = 32
	if _, err := m.Prepare(t.Context(), at(3), []api.Volume{larger}); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "16 MiB") {
		t.Errorf("Prepare with another size: got %v, want ErrConflict", err)
	}
	prepare(t, m, at(3), data)
	release(t, m, at(3))
	for range 2 {
		if err := m.Delete(owner.Volume("data")); err != nil {
			t.Errorf("Delete: %v", err)
		}
	}
	if got := m.List(); len(got) > 0 {
		t.Errorf("volumes after Delete: got %+v, want none", got)
	}
}

// TestOnlyItsOwnerGetsAVolume tries instances of another tenant, application and number, and a record
// that was copied to the directory of another volume.
func TestOnlyItsOwnerGetsAVolume(t *testing.T) {
	dir := newDir(t)
	m := open(t, dir)
	mine := prepare(t, m, at(1), data)[0].Source
	start(t, m, at(1))
	release(t, m, at(1))
	for _, other := range []api.InstanceID{"evil/shop.prod.db.v1#0", "acme/lab/shop.prod.db.v1#0", "acme/shop.prod.db.v1#1", "acme/shop.prod.db.v2#0"} {
		k := wire.Key{Instance: other, Epoch: 9}
		if got := prepare(t, m, k, data)[0].Source; got == mine {
			t.Errorf("%s has the volume of %s", other, owner)
		}
		release(t, m, k)
	}
	stranger := record{Type: api.VolumeLocal, Instance: "evil/shop.prod.db.v1#0", Name: "data", SizeMB: 16, Used: 1}
	text, err := os.ReadFile(filepath.Join(dir, record{Type: api.VolumeLocal, Instance: owner, Name: "data"}.name(), recordFile))
	if err != nil {
		t.Fatal(err)
	}
	fake := filepath.Join(dir, stranger.name())
	if err := os.Mkdir(fake, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(fake, recordFile), text, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := open(t, dir).List(); len(got) != 1 || got[0].ID != owner.Volume("data") {
		t.Errorf("volumes with a copied record: got %+v, want that of %s alone", got, owner)
	}
}

// TestLinksInAVolumeStayInIt creates links out of the volume, as a container may.
func TestLinksInAVolumeStayInIt(t *testing.T) {
	dir := newDir(t)
	outside := filepath.Join(filepath.Dir(dir), "outside")
	if err := os.WriteFile(outside, []byte("safe"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := open(t, dir)
	source := prepare(t, m, at(1), data)[0].Source
	start(t, m, at(1))
	for i, target := range []string{"/", "..", "../..", outside} {
		if err := os.Symlink(target, filepath.Join(source, fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	release(t, m, at(1))
	if err := m.Delete(owner.Volume("data")); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(outside); err != nil || string(b) != "safe" {
		t.Errorf("file outside the volume: got %q, %v", b, err)
	}
}

func TestVolumeThatWasNeverUsedIsDeleted(t *testing.T) {
	dir := newDir(t)
	m := open(t, dir)
	prepare(t, m, at(1), data)
	if got := m.List(); len(got) > 0 {
		t.Errorf("volumes before a start: got %+v, want none", got)
	}
	release(t, m, at(1))
	if left := entries(t, dir); len(left) > 0 {
		t.Errorf("left on disk: %v", left)
	}
}

// TestNothingIsLeftAfterACrash leaves what an engine leaves that is killed at any point.
func TestNothingIsLeftAfterACrash(t *testing.T) {
	dir := newDir(t)
	m := open(t, dir)
	kept := prepare(t, m, at(1), data, scratch)
	start(t, m, at(1))
	if err := os.WriteFile(filepath.Join(kept[1].Source, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	gone := wire.Key{Instance: "acme/shop.prod.db.v1#1", Epoch: 1}
	prepare(t, m, gone, data, scratch)
	start(t, m, gone)
	never := wire.Key{Instance: "acme/shop.prod.db.v1#2", Epoch: 1}
	prepare(t, m, never, data, scratch)
	// Killed while it creates a volume, and while it deletes one.
	for _, prefix := range []string{newPrefix, oldPrefix} {
		half := filepath.Join(dir, prefix+"half")
		if err := os.Mkdir(half, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := format(t.Context(), half, 16); err != nil {
			t.Fatal(err)
		}
		if err := attach(half); err != nil {
			t.Fatal(err)
		}
	}
	mounted(t, dir, 8)

	m = open(t, dir)
	mounted(t, dir, 6)
	m.Sweep([]wire.Key{at(1)})
	mounted(t, dir, 2)
	if left := entries(t, dir); len(left) != 3 {
		t.Errorf("left on disk: got %v, want two volumes of %s and the local one of %s", left, owner, gone.Instance)
	}
	if again := prepare(t, m, at(1), data, scratch); again[0] != kept[0] || again[1] != kept[1] {
		t.Errorf("mounts after the crash: got %+v, want %+v", again, kept)
	}
	mounted(t, dir, 2)
	if _, err := os.Stat(filepath.Join(kept[1].Source, "file")); err != nil {
		t.Errorf("file of the workload that goes on: %v", err)
	}
	// A sweep does not touch what this process prepared.
	prepare(t, m, gone, data)
	m.Sweep(nil)
	mounted(t, dir, 3)
	release(t, m, gone)
	release(t, m, at(1))
}

func TestStartMountsTheVolumesOfARestartedMachine(t *testing.T) {
	dir := newDir(t)
	m := open(t, dir)
	source := prepare(t, m, at(1), data)[0].Source
	start(t, m, at(1))
	if err := os.WriteFile(filepath.Join(source, "file"), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range entries(t, dir) {
		if err := detach(filepath.Join(dir, name)); err != nil { // as a restart of the machine does
			t.Fatal(err)
		}
	}
	m = open(t, dir)
	m.Sweep([]wire.Key{at(1)})
	if changed, err := m.Started(at(1)); err != nil || changed {
		t.Errorf("Started after a restart: got %v, %v, want no change", changed, err)
	}
	if b, err := os.ReadFile(filepath.Join(source, "file")); err != nil || !bytes.Equal(b, []byte("kept")) {
		t.Errorf("file: got %q, %v", b, err)
	}
	release(t, m, at(1))
}

func TestDiskThatIsFullIsReported(t *testing.T) {
	m := open(t, newDir(t))
	huge := data
	huge.SizeMB = api.MaxVolumeMB
	if _, err := m.Prepare(t.Context(), at(1), []api.Volume{huge}); runtime.Reason(err) != api.ReasonDiskFull {
		t.Errorf("Prepare of %d MiB: got %v, want %s", huge.SizeMB, err, api.ReasonDiskFull)
	}
	if left := entries(t, m.dir); len(left) > 0 {
		t.Errorf("left on disk: %v", left)
	}
	if err := m.Release(at(1)); err != nil {
		t.Error(err)
	}
}

func TestMachineWithoutMkfsSupportsMemoryOnly(t *testing.T) {
	dir := newDir(t)
	t.Setenv("PATH", "/nonexistent")
	m, err := Open(context.Background(), dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Types(); len(got) != 1 || got[0] != api.VolumeTmpfs {
		t.Errorf("types without mkfs.ext4: got %v, want %s", got, api.VolumeTmpfs)
	}
	if _, err := m.Prepare(t.Context(), at(1), []api.Volume{data}); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("Prepare: got %v, want ErrUnavailable", err)
	}
}

func TestVolumesOfOneTenantLeaveRoomForOthers(t *testing.T) {
	m := &Manager{volumes: map[string]*volume{}}
	service := func(tenant string) api.ServiceID { return api.ServiceID(tenant + "/shop.prod.db.v1") }
	fill := func(tenant string) (n int, err error) {
		for ; err == nil && n < api.MaxNodeVolumes; n++ {
			_, err = m.entry(record{Type: api.VolumeLocal, Instance: service(tenant).Instance(n), Name: "data"})
		}
		return n - 1, err
	}
	for _, tenant := range []string{"loud/a", "b", "c", "d"} {
		if n, err := fill(tenant); !errors.Is(err, api.ErrFull) || n != api.MaxNodeVolumes/4 {
			t.Errorf("volumes of %s: got %d, %v, want %d", tenant, n, err, api.MaxNodeVolumes/4)
		}
	}
	if n, err := fill("loud/b"); !errors.Is(err, api.ErrFull) || n != 0 {
		t.Errorf("more volumes of loud: got %d, %v, want none", n, err)
	}
	if _, err := m.entry(record{Type: api.VolumeLocal, Instance: service("b").Instance(0), Name: "data"}); err != nil {
		t.Errorf("a volume that exists: %v", err)
	}
}

// TestVolumeIsNotAttachedTwice unmounts and mounts a volume while a copy of its mount exists in another
// mount namespace, as when a container is being created.
func TestVolumeIsNotAttachedTwice(t *testing.T) {
	m := open(t, newDir(t))
	source := prepare(t, m, at(1), data)[0].Source
	start(t, m, at(1))
	other := exec.Command("cat")
	other.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	stdin, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(filepath.Dir(filepath.Dir(source)), imageFile)
	device := func() string {
		f, err := loopOf(image)
		if err != nil || f == nil {
			t.Fatalf("loop device of the volume: got %v, %v", f, err)
		}
		defer f.Close()
		return f.Name()
	}
	first := device()
	for epoch := range api.Epoch(3) {
		if err := os.WriteFile(filepath.Join(source, fmt.Sprint(epoch)), make([]byte, 1<<16), 0o600); err != nil {
			t.Fatal(err)
		}
		release(t, m, at(epoch+1))
		prepare(t, m, at(epoch+2), data)
		if now := device(); now != first {
			t.Errorf("device after it was mounted again: got %s, want %s, which the copy uses", now, first)
		}
	}
	release(t, m, at(4))
	if err := errors.Join(stdin.Close(), other.Wait()); err != nil {
		t.Error(err)
	}
	prepare(t, m, at(5), data)
	if found, _ := filepath.Glob(filepath.Join(source, "*")); len(found) != 3 {
		t.Errorf("files: got %v, want three", found)
	}
	release(t, m, at(5))
}

func TestLayerIsEmptyForEachAttempt(t *testing.T) {
	dir := newDir(t)
	m := open(t, dir)
	last := ""
	for _, attempt := range []int{0, 0, 1} {
		layer, err := m.Layer(t.Context(), at(1), attempt, 1)
		if err != nil {
			t.Fatal(err)
		}
		left, _ := filepath.Glob(filepath.Join(layer, "*"))
		if want := layer == last; (len(left) > 0) != want {
			t.Errorf("files in the layer of attempt %d: got %v", attempt, left)
		}
		if err := os.WriteFile(filepath.Join(layer, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		last = layer
	}
	start(t, m, at(1))
	if got := m.List(); len(got) > 0 {
		t.Errorf("local volumes: got %+v, want none", got)
	}
	release(t, m, at(1))
	if left := entries(t, dir); len(left) > 0 {
		t.Errorf("left on disk: %v", left)
	}
}
