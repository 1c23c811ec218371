package audit

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/mem"
)

func instance(tenant api.Tenant) api.Instance {
	s := tenant.App("shop", "prod").Service("web", "v1")
	return api.Instance{ID: s.Instance(0), Service: s, Epoch: 3}
}

func open(t *testing.T, st store.Store, o Options) *Audit {
	t.Helper()
	loaded, err := store.Load(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	o.Cluster, o.Store, o.Loaded = "munich", st, loaded
	a, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func record(t *testing.T, a *Audit, tenant api.Tenant, text string) {
	t.Helper()
	if err := a.Record(t.Context(), instance(tenant), "alice", text, true); err != nil {
		t.Fatal(err)
	}
}

func TestRecordsOutliveTheCluster(t *testing.T) {
	st := mem.New()
	record(t, open(t, st, Options{}), "acme", "exec env by alice")
	a := open(t, st, Options{})
	record(t, a, "acme", "attach by bob")
	all := open(t, st, Options{}).List()
	if len(all) != 2 || all[0].Detail != "exec env by alice" || all[1].Detail != "attach by bob" || all[1].Seq <= all[0].Seq {
		t.Fatalf("after restarts: %+v, want both records in order", all)
	}
	if e := all[0]; e.Reason != api.ReasonAccess || e.Instance != instance("acme").ID || e.Tenant != "acme" || e.Cluster != "munich" || e.Tier != "cluster munich" || e.By != "alice" {
		t.Errorf("record %+v, want reason access, the instance, the cluster and the user", e)
	}
}

// TestOneTenantEvictsItsOwnRecords: also with a store of full size.
func TestOneTenantEvictsItsOwnRecords(t *testing.T) {
	st := mem.New()
	a := open(t, st, Options{})
	record(t, a, "acme", "exec env by alice")
	for range kept.Total + 100 {
		record(t, a, "evil", strings.Repeat("x", 100_000))
	}
	docs, err := store.Load(t.Context(), st)
	if err != nil || len(docs) > kept.Total {
		t.Errorf("the store has %d documents, %v; want at most %d", len(docs), err, kept.Total)
	}
	all := open(t, st, Options{}).List()
	if len(all) != kept.Total || all[0].Detail != "exec env by alice" {
		t.Errorf("%d records, the oldest is %.60q; want %d, and that of the other tenant", len(all), all[0].Detail, kept.Total)
	}
	if n := len(all[1].Detail); n > 2000 {
		t.Errorf("a record has %d bytes, want the text clipped", n)
	}
}

func TestNoticesLeaveRoomForOthers(t *testing.T) {
	now := time.Unix(1000, 0)
	var said []string
	a := open(t, mem.New(), Options{Now: func() time.Time { return now }, Notify: func(_ context.Context, text string) { said = append(said, text) }})
	for range 50 {
		record(t, a, "acme", "exec env by alice")
	}
	now = now.Add(notifyEvery)
	record(t, a, "acme", "attach by bob")
	if len(said) != 2 || !strings.Contains(said[0], "exec env by alice in acme/shop.prod.web.v1#0") || !strings.Contains(said[1], "and 49 more") {
		t.Errorf("notices %q, want one at first and one a minute later with the number of the others", said)
	}
}
