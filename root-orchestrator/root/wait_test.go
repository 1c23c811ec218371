package root

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// thief requests the address of another service.
func thief(of api.ServiceAddresses) Apply {
	app := application(1, addressed(&api.Addresses{RoundRobin: of.RoundRobin.String()}))
	app.Name = "thief"
	return Apply{Tenant: "acme", Spec: app}
}

// TestARootWithARestoredStoreWaitsForClusters restores the root from a copy from before web had its
// address and cluster a its share. It requests both before a has reported.
func TestARootWithARestoredStoreWaitsForClusters(t *testing.T) {
	w := newWorld(t, "a", "b")
	old := maps.Clone(w.disk)
	w.net("a", wire.ClusterNet{Whole: true, Subnets: 1})
	w.apply(1)
	s, _ := w.c.Service(web)
	mine := w.shares("a")
	w.disk = old
	w.restart()
	err := w.do(thief(s.Addresses)).Err
	if !errors.Is(err, api.ErrUnavailable) || !strings.Contains(err.Error(), "cluster a, b, at most 30s") {
		t.Errorf("before anybody spoke: %v, want ErrUnavailable, a text with 'cluster a, b, at most 30s'", err)
	}
	if free := w.c.addresses.Free(w.now); free != 1<<16-2 {
		t.Errorf("a refused one keeps addresses: %d are free", free)
	}
	w.net("b", wire.ClusterNet{Whole: true, Subnets: 1})
	if got := w.shares("b"); len(got) != 0 {
		t.Errorf("b was given %v before a spoke, want 0 of got", got)
	}
	if told := w.net("a", wire.ClusterNet{Subnets: 1, Shares: mine}); len(told) != 1 || !told[0].RequestWhole || !slices.Equal(told[0].Shares, mine) {
		t.Errorf("a is not asked for all: %+v", told)
	}
	w.net("a", wire.ClusterNet{Whole: true, Subnets: 1, Shares: mine, InUse: []wire.ServiceAddress{{Address: s.Addresses.RoundRobin, Service: web}}})
	if a, b := w.shares("a"), w.shares("b"); !slices.Equal(a, mine) || len(b) != 1 || slices.Equal(a, b) {
		t.Errorf("a has %v, b %v", a, b)
	}
	if err := w.do(thief(s.Addresses)).Err; !errors.Is(err, api.ErrConflict) {
		t.Errorf("an address in use: %v, want ErrConflict", err)
	}
	w.apply(1)
	if again, _ := w.c.Service(web); again.Addresses.RoundRobin != s.Addresses.RoundRobin {
		t.Errorf("web has %s, had %s", again.Addresses.RoundRobin, s.Addresses.RoundRobin)
	}
}

// After a restart, only requests for new addresses wait, and at most until a cluster that does not
// return counts as lost.
func TestAfterARestartOnlyNewAddressesHaveToWait(t *testing.T) {
	w := newWorld(t, "a")
	w.join("b", 0)
	w.apply(1)
	w.settle()
	w.net("a", wire.ClusterNet{Whole: true, Subnets: 1})
	w.twins["b"].off = true
	s, _ := w.c.Service(web)
	w.restart()
	w.apply(3) // it keeps its address
	w.must(Scale{Service: web, Replicas: 2})
	w.must(DeleteApp{App: shop})
	w.pass(10 * time.Second)
	w.apply(1) // and gets it back
	if again, _ := w.c.Service(web); again.Addresses.RoundRobin != s.Addresses.RoundRobin {
		t.Errorf("web has %s, had %s", again.Addresses.RoundRobin, s.Addresses.RoundRobin)
	}
	other := application(1)
	other.Name = "other"
	if err := w.do(Apply{Tenant: "acme", Spec: other}).Err; !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("a new one: %v, want ErrUnavailable", err)
	}
	w.pass(22 * time.Second)
	w.must(Apply{Tenant: "acme", Spec: other})
	w.net("a", wire.ClusterNet{Subnets: 1_000_000, Shares: w.shares("a")})
	if n := len(w.shares("a")); n != 32 {
		t.Errorf("a has %d shares, want 32", n)
	}
	w.must(RemoveCluster{"b"})
	w.restart()
	w.settle() // the report of a ends the wait
	w.net("a", wire.ClusterNet{Whole: true, Subnets: 1})
	other.Name = "third"
	w.must(Apply{Tenant: "acme", Spec: other})
}
