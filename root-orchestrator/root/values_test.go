package root

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root/values"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

func (w *world) put(create bool, version string) {
	w.t.Helper()
	w.must(PutValues{
		Kind: api.KindSecret, ID: "acme/db", Create: create, Digest: version, Sealed: []byte(version),
		Keys: []api.ValueKey{{Name: "password", Bytes: 8}}, By: "alice",
	})
}

func withSecret(change api.OnChange) func(*api.Microservice) {
	return func(m *api.Microservice) {
		m.Files = []api.File{{Path: "/etc/db", Secret: "db", OnChange: change}}
	}
}

// versions returns the versions of the secret that a cluster was told, by instance.
func (tw *twin) versions(n int) (out []uint64) {
	for i := range n {
		for _, r := range tw.want[web.Instance(i)].Values {
			out = append(out, r.Version)
		}
	}
	return out
}

func TestAChangeReachesRunningInstancesInPlace(t *testing.T) {
	w := newWorld(t, "a")
	w.twins["a"].features = []string{api.FeatureFiles}
	w.settle()
	w.put(true, "one")
	w.apply(3, withSecret(api.ChangeIgnored))
	w.settle()
	before := w.twins["a"].want[web.Instance(0)]
	if got := w.twins["a"].versions(3); !slices.Equal(got, []uint64{1, 1, 1}) || w.running() != 3 {
		t.Fatalf("versions are %v and %d run, want version 1 on three", got, w.running())
	}
	w.put(false, "two")
	w.settle()
	after := w.twins["a"].want[web.Instance(0)]
	if got := w.twins["a"].versions(3); !slices.Equal(got, []uint64{2, 2, 2}) {
		t.Errorf("versions are %v, want 2", got)
	}
	if after.Epoch != before.Epoch || after.SpecRev != before.SpecRev {
		t.Errorf("epoch %s and revision %d, want %s and %d: nothing restarts", after.Epoch, after.SpecRev, before.Epoch, before.SpecRev)
	}
	w.checkBooks()
	w.restart()
	w.settle()
	w.checkBooks()
	if got := w.twins["a"].versions(3); !slices.Equal(got, []uint64{2, 2, 2}) {
		t.Errorf("after a restart of the root versions are %v, want 2", got)
	}
}

func TestAChangeThatRestartsGoesOneByOne(t *testing.T) {
	w := newWorld(t, "a")
	w.twins["a"].features = []string{api.FeatureFiles}
	w.settle()
	w.put(true, "one")
	w.apply(3, withSecret(api.ChangeRestarts))
	w.settle()
	w.twins["a"].slow = true // new placements do not run yet
	w.put(false, "two")
	w.settle()
	count := func() (old, fresh int) {
		for _, v := range w.twins["a"].versions(3) {
			if v == 1 {
				old++
			} else {
				fresh++
			}
		}
		return old, fresh
	}
	if old, fresh := count(); fresh > 1 || old < 2 {
		t.Errorf("%d instances have the new version and %d the old one while the first restarts, want at most one", fresh, old)
	}
	w.twins["a"].slow = false
	for range 6 {
		w.settle()
	}
	if old, _ := count(); old > 0 || w.running() != 3 {
		t.Errorf("%d instances have the old version and %d run, want none and 3", old, w.running())
	}
	w.checkBooks()
}

// A crash after the new version was saved, and before the instances were changed.
func TestAChangeIsCompletedAfterACrash(t *testing.T) {
	for _, change := range []api.OnChange{api.ChangeIgnored, api.ChangeRestarts} {
		w := newWorld(t, "a")
		w.twins["a"].features = []string{api.FeatureFiles}
		w.settle()
		w.put(true, "one")
		w.apply(2, withSecret(change))
		w.settle()
		eff := w.c.Step(w.now, PutValues{
			Kind: api.KindSecret, ID: "acme/db", Digest: "two", Sealed: []byte("two"), Keys: []api.ValueKey{{Name: "password", Bytes: 8}},
		})
		i := slices.IndexFunc(eff.Save, func(d store.Doc) bool { return d.Kind == KindValues })
		w.save(eff.Save[:i+1])
		w.restart()
		for range 6 {
			w.settle()
		}
		if got := w.twins["a"].versions(2); !slices.Equal(got, []uint64{2, 2}) || w.running() != 2 {
			t.Errorf("on_change %q: versions are %v and %d run, want 2 on both", change, got, w.running())
		}
		w.checkBooks()
	}
}

func TestAValueIsForClustersThatHaveItsInstances(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.twins["a"].features = []string{api.FeatureFiles}
	w.settle()
	w.put(true, "one")
	w.apply(1, withSecret(""))
	w.settle()
	want := wire.WantValue{Tenant: "acme", Kind: api.KindSecret, Name: "db", Version: 1}
	if sealed, ok := w.c.ValueFor("a", want); !ok || string(sealed) != "one" {
		t.Errorf("the cluster with the instance gets %q, %v", sealed, ok)
	}
	for name, hostile := range map[string]struct {
		at   api.ClusterID
		want wire.WantValue
	}{
		"another cluster": {"b", want},
		"no cluster":      {"c", want},
		"another tenant":  {"a", wire.WantValue{Tenant: "evil", Kind: api.KindSecret, Name: "db", Version: 1}},
		"another kind":    {"a", wire.WantValue{Tenant: "acme", Kind: api.KindConfig, Name: "db", Version: 1}},
		"another version": {"a", wire.WantValue{Tenant: "acme", Kind: api.KindSecret, Name: "db", Version: 2}},
	} {
		if _, ok := w.c.ValueFor(hostile.at, hostile.want); ok {
			t.Errorf("%s gets the secret", name)
		}
	}
	w.must(DeleteApp{App: shop})
	w.settle()
	if _, ok := w.c.ValueFor("a", want); ok {
		t.Error("the cluster gets the secret after the application was deleted")
	}
}

func TestAnUnknownSecretIsRefused(t *testing.T) {
	w := newWorld(t, "a")
	err := w.do(Apply{Tenant: "acme", Spec: application(1, withSecret(""))}).Err
	if !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), "treeline create secret db") {
		t.Errorf("apply with a secret that does not exist: %v, want ErrInvalid and how to create it", err)
	}
	if _, err := w.c.Plan(w.now, "acme", []api.Application{application(1, withSecret(""))}, nil); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("plan it: %v, want ErrInvalid", err)
	}
	w.put(true, "one")
	w.apply(1, withSecret(""))
	k := values.Key{Kind: api.KindSecret, ID: "acme/db"}
	if err := w.do(DeleteValues{Key: k}).Err; !errors.Is(err, api.ErrConflict) {
		t.Errorf("delete a secret in use: %v, want ErrConflict", err)
	}
}

// A cluster of an earlier release reports no features and would ignore files.
func TestClustersOfEarlierReleasesGetNoFiles(t *testing.T) {
	w := newWorld(t, "a")
	w.put(true, "one")
	w.apply(1, withSecret(""))
	w.settle()
	why, _ := w.c.Why(web.Instance(0), w.now)
	if w.on("a") > 0 || why.Root.Nearest == nil || why.Root.Nearest.Constraint != sched.ConstraintFeatures {
		t.Errorf("the cluster has %d instances, %+v; want none because of %s", w.on("a"), why.Root, sched.ConstraintFeatures)
	}
	w.twins["a"].features = []string{api.FeatureFiles}
	w.settle()
	if w.running() != 1 {
		t.Errorf("after the upgrade %d run, want 1", w.running())
	}
}
