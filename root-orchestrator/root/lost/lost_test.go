package lost

import (
	"fmt"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func id(t api.Tenant, n int) api.InstanceID {
	return t.App("app", "prod").Service("web", "prod").Instance(n)
}

func TestBatchesAreBoundedAndTenantsTakeTurns(t *testing.T) {
	var m Machine
	for n := range 1000 {
		m.Add(noon, id("acme", n))
		m.Add(noon, id("acme", n)) // once only
	}
	m.Add(noon, id("bolt", 0))
	m.Add(noon, id("bolt", 1))
	first := m.Due(noon)
	if len(first) != Batch || first[1] != id("bolt", 0) || first[3] != id("bolt", 1) {
		t.Fatalf("the first batch is %v, want %d with both of bolt among the first four", first, Batch)
	}
	if got := m.Due(noon.Add(Every - 1)); len(got) > 0 {
		t.Errorf("%d are due before the next batch", len(got))
	}
	seen := map[api.InstanceID]bool{}
	for _, i := range first {
		seen[i] = true
	}
	now := noon
	for !m.Next().IsZero() {
		now = m.Next()
		for _, i := range m.Due(now) {
			if seen[i] {
				t.Fatalf("%s is due twice", i)
			}
			seen[i] = true
		}
	}
	if len(seen) != 1002 || now.Sub(noon) > 6*time.Second {
		t.Errorf("%d were due within %s, want 1002 within 6 s", len(seen), now.Sub(noon))
	}
	m.Add(now, id("acme", 1))
	if got := m.Due(now); len(got) > 0 {
		t.Errorf("%v is due at once after a batch, want it after %s", got, Every)
	}
	if got := fmt.Sprint(m.Due(now.Add(Every))); got != fmt.Sprint([]api.InstanceID{id("acme", 1)}) {
		t.Errorf("later %s is due", got)
	}
}
