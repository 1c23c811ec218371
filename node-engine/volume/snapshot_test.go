package volume

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
)

var dataID = owner.Volume("data")

// dataOf returns the directory of a volume that a placement has.
func dataOf(t *testing.T, m *Manager, epoch api.Epoch) string {
	t.Helper()
	source := prepare(t, m, at(epoch), data)[0].Source
	start(t, m, at(epoch))
	return source
}

func put(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o640); err != nil { //nolint:gosec // a test
		t.Fatal(err)
	}
}

func want(t *testing.T, dir, name, text string) {
	t.Helper()
	if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != text {
		t.Errorf("%s: got %q, %v, want %q", name, got, err, text)
	}
}

func TestSnapshotIsRestored(t *testing.T) {
	root := newDir(t)
	m := open(t, root)
	dir := dataOf(t, m, 1)
	put(t, dir, "a", "one")
	for _, err := range []error{
		os.Mkdir(filepath.Join(dir, "sub"), 0o750), os.Symlink("../a", filepath.Join(dir, "sub", "link")),
		os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "sub", "same")), os.Lchown(filepath.Join(dir, "a"), 7, 8),
		unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var kept bytes.Buffer
	if err := m.Snapshot(t.Context(), dataID, &kept); err != nil { // the placement goes on
		t.Fatal(err)
	}
	put(t, dir, "a", "two")
	put(t, dir, "b", "later")
	if err := m.Restore(t.Context(), dataID, bytes.NewReader(kept.Bytes())); !errors.Is(err, api.ErrConflict) {
		t.Errorf("restore while a placement has it: got %v, want a conflict", err)
	}
	release(t, m, at(1))
	if err := m.Restore(t.Context(), dataID, bytes.NewReader(kept.Bytes())); err != nil {
		t.Fatal(err)
	}
	if got := m.List(); len(got) != 1 || got[0].Epoch != 1 || got[0].SizeMB != data.SizeMB {
		t.Errorf("volumes after the restore: got %+v", got)
	}
	m = open(t, root)
	dir = dataOf(t, m, 2)
	want(t, dir, "a", "one")
	want(t, dir, "sub/link", "one")
	if _, err := os.Stat(filepath.Join(dir, "b")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file of after the snapshot: got %v, want that it is gone", err)
	}
	var a, same unix.Stat_t
	if err := errors.Join(unix.Stat(filepath.Join(dir, "a"), &a), unix.Stat(filepath.Join(dir, "sub/same"), &same)); err != nil {
		t.Fatal(err)
	}
	if a.Ino != same.Ino || a.Uid != 7 || a.Gid != 8 || a.Mode&0o777 != 0o640 {
		t.Errorf("file: got %+v and %+v, want one file of user 7 with two names", a, same)
	}
	release(t, m, at(2))
	mounted(t, root, 0)
}

// TestIncompleteSnapshotIsNotRestored: what a kill -9 leaves of a snapshot changes nothing.
func TestIncompleteSnapshotIsNotRestored(t *testing.T) {
	root := newDir(t)
	m := open(t, root)
	dir := dataOf(t, m, 1)
	put(t, dir, "a", strings.Repeat("one", 1000))
	var kept bytes.Buffer
	if err := m.Snapshot(t.Context(), dataID, &kept); err != nil {
		t.Fatal(err)
	}
	put(t, dir, "a", "two")
	release(t, m, at(1))
	end := bytes.LastIndex(kept.Bytes(), []byte(`"files":`))
	changed := bytes.Clone(kept.Bytes())
	changed[bytes.Index(changed, []byte("oneone"))] = 'x'
	for name, text := range map[string][]byte{
		"empty": nil, "of one block": kept.Bytes()[:512], "without its end": kept.Bytes()[:end-600], "cut in its end": kept.Bytes()[:end+4],
		"changed": changed, "no archive": []byte(strings.Repeat("x", 2048)),
	} {
		if err := m.Restore(t.Context(), dataID, bytes.NewReader(text)); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("restore a snapshot that is %s: got %v, want that it is invalid", name, err)
		}
	}
	if left := entries(t, root); len(left) != 1 {
		t.Errorf("left on disk: %v, want the volume", left)
	}
	want(t, dataOf(t, m, 2), "a", "two")
	release(t, m, at(2))
}

// forge returns an archive with a correct head and without an end.
func forge(t *testing.T, all iter.Seq[tar.Header]) *bytes.Buffer {
	t.Helper()
	forged := &bytes.Buffer{}
	w := tar.NewWriter(forged)
	head := []byte(`{"version":1}`)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: headName, Size: int64(len(head))})
	if err == nil {
		_, err = w.Write(head)
	}
	for h := range all {
		err = errors.Join(err, w.WriteHeader(&h))
	}
	if err != nil {
		t.Fatal(err)
	}
	return forged
}

// TestForgedSnapshotStaysInItsVolume: a tenant restores an archive that it made.
func TestForgedSnapshotStaysInItsVolume(t *testing.T) {
	root := newDir(t)
	m := open(t, root)
	dataOf(t, m, 1)
	release(t, m, at(1))
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600} }
	for name, all := range map[string][]tar.Header{
		"a name above":     {file("files/../../escaped")},
		"an absolute name": {file("/escaped")},
		"through a link":   {{Typeflag: tar.TypeSymlink, Name: "files/up", Linkname: "/tmp"}, file("files/up/escaped")},
		"a link above":     {{Typeflag: tar.TypeLink, Name: "files/up", Linkname: "files/../../../volume.json"}},
		"a device":         {{Typeflag: tar.TypeBlock, Name: "files/disk", Devmajor: 7}},
		"twice":            {file("files/a"), file("files/a")},
		"a deep name":      {file("files/" + strings.Repeat("a/", maxDepth+1) + "a")},
		"a long name":      {file("files/" + strings.Repeat("aaaaaaaaa/", maxName/10) + "a")},
	} {
		forged := forge(t, slices.Values(all))
		if err := m.Restore(t.Context(), dataID, forged); err == nil || strings.Contains(err.Error(), "not complete") {
			t.Errorf("restore %s: got %v, want that the entry is refused", name, err)
		}
	}
	if err := m.Restore(t.Context(), owner.Volume("other"), strings.NewReader("")); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("restore a volume that is not there: got %v, want not found", err)
	}
}

// TestFrozenVolumeIsThawedAfterACrash: the engine is killed while it copies a volume.
func TestFrozenVolumeIsThawedAfterACrash(t *testing.T) {
	root := newDir(t)
	m := open(t, root)
	dir := dataOf(t, m, 1)
	thaw, err := freeze(filepath.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	m = open(t, root)
	if err := thaw(); !errors.Is(err, unix.EINVAL) {
		t.Errorf("thaw after the engine has started again: got %v, want that it is not frozen", err)
	}
	put(t, dir, "a", "written") // would block while it is frozen
	m.Sweep(nil)
}

// endless is an endless content of a file.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestSnapshotLargerThanItsVolumeIsRefused(t *testing.T) {
	root := newDir(t)
	m := open(t, root)
	put(t, dataOf(t, m, 1), "a", "one")
	release(t, m, at(1))
	forged := forge(t, slices.Values([]tar.Header{{Typeflag: tar.TypeReg, Name: "files/bomb", Size: 1 << 40}}))
	if err := m.Restore(t.Context(), dataID, io.MultiReader(forged, endless{})); !errors.Is(err, api.ErrFull) {
		t.Errorf("restore a file of 1 TiB: got %v, want that it does not fit", err)
	}
	many := func(yield func(tar.Header) bool) {
		for i := range 1 << 14 { // the volume has 2^12 inodes
			if !yield(tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("files/%d", i)}) {
				return
			}
		}
	}
	if err := m.Restore(t.Context(), dataID, forge(t, many)); !errors.Is(err, api.ErrFull) {
		t.Errorf("restore more files than the volume can have: got %v, want that they do not fit", err)
	}
	if left := entries(t, root); len(left) != 1 {
		t.Errorf("left on disk: %v, want the volume", left)
	}
	want(t, dataOf(t, m, 2), "a", "one")
	release(t, m, at(2))
}

// TestPlacementGetsItsVolumeDuringARestore: a restore whose sender is slow does not keep the instance from
// starting, and then fails.
func TestPlacementGetsItsVolumeDuringARestore(t *testing.T) {
	m := open(t, newDir(t))
	put(t, dataOf(t, m, 1), "a", "one")
	var kept bytes.Buffer
	if err := m.Snapshot(t.Context(), dataID, &kept); err != nil {
		t.Fatal(err)
	}
	release(t, m, at(1))
	from, to := io.Pipe()
	restored := make(chan error, 1)
	go func() {
		err := m.Restore(t.Context(), dataID, from)
		_ = from.CloseWithError(err)
		restored <- err
	}()
	if _, err := to.Write(kept.Next(1024)); err != nil {
		t.Fatal(err)
	}
	put(t, dataOf(t, m, 2), "a", "two")
	if _, err := io.Copy(to, &kept); err != nil {
		t.Fatal(err)
	}
	_ = to.Close()
	if err := <-restored; !errors.Is(err, api.ErrConflict) {
		t.Errorf("restore: got %v, want a conflict", err)
	}
	release(t, m, at(2))
	want(t, dataOf(t, m, 3), "a", "two")
	release(t, m, at(3))
}

// TestSnapshotsOfOneTenantLeaveRoomForOthers: a tenant does not read the snapshots that it requests.
func TestSnapshotsOfOneTenantLeaveRoomForOthers(t *testing.T) {
	m := open(t, newDir(t))
	dataOf(t, m, 1)
	release(t, m, at(1))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error)
	begin := func() {
		from, to := io.Pipe()
		context.AfterFunc(ctx, func() { _ = from.CloseWithError(ctx.Err()) })
		go func() { ended <- m.Snapshot(ctx, dataID, to) }()
		if _, err := from.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	begin()
	begin()
	if err := m.Snapshot(t.Context(), dataID, io.Discard); !errors.Is(err, api.ErrTooMany) {
		t.Errorf("a third snapshot at once: got %v, want too many", err)
	}
	other := api.InstanceID("other/shop.prod.db.v1#0").Volume("data")
	if err := m.Snapshot(t.Context(), other, io.Discard); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("a snapshot of another tenant: got %v, want that it is not refused for its number", err)
	}
	cancel()
	for range 2 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("a snapshot whose reader left: got %v, want that it ends", err)
		}
	}
	if err := m.Snapshot(t.Context(), dataID, io.Discard); err != nil {
		t.Errorf("a snapshot afterwards: %v", err)
	}
}
