package custom_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/root-orchestrator/root/custom"
)

var t0 = time.Unix(1_800_000_000, 0)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestCustomResourcesOfOneTenantLeaveRoomForOthers(t *testing.T) {
	m := custom.New()
	add := func(tenant api.Tenant, kind, n int) error {
		id := tenant.CustomKind(fmt.Sprint("k", kind))
		if m.Kind(id) == nil {
			if _, err := m.PutKind(t0, custom.KindRequest{ID: id, Create: true, Schema: json.RawMessage(`{}`)}); err != nil {
				return err
			}
		}
		_, err := m.Put(t0, custom.Request{ID: id.Resource(fmt.Sprint("r", n)), Create: true, Spec: json.RawMessage(`{}`)})
		return err
	}
	for n := range custom.MaxResourcesOfTenant {
		check(t, add(api.Tenant(fmt.Sprint("acme/sub", n%3)), n%10, n)) // tenants below count with theirs
	}
	if err := add("acme", 0, 0); !errors.Is(err, api.ErrTooMany) {
		t.Errorf("beyond the share: %v, want ErrTooMany", err)
	}
	check(t, add("other", 0, 0))
	for n := 1; n < custom.MaxKindsOfTenant; n++ {
		check(t, add("other", n, 0))
	}
	if err := add("other", custom.MaxKindsOfTenant, 0); !errors.Is(err, api.ErrTooMany) {
		t.Errorf("kinds beyond the share: %v, want ErrTooMany", err)
	}
	check(t, m.Delete("other/k3:r0", 0))
	if _, err := m.DeleteKind("other/k3", 0, false); err != nil {
		t.Error(err)
	}
	check(t, add("other", custom.MaxKindsOfTenant, 0))
}

func TestLargeCustomResourcesLeaveRoomForOthers(t *testing.T) {
	m := custom.New()
	large := json.RawMessage(`"` + strings.Repeat("x", api.MaxCustomBytes-2) + `"`)
	for _, tenant := range []api.Tenant{"acme", "other"} {
		_, err := m.PutKind(t0, custom.KindRequest{ID: tenant.CustomKind("k"), Create: true, Schema: json.RawMessage(`{}`)})
		check(t, err)
	}
	put := func(tenant api.Tenant, n int) error {
		_, err := m.Put(t0, custom.Request{ID: tenant.CustomKind("k").Resource(fmt.Sprint("r", n)), Create: true, Spec: large})
		return err
	}
	n := 0
	for ; put("acme", n) == nil; n++ {
	}
	if n != custom.MaxBytesOfTenant/api.MaxCustomBytes-1 { // the schema counts too
		t.Errorf("%d resources of %d bytes fit, want the share", n, len(large))
	}
	check(t, put("other", 0))
}
