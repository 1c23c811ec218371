package applications

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	shop = api.AppID("acme/shop.prod")
	web  = api.ServiceID("acme/shop.prod.web.prod")
)

// shopOf is a Machine with one application of one service.
type shopOf struct {
	*Machine
	rev api.Revision
}

func newShop(replicas int) *shopOf {
	m := &shopOf{Machine: New()}
	m.Begin(epoch)
	m.Create(shop, "acme")
	m.apply(replicas, "1")
	return m
}

func (m *shopOf) apply(replicas int, code string, more ...api.Microservice) (gone []api.ServiceID) {
	v := api.Microservice{Name: "web", Namespace: "prod", Virtualization: "container", Code: code, Replicas: &replicas}
	gone, _ = m.Apply(&Request{
		Tenant: "acme", By: "alice",
		Spec: api.Application{Name: "shop", Namespace: "prod", Services: append([]api.Microservice{v}, more...)},
	}, func() api.Revision { m.rev++; return m.rev })
	return gone
}

// run adds the missing instances, and sets them running on a cluster.
func (m *shopOf) run() {
	for _, id := range m.Missing(web) {
		m.Add(id)
		m.Become(id, api.Requested, api.ReasonNone, "")
		m.Assign(id, "a", api.EpochOf(m.rev+1, 0), 1, false, false)
		m.Become(id, api.Running, api.ReasonNone, "")
	}
}

func TestMissingInstancesGetTheLowestNumbers(t *testing.T) {
	m := newShop(3)
	m.run()
	m.Remove(web.Instance(1))
	if got := m.Missing(web); !slices.Equal(got, []api.InstanceID{web.Instance(1)}) {
		t.Errorf("missing %v, want #1", got)
	}
}

func TestSurplusPrefersInstancesThatDoNotRun(t *testing.T) {
	m := newShop(4)
	m.run()
	m.Become(web.Instance(1), api.Failed, api.ReasonExited, "")
	m.Become(web.Instance(2), api.Completed, api.ReasonNone, "")
	if _, err := m.Scale(web, 1, 0); err != nil {
		t.Fatal(err)
	}
	got, reason := m.Surplus(web)
	if want := []api.InstanceID{web.Instance(1), web.Instance(2), web.Instance(3)}; !slices.Equal(got, want) || reason != api.ReasonScaledDown {
		t.Errorf("surplus %v for %s, want %v for %s", got, reason, want, api.ReasonScaledDown)
	}
	if _, err := m.Delete(shop, 0); err != nil {
		t.Fatal(err)
	}
	if got, reason := m.Surplus(web); len(got) != 4 || reason != api.ReasonDeleted {
		t.Errorf("after the deletion surplus %v for %s, want all for %s", got, reason, api.ReasonDeleted)
	}
}

func TestAReturnToAnSLAReplacesNoInstanceThatHasIt(t *testing.T) {
	m := newShop(2)
	m.run()
	first := m.Get(web.Instance(0)).SpecRev
	m.apply(2, "2")
	m.Update(web.Instance(1))
	if app := m.App(shop); app.SpecRevs[web] == first {
		t.Fatalf("the service has revision %d, want a new one", first)
	}
	m.apply(2, "1")
	if app := m.App(shop); app.SpecRevs[web] != first {
		t.Errorf("the service has revision %d, want %d, which #0 has", app.SpecRevs[web], first)
	}
}

func TestAChangeOfUpdateAloneIsNoNewVersion(t *testing.T) {
	m := newShop(2)
	m.run()
	m.TakeChanged()
	n, was := 2, m.App(shop).SpecRevs[web]
	v := api.Microservice{Name: "web", Namespace: "prod", Virtualization: "container", Code: "1", Replicas: &n, Update: &api.Update{Parallelism: 2}}
	m.Apply(&Request{Tenant: "acme", Spec: api.Application{Name: "shop", Namespace: "prod", Services: []api.Microservice{v}}}, func() api.Revision { m.rev++; return m.rev })
	if apps, _ := m.TakeChanged(); len(apps) != 1 || m.App(shop).SpecRevs[web] != was {
		t.Errorf("%d applications changed, the service has revision %d; want 1 and %d", len(apps), m.App(shop).SpecRevs[web], was)
	}
	in := m.Get(web.Instance(0))
	if a := in.Assignment("a", epoch); a.Spec.Update != nil {
		t.Errorf("clusters get update %+v, want none", a.Spec.Update)
	}
}

func TestAdditionalInstancesAreTheFirstToGo(t *testing.T) {
	m := newShop(2)
	m.run()
	m.SetExtra(web, 1)
	m.run()
	for n := range 3 {
		m.Observe(web.Instance(n), &api.Observed{Instance: web.Instance(n), Epoch: m.Get(web.Instance(n)).Epoch, State: api.Running, Ready: n != 1})
	}
	m.SetExtra(web, 0)
	if got, _ := m.Surplus(web); !slices.Equal(got, []api.InstanceID{web.Instance(1)}) {
		t.Errorf("surplus %v, want #1, which takes no requests", got)
	}
	m.Observe(web.Instance(1), &api.Observed{Instance: web.Instance(1), Epoch: m.Get(web.Instance(1)).Epoch, State: api.Running, Ready: true})
	if got, _ := m.Surplus(web); !slices.Equal(got, []api.InstanceID{web.Instance(2)}) {
		t.Errorf("surplus %v, want #2, the highest number", got)
	}
}

func TestASmallerSLAFitsInPlace(t *testing.T) {
	was := api.Microservice{Code: "1", Memory: 100, VCPUs: 1, Arch: []string{"amd64"}}
	in := Instance{Spec: &was}
	for name, tt := range map[string]struct {
		change func(*api.Microservice)
		fits   bool
	}{
		"other code":   {func(m *api.Microservice) { m.Code, m.Cmd = "2", []string{"x"} }, true},
		"less memory":  {func(m *api.Microservice) { m.Memory = 50 }, true},
		"more memory":  {func(m *api.Microservice) { m.Memory = 200 }, false},
		"another arch": {func(m *api.Microservice) { m.Arch = []string{"arm64"} }, false},
		"a port":       {func(m *api.Microservice) { m.Port = "80" }, false},
	} {
		is := was
		tt.change(&is)
		if got := in.FitsInPlace(&is); got != tt.fits {
			t.Errorf("%s: fits %v, want %v", name, got, tt.fits)
		}
	}
}

func TestApplyChangesOnlyServicesThatDiffer(t *testing.T) {
	m := newShop(2)
	m.TakeChanged()
	rev := m.rev
	if gone := m.apply(2, "1"); len(gone) != 0 || m.rev != rev {
		t.Errorf("the same request withdraws %v and takes revision %d, want none and %d", gone, m.rev, rev)
	}
	if apps, _ := m.TakeChanged(); len(apps) != 0 {
		t.Errorf("the same request changes %v, want 0 of apps", apps)
	}
	before := m.App(shop).Written()
	other := api.Microservice{Name: "db", Namespace: "prod", Virtualization: "container"}
	m.apply(5, "1", other)
	if m.rev != rev+1 {
		t.Errorf("revision %d, want %d: only db is new", m.rev, rev+1)
	}
	want := []api.FieldChange{{Path: "web.prod/replicas", Old: "2", New: "5"}, {Path: "db.prod", New: "1 instance"}}
	if got := Changes(before, m.App(shop).Written()); !slices.Equal(got, want) {
		t.Errorf("changes %+v, want %+v", got, want)
	}
	if gone := m.apply(5, "1"); !slices.Equal(gone, []api.ServiceID{"acme/shop.prod.db.prod"}) {
		t.Errorf("withdrawn %v, want db", gone)
	}
}

func TestConditionsOfARequest(t *testing.T) {
	m := newShop(1)
	m.SavedApp(shop, 7)
	check := func(name string, r Request, want error) {
		t.Helper()
		r.Tenant, r.Spec = "acme", api.Application{Name: "shop", Namespace: "prod"}
		if err := m.CheckApply(&r); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	check("no condition", Request{}, nil)
	check("the revision", Request{IfMatch: 7}, nil)
	check("another revision", Request{IfMatch: 6}, api.ErrPrecondition)
	check("must not exist", Request{MustNotExist: true}, api.ErrPrecondition)
	for replicas, want := range map[int]error{-1: api.ErrInvalid, MaxReplicas + 1: api.ErrInvalid, MaxReplicas: nil} {
		if _, err := m.Scale(web, replicas, 0); !errors.Is(err, want) {
			t.Errorf("scale to %d: %v, want %v", replicas, err, want)
		}
	}
	if _, err := m.Delete(shop, 0); err != nil {
		t.Fatal(err)
	}
	check("being deleted", Request{}, api.ErrConflict)
	if _, err := m.Scale(web, 1, 0); !errors.Is(err, api.ErrConflict) {
		t.Errorf("scale while being deleted: %v, want %v", err, api.ErrConflict)
	}
	if _, err := m.Scale("acme/none.prod.web.prod", 1, 0); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("scale an unknown service: %v, want %v", err, api.ErrNotFound)
	}
}

func TestAnApplicationIsRemovedWithItsLastInstance(t *testing.T) {
	m := newShop(1)
	m.run()
	if _, err := m.Delete(shop, 0); err != nil {
		t.Fatal(err)
	}
	if a := m.Finish(shop); a != nil {
		t.Error("it is removed while it has an instance")
	}
	m.Remove(web.Instance(0))
	if a := m.Finish(shop); a == nil || m.App(shop) != nil || m.Known(web) {
		t.Error("it is not removed although it has no instance")
	}
}

func TestASuccessfulTrialReplacesThePlacement(t *testing.T) {
	m := newShop(1)
	m.run()
	id := web.Instance(0)
	m.StartTrial(id, "b", api.EpochOf(9, 0), 0.5)
	in := m.Get(id)
	if !in.TrialAt("b") || in.EpochAt("b") != api.EpochOf(9, 0) || in.EpochAt("a") == in.EpochAt("b") || len(in.Clusters()) != 2 {
		t.Fatalf("with a second placement it is %+v", in)
	}
	m.SetWithdrawn(id)
	m.Promote(id, *in.Next)
	if now := m.Get(id); now.Cluster != "b" || now.Epoch != api.EpochOf(9, 0) || now.Next != nil || len(now.Placements) != 2 {
		t.Errorf("promoted it is %+v", now)
	}
	if in.Next.Cluster != "b" || in.Cluster != "a" {
		t.Error("a copy of the record changed, want Cluster 'b', Cluster 'a'")
	}
}

func TestADryRunDoesNotChangeTheOriginal(t *testing.T) {
	m := newShop(2)
	m.run()
	before, _ := json.Marshal([]any{m.App(shop), m.Get(web.Instance(0)), m.Get(web.Instance(1))})
	d := &shopOf{Machine: m.DryRun([]api.AppID{shop}, []api.ServiceID{web}), rev: m.rev}
	d.apply(1, "2")
	for _, id := range d.InstancesOf(web) {
		d.SetReason(id, api.ReasonViolated)
		d.CountMove(id)
		d.AwaitStop(id, "a")
		d.Stopped(id, "a")
		d.SetWithdrawn(id)
		d.Update(id)
		d.Assign(id, "b", 5, 1, false, false)
	}
	d.SetAddresses(d.App(shop), web, api.ServiceAddresses{Instances: nil})
	after, _ := json.Marshal([]any{m.App(shop), m.Get(web.Instance(0)), m.Get(web.Instance(1))})
	if string(before) != string(after) {
		t.Errorf("a dry run changed\n%s\nto\n%s", before, after)
	}
}

func TestReferencesToUnknownClustersAreRemoved(t *testing.T) {
	known := func(id api.ClusterID) bool { return id == "a" || id == "b" }
	for name, c := range map[string]struct{ saved, want Instance }{
		"its cluster is gone":           {Instance{Cluster: "x", State: api.Running}, Instance{State: api.Requested}},
		"it ended there":                {Instance{Cluster: "x", State: api.Completed}, Instance{State: api.Completed}},
		"the second one is left":        {Instance{Cluster: "x", State: api.Running, Epoch: 1, Next: &Trial{Cluster: "b", Epoch: 2}}, Instance{Cluster: "b", Epoch: 2, State: api.ClusterScheduled}},
		"the second one is gone":        {Instance{Cluster: "a", State: api.Running, Next: &Trial{Cluster: "x"}}, Instance{Cluster: "a", State: api.Running}},
		"it leaves, and stops in one":   {Instance{Cluster: "x", Leaving: true, Stopping: []api.ClusterID{"x", "b"}}, Instance{Cluster: "b", Leaving: true, Stopping: []api.ClusterID{"b"}, State: api.Requested}},
		"of a release before":           {Instance{Cluster: "a", Vacating: "b"}, Instance{Cluster: "a", Vacating: "b", Stopping: []api.ClusterID{"b"}}},
		"it waits for one that is gone": {Instance{Vacating: "x", State: api.Requested}, Instance{State: api.Requested, Stopping: []api.ClusterID{}}},
	} {
		c.saved.ID, c.want.ID = web.Instance(0), web.Instance(0)
		m := New()
		m.RestoreInstance(&c.saved, known)
		got := m.Get(web.Instance(0))
		got.Spec = nil
		if g, w := encoded(got), encoded(c.want); g != w {
			t.Errorf("%s: %s, want %s", name, g, w)
		}
	}
}

func encoded(in Instance) string {
	if len(in.Stopping) == 0 {
		in.Stopping = nil
	}
	b, _ := json.Marshal(in)
	return string(b)
}
