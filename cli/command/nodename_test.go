package command_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// TestNodeNameIsRefusedWhileAClusterDoesNotAnswer cordons a node by its name without a cluster. A
// cluster that does not answer may have a node of that name too.
func TestNodeNameIsRefusedWhileAClusterDoesNotAnswer(t *testing.T) {
	named := func(id api.ClusterID) (c api.Cluster) { c.ID = id; return c }
	node := func(of api.ClusterID, id api.NodeID) (n api.Node) { n.ID, n.Cluster = id, of; return n }
	for name, c := range map[string]struct {
		oslo    int // status of the answer for the nodes of oslo
		node    string
		ordered string
		code    int
		says    string
	}{
		"no answer":                  {503, "n1", "", 8, "munich/n1"},
		"no answer, unknown name":    {503, "n9", "", 8, "CLUSTER/NODE"},
		"no answer, whole name":      {503, "munich/n1", "munich/n1", 0, ""},
		"not allowed":                {403, "n1", "munich/n1", 0, ""},
		"not allowed, unknown name":  {403, "n9", "", 5, "oslo"},
		"one cluster has such a one": {200, "n1", "munich/n1", 0, ""},
		"two clusters have one":      {200, "n2", "", 2, "oslo/n2"},
	} {
		t.Run(name, func(t *testing.T) {
			ordered := ""
			r := canned(t, func(w http.ResponseWriter, req *http.Request) {
				switch req.URL.Path {
				case "/v1/clusters":
					say(t, w, api.Page[api.Cluster]{Items: []api.Cluster{named("munich"), named("oslo")}})
				case "/v1/clusters/munich/nodes":
					say(t, w, api.Page[api.Node]{Items: []api.Node{node("munich", "n1"), node("munich", "n2")}})
				case "/v1/clusters/oslo/nodes":
					if c.oslo == http.StatusOK {
						say(t, w, api.Page[api.Node]{Items: []api.Node{node("oslo", "n2")}})
						return
					}
					w.Header().Set("Content-Type", "application/problem+json")
					w.WriteHeader(c.oslo)
					_ = json.NewEncoder(w).Encode(api.Problem{Title: "no", Status: c.oslo})
				default:
					ordered = strings.TrimSuffix(strings.TrimPrefix(req.URL.Path, "/v1/clusters/"), "/cordon")
					ordered = strings.Replace(ordered, "/nodes/", "/", 1)
					say(t, w, api.Node{})
				}
			})
			_, said, code := r.run("", "cordon", c.node)
			if ordered != c.ordered || code != c.code || !strings.Contains(said, c.says) {
				t.Errorf("cordon %s: %q was cordoned, exit %d, says %q; want %q, %d, %q", c.node, ordered, code, said, c.ordered, c.code, c.says)
			}
		})
	}
}
