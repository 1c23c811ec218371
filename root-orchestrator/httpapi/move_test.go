package httpapi_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// TestMovesAreRequestedByThoseWhoMay: the owner of the application may move its instance away, and the operator of its cluster
// may name a node. Others do not learn whether the instance exists.
func TestMovesAreRequestedByThoseWhoMay(t *testing.T) {
	r := newRig(t)
	r.join("munich", "city")
	check(t, r.loop.Do(t.Context(), root.SetGrant{ID: "munich", Grant: api.Grant{Open: true}}, nil))
	id := r.volume("munich").Instance()
	r.clusters.answers["POST /v1/instances/"+api.PathOf(id)+"/move"] = httpAnswer(200, api.Instance{ID: "other/x.x.x.x#0", Node: "n2", State: api.Running, Detail: "invented"})
	dora := r.client(r.user("acme/dora", rights.ApplicationProvider))
	omar := r.client(r.user("city/omar", rights.InfrastructureProvider))
	for name, tt := range map[string]struct {
		user *client.Client
		to   api.NodeID
		want error
		node api.NodeID // in the answer
	}{
		"the owner":                         {dora, "", nil, ""},
		"the owner names a node":            {dora, "n2", api.ErrForbidden, ""},
		"the operator":                      {omar, "n2", nil, "n2"},
		"another tenant":                    {r.client(r.user("rival/eve", rights.ApplicationProvider)), "", api.ErrNotFound, ""},
		"another operator":                  {r.client(r.user("rival/olaf", rights.InfrastructureProvider)), "n2", api.ErrNotFound, ""},
		"an operator of the owner's tenant": {r.client(r.user("acme/otto", rights.InfrastructureProvider)), "", api.ErrForbidden, ""},
	} {
		r.clusters.asked = nil
		i, err := tt.user.Move(t.Context(), id, tt.to)
		if !errors.Is(err, tt.want) || i.Node != tt.node || err == nil && i.ID != id {
			t.Errorf("move by %s: got %+v, %v, want %v and node %q", name, i, err, tt.want, tt.node)
		}
		if asked := strings.Join(r.clusters.asked, " "); strings.Contains(asked, "/move") != (tt.want == nil) {
			t.Errorf("move by %s: the cluster was asked %q", name, asked)
		}
	}
	if _, err := dora.Move(t.Context(), "acme/shop.prod.db.v1#7", ""); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("move of an instance that does not exist: got %v, want ErrNotFound", err)
	}
	all, _, err := dora.Events(t.Context(), client.ListOptions{})
	check(t, err)
	var said []string
	for _, e := range all {
		if e.Reason == api.ReasonAccess {
			said = append(said, e.Detail)
		}
	}
	for _, want := range []string{"move to another node by acme/dora", "move to another node by city/omar"} {
		if !strings.Contains(strings.Join(said, "\n"), want) {
			t.Errorf("records: got %q, want %q", said, want)
		}
	}
	r.clusters.answers["POST /v1/instances/"+api.PathOf(id)+"/move"] = httpAnswer(http.StatusConflict, api.Problem{Status: 409, Code: "conflict", Detail: "constraint memory"})
	if _, err := dora.Move(t.Context(), id, ""); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "constraint memory") {
		t.Errorf("refused by the cluster: got %v, want ErrConflict with the constraint", err)
	}
	r.clusters.answers["POST /v1/instances/"+api.PathOf(id)+"/move"] = httpAnswer(http.StatusNotFound, api.Problem{Status: 404, Code: "not-found", Detail: "no such path: /v1/instances/x/move; /v1/openapi.json lists them"})
	if _, err := dora.Move(t.Context(), id, ""); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "earlier release") {
		t.Errorf("a cluster of an earlier release: got %v, want ErrConflict that says so", err)
	}
}
