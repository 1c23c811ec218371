package lab_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/treeline-edge/treeline/testbed/lab"
)

// toldNothingInner fails if a node or its cluster has received internal data of another
// cluster: names of its nodes, or addresses that are not reachable from outside. It checks
// the stores of both, which contain everything that came through the root, the output of
// the node, and the destinations of its probes. A peer's certificate names the peer, but is
// encoded as base64 in all of these.
func toldNothingInner(t *testing.T, n *lab.Node, names []string, addresses ...string) {
	t.Helper()
	show := func(o any, err error) []byte {
		t.Helper()
		text, jerr := json.Marshal(o)
		if err != nil || jerr != nil {
			t.Fatal(err, jerr)
		}
		return text
	}
	read := func(path ...string) []byte {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(path...))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	routes, err := n.Cluster.API.OwnNodes().Routes(t.Context(), n.ID)
	told := map[string][]byte{
		"the node's routes": show(routes, err), "its peers": show(n.Peers(), nil), "its status": show(n.NetStatus(), nil),
		"its store": read(n.Data+"-net", "net.db"), "the cluster's store": read(n.Cluster.Data, "cluster.db"),
	}
	for where, text := range told {
		for _, name := range names {
			if bytes.Contains(text, []byte(`"`+name+`"`)) {
				t.Errorf("%s contains the name of the node %s of the other cluster", where, name)
			}
		}
	}
	told["the netmanager's log"], told["the cluster's log"] = []byte(n.Net.Log()), []byte(n.Cluster.Log())
	for where, text := range told {
		for _, a := range addresses {
			if i := bytes.Index(text, []byte(a)); i >= 0 {
				t.Errorf("%s contains the internal address %s of the other cluster: %q", where, a, text[max(0, i-200):min(len(text), i+100)])
			}
		}
	}
	// Check that the search works: it must find the node's own name.
	if !bytes.Contains(told["the cluster's store"], []byte(`"`+n.Name+`"`)) || !bytes.Contains(told["its store"], []byte("203.0.113.")) {
		t.Error("the node's own name is not found in the stores, so that the test proves nothing")
	}
}
