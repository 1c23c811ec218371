package root

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/store"
)

// restore replaces the store by an older copy, as a restore from a snapshot does.
func (w *world) restore(old map[string]store.Doc) {
	w.t.Helper()
	data, err := json.Marshal(store.Restored{Taken: epoch, Restored: w.now})
	if err != nil {
		w.t.Fatal(err)
	}
	w.disk = maps.Clone(old)
	w.disk[store.KindRestored+"\x00"+store.KeyRestored] = store.Doc{Kind: store.KindRestored, Key: store.KeyRestored, Version: 1, Data: data}
	w.copy = NewCopy()
	for _, d := range w.disk {
		if err := w.copy.Adopt(d); err != nil {
			w.t.Fatal(err)
		}
	}
	w.restart()
}

// TestARestoredRootStopsNothingUnasked: what was created since the snapshot runs until an admin accepts the restore.
func TestARestoredRootStopsNothingUnasked(t *testing.T) {
	w := newWorld(t, "a", "b")
	old := maps.Clone(w.disk)
	w.apply(3)
	w.settle()
	runs := func() int { return len(w.twins["a"].has) + len(w.twins["b"].has) }
	if runs() != 3 {
		t.Fatalf("%d instances run, want 3", runs())
	}
	newest := w.c.Revision()
	w.restore(old)
	w.settle()
	w.pass(10 * time.Minute)
	w.restart()
	w.settle()
	if runs() != 3 {
		t.Fatalf("%d instances run after the restore, want 3", runs())
	}
	s := w.c.Restored()
	if !s.Held || len(s.Unknown) != 3 || len(s.Silent) != 0 || s.Unknown[0].Instance.Service() != web {
		t.Errorf("the state is %+v, want three unknown instances of %s", s, web)
	}
	if now := w.c.Revision(); now <= newest {
		t.Errorf("the revision is %d, and %d was used before the restore", now, newest)
	}
	w.must(AcceptRestored{By: "admin"})
	w.settle()
	if runs() != 0 || w.c.Restored().Held {
		t.Errorf("%d instances run after the restore is accepted, want none", runs())
	}
	if err := w.do(AcceptRestored{}).Err; !errors.Is(err, api.ErrConflict) {
		t.Errorf("accepted again: got %v, want ErrConflict", err)
	}
	w.restart()
	w.settle()
	w.pass(time.Minute)
	w.apply(1)
	w.settle()
	if runs() != 1 {
		t.Errorf("%d instances run, want the new one", runs())
	}
}

// TestARestoredRootKeepsNewerPlacements: instances that were placed again in their cluster since the snapshot go
// on, and those that are gone start under an epoch that was not used.
func TestARestoredRootKeepsNewerPlacements(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.apply(2)
	w.settle()
	old := maps.Clone(w.disk)
	at := w.record(web.Instance(0)).Cluster
	w.must(RemoveCluster{ID: at})
	delete(w.twins, at)
	w.settle()
	w.join(at, 10)
	other := api.ClusterID("a")
	if at == "a" {
		other = "b"
	}
	before := maps.Clone(w.twins[other].has)
	if w.running() != 2 || len(before) != 2 {
		t.Fatalf("%d run, %d of them in %s, want 2", w.running(), len(before), other)
	}
	used := w.record(web.Instance(0)).Epoch
	w.restore(old)
	w.settle()
	if !slices.Equal(slices.Sorted(maps.Keys(w.twins[other].has)), slices.Sorted(maps.Keys(before))) {
		t.Errorf("%s has %v, want %v until the restore is accepted", other, w.twins[other].has, before)
	}
	w.must(AcceptRestored{By: "admin"})
	w.settle()
	if w.running() != 2 {
		t.Errorf("%d instances run, want 2", w.running())
	}
	if now := w.record(web.Instance(0)).Epoch; now <= used {
		t.Errorf("the epoch is %s, and %s was used before", now, used)
	}
}
