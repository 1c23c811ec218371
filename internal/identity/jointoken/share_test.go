package jointoken_test

import (
	"errors"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
)

func TestJoinTokensOfOneTenantLeaveRoomForOthers(t *testing.T) {
	f := newFixture()
	order := jointoken.Order{Scope: jointoken.ForCluster, Tenant: "loud"}
	made := 0
	for i := range 6000 {
		if order.Tenant = "loud"; i%2 == 0 {
			order.Tenant = "loud/part" // counts for the same topmost tenant
		}
		if _, _, err := f.tokens.Create(ctx, order); err == nil {
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
	if _, _, err := f.tokens.Create(ctx, order); err != nil {
		t.Errorf("a token of another tenant: %v", err)
	}
}
