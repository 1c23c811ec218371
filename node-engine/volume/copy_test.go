package volume

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/treecopy"
	"github.com/treeline-edge/treeline/internal/wire"
)

// pass copies the volume of a placement from one node to another one, as a cluster does.
func pass(t *testing.T, from, to *Manager, k wire.Key, final bool) (treecopy.Sum, error) {
	t.Helper()
	a, source := net.Pipe()
	b, target := net.Pipe()
	ended := make(chan struct{}, 2)
	go func() {
		_, _ = from.Send(t.Context(), k, data.Name, final, a, func(error) { a.Close() })
		a.Close()
		ended <- struct{}{}
	}()
	go func() {
		_, _ = to.Receive(t.Context(), k, data.Name, data.SizeMB, final, b, nil)
		b.Close()
		ended <- struct{}{}
	}()
	sum, err := treecopy.Relay(t.Context(), source, target, time.Minute, nil)
	<-ended
	<-ended
	return sum, err
}

func mustPass(t *testing.T, from, to *Manager, k wire.Key, final bool) treecopy.Sum {
	t.Helper()
	sum, err := pass(t, from, to, k, final)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// synced writes a file and waits until it is on the disk.
func synced(t *testing.T, path, content string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		_, err = f.WriteString(content)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestAVolumeMoves also checks that it can be repeated from any point, and that neither node gives an earlier
// placement the volume.
func TestAVolumeMoves(t *testing.T) {
	dirA, dirB := newDir(t), newDir(t)
	a, b := open(t, dirA), open(t, dirB)
	in := prepare(t, a, at(1), data)[0].Source
	start(t, a, at(1))
	synced(t, filepath.Join(in, "log"), "before")
	synced(t, filepath.Join(in, "large"), strings.Repeat("x", 1<<20))

	first := mustPass(t, a, b, at(1), false)
	if len(b.List()) != 0 {
		t.Errorf("the target lists %v before it has the volume", b.List())
	}
	synced(t, filepath.Join(in, "log"), "after!") // of the same length
	if _, err := pass(t, a, b, at(1), true); !errors.Is(err, api.ErrConflict) {
		t.Errorf("the last pass while a placement has the volume: got %v, want ErrConflict", err)
	}
	release(t, a, at(1))
	b = open(t, dirB) // the engine of the target was killed
	last := mustPass(t, a, b, at(1), true)
	if first.Sent < 1<<20 || last.Sent > 64<<10 {
		t.Errorf("sent %d and %d bytes, want all and then one block", first.Sent, last.Sent)
	}
	a, b = open(t, dirA), open(t, dirB)
	mustPass(t, a, b, at(1), true) // the cluster has not received the result

	if _, err := a.Prepare(t.Context(), at(1), []api.Volume{data}); !errors.Is(err, api.ErrConflict) {
		t.Errorf("the source gives the earlier placement the volume: %v", err)
	}
	want := api.NodeVolume{ID: owner.Volume(data.Name), SizeMB: data.SizeMB, Epoch: 1}
	if has := b.List(); len(has) != 1 || has[0] != want {
		t.Fatalf("the target lists %v, want %v", has, want)
	}
	in = prepare(t, b, at(2), data)[0].Source
	start(t, b, at(2))
	if got := read(t, filepath.Join(in, "log")); got != "after!" {
		t.Errorf("the target has %q, want what was written between the passes", got)
	}
	if _, err := pass(t, a, b, at(1), true); !errors.Is(err, api.ErrConflict) {
		t.Errorf("a late pass into a volume in use: got %v, want ErrConflict", err)
	}
	for range 2 {
		if _, err := a.Discard(at(1), data.Name); err != nil || len(a.List()) != 0 {
			t.Errorf("discard at the source: %v, it has %v", err, a.List())
		}
	}
	if changed, err := b.Discard(at(1), data.Name); err != nil || changed || len(b.List()) != 1 {
		t.Errorf("discard at the target, which has used the volume: got %v, %v and %v, want no change", changed, err, b.List())
	}
	release(t, b, at(2))
	// And back, by another move.
	mustPass(t, b, a, at(2), false)
	mustPass(t, b, a, at(2), true)
	in = prepare(t, a, at(3), data)[0].Source
	if got := read(t, filepath.Join(in, "log")); got != "after!" {
		t.Errorf("after the way back it has %q", got)
	}
	release(t, a, at(3))
}

// TestAnEndedMoveLeavesNothing: the instance goes on at the source.
func TestAnEndedMoveLeavesNothing(t *testing.T) {
	dirA, dirB := newDir(t), newDir(t)
	a, b := open(t, dirA), open(t, dirB)
	in := prepare(t, a, at(1), data)[0].Source
	start(t, a, at(1))
	synced(t, filepath.Join(in, "log"), "here")
	release(t, a, at(1))
	mustPass(t, a, b, at(1), false)
	mustPass(t, a, b, at(1), true)
	if _, err := b.Discard(at(1), data.Name); err != nil {
		t.Fatal(err)
	}
	mustPass(t, a, b, at(1), false)
	b = open(t, dirB)
	if _, err := b.Discard(at(1), data.Name); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dirB); err != nil || len(left) != 1 { // the mark of the trial
		t.Errorf("the target has %v, %v", left, err)
	}
	in = prepare(t, a, at(2), data)[0].Source
	if got := read(t, filepath.Join(in, "log")); got != "here" {
		t.Errorf("the source has %q", got)
	}
	if changed, err := a.Discard(at(1), data.Name); changed || err == nil {
		t.Errorf("discard of a volume that a later placement has: %v, %v, want an error", changed, err)
	}
	start(t, a, at(2))
	release(t, a, at(2))
	if changed, err := a.Discard(at(1), data.Name); changed || err != nil || len(a.List()) != 1 {
		t.Errorf("a late discard: %v, %v, want no change", changed, err)
	}
}

// TestAReleaseEndsTheFirstPass: a stop does not wait until a slow target has everything.
func TestAReleaseEndsTheFirstPass(t *testing.T) {
	m := open(t, newDir(t))
	in := prepare(t, m, at(1), data)[0].Source
	start(t, m, at(1))
	synced(t, filepath.Join(in, "large"), strings.Repeat("x", 1<<20))
	a, far := net.Pipe()
	sent := make(chan error, 1)
	go func() {
		_, err := m.Send(t.Context(), at(1), data.Name, false, a, func(error) { a.Close() })
		sent <- err
	}()
	if _, err := io.ReadFull(far, make([]byte, 1)); err != nil { // and no more
		t.Fatal(err)
	}
	release(t, m, at(1))
	if err := <-sent; !errors.Is(err, errReleased) {
		t.Errorf("got %v, want that its instance has ended", err)
	}
}

// TestASealThatWasInterruptedIsCompleted: the engine was killed between the record and the rename.
func TestASealThatWasInterruptedIsCompleted(t *testing.T) {
	dirA, dirB := newDir(t), newDir(t)
	a, b := open(t, dirA), open(t, dirB)
	in := prepare(t, a, at(1), data)[0].Source
	start(t, a, at(1))
	synced(t, filepath.Join(in, "log"), "here")
	release(t, a, at(1))
	mustPass(t, a, b, at(1), true)
	name := record{Type: api.VolumeLocal, Instance: owner, Name: data.Name}.name()
	if err := os.Rename(filepath.Join(dirB, name), filepath.Join(dirB, record{Type: incomingType, Instance: owner, Name: data.Name, Epoch: 1}.name())); err != nil {
		t.Fatal(err)
	}
	b = open(t, dirB)
	if len(b.List()) != 1 {
		t.Errorf("the target lists %v, want the volume", b.List())
	}
	mustPass(t, a, b, at(1), true)
}

// TestHostileCopies: a source cannot replace a volume that is in use or newer, fill the disk, or leave the volume.
func TestHostileCopies(t *testing.T) {
	dirA, dirB := newDir(t), newDir(t)
	a, b := open(t, dirA), open(t, dirB)
	in := prepare(t, a, at(1), data)[0].Source
	start(t, a, at(1))
	synced(t, filepath.Join(in, "log"), "old")
	release(t, a, at(1))
	in = prepare(t, b, at(5), data)[0].Source
	start(t, b, at(5))
	synced(t, filepath.Join(in, "log"), "new")
	if _, err := pass(t, a, b, at(9), true); !errors.Is(err, api.ErrConflict) {
		t.Errorf("into a volume that a placement has: got %v, want ErrConflict", err)
	}
	release(t, b, at(5))
	if _, err := pass(t, a, b, at(1), true); !errors.Is(err, api.ErrConflict) {
		t.Errorf("into a newer volume: got %v, want ErrConflict", err)
	}
	if _, err := pass(t, b, a, at(4), true); !errors.Is(err, api.ErrConflict) {
		t.Errorf("of a later placement than the one that moves: got %v, want ErrConflict", err)
	}
	if _, err := pass(t, a, open(t, newDir(t)), wire.Key{Instance: "other/shop.prod.db.v1#0", Epoch: 1}, true); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("of another tenant: got %v, want ErrNotFound", err)
	}
	// A volume that is larger at the source than it says.
	large := data
	large.Name, large.SizeMB = "data", 32
	c := open(t, newDir(t))
	in = prepare(t, c, at(1), large)[0].Source
	start(t, c, at(1))
	synced(t, filepath.Join(in, "log"), strings.Repeat("x", 20<<20))
	release(t, c, at(1))
	dirD := newDir(t)
	d := open(t, dirD)
	if _, err := pass(t, c, d, at(1), true); !errors.Is(err, api.ErrFull) || len(d.List()) != 0 {
		t.Errorf("more than the size of the volume: got %v and %v, want ErrFull and no volume", err, d.List())
	}
	images, _ := filepath.Glob(filepath.Join(dirD, "*", imageFile))
	for _, path := range images {
		if info, err := os.Stat(path); err != nil || info.Size() > data.SizeMB<<20 {
			t.Errorf("%s has %v bytes, %v, want the %d MiB of the volume", path, info.Size(), err, data.SizeMB)
		}
	}
	in = prepare(t, b, at(6), data)[0].Source
	if got := read(t, filepath.Join(in, "log")); got != "new" {
		t.Errorf("the newer volume has %q", got)
	}
	release(t, b, at(6))
}

// TestCopiesOfOneTenantLeaveRoomForOthers: those that do not go on.
func TestCopiesOfOneTenantLeaveRoomForOthers(t *testing.T) {
	m := open(t, newDir(t))
	receive := func(id api.InstanceID) (io.Closer, chan error) {
		near, far := net.Pipe()
		got := make(chan error, 1)
		begun := make(chan struct{}, 1)
		go func() { _, _ = io.Copy(io.Discard, far) }()
		go func() {
			_, err := m.Receive(t.Context(), wire.Key{Instance: id, Epoch: 1}, "data", 16, false, near, func(context.Context) error {
				begun <- struct{}{}
				return nil
			})
			got <- err
		}()
		select {
		case <-begun:
		case err := <-got:
			got <- err
		}
		return far, got
	}
	var closers []io.Closer
	var results []chan error
	for _, n := range []api.InstanceID{"acme/a.a.a.a#0", "acme/a.a.a.a#1", "acme/a.a.a.a#2", "other/a.a.a.a#0"} {
		c, got := receive(n)
		closers, results = append(closers, c), append(results, got)
	}
	if err := <-results[2]; !errors.Is(err, api.ErrTooMany) {
		t.Errorf("the third copy of a tenant: got %v, want ErrTooMany", err)
	}
	for i, c := range closers {
		c.Close()
		if i != 2 {
			if err := <-results[i]; !errors.Is(err, api.ErrUnavailable) {
				t.Errorf("copy %d: got %v, want that its stream has ended", i, err)
			}
		}
	}
}
