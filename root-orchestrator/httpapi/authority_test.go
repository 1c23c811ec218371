package httpapi_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/httpapi"
	"github.com/treeline-edge/treeline/root-orchestrator/rootca"
)

// TestTheRootAuthorityIsRotatedByAdminsOfTheSystem: nobody else, and no personal token, replaces the key or retires the earlier one, and
// no answer has a key. Clusters that are behind are retired only by name.
func TestTheRootAuthorityIsRotatedByAdminsOfTheSystem(t *testing.T) {
	const path = "/v1/system/authority"
	r := newRig(t)
	admin, tenant := r.user("root", rights.Admin), r.user("acme/ann", rights.Admin)
	pat, _, err := r.accounts.CreatePAT(t.Context(), "root", "ci", nil, time.Hour)
	check(t, err)
	first, err := ca.NewRoot(time.Now())
	check(t, err)
	var saved ca.Pair
	r.restart(func(o *httpapi.Options) {
		o.Authority, err = rootca.Open(rootca.Options{
			Store: r.store, Loaded: o.Loaded, Sealer: r.sealer, Pair: first.Pair(), Now: time.Now, Log: slog.New(slog.DiscardHandler),
			Save: func(_ context.Context, p ca.Pair) error { saved = p; return nil },
		})
		check(t, err)
		o.Authority.Renew, o.Authority.Retired = func(context.Context) error { return nil }, func() {}
		o.Authority.Behind = func(context.Context, wire.RootKeys) ([]api.ClusterBehind, error) {
			return []api.ClusterBehind{{Cluster: "munich", Nodes: 1}}, nil
		}
	})
	ask := func(what, method, token, body string, want int) string {
		t.Helper()
		status, _, text := r.raw(method, path, token, body)
		if status != want {
			t.Errorf("%s: got %d %.300s, want %d", what, status, text, want)
		}
		if strings.Contains(text, "PRIVATE") {
			t.Errorf("%s: the answer has a key", what)
		}
		return text
	}
	for who, want := range map[string]int{tenant: 403, "": 401, pat: 403} {
		ask("rotate", "POST", who, `{}`, want)
	}
	ask("a tenant's admin reads", "GET", tenant, "", 403)
	ask("retire without a rotation", "POST", admin, `{"retire":true}`, 409)
	ask("leave behind without retire", "POST", admin, `{"leave_behind":["munich"]}`, 422)
	ask("rotate", "POST", admin, `{}`, 204)
	if len(saved.Roots()) != 2 || !saved.Roots()[1].Equal(first.Root()) {
		t.Fatalf("saved are %d roots, want the new one and the earlier one", len(saved.Roots()))
	}
	ask("rotate again", "POST", admin, `{}`, 409)
	ask("a personal token retires", "POST", pat, `{"retire":true,"leave_behind":["munich"]}`, 403)
	if text := ask("retire while munich is behind", "POST", admin, `{"retire":true,"leave_behind":["rome"]}`, 409); !strings.Contains(text, "munich") {
		t.Errorf("the answer does not name it: %s", text)
	}
	ask("retire", "POST", admin, `{"retire":true,"leave_behind":["munich"]}`, 204)
	ask("retire again", "POST", admin, `{"retire":true}`, 204)
	if len(saved.Chain) != 1 {
		t.Errorf("saved are %d certificates after the retirement, want one", len(saved.Chain))
	}
	if text := ask("read", "GET", pat, "", 200); !strings.Contains(text, `"state":"retired"`) || !strings.Contains(text, `"generation":1`) {
		t.Errorf("got %s", text)
	}
	if _, _, events := r.raw("GET", "/v1/events?users=true", admin, ""); !strings.Contains(events, "rotate the key of the root") {
		t.Errorf("the events have no record of it: %s", events)
	}
}
