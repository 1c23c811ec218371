package httpapi_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// If no cluster was offered the instance, the clusters explain where they could place it, to users
// who may see their nodes.
func TestAnInstanceThatFitsNowhereIsExplainedNodeByNode(t *testing.T) {
	r := newRig(t)
	boss := r.user("acme/boss", rights.Admin)
	dev := r.user("acme/dora", rights.ApplicationProvider)
	r.join("munich", "acme")
	r.join("osaka", "acme") // does not answer
	r.join("dublin", "rival")
	sla := strings.Replace(slaOf("shop", 1), `"memory":64`, `"memory":9000,"environment":["TOKEN=secret"]`, 1)
	doc, err := api.ParseSLA([]byte(sla))
	check(t, err)
	check(t, r.loop.Do(t.Context(), root.Apply{Tenant: "acme", Spec: doc.Applications[0]}, nil))
	short := api.Rejection{Candidate: "n2", Constraint: "memory", Need: "9000 MiB", Have: "4000 MiB", Short: "5000 MiB", Shortfall: 0.55}
	r.clusters.answers["POST /v1/why"] = httpAnswer(200, api.Explanation{
		Considered: 2, Causes: []api.Cause{{Constraint: "arch", Count: 1}, {Constraint: "memory", Count: 1}},
		Candidates: []api.Rejection{{Candidate: "n1", Constraint: "arch", Shortfall: 1}, short}, Nearest: &short,
	})
	r.clusters.silent = "osaka"

	w, err := r.client(boss).Why(t.Context(), "acme/shop.prod.web.v1#0")
	check(t, err)
	if len(w.Clusters) != 1 || w.Clusters[0].Cluster != "munich" || len(w.Clusters[0].Answer.Candidates) != 2 {
		t.Errorf("the operator reads %+v", w.Clusters)
	}
	if !slices.Contains(w.WouldHelp, "ask for 5000 MiB less memory, or free it") {
		t.Errorf("the advice is not the nearest node's: %q", w.WouldHelp)
	}
	if slices.ContainsFunc(r.clusters.asked, func(s string) bool { return strings.HasPrefix(s, "dublin") }) {
		t.Errorf("a cluster of another tenant was asked: %q", r.clusters.asked)
	}
	if strings.Contains(r.clusters.bodies, "secret") {
		t.Errorf("a cluster that does not have the instance gets its environment: %s", r.clusters.bodies)
	}

	r.clusters.asked = nil
	if w, err = r.client(dev).Why(t.Context(), "acme/shop.prod.web.v1#0"); err != nil || len(w.Clusters) != 0 || len(r.clusters.asked) != 0 {
		t.Errorf("a developer who sees no nodes: %+v %v, asked %q, want no error, 0 of Clusters, 0 of asked", w.Clusters, err, r.clusters.asked)
	}
}

// Clusters that the SLA excludes are not asked.
func TestClustersThatTheSLARulesOutAreNotAsked(t *testing.T) {
	r := newRig(t)
	boss := r.user("acme/boss", rights.Admin)
	r.join("munich", "acme")
	r.join("osaka", "acme")
	sla := strings.Replace(slaOf("shop", 1), `"memory":64`, `"memory":9000,"constraints":[{"type":"clusters","allowed":["osaka"]}]`, 1)
	doc, err := api.ParseSLA([]byte(sla))
	check(t, err)
	check(t, r.loop.Do(t.Context(), root.Apply{Tenant: "acme", Spec: doc.Applications[0]}, nil))
	r.clusters.answers["POST /v1/why"] = httpAnswer(200, api.Explanation{Considered: 1})
	w, err := r.client(boss).Why(t.Context(), "acme/shop.prod.web.v1#0")
	if err != nil || len(w.Clusters) != 1 || w.Clusters[0].Cluster != "osaka" {
		t.Errorf("the explanation has the clusters %+v (%v), want osaka", w.Clusters, err)
	}
}
