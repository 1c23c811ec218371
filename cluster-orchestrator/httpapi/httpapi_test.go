package httpapi_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/cluster-orchestrator/httpapi"
)

const (
	ours   = api.InstanceID("acme/shop.prod.web.v1#0")
	theirs = api.InstanceID("rival/mill.prod.web.v1#0")
)

// Nodes are visible to their operator and applications to their tenant. Other callers do not
// learn whether an object exists.
func TestRightsPerRole(t *testing.T) {
	r := newRig(t)
	r.join("n1")
	r.want(1, instance(ours, 64), instance(theirs, 64))
	for _, c := range []struct {
		method, path string
		in           any
		want         map[string]int // status by caller; 0: any success
	}{
		{"GET", "/v1/status", nil, map[string]int{"": 401, "nonsense": 401, "otto": 0, "admin": 0, "operator": 404}},
		{"GET", "/v1/nodes", nil, map[string]int{"": 401, "otto": 0, "admin": 0, "alice": 403, "rival": 404, "operator": 404}},
		{"GET", "/v1/nodes/n1", nil, map[string]int{"": 401, "otto": 0, "alice": 403, "operator": 404}},
		{"POST", "/v1/nodes/n1/uncordon", nil, map[string]int{"": 401, "otto": 0, "alice": 403, "operator": 404}},
		{"PUT", "/v1/nodes/n1/caps", api.Caps{MemoryMB: 64}, map[string]int{"": 401, "nonsense": 401, "otto": 200, "alice": 403, "rival": 404, "operator": 404}},
		{"PUT", "/v1/nodes/n1/caps", api.Caps{MemoryMB: -1}, map[string]int{"otto": 422, "alice": 403}},
		{"PUT", "/v1/nodes/n9/caps", api.Caps{MemoryMB: 64}, map[string]int{"otto": 404, "alice": 403}},
		{"POST", "/v1/nodes/n1/purge", nil, map[string]int{"": 401, "alice": 403, "operator": 404}},
		{"DELETE", "/v1/nodes/n1", nil, map[string]int{"": 401, "alice": 403, "operator": 404}},
		{"GET", "/v1/tokens", nil, map[string]int{"": 401, "otto": 0, "alice": 403, "operator": 404}},
		{"POST", "/v1/tokens", api.TokenRequest{}, map[string]int{"": 401, "alice": 403, "operator": 404}},
		{"GET", "/v1/instances", nil, map[string]int{"": 401, "otto": 0, "alice": 0, "rival": 0}},
		{"GET", "/v1/instances/" + api.PathOf(ours), nil, map[string]int{"": 401, "otto": 0, "alice": 0, "rival": 404}},
		{"GET", "/v1/instances/" + api.PathOf(theirs) + "/why", nil, map[string]int{"": 401, "otto": 0, "alice": 404, "rival": 0}},
		{"GET", "/v1/instances/" + api.PathOf(ours) + "/logs", nil, map[string]int{"": 401, "alice": 0, "rival": 404}},
		{"POST", "/v1/instances/" + api.PathOf(ours) + "/move", api.MoveRequest{}, map[string]int{"": 401, "alice": 409, "otto": 409, "rival": 404, "operator": 404}},
		{"POST", "/v1/instances/" + api.PathOf(ours) + "/move", api.MoveRequest{To: "n9"}, map[string]int{"": 401, "alice": 403, "otto": 404, "rival": 404}},
		{"POST", "/v1/instances/" + api.PathOf(theirs) + "/move", api.MoveRequest{}, map[string]int{"alice": 404, "rival": 409, "otto": 409}},
		{"POST", "/v1/services/" + api.PathOf(ours.Service()) + "/scale", api.Replicas{Replicas: 2}, map[string]int{"": 401, "rival": 404}},
	} {
		for who, status := range c.want {
			if status != 0 {
				r.ask(who, c.method, c.path, c.in, status, nil)
			} else if w := r.raw(who, c.method, c.path, ""); w.Code >= 300 {
				t.Errorf("%s %s as %s: %d %s", c.method, c.path, who, w.Code, w.Body)
			}
		}
	}
}

// TestRequestedMoves: a tenant does not learn the names of nodes, and each request is recorded.
func TestRequestedMoves(t *testing.T) {
	r := newRig(t)
	r.join("n1")
	r.join("n2")
	r.want(1, instance(ours, 64))
	at := func() (i api.Instance) {
		check(t, r.loop.Read(t.Context(), func() { i, _ = r.core.Instance(ours) }))
		return i
	}
	path, from := "/v1/instances/"+api.PathOf(ours)+"/move", at().Node
	var i api.Instance
	r.ask("alice", "POST", path, api.MoveRequest{}, 200, &i)
	to := at().Node
	if i.ID != ours || i.Node != "" || i.Reason != api.ReasonMoved || to == from {
		t.Errorf("move by alice: got %+v, want it on another node than %s, which is not named", i, from)
	}
	r.ask("otto", "POST", path, api.MoveRequest{To: to}, 200, &i)
	if i.Node != to {
		t.Errorf("move by the operator to the node that has it: got %+v, want %s", i, to)
	}
	if p := r.ask("otto", "POST", path, api.MoveRequest{To: "n9"}, 404, nil); !strings.Contains(p.Detail, "n9") {
		t.Errorf("move to a node that does not exist: got %q, want its name", p.Detail)
	}
	if p := r.ask("alice", "POST", path, api.MoveRequest{To: from}, 403, nil); !strings.Contains(p.Detail, "--away") {
		t.Errorf("alice names a node: got %q, want a way to do without", p.Detail)
	}
	var page api.Page[api.Event]
	r.ask("otto", "GET", "/v1/events", nil, 200, &page)
	var said []string
	for _, e := range page.Items {
		said = append(said, e.Detail)
	}
	if want := []string{"move to another node by acme/alice", `move to node "` + string(to) + `" by acme/otto`, `move to node "n9" by acme/otto`, `refused: move an instance to another node "acme/shop.prod.web.v1#0" by acme/alice`}; !slices.Equal(said, want) {
		t.Errorf("records: got %q, want %q", said, want)
	}
}

func TestCommandsForNodes(t *testing.T) {
	r := newRig(t)
	var page api.Page[api.Node]
	if w := r.raw("otto", "GET", "/v1/nodes", ""); !strings.Contains(w.Body.String(), `"items":[]`) {
		t.Errorf("no nodes: %s", w.Body)
	}
	r.join("n1")
	r.join("n2")
	r.ask("otto", "GET", "/v1/nodes", nil, 200, &page)
	if len(page.Items) != 2 || page.Items[0].ID != "n1" {
		t.Errorf("nodes %+v", page.Items)
	}
	for _, c := range []struct {
		method, path string
	}{
		{"GET", "/v1/nodes/n3"},
		{"POST", "/v1/nodes/n3/cordon"},
		{"POST", "/v1/nodes/n3/uncordon"},
		{"POST", "/v1/nodes/n3/drain"},
		{"DELETE", "/v1/nodes/n3"},
	} {
		p := r.ask("otto", c.method, c.path, nil, 404, nil)
		if !strings.Contains(p.Detail, "n3") || !strings.Contains(p.Detail, "n1, n2") {
			t.Errorf("%s %s does not say which there are: %s", c.method, c.path, p.Detail)
		}
	}

	var n api.Node
	r.ask("otto", "POST", "/v1/nodes/n1/cordon", nil, 200, &n)
	if n.Status != api.NodeCordoned {
		t.Errorf("cordoned: %+v", n)
	}
	r.want(1, instance(ours, 64))
	var i api.Instance
	r.ask("otto", "GET", "/v1/instances/"+api.PathOf(ours), nil, 200, &i)
	if i.Node != "n2" {
		t.Errorf("on %q, and n1 is cordoned", i.Node)
	}
	r.ask("otto", "POST", "/v1/nodes/n1/uncordon", nil, 200, &n)
	if n.Status != api.NodeReady {
		t.Errorf("uncordoned: %+v", n)
	}
	if p := r.ask("otto", "DELETE", "/v1/nodes/n2", nil, 409, nil); !strings.Contains(p.Detail, "drain") {
		t.Errorf("removing what works: %s", p.Detail)
	}
	r.ask("otto", "POST", "/v1/nodes/n2/drain", nil, 200, &n)
	if n.Status != api.NodeDraining {
		t.Errorf("drained: %+v", n)
	}
	r.ask("otto", "GET", "/v1/instances/"+api.PathOf(ours), nil, 200, &i)
	if i.Node != "n1" {
		t.Errorf("on %q, and n2 is drained", i.Node)
	}
	r.ask("otto", "POST", "/v1/nodes/n2/uncordon", nil, 200, &n)
	r.join("n5")
	r.ask("otto", "POST", "/v1/nodes/n5/purge", nil, 200, &n)
	if !n.Purging {
		t.Errorf("purged: %+v", n)
	}
	r.join("n4")
	r.ask("otto", "DELETE", "/v1/nodes/n4", nil, http.StatusNoContent, nil)
	if len(r.removed) != 1 || r.removed[0] != "n4" {
		t.Errorf("certificates refused of %v", r.removed)
	}
}

func TestJoinTokensForNodes(t *testing.T) {
	r := newRig(t)
	var made, none api.JoinToken
	r.ask("otto", "POST", "/v1/tokens", api.TokenRequest{Uses: 3, TTL: 60}, http.StatusCreated, &made)
	if made.Token == "" || made.Uses != 3 || made.Cluster != "munich" || made.Kind != "node" || made.Tenant != "acme" {
		t.Errorf("made %+v", made)
	}
	r.ask("otto", "POST", "/v1/tokens", api.TokenRequest{Kind: "cluster"}, 422, &none)
	r.ask("otto", "POST", "/v1/tokens", api.TokenRequest{Cluster: "rome"}, 422, &none)
	r.ask("otto", "POST", "/v1/tokens", api.TokenRequest{Uses: -1}, 422, &none)
	var page api.Page[api.JoinToken]
	r.ask("otto", "GET", "/v1/tokens", nil, 200, &page)
	if len(page.Items) != 1 || page.Items[0].ID != made.ID || page.Items[0].Token != "" {
		t.Errorf("listed %+v; the secret is shown once", page.Items)
	}
	r.ask("alice", "DELETE", "/v1/tokens/"+made.ID, nil, 403, nil)
	r.ask("otto", "DELETE", "/v1/tokens/"+made.ID, nil, http.StatusNoContent, nil)
	r.ask("otto", "DELETE", "/v1/tokens/"+made.ID, nil, 404, nil)
	r.ask("otto", "GET", "/v1/tokens", nil, 200, &page)
	if len(page.Items) != 0 {
		t.Errorf("revoked and listed: %+v", page.Items)
	}
}

func TestScalingAtTheClusterIsRefusedWhileTheRootIsConnected(t *testing.T) {
	r := newRig(t)
	r.join("n1")
	r.want(1, instance(ours, 64))
	scale := "/v1/services/" + api.PathOf(ours.Service()) + "/scale"
	r.step(cluster.RootLink{Up: true})
	if p := r.ask("alice", "POST", scale, api.Replicas{Replicas: 2}, 409, nil); !strings.Contains(p.Detail, "root is reachable") {
		t.Errorf("refused with %s", p.Detail)
	}
	r.step(cluster.RootLink{})
	r.ask("alice", "POST", scale, api.Replicas{Replicas: 2}, http.StatusNoContent, nil)
	r.ask("otto", "POST", scale, api.Replicas{Replicas: 3}, http.StatusNoContent, nil)
	r.ask("otto", "POST", scale, api.Replicas{Replicas: -1}, 422, nil)
	r.ask("alice", "POST", "/v1/services/acme~none.prod.web.v1/scale", api.Replicas{Replicas: 1}, 404, nil)
	var page api.Page[api.Instance]
	r.ask("otto", "GET", "/v1/instances", nil, 200, &page)
	if len(page.Items) != 3 {
		t.Errorf("%d instances", len(page.Items))
	}
}

func TestInstancesAndWhyShowOnlyWhatTheUserMaySee(t *testing.T) {
	r := newRig(t)
	r.join("n1")
	r.join("n2")
	big := instance("acme/shop.prod.web.v1#1", 4096)
	r.want(1, instance(ours, 64), big, instance(theirs, 64))
	count := func(who string, want int) []api.Instance {
		t.Helper()
		var page api.Page[api.Instance]
		r.ask(who, "GET", "/v1/instances", nil, 200, &page)
		if len(page.Items) != want {
			t.Errorf("%s sees %d instances, want %d", who, len(page.Items), want)
		}
		return page.Items
	}
	nodes := 0
	for _, i := range count("otto", 3) {
		if i.Node != "" {
			nodes++
		}
	}
	if nodes != 2 {
		t.Errorf("the operator sees the nodes of %d instances, want 2", nodes)
	}
	for _, i := range append(count("alice", 2), count("rival", 1)...) {
		if i.Node != "" {
			t.Errorf("a developer sees that %s is on %s", i.ID, i.Node)
		}
	}
	var why api.Explanation
	path := "/v1/instances/" + api.PathOf(big.Instance) + "/why"
	r.ask("otto", "GET", path, nil, 200, &why)
	if why.Considered != 2 || len(why.Candidates) != 2 || why.Candidates[0].Constraint != "memory" || why.Candidates[0].Short == "" {
		t.Errorf("the operator is told %+v", why)
	}
	why = api.Explanation{}
	r.ask("alice", "GET", path, nil, 200, &why)
	if why.Considered != 2 || len(why.Candidates) != 0 || why.Nearest != nil && why.Nearest.Candidate != "" || len(why.Causes) == 0 {
		t.Errorf("a developer is told %+v", why)
	}

	// A tenant reads logs that a node of the operator writes.
	w := r.raw("alice", "GET", "/v1/instances/"+api.PathOf(ours)+"/logs?tail=7&follow=true", "")
	if w.Code != 200 || !strings.HasPrefix(w.Body.String(), "written on n") || r.asked.Tail != 7 || !r.asked.Follow {
		t.Errorf("logs: %d %s, asked for %+v", w.Code, w.Body, r.asked)
	}
	r.ask("alice", "GET", "/v1/instances/"+api.PathOf(big.Instance)+"/logs", nil, 409, nil)
	r.ask("alice", "GET", "/v1/instances/"+api.PathOf(ours)+"/logs?tail=-2", nil, 422, nil)
	r.ask("alice", "GET", "/v1/instances/acme~shop.prod.web.v1~9/logs", nil, 404, nil)

	var s httpapi.Status
	r.ask("otto", "GET", "/v1/status", nil, 200, &s)
	if s.Nodes != 2 || s.Instances != 3 || s.Root || s.ID != "munich" {
		t.Errorf("status %+v", s)
	}
}

func TestMalformedRequestsAreProblems(t *testing.T) {
	r := newRig(t)
	r.ask("otto", "GET", "/v1/nothing", nil, 404, nil)
	r.ask("otto", "PUT", "/v1/nodes", nil, 405, nil)
	large := `{"uses":1,"kind":"` + strings.Repeat("x", 70<<10) + `"}`
	for what, c := range map[string]struct {
		body   string
		status int
	}{
		"not JSON": {"{", 400}, "an unknown field": {`{"usses":1}`, 422}, "another type": {`{"uses":"many"}`, 422}, "too large": {large, 413},
	} {
		w := r.raw("otto", "POST", "/v1/tokens", c.body)
		if w.Code != c.status || w.Header().Get("Content-Type") != "application/problem+json" || !strings.Contains(w.Body.String(), `"code"`) {
			t.Errorf("%s: %d %s %s, want %d", what, w.Code, w.Header(), w.Body, c.status)
		}
	}
	if w := r.raw("", "GET", "/v1/nodes", ""); w.Header().Get("WWW-Authenticate") != "Bearer" {
		t.Errorf("401 without a challenge: %v", w.Header())
	}
}

func TestAPlanShowsOnlyWhatTheUserMaySee(t *testing.T) {
	r := newRig(t)
	r.join("n1")
	small, big := instance(ours, 64), instance("acme/shop.prod.web.v1#1", 1<<20)
	req := api.ClusterPlanRequest{Instances: []api.WhyRequest{{Instance: small.Instance, Spec: small.Spec}, {Instance: big.Instance, Spec: big.Spec}}}
	var p api.ClusterPlan
	r.ask("otto", "POST", "/v1/plan", req, 200, &p)
	if len(p.Instances) != 2 || p.Instances[0].Node != "n1" || p.Instances[0].Action != "place" || p.Instances[1].Action != "wait" || len(p.Instances[1].Why.Candidates) != 1 {
		t.Errorf("the operator is told %+v", p)
	}
	p = api.ClusterPlan{}
	r.ask("alice", "POST", "/v1/plan", req, 200, &p)
	if len(p.Instances) != 2 || p.Instances[0].Node != "" || p.Instances[0].Action != "place" || p.Instances[1].Why == nil || len(p.Instances[1].Why.Candidates) != 0 {
		t.Errorf("a developer is told %+v", p)
	}
	r.ask("rival", "POST", "/v1/plan", req, 404, nil)
	r.ask("", "POST", "/v1/plan", req, 401, nil)
	req.Instances = make([]api.WhyRequest, 1001)
	for i := range req.Instances {
		req.Instances[i] = api.WhyRequest{Instance: small.Instance, Spec: small.Spec}
	}
	r.ask("otto", "POST", "/v1/plan", req, 413, nil)
}
