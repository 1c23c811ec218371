package httpapi_test

import (
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/identity/rights"
)

// TestAHostileClustersUsageIsBounded: of a cluster's answer, the root passes on what is about the instances
// that it asked for, within bounds, and the cluster's nodes to those who may see them only.
func TestAHostileClustersUsageIsBounded(t *testing.T) {
	r := newRig(t)
	dev, op := r.user("acme/dora", rights.ApplicationProvider), r.user("rival/omar", rights.InfrastructureProvider)
	r.runs()
	i, err := r.client(dev).Instance(t.Context(), web)
	check(t, err)
	answer := func(items ...api.InstanceUsage) {
		r.clusters.answers["GET /v1/usage/instances?tenant=acme&under=acme%2Fshop.prod.web.v1%230"] = httpAnswer(200, api.Usages[api.InstanceUsage]{
			Items: items, Missing: []api.Unmeasured{{Instance: "rival/spy.prod.web.v1#0", Reason: "made up"}},
		})
	}
	ask := func() api.Usages[api.InstanceUsage] {
		t.Helper()
		got, err := r.client(dev).InstanceUsage(t.Context(), client.UsageOptions{Tenant: "acme", Under: string(web)})
		check(t, err)
		return got
	}
	answer(
		api.InstanceUsage{Instance: web, Epoch: i.Epoch, Cluster: "oslo", Node: "n7", Usage: api.Usage{MilliCPU: 100, Memory: -7, In: 1 << 62, Out: 5}},
		api.InstanceUsage{Instance: "rival/spy.prod.web.v1#0", Epoch: 1, Usage: api.Usage{MilliCPU: 100}},
	)
	got := ask()
	if len(got.Items) != 1 || len(got.Missing) != 0 || got.Items[0].Cluster != "munich" || got.Items[0].Node != "" || got.Items[0].Usage != (api.Usage{MilliCPU: 100, Memory: -1, In: -1, Out: 5}) {
		t.Errorf("a developer sees %+v, want the own instance, without impossible values and without the node", got)
	}
	answer(api.InstanceUsage{Instance: web, Epoch: i.Epoch + 1})
	if got := ask(); len(got.Items) != 0 || len(got.Missing) != 1 || got.Missing[0].Instance != web || got.Missing[0].Node != "" {
		t.Errorf("of another placement: %+v, want the instance as missing", got)
	}
	r.clusters.silent = "munich"
	if got := ask(); len(got.Items) != 0 || len(got.Missing) != 1 || !strings.Contains(got.Missing[0].Reason, "munich is not connected") {
		t.Errorf("of a silent cluster: %+v, want the instance as missing, with the reason", got)
	}
	r.clusters.silent = ""
	_, err = r.client(dev).Scale(t.Context(), web.Service(), 0, 0)
	check(t, err)
	if got := ask(); len(got.Items)+len(got.Missing) != 0 {
		t.Errorf("of an instance that is being withdrawn: %+v, want nothing: the cluster may have stopped it", got)
	}

	// Strangers do not even cause a question.
	r.clusters.asked = nil
	if got, err := r.client(op).InstanceUsage(t.Context(), client.UsageOptions{Under: string(web)}); err == nil && len(got.Items)+len(got.Missing) > 0 {
		t.Errorf("another tenant sees %+v", got)
	}
	if _, err := r.client(dev).NodeUsage(t.Context(), "munich", ""); err == nil || len(r.clusters.asked) > 0 {
		t.Errorf("a developer measures nodes: %v, the clusters are asked %v, want a refusal", err, r.clusters.asked)
	}
}
