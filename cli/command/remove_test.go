package command_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// TestAPurgeSaysHowFarItIs covers each course of a purge, by the states of the node that the
// cluster reports in turn.
func TestAPurgeSaysHowFarItIs(t *testing.T) {
	node := func(change func(*api.Node)) *api.Node {
		n := &api.Node{NodeInfo: api.NodeInfo{ID: "n1"}, Cluster: "munich", Status: api.NodeDraining, Instances: 2, Purging: true}
		change(n)
		return n
	}
	holds := []api.Remaining{{Instance: "acme/shop.prod.web.v1#0", Why: "is being stopped"}, {Instance: "acme/shop.prod.web.v1#1"}}
	was := node(func(n *api.Node) { n.Status, n.Purging = api.NodeReady, false })
	stopping := node(func(n *api.Node) { n.Remaining = holds })
	for _, tt := range []struct {
		name    string
		looks   []*api.Node // states after the order; nil: removed. The last one is repeated
		args    string
		code    int
		ordered bool
		says    []string
	}{
		{"it is purged", []*api.Node{stopping, nil}, "--yes", 0, true, []string{"node n1 of cluster munich purged and removed"}},
		{"it is not reachable", []*api.Node{node(func(n *api.Node) { n.Status, n.Remaining = api.NodeSilent, holds })}, "--yes", 8, true, []string{
			"it may still run:", "shop.prod.web.v1#0", "shop.prod.web.v1#1", "nothing was deleted there", "keeps the order", "treeline delete node munich/n1", "node-engine purge --yes",
		}},
		{"it cannot", []*api.Node{node(func(n *api.Node) { n.PurgeError = "containerd is gone" })}, "--yes --timeout 3s", 4, true, []string{
			"containerd is gone", "is not purged yet: the last attempt failed", "node-engine purge --yes",
		}},
		{"it is slow", []*api.Node{stopping}, "--yes --timeout 3s", 4, true, []string{"2 instances are still being stopped", "keeps the order"}},
		{"it does not know of purges", []*api.Node{node(func(*api.Node) {})}, "--yes --timeout 3s", 4, true, []string{"has not acknowledged"}},
		{"the order is taken back", []*api.Node{stopping, was}, "--yes", 7, true, []string{"treeline uncordon"}},
		{"nobody agrees", nil, "", 2, false, []string{"This purges and removes node n1 of cluster munich (ready): it stops its 2 instances", "--yes"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ordered := false
			looks := tt.looks
			r := canned(t, func(w http.ResponseWriter, req *http.Request) {
				switch {
				case req.Method == http.MethodPost && req.URL.Path == "/v1/clusters/munich/nodes/n1/purge":
					ordered = true
					say(t, w, was)
				case req.Method != http.MethodGet || req.URL.Path != "/v1/clusters/munich/nodes/n1":
					t.Errorf("unexpected request %s %s", req.Method, req.URL.Path)
				case !ordered:
					say(t, w, was)
				default:
					now := looks[0]
					if len(looks) > 1 {
						looks = looks[1:]
					}
					if now != nil {
						say(t, w, now)
						return
					}
					w.Header().Set("Content-Type", "application/problem+json")
					w.WriteHeader(http.StatusNotFound)
					_ = json.NewEncoder(w).Encode(api.Problem{Status: http.StatusNotFound, Code: "not_found", Detail: "no such node"})
				}
			})
			out, said, code := r.run("", append(strings.Fields("delete node munich/n1 --purge"), strings.Fields(tt.args)...)...)
			if code != tt.code || ordered != tt.ordered || out != "" {
				t.Errorf("exit %d, want %d; ordered %v, want %v; prints %q; says %s", code, tt.code, ordered, tt.ordered, out, said)
			}
			for _, s := range tt.says {
				if !strings.Contains(said, s) {
					t.Errorf("it does not say %q: %s", s, said)
				}
			}
		})
	}
}
