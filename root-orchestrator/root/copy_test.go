package root

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// answers returns what a core or a copy of its documents answers, as JSON. Only the core knows which clusters report,
// apart from the lost ones.
func answers(t testing.TB, s *state) string {
	t.Helper()
	instances := s.Instances("")
	for i := range instances {
		if instances[i].Stale && instances[i].Reason != api.ReasonClusterLost {
			instances[i].Stale = false
		}
	}
	history := map[api.ServiceID]api.RollOutHistory{}
	for _, v := range s.Services("") {
		history[v.ID], _ = s.RollOutHistory(v.ID)
	}
	text, err := json.MarshalIndent([]any{s.Apps(""), s.Services(""), instances, history}, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// checkCopy compares the answers of the core, of a copy that adopted each save, and of one that adopts what is stored
// now. Tests that go through random histories and crashes call it after each step.
func (w *world) checkCopy() {
	w.t.Helper()
	want, whole := answers(w.t, &w.c.state), NewCopy()
	for _, d := range w.disk {
		if err := whole.Adopt(d); err != nil {
			w.t.Fatal(err)
		}
	}
	for what, c := range map[string]*Copy{"a copy that adopted each save": w.copy, "a copy of what is stored": whole} {
		if got := answers(w.t, &c.state); got != want {
			w.t.Fatalf("%s answers\n%s\nand the core\n%s", what, got, want)
		}
		if c.Revision() > w.c.Revision() {
			w.t.Fatalf("%s has revision %d, and the core %d", what, c.Revision(), w.c.Revision())
		}
		for _, id := range w.c.clusters.IDs() {
			if owner, ok := c.Owners()[id]; !ok || owner != w.c.clusters.Info(id).Tenant {
				w.t.Fatalf("%s gives cluster %s to %q, %t", what, id, owner, ok)
			}
		}
	}
}

// A list at a copy has a revision from which a watch at a core that was started since can go on.
func TestTheRevisionOfACopyReachesTheStartOfTheCore(t *testing.T) {
	for _, clusters := range [][]api.ClusterID{nil, {"a"}} {
		w := newWorld(t, clusters...)
		w.apply(2)
		w.settle()
		w.must(DeleteApp{App: shop})
		w.pass(10 * time.Second)
		for range 3 {
			floor := w.restored()
			if c := w.copy; c.Revision() > floor {
				t.Errorf("with %d clusters: the copy has revision %d, and the core starts with %d", len(clusters), c.Revision(), floor)
			}
			w.do(Start{})
			if c := w.copy; c.Revision() < floor || c.Revision() > w.c.Revision() {
				t.Errorf("with %d clusters: the copy has revision %d, want from %d to %d", len(clusters), c.Revision(), floor, w.c.Revision())
			}
		}
	}
}

// TestACopyForgetsWhatIsDeleted also when the application returns with other services.
func TestACopyForgetsWhatIsDeleted(t *testing.T) {
	w := newWorld(t, "a")
	w.apply(2)
	w.settle()
	other := application(1)
	other.Services[0].Name = "other"
	w.must(Apply{Tenant: "acme", Spec: other})
	w.settle()
	w.pass(10 * time.Second)
	w.checkCopy()
	w.must(DeleteApp{App: shop})
	w.pass(10 * time.Second)
	w.checkCopy()
	if n := len(w.copy.apps.Apps()) + len(w.copy.apps.Services()) + len(w.copy.apps.Instances()) + len(w.copy.rollouts.Services()); n != 0 {
		t.Errorf("the copy keeps %d objects of an installation without applications", n)
	}
}
