package tiers

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	node "github.com/treeline-edge/treeline/node-engine/wiring"
)

const plain = `sla_version: v2.0
applications:
  - application_name: hello
    application_namespace: prod
    microservices:
      - {microservice_name: web, microservice_namespace: v1, virtualization: container, network: any, code: "web:1"}
`

// TestPeopleSeeWhatRunsWhere: nodes have their address and what runs on them, and instances their node, for
// those who may see nodes only.
func TestPeopleSeeWhatRunsWhere(t *testing.T) {
	c := openTerminal(t)
	cfg := c.at.nodeConfig(t, "n1", c.at.nodeToken(api.TokenRequest{}))
	cfg.Address, cfg.Labels = "n1.example.org", []string{"rack=r1"}
	begin(t, func(ctx context.Context) error { return node.Run(ctx, cfg, quiet(t)) })
	c.at.until(t, "n1", api.NodeReady)
	cfg = c.at.nodeConfig(t, "n2", c.at.nodeToken(api.TokenRequest{}))
	cfg.Labels = []string{"rack=r2"}
	begin(t, func(ctx context.Context) error { return node.Run(ctx, cfg, quiet(t)) })
	c.at.until(t, "n2", api.NodeReady)
	c.must("cordon", "n2")
	c.apply(plain)
	c.must("wait", "hello", "--timeout", "3m")

	cells := func(out, name string) []string {
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) > 0 && f[0] == name {
				return f
			}
		}
		t.Fatalf("no line of %s in\n%s", name, out)
		return nil
	}
	if got := cells(c.must("get", "nodes"), "n1"); !slices.Contains(got, "hello.prod.web.v1#0") {
		t.Errorf("get nodes has %v for n1, want what runs there", got)
	}
	if got := cells(c.must("get", "nodes", "-o", "wide"), "n2"); !slices.Contains(got, "127.0.0.1") {
		t.Errorf("get nodes has %v for n2, want its address on the way to the cluster", got)
	}
	if out := c.must("get", "nodes", "-l", "rack=r2", "-o", "name"); out != "munich/n2\n" {
		t.Errorf("the nodes with rack=r2 are %q, want munich/n2", out)
	}
	if got := cells(c.must("get", "instances", "-o", "wide"), "hello.prod.web.v1#0"); !slices.Contains(got, "n1") {
		t.Errorf("get instances has %v, want the node", got)
	}
	if out := c.must("get", "instances", "--node", "munich/n1", "-o", "name"); out != "acme/hello.prod.web.v1#0\n" {
		t.Errorf("on n1 run %q, want the instance", out)
	}
	if out := c.must("get", "instances", "--node", "munich/n2", "-o", "name"); out != "" {
		t.Errorf("on n2 run %q, want nothing", out)
	}
	if out := c.must("describe", "node", "n1"); !strings.Contains(out, "Runs:         hello.prod.web.v1#0\n") {
		t.Errorf("describe does not say what runs on the node:\n%s", out)
	}

	if got := cells(c.must("top", "instances", "-o", "wide"), "hello.prod.web.v1#0"); !slices.Contains(got, "n1") {
		t.Errorf("top instances has %v, want the node", got)
	}
	if got := cells(c.must("top", "nodes"), "n1"); got[1] != "munich" || !strings.HasSuffix(got[2], "m") {
		t.Errorf("top nodes has %v, want the cluster and the processor time of the machine", got)
	}

	// A developer sees neither nodes nor their addresses.
	c.env["TREELINE_TOKEN"] = c.person(t, "acme/dora", "Application_Provider")
	if out := c.must("top", "instances", "-o", "json"); strings.Contains(out, "n1") || !strings.Contains(out, "hello.prod.web.v1#0") {
		t.Errorf("top instances shows a developer\n%s", out)
	}
	if out, stderr, code := c.run("top", "nodes"); strings.Contains(out+stderr, "n1") {
		t.Errorf("a developer's top nodes: exit %d, %s%s, want no node", code, out, stderr)
	}
	if out := c.must("get", "instances", "-o", "wide"); strings.Contains(out, "n1") || !strings.Contains(out, "running") {
		t.Errorf("a developer sees\n%s", out)
	}
	if out, stderr, _ := c.run("get", "nodes"); strings.Contains(out+stderr, "n1") {
		t.Errorf("a developer's get nodes prints\n%s%s", out, stderr)
	}
}

// person creates a user and returns a token.
func (c *terminal) person(t *testing.T, id string, roles ...string) string {
	t.Helper()
	i, err := c.root.admin.CreateUser(t.Context(), id, roles...)
	check(t, err)
	s, err := c.root.admin.Redeem(t.Context(), api.Redeem{User: id, Code: i.Code, Password: "correct horse battery"})
	check(t, err)
	return s.Access
}
