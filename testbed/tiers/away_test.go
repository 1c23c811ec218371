package tiers

import (
	"path/filepath"
	"strings"
	"testing"

	cluster "github.com/treeline-edge/treeline/cluster-orchestrator/wiring"
	root "github.com/treeline-edge/treeline/root-orchestrator/wiring"
)

// TestAnOperatorWorksWhileTheRootIsAway signs in to the cluster's own port with the operator's token, and uses
// it after the root has ended.
func TestAnOperatorWorksWhileTheRootIsAway(t *testing.T) {
	c := openTerminal(t)
	c.at.startNode(t, "n1")
	c.at.startNode(t, "n2")
	c.must("cordon", "n2")
	c.apply(pair)
	c.must("wait", "hello", "--timeout", "3m")

	for _, key := range []string{"TREELINE_ADDR", "TREELINE_TOKEN", "TREELINE_CA", "TREELINE_TENANT"} {
		delete(c.env, key)
	}
	ca := filepath.Join(c.root.cfg.Data, root.CAFile)
	token := filepath.Join(c.at.cfg.Data, cluster.OperatorFile)
	for _, wrong := range [][]string{
		{"--cluster", "oslo", "--token-file", token, "--ca", ca},
		{"--cluster", "munich", "--token-file", ca, "--ca", ca},
	} {
		if _, said, code := c.run(append([]string{"login", c.at.url}, wrong...)...); code != 5 {
			t.Errorf("login with %v: exit %d: %s", wrong, code, said)
		}
	}
	if _, said, code := c.run("login", c.at.url, "--cluster", "munich", "--token-file", token); code != 2 || !strings.Contains(said, "--ca") {
		t.Errorf("login without a CA: exit %d: %s", code, said)
	}
	c.must("login", c.at.url, "--cluster", "munich", "--token-file", token, "--ca", ca)
	c.root.stop()

	has := func(out string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("want %q in\n%s", w, out)
			}
		}
	}
	has(c.must("ctx", "show", "-o", "wide"), "munich", "operator")
	has(c.must("get", "nodes"), "n1", "n2", "hello.prod.web.v1#0")
	has(c.must("get", "nodes", "-o", "name"), "munich/n1")
	has(c.must("get", "instances", "-o", "wide"), "running", "n1")
	has(c.must("get", "instances", "hello/web#0", "-o", "json"), `"running"`)
	has(c.must("top", "instances", "hello"), "hello.prod.web.v1#0", "munich")
	has(c.must("top", "nodes"), "n1", "n2")
	has(c.must("describe", "node", "n1"), "Runs: ", "hello.prod.web.v1#0")
	_, said, code := c.run("logs", "hello/web")
	if code != 0 {
		t.Errorf("logs: exit %d: %s", code, said)
	}
	has(c.must("__complete", "drain", ""), "munich/n1")
	c.must("uncordon", "munich/n2")
	c.must("drain", "n1", "--timeout", "2m")
	has(c.must("get", "instances", "--node", "n2", "-o", "name"), "hello.prod.web.v1#0")
	has(c.must("token", "create", "--node", "--cluster", "munich"), "--token-file -")
	has(c.must("token", "list", "--cluster", "munich"), "node")
	c.must("events")

	for _, args := range [][]string{{"get", "apps"}, {"apply", "-f", "x.yaml"}, {"get", "instances", "-w"}, {"user", "list"}} {
		if _, said, code := c.run(args...); code != 2 || !strings.Contains(said, "munich") {
			t.Errorf("%v: exit %d, want a refusal that names the cluster: %s", args, code, said)
		}
	}
	if _, said, code := c.run("drain", "oslo/n1"); code != 6 {
		t.Errorf("drain a node of another cluster: exit %d: %s", code, said)
	}
	c.must("logout")
	if _, said, code := c.run("get", "nodes"); code != 5 {
		t.Errorf("get nodes after logout: exit %d: %s", code, said)
	}
}
