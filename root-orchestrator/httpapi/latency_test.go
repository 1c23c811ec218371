package httpapi_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/client"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// linked makes three instances with a link to pre run on munich.
func (r *rig) linked() {
	r.t.Helper()
	r.join("munich", "")
	text := strings.Replace(slaOf("shop", 3), `"microservices":[`, `"microservices":[{"microservice_name":"pre","microservice_namespace":"v1","virtualization":"container",
		"code":"example.org/web:1","memory":64,"vcpus":0.1},`, 1)
	text = strings.Replace(text, `"replicas":3`, `"replicas":3,"connectivity":[{"target_microservice_id":"pre","con_constraints":[{"type":"latency","threshold":20}]}]`, 1)
	sla, err := api.ParseSLA([]byte(text))
	check(r.t, err)
	check(r.t, r.loop.Do(r.t.Context(), root.Apply{Tenant: "acme", Spec: sla.Applications[0]}, nil))
	report := wire.Report{Cluster: "munich", Boot: 1, Seq: 2}
	check(r.t, r.loop.Read(r.t.Context(), func() {
		for _, i := range r.core.Instances("acme") {
			report.Observed = append(report.Observed, api.Observed{Instance: i.ID, Epoch: i.Epoch, State: api.Running})
		}
	}))
	check(r.t, r.loop.Do(r.t.Context(), root.Report{Report: report}, nil))
}

const latencyPath = "/v1/apps/acme~shop.prod/latency"

func status(n int, rtt time.Duration) api.LinkStatus {
	return api.LinkStatus{Instance: api.InstanceID(fmt.Sprintf("acme/shop.prod.web.v1#%d", n)), To: "pre.v1", Limit: time.Second, RTT: rtt, By: api.ByConnections}
}

// A cluster tells round trips of the links of its own instances only, each once and within bounds; what is
// demanded is of the SLA.
func TestAHostileClusterTellsOnlyTheLatenciesOfItsOwnLinks(t *testing.T) {
	r := newRig(t)
	r.linked()
	dora := r.client(r.user("acme/dora", rights.ApplicationProvider))
	foreign, unknown, method, endless, negative := status(0, 1), status(0, 1), status(1, 1), status(2, time.Hour), status(2, -1)
	foreign.Instance, unknown.To, method.By = "rival/shop.prod.web.v1#0", "other", "magic"
	many := []api.LinkStatus{status(0, 7*time.Millisecond), status(0, 1), foreign, unknown, method, endless, negative, status(9, 1)}
	for range 5000 {
		many = append(many, status(0, 2))
	}
	r.clusters.answers["GET "+latencyPath] = httpAnswer(200, api.ClusterLatencies{Links: many})
	got, err := client.Get[api.Latencies](t.Context(), dora, latencyPath)
	if err != nil || len(got.Links) != 1 || len(got.Silent) != 0 {
		t.Fatalf("the latencies are %+v, %v; want one", got, err)
	}
	if l := got.Links[0]; l.Instance.Number() != 0 || l.RTT != 7*time.Millisecond || l.Limit != 20*time.Millisecond || l.By != api.ByConnections {
		t.Errorf("the latency is %+v, want 7 ms of 20 ms", l)
	}

	r.clusters.silent = "munich"
	if got, err = client.Get[api.Latencies](t.Context(), dora, latencyPath); err != nil || len(got.Links) != 0 || len(got.Silent) != 1 {
		t.Errorf("of a cluster that does not answer: %+v, %v; want its name", got, err)
	}
	rival := r.client(r.user("rival/eve", rights.ApplicationProvider))
	if _, err := client.Get[api.Latencies](t.Context(), rival, latencyPath); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("another tenant reads the latencies: %v, want not found", err)
	}
}
