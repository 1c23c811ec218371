package csi

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/testbed/csidriver"
)

var (
	s0 = wire.Key{Instance: "acme/shop.prod.web.prod#0", Epoch: 7}
	s1 = wire.Key{Instance: "acme/shop.prod.web.prod#1", Epoch: 3}
)

func sharing(access string) []api.Volume {
	return []api.Volume{{Name: "data", Type: api.VolumeCSI, Driver: driverName, MountPath: "/data", SizeMB: 64, Access: access, ReadOnly: access == api.AccessManyReaders}}
}

func newSharedRig(t *testing.T, access string) *rig {
	r := newRig(t, time.Minute)
	r.access, r.uses = access, map[api.InstanceID]bool{}
	return r
}

// shares prepares the shared volume for a placement and returns where it is mounted.
func (r *rig) shares(k wire.Key) string {
	r.t.Helper()
	mounts, err := r.Prepare(r.t.Context(), k, sharing(r.access))
	if err != nil {
		r.t.Fatalf("prepare for %s: %v", k, err)
	}
	return mounts[0].Source
}

func (r *rig) releases(k wire.Key) {
	r.t.Helper()
	if err := r.Release(r.t.Context(), k); err != nil {
		r.t.Fatalf("release %s: %v", k, err)
	}
}

// counted fails the test unless the driver was called this often.
func (r *rig) counted(calls map[string]int) {
	r.t.Helper()
	for method, want := range calls {
		if got := r.server.Calls(method); got != want {
			r.t.Errorf("calls of %s: got %d, want %d", method, got, want)
		}
	}
}

// TestSharedVolumeIsStagedOnce: two instances on a node see the same files, the end of one leaves the other alone, and the
// last one unstages.
func TestSharedVolumeIsStagedOnce(t *testing.T) {
	r := newSharedRig(t, api.AccessManyWriters)
	defer r.work()()
	a, b := r.shares(s0), r.shares(s1)
	if err := os.WriteFile(filepath.Join(a, "page"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(b, "page")); err != nil || a == b {
		t.Errorf("what the first instance wrote to %s, seen by the second at %s: %v", a, b, err)
	}
	r.counted(map[string]int{"NodeStageVolume": 1, "NodePublishVolume": 2})
	r.releases(s0)
	r.counted(map[string]int{"NodeUnpublishVolume": 1, "NodeUnstageVolume": 0})
	if _, err := os.Stat(filepath.Join(b, "page")); err != nil {
		t.Errorf("the second instance after the end of the first: %v", err)
	}
	if err := r.Started(s1); err != nil {
		t.Error(err)
	}
	next := s1
	next.Epoch++
	r.releases(s1)
	r.shares(next) // a new version of the instance stages again
	r.releases(next)
	r.left()
	r.counted(map[string]int{"NodeStageVolume": 2, "NodeUnstageVolume": 2})
}

func TestSharedVolumeForReaders(t *testing.T) {
	r := newSharedRig(t, api.AccessManyReaders)
	defer r.work()()
	a := r.shares(s0)
	if err := os.WriteFile(filepath.Join(a, "page"), []byte("x"), 0o600); err == nil {
		t.Error("a reader wrote to the volume")
	}
	r.releases(s0)
	r.left()
}

// TestSharedVolumeAfterKill9: what the earlier process staged counts, for placements that go on and for those that do not.
func TestSharedVolumeAfterKill9(t *testing.T) {
	r := newSharedRig(t, api.AccessManyWriters)
	r.shares(s0)
	b := r.shares(s1)
	r.start()
	defer r.work()()
	r.Sweep([]wire.Key{s1}) // the workload of the first is gone
	deadline := time.Now().Add(30 * time.Second)
	for len(mountsUnder(t, r.dir)) != 2 {
		if time.Now().After(deadline) {
			t.Fatalf("mounts: got %v, want the stage and the second instance", mountsUnder(t, r.dir))
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err := os.WriteFile(filepath.Join(b, "page"), []byte("x"), 0o600); err != nil {
		t.Errorf("the second instance: %v", err)
	}
	r.counted(map[string]int{"NodeUnstageVolume": 0})
	r.releases(s1)
	r.left()
}

// TestSharedVolumeIsReleasedByAllAtOnce: exactly one of them unstages.
func TestSharedVolumeIsReleasedByAllAtOnce(t *testing.T) {
	r := newSharedRig(t, api.AccessManyWriters)
	defer r.work()()
	r.shares(s0)
	r.shares(s1)
	var g sync.WaitGroup
	for _, k := range []wire.Key{s0, s1} {
		g.Go(func() { r.releases(k) })
	}
	g.Wait()
	r.left()
	r.counted(map[string]int{"NodeUnstageVolume": 1})
}

// TestSharedVolumeFailures makes calls fail while another instance has the volume: it goes on, and nothing is left at last.
func TestSharedVolumeFailures(t *testing.T) {
	for _, method := range []string{"NodeUnpublishVolume", "NodeUnstageVolume"} {
		for name, f := range map[string]csidriver.Fault{"fails": {Code: codes.Internal}, "fails late": {Code: codes.Internal, Late: true}, "lies": {Lie: true}} {
			t.Run(method+" "+name, func(t *testing.T) {
				r := newSharedRig(t, api.AccessManyWriters)
				defer r.work()()
				r.shares(s0)
				b := r.shares(s1)
				r.server.Set(method, f)
				if err := r.Release(t.Context(), s0); (err == nil) != (method == "NodeUnstageVolume") {
					t.Errorf("release the first: %v", err)
				}
				if _, err := os.ReadDir(b); err != nil {
					t.Error(err)
				}
				if err := r.Release(t.Context(), s1); err == nil || !strings.Contains(err.Error(), method) {
					t.Errorf("release the second: got %v, want an error that names %s", err, method)
				}
				r.server.Set(method, csidriver.Fault{})
				r.releases(s0)
				r.releases(s1)
				r.left()
			})
		}
	}
}

// TestSharedVolumeOfAnotherHandle: a new volume of the same name is not staged over the earlier one, which an instance still has.
func TestSharedVolumeOfAnotherHandle(t *testing.T) {
	r := newSharedRig(t, api.AccessManyWriters)
	defer r.work()()
	r.shares(s0)
	attach := r.opt.Attach
	r.opt.Attach = func(ctx context.Context, w wire.WantVolume) (wire.VolumeAttached, error) {
		v, err := attach(ctx, w)
		v.Handle = "another"
		return v, err
	}
	if _, err := r.Prepare(t.Context(), s1, sharing(r.access)); !errors.Is(err, api.ErrConflict) {
		t.Errorf("prepare with another handle: got %v, want ErrConflict", err)
	}
	r.counted(map[string]int{"NodeStageVolume": 1, "NodePublishVolume": 1})
	r.releases(s1)
	r.releases(s0)
	r.left()
}
