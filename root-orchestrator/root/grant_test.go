package root

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/eventlog"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// owned adds a cluster of a tenant. open is the value of the join token.
func (w *world) owned(id api.ClusterID, owner api.Tenant, room int, open *bool) {
	w.t.Helper()
	w.must(JoinCluster{Info: api.ClusterInfo{ID: id, Tenant: owner}, Open: open})
	w.twins[id] = newTwin(id, room)
	w.must(w.twins[id].report())
}

func (w *world) applyAs(t api.Tenant, replicas int, change ...func(*api.Microservice)) api.InstanceID {
	w.t.Helper()
	app := application(replicas, change...)
	w.must(Apply{Tenant: t, Spec: app, By: "alice"})
	w.settle()
	return t.App(app.Name, app.Namespace).Service(app.Services[0].Name, app.Services[0].Namespace).Instance(0)
}

// TestATenantsClusterGetsNoServicesOfOthers has the cluster of one tenant report far more capacity
// than the others. The services of tenants above it or beside it are not placed there.
func TestATenantsClusterGetsNoServicesOfOthers(t *testing.T) {
	for owner, admitted := range map[api.Tenant]map[api.Tenant]bool{
		"rival":    {"rival": true, "rival/lab": true, "rivals": false, "acme": false, "acme/lab": false},
		"acme/lab": {"acme/lab": true, "acme/lab/x": true, "acme": false, "acme/la": false, "rival": false},
	} {
		for tenant, want := range admitted {
			w := newWorld(t)
			w.owned("oslo", owner, 1_000, nil)
			id := w.applyAs(tenant, 1)
			if got := w.where(id) == "oslo"; got != want {
				t.Errorf("a service of %s is on the cluster of %s: %v, want %v", tenant, owner, got, want)
			}
			if want {
				continue
			}
			for _, e := range w.twins["oslo"].want {
				t.Errorf("the cluster of %s was told of %s", owner, e.Instance)
			}
			why, _ := w.c.Why(id, w.now)
			want := api.Rejection{
				Candidate: "oslo", Constraint: sched.ConstraintTrust, Need: "open to tenant " + string(tenant), Have: "owner " + string(owner), Shortfall: 1,
			}
			if !strings.Contains(why.Summary, "not open to tenant "+string(tenant)) || why.Root.Nearest == nil || *why.Root.Nearest != want ||
				len(why.WouldHelp) == 0 || !strings.Contains(why.WouldHelp[0], "treeline open cluster") {
				t.Errorf("why says %q, %+v, %q", why.Summary, why.Root.Nearest, why.WouldHelp)
			}
		}
	}
}

// A new cluster is open to all tenants if the installation owns it or its token says so, and
// otherwise to its owner.
func TestTheDefaultGrantOfACluster(t *testing.T) {
	yes, no := true, false
	for _, c := range []struct {
		owner api.Tenant
		open  *bool
		want  bool
	}{{"", nil, true}, {"", &no, false}, {"rival", nil, false}, {"rival", &yes, true}} {
		w := newWorld(t)
		w.owned("oslo", c.owner, 10, c.open)
		if got := w.where(w.applyAs("acme", 1)) == "oslo"; got != c.want {
			t.Errorf("owner %q: acme's service is there: %v, want %v", c.owner, got, c.want)
		}
		w.restart() // the grant is kept
		w.must(JoinCluster{Info: api.ClusterInfo{ID: "oslo", Tenant: c.owner}, Open: &yes})
		if got, _ := w.c.Cluster("oslo"); got.Grant.Open != c.want {
			t.Errorf("owner %q: after another join it is open: %v, want %v", c.owner, got.Grant.Open, c.want)
		}
	}
}

// TestClosingAClusterRemovesInstancesOfOtherTenants closes a cluster while services of others run there.
func TestClosingAClusterRemovesInstancesOfOtherTenants(t *testing.T) {
	for _, kind := range []func(*api.Microservice){func(*api.Microservice) {}, exclusive} {
		w := newWorld(t)
		w.owned("oslo", "rival", 10, nil)
		w.must(SetGrant{ID: "oslo", Grant: api.Grant{Open: true}, By: "admin"})
		theirs, ours := w.applyAs("rival", 1, kind), w.applyAs("acme", 1, kind)
		w.join("munich", 10)
		w.settle()
		if w.where(ours) != "oslo" || w.where(theirs) != "oslo" {
			t.Fatalf("acme's is on %s, rival's on %s", w.where(ours), w.where(theirs))
		}
		w.must(SetGrant{ID: "oslo", Grant: api.Grant{}, By: "admin"})
		if in := w.record(ours); in.Cluster == "oslo" || in.Spec.Exclusive && in.Cluster != "" {
			t.Errorf("at once acme's is on %q", in.Cluster)
		}
		w.settle()
		if w.where(ours) != "munich" || w.where(theirs) != "oslo" || len(w.twins["oslo"].want) != 1 {
			t.Errorf("then acme's is on %s, rival's on %s; oslo has %d", w.where(ours), w.where(theirs), len(w.twins["oslo"].want))
		}
		w.checkBooks()
	}
}

// TestAWiderGrantPlacesWaitingInstances opens a cluster to a tenant by name.
func TestAWiderGrantPlacesWaitingInstances(t *testing.T) {
	w := newWorld(t)
	w.owned("oslo", "rival", 10, nil)
	id, other := w.applyAs("acme/lab", 1), w.applyAs("acme2", 1)
	rev := func() api.Revision { c, _ := w.c.Cluster("oslo"); return c.Revision }
	if err := w.do(SetGrant{ID: "oslo", Grant: api.Grant{Tenants: []api.Tenant{"acme"}}, IfMatch: rev() + 1}).Err; !errors.Is(err, api.ErrPrecondition) {
		t.Error(err)
	}
	if err := w.do(SetGrant{ID: "oslo", Grant: api.Grant{Tenants: []api.Tenant{"../x"}}}).Err; !errors.Is(err, api.ErrInvalid) {
		t.Error(err)
	}
	if err := w.do(SetGrant{ID: "nowhere"}).Err; !errors.Is(err, api.ErrNotFound) {
		t.Error(err)
	}
	w.must(SetGrant{ID: "oslo", Grant: api.Grant{Tenants: []api.Tenant{"acme"}}, IfMatch: rev()})
	w.settle()
	if w.where(id) != "oslo" || w.where(other) != "" {
		t.Errorf("acme/lab's is on %q, acme2's on %q", w.where(id), w.where(other))
	}
}

// TestAClustersReportIsReducedToItsCaps has a cluster report more than its caps.
func TestAClustersReportIsReducedToItsCaps(t *testing.T) {
	w := newWorld(t)
	w.owned("oslo", "", 1_000, nil)
	tw := w.twins["oslo"]
	tw.devices = []api.SlotDevice{{Name: "gpu", Free: 8, Largest: 8}}
	caps := api.Caps{MilliCPU: 3000, MemoryMB: 250, Nodes: 1, Devices: map[string]int{"gpu": 2}, NoPrivileged: true}
	w.must(SetGrant{ID: "oslo", Grant: api.Grant{Open: true, Caps: caps}})
	lie := func() {
		r := tw.report()
		r.Aggregate.Nodes, r.Aggregate.Slots[0].Privileged = 500, true
		w.must(r)
	}
	for range 300 {
		w.now = w.now.Add(time.Second)
		lie()
	}
	got, _ := w.c.Cluster("oslo")
	a := got.Aggregate
	if most := (api.Resources{MilliCPU: 3000, MemoryMB: 250}); !a.Capacity.Fits(most) || !a.Free.Fits(most) || !a.Largest.Fits(most) || a.Nodes != 1 ||
		!a.Slots[0].Largest.Fits(most) || a.Slots[0].Privileged || a.Slots[0].Devices[0].Free != 2 {
		t.Errorf("it counts for %+v", a)
	}
	es := slices.DeleteFunc(w.c.Events(eventlog.Filter{}), func(e api.Event) bool { return e.Reason != api.ReasonCapped })
	if len(es) != 2 || !strings.Contains(es[1].Detail, "gpu, memory, nodes, privileged, vcpus") {
		t.Errorf("events: %+v, want 2 of es, a text with 'gpu, memory, nodes, privileged, vcpus'", es)
	}
	if id := w.applyAs("acme", 1, func(m *api.Microservice) { m.Privileged = true }); w.where(id) != "" {
		t.Error("it got a privileged workload")
	}
}
