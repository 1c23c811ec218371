package tiers

import (
	"context"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	cluster "github.com/treeline-edge/treeline/cluster-orchestrator/wiring"
	node "github.com/treeline-edge/treeline/node-engine/wiring"
)

const greedy = `sla_version: v2.0
applications:
  - application_name: greedy
    application_namespace: prod
    microservices:
      - {microservice_name: large, microservice_namespace: v1, virtualization: container, network: any, code: "web:1", memory: 2048}
      - {microservice_name: deep, microservice_namespace: v1, virtualization: container, network: any, code: "web:1", memory: 16, privileged: true}
      - {microservice_name: web, microservice_namespace: v1, virtualization: container, network: any, code: "web:1", memory: 16}
`

// TestAnOperatorCapsWhatANodeClaims: describe, why and the events show the capped values of a node
// that reports more memory than its cap and offers to run privileged workloads. With the default of
// node_caps.privileged a node that joins gets no privileged workloads.
func TestAnOperatorCapsWhatANodeClaims(t *testing.T) {
	c := openTerminalWith(t, func(cfg *cluster.Config) { cfg.NodeCaps.Memory = 1024 })
	cfg := c.at.nodeConfig(t, "n1", c.at.nodeToken(api.TokenRequest{}))
	cfg.Memory, cfg.Privileged = 1<<20, true
	begin(t, func(ctx context.Context) error { return node.Run(ctx, cfg, quiet(t)) })
	c.at.until(t, "n1", api.NodeReady)
	c.apply(greedy)
	c.must("wait", "greedy/web", "--timeout", "3m")

	says := func(out string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("want %q in\n%s", w, out)
			}
		}
	}
	says(c.must("describe", "node", "n1"),
		"4 vCPU, 1024 MiB", "memory: reports 1024 GiB, limited to 1024 MiB", "privileged: reports allowed, limited to forbidden")
	if out := c.must("describe", "node", "n1"); strings.Contains(out, "Privileged") {
		t.Errorf("want the node shown without privileged, got:\n%s", out)
	}
	says(c.must("why", "greedy/large#0"), "2048 MiB")
	says(c.must("why", "greedy/deep#0"), "privileged")
	eventually(t, "the root has an event", func() bool {
		out := c.must("describe", "cluster", "munich")
		return strings.Contains(out, "node n1 reports more than its caps") && strings.Contains(out, "capped")
	})
}

// TestAnOperatorCapsANodeByOrder caps a running node by a command: the cap applies, why shows it,
// and 0 removes it.
func TestAnOperatorCapsANodeByOrder(t *testing.T) {
	c := openTerminal(t)
	c.at.startNode(t, "n1")
	says := func(out string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("want %q in\n%s", w, out)
			}
		}
	}
	_, said, code := c.run("cap", "node", "n1", "--memory", "100", "--vcpus", "1.5")
	if code != 0 {
		t.Fatalf("exit %d: %s", code, said)
	}
	says(said, "node n1 of cluster munich is limited to 1.5 vCPU, 100 MiB")
	says(c.must("describe", "node", "n1"), "Caps:         1.5 vCPU, 100 MiB\n", "1.5 vCPU, 100 MiB", "memory: reports ")
	says(c.must("get", "nodes", "-o", "wide"), "CAPPED", "memory claims ", "0 MiB/100 MiB")
	c.apply(greedy)
	c.must("wait", "greedy/web", "--timeout", "3m")
	eventually(t, "why says that a cap leaves too little", func() bool {
		return strings.Contains(c.must("why", "greedy/large#0"), "(capped)")
	})
	// Caps without a flag do not change.
	_, said, _ = c.run("cap", "node", "munich/n1", "--vcpus", "0")
	says(said, "is limited to 100 MiB")
	_, said, _ = c.run("cap", "node", "munich/n1", "--memory", "0")
	says(said, "is limited to node_caps of its cluster only")
	c.must("wait", "greedy/large", "--timeout", "3m")
	for _, wrong := range [][]string{{"cap", "node", "n1"}, {"cap", "node", "n1", "--memory", "-1"}, {"cap", "node", "n1", "--nodes", "1"}} {
		if _, said, code := c.run(wrong...); code != 2 {
			t.Errorf("%v: exit %d: %s", wrong, code, said)
		}
	}
}
