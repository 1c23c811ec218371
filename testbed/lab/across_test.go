package lab_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/treeline-edge/treeline/testbed/lab"
)

// toldNothingInner fails when a node or its cluster has been told what is inside
// another cluster: its nodes' names, and addresses that lead nowhere from outside. It
// looks at what both keep on their disks, which is what came by the root, at what the
// node shows, and at where it sent its probes. A peer's certificate, which it shows by
// itself to prove its key, names it, and is base64 in all of that.
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
				t.Errorf("%s names %s", where, name)
			}
		}
	}
	told["the netmanager's log"], told["the cluster's log"] = []byte(n.Net.Log()), []byte(n.Cluster.Log())
	for where, text := range told {
		for _, a := range addresses {
			if i := bytes.Index(text, []byte(a)); i >= 0 {
				t.Errorf("%s has %s: %q", where, a, text[max(0, i-200):min(len(text), i+100)])
			}
		}
	}
	// What is looked for can be found: the node's own.
	if !bytes.Contains(told["the cluster's store"], []byte(`"`+n.Name+`"`)) || !bytes.Contains(told["its store"], []byte("203.0.113.")) {
		t.Error("the stores hold nothing to be read")
	}
}
