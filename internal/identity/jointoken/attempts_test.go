package jointoken_test

import (
	"errors"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
)

func TestRefusedJoinsSlowTheirAddressOnly(t *testing.T) {
	now := time.Now()
	a := jointoken.NewAttempts(func() time.Time { return now })
	refuse := func() error { return api.ErrUnauthenticated }
	var last error
	ran := 0
	for range 100 {
		last = a.Try("192.0.2.1:99", func() error { ran++; return refuse() })
	}
	if ran != 60 || !errors.Is(last, api.ErrTooMany) {
		t.Errorf("%d of 100 refused joins were looked at and the last gave %v, want 60 and ErrTooMany", ran, last)
	}
	if err := a.Try("192.0.2.2:99", func() error { return nil }); err != nil {
		t.Errorf("a join from the next address: %v", err)
	}
	for range 1000 {
		if err := a.Try("198.51.100.1:99", func() error { return nil }); err != nil {
			t.Fatalf("machines that join from behind one address: %v", err)
		}
	}
	now = now.Add(2 * time.Second)
	if err := a.Try("192.0.2.1:99", func() error { return nil }); err != nil {
		t.Errorf("a join from the slowed address later: %v", err)
	}
}

func TestJoinTokensOfOneTenantLeaveRoomForOthers(t *testing.T) {
	f := newFixture()
	order := jointoken.Order{Scope: jointoken.ForCluster, Tenant: "loud"}
	made := 0
	for i := range 6000 {
		if order.Tenant = "loud"; i%2 == 0 {
			order.Tenant = "loud/part" // counts to the same
		}
		if _, _, err := f.desk.Create(ctx, order); err == nil {
			made++
		} else if !errors.Is(err, api.ErrConflict) {
			t.Fatal(err)
		} else {
			break
		}
	}
	if made != 5000 {
		t.Errorf("one tenant has %d open tokens, want 5000", made)
	}
	order.Tenant = "quiet"
	if _, _, err := f.desk.Create(ctx, order); err != nil {
		t.Errorf("a token of another tenant: %v", err)
	}
}

// A join is either made or refused, also at the moment when its address may try again.
func TestAJoinThatIsNotMadeIsRefused(t *testing.T) {
	now := time.Now()
	step := time.Duration(0)
	a := jointoken.NewAttempts(func() time.Time { now = now.Add(step); return now })
	for range 60 {
		_ = a.Try("192.0.2.1:99", func() error { return api.ErrUnauthenticated })
	}
	step = 700 * time.Millisecond
	for i := range 20 {
		made := false
		err := a.Try("192.0.2.1:99", func() error { made = true; return nil })
		if made == (err != nil) {
			t.Fatalf("try %d: made: %v, error: %v", i, made, err)
		}
	}
}
