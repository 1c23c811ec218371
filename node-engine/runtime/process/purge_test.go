package process

import (
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/runtimetest"
)

// TestPurge checks that no process, control group, file or log of any workload is left.
func TestPurge(t *testing.T) {
	programtest.NeedRoot(t)
	cfg := testConfig(t)
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	program := runtimetest.Program(t)
	var keys []wire.Key
	for i, start := range []bool{true, false} {
		k := wire.Key{Instance: api.ServiceID("t/a.d.s.d").Instance(i), Epoch: 1}
		keys = append(keys, k)
		if err := r.Create(t.Context(), runtime.Workload{Key: k, Attempt: 1, Spec: spec(program)("sleep")}); err != nil {
			t.Fatal(err)
		}
		if start {
			if err := r.Start(t.Context(), k); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 2 { // as after a crash
		if err := runtime.Purge(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		for _, k := range keys {
			if all := left(t, cfg, k); len(all) > 0 {
				t.Errorf("left of %s: got %v, want nothing", k, all)
			}
		}
	}
	err = filepath.WalkDir(cfg.StateDir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			t.Errorf("file %s is left, want none", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
