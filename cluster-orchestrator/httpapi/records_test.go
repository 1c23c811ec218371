package httpapi_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/httpapi"
	"github.com/treeline-edge/treeline/internal/wire"
)

// elsewhere are the operations that are not requested here, because they need a state that takes long to make.
var elsewhere = map[string]string{
	"scaleService":   "needs a lost root",
	"deleteVolume":   "needs a volume",
	"deleteSnapshot": "needs a driver",

	"takeScheduledSnapshot": "needs a schedule",
	"acceptRestore":         "needs a restored cluster",
	"rotateAuthority":       "needs a root",
}

// recordsFor returns the records that a person may read, as "<kind> <tenant>/<object> <text>".
func (r *rig) recordsFor(who string) (texts []string) {
	r.t.Helper()
	var page api.Page[api.Event]
	r.ask(who, "GET", "/v1/events", nil, http.StatusOK, &page)
	for _, e := range page.Items {
		texts = append(texts, e.Kind+" "+string(e.Tenant)+"/"+e.Object+" "+e.Detail)
	}
	return texts
}

func TestEveryChangeLeavesARecord(t *testing.T) {
	r := newRig(t)
	r.join("n1")
	var made api.JoinToken
	done := map[string]bool{}
	do := func(op, method, path string, body, out any, want string) {
		t.Helper()
		done[op] = true
		status := http.StatusOK
		switch {
		case op == "createToken":
			status = http.StatusCreated
		case method == "DELETE":
			status = http.StatusNoContent
		}
		r.ask("otto", method, path, body, status, out)
		got := r.recordsFor("otto")
		if len(got) == 0 || !strings.HasPrefix(got[len(got)-1], want) {
			t.Errorf("%s: the records are %q, want one more that begins with %q", op, got, want)
		}
		if made.Token != "" && strings.Contains(strings.Join(got, "\n"), made.Token) {
			t.Errorf("%s: the records have the token", op)
		}
	}
	do("createToken", "POST", "/v1/tokens", api.TokenRequest{Uses: 3}, &made, "token /")
	do("revokeToken", "DELETE", "/v1/tokens/"+made.ID, nil, nil, "token /"+made.ID+" revoke a join token by acme/otto")
	do("capNode", "PUT", "/v1/nodes/n1/caps", api.Caps{MemoryMB: 64}, nil, "node /n1 limit what a node may report by acme/otto")
	do("cordonNode", "POST", "/v1/nodes/n1/cordon", nil, nil, "node /n1 place no new instances on a node by acme/otto")
	do("uncordonNode", "POST", "/v1/nodes/n1/uncordon", nil, nil, "node /n1 ")
	do("drainNode", "POST", "/v1/nodes/n1/drain", nil, nil, "node /n1 cordon a node and move its instances elsewhere by acme/otto")
	do("forcedrainNode", "POST", "/v1/nodes/n1/force-drain", nil, nil, "node /n1 drain a node by acme/otto")
	do("purgeNode", "POST", "/v1/nodes/n1/purge", nil, nil, "node /n1 ")
	do("removeNode", "DELETE", "/v1/nodes/n1", nil, nil, "node /n1 remove a node and refuse its certificates by acme/otto")

	ops := map[string]bool{}
	for path, item := range r.web.OpenAPI().Paths {
		for _, op := range []*huma.Operation{item.Put, item.Post, item.Patch, item.Delete} {
			if op == nil {
				continue
			}
			ops[op.OperationID] = true
			if !done[op.OperationID] && elsewhere[op.OperationID] == "" && httpapi.Unrecorded[op.OperationID] == "" {
				t.Errorf("%s (%s) changes something, and no record of it is tested here: add a request", op.OperationID, path)
			}
		}
	}
	for op := range httpapi.Unrecorded {
		if !ops[op] {
			t.Errorf("unrecorded has %s, which is no operation", op)
		}
	}

	// Another tenant's person leaves a few records of refused attempts, in its own tenant's share.
	for range 20 {
		r.ask("operator", "POST", "/v1/nodes/n1/drain", nil, http.StatusNotFound, nil)
		r.ask("alice", "POST", "/v1/nodes/n1/drain", nil, http.StatusForbidden, nil)
	}
	const refused = `user acme/alice refused: cordon a node and move its instances elsewhere "n1" by acme/alice`
	if n := len(slices.DeleteFunc(r.recordsFor("otto"), func(s string) bool { return s != refused })); n != 5 {
		t.Errorf("%d records %q of 20 attempts, want 5", n, refused)
	}
	if got := r.recordsFor("rival"); len(got) != 0 {
		t.Errorf("another tenant's developer reads the records %q, want none", got)
	}
}

// A request of the root is recorded as the person's on whose behalf it is.
func TestRequestsOfTheRootLeaveRecords(t *testing.T) {
	r := newRig(t)
	r.join("n1")
	q := wire.StreamRequest{Kind: "api", Method: "POST", Path: "/v1/nodes/n1/cordon"}
	q.Token = "otto for " + q.CallObject()
	w := httptest.NewRecorder()
	if r.web.FromRoot(q).ServeHTTP(w, httptest.NewRequest(q.Method, q.Path, nil)); w.Code != http.StatusOK {
		t.Fatalf("cordon by the root: %d %s", w.Code, w.Body)
	}
	if got := r.recordsFor("otto"); len(got) != 1 || !strings.HasSuffix(got[0], "by acme/otto") {
		t.Errorf("records %q, want one of acme/otto", got)
	}
}
