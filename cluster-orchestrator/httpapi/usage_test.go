package httpapi_test

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/wire"
)

// run reports that an instance runs on a node.
func (r *rig) run(n api.NodeID, ids ...api.InstanceID) {
	r.t.Helper()
	var all []api.Observed
	for _, id := range ids {
		all = append(all, api.Observed{Instance: id, Epoch: r.placed(id).Epoch, State: api.Running})
	}
	r.step(cluster.NodeReport{NodeReport: wire.NodeReport{Node: n, Boot: 1, Seq: 2, Observed: all}})
}

func (r *rig) placed(id api.InstanceID) (i api.Instance) {
	r.t.Helper()
	r.ask("admin", "GET", "/v1/instances/"+api.PathOf(id), nil, 200, &i)
	return i
}

func sample(t *testing.T, s wire.NodeSample) string {
	t.Helper()
	b, err := json.Marshal(s)
	check(t, err)
	return string(b)
}

func TestUsageIsShownToThoseWhoMaySeeTheInstances(t *testing.T) {
	r := newRig(t)
	r.join("n1")
	ours, others := api.ServiceID("acme/shop.prod.web.v1").Instance(0), api.ServiceID("rival/spy.prod.web.v1").Instance(0)
	r.want(1, instance(ours, 10), instance(others, 10))
	r.run("n1", ours, others)
	a, b := wire.Key{Instance: ours, Epoch: r.placed(ours).Epoch}, wire.Key{Instance: others, Epoch: r.placed(others).Epoch}
	used := api.Usage{MilliCPU: 250, Memory: 20 << 20, In: 1000, Out: -1}
	r.answer = sample(t, wire.NodeSample{
		Machine:   api.Usage{MilliCPU: 900, Memory: 1 << 30, In: 5, Out: 6},
		Workloads: []wire.WorkloadSample{{Key: b, Usage: api.Usage{MilliCPU: 1}}, {Key: a, Usage: used}},
	})

	var got api.Usages[api.InstanceUsage]
	r.ask("alice", "GET", "/v1/usage/instances", nil, 200, &got)
	if len(got.Items) != 1 || got.Items[0].Instance != ours || got.Items[0].Usage != used || got.Items[0].Node != "" || got.Missing != nil {
		t.Errorf("a developer sees %+v, want the own instance without its node", got)
	}
	if r.asked.Kind != wire.StreamUsage || r.asked.Token != "" {
		t.Errorf("the node was asked %+v", r.asked)
	}
	r.ask("otto", "GET", "/v1/usage/instances?tenant=rival", nil, 200, &got)
	if len(got.Items) != 1 || got.Items[0].Instance != others || got.Items[0].Node != "n1" {
		t.Errorf("the operator sees %+v of rival, want its instance and the node", got)
	}
	r.ask("alice", "GET", "/v1/usage/instances?under=acme/shop.prod.we", nil, 200, &got)
	if len(got.Items) != 0 {
		t.Errorf("under a part of a name are %+v, want nothing", got)
	}
	r.ask("", "GET", "/v1/usage/instances", nil, 401, nil)

	var nodes api.Usages[api.NodeUsage]
	r.ask("otto", "GET", "/v1/usage/nodes?node=n1", nil, 200, &nodes)
	if len(nodes.Items) != 1 || nodes.Items[0].Machine.MilliCPU != 900 || nodes.Items[0].Instances.MilliCPU != 251 || nodes.Items[0].Running != 2 {
		t.Errorf("the operator sees %+v, want the machine's usage and the sum of two instances", nodes)
	}
	r.ask("alice", "GET", "/v1/usage/nodes", nil, 403, nil)
	r.ask("otto", "GET", "/v1/usage/nodes?node=n9", nil, 404, nil)
}

// TestAHostileNodesUsageIsBounded: a node speaks for the instances that it has, once each, within bounds.
func TestAHostileNodesUsageIsBounded(t *testing.T) { synctest.Test(t, hostileUsage) }

func hostileUsage(t *testing.T) {
	r := newRig(t)
	r.join("n1")
	ours := api.ServiceID("acme/shop.prod.web.v1").Instance(0)
	r.want(1, instance(ours, 10))
	r.run("n1", ours)
	key := wire.Key{Instance: ours, Epoch: r.placed(ours).Epoch}
	stale := wire.Key{Instance: ours, Epoch: key.Epoch + 1}
	elsewhere := wire.Key{Instance: "rival/spy.prod.web.v1#0", Epoch: key.Epoch}
	get := func() (got api.Usages[api.InstanceUsage]) {
		t.Helper()
		time.Sleep(1100 * time.Millisecond) // the last answer serves for a second
		r.ask("otto", "GET", "/v1/usage/instances", nil, 200, &got)
		return got
	}

	r.answer = sample(t, wire.NodeSample{Workloads: []wire.WorkloadSample{
		{Key: elsewhere, Usage: api.Usage{MilliCPU: 7}},
		{Key: stale, Usage: api.Usage{MilliCPU: 7}},
		{Key: key, Usage: api.Usage{MilliCPU: 1}},
		{Key: key, Usage: api.Usage{MilliCPU: 2}},
	}})
	if got := get(); len(got.Items) != 1 || got.Items[0].MilliCPU != 1 {
		t.Errorf("got %+v, want the first row of the instance that the node has, and no other", got)
	}
	r.answer = sample(t, wire.NodeSample{Workloads: []wire.WorkloadSample{{Key: key, Usage: api.Usage{MilliCPU: 1 << 60}}}})
	if got := get(); len(got.Items) != 0 || len(got.Missing) != 1 || got.Missing[0].Instance != ours || got.Missing[0].Node != "n1" {
		t.Errorf("with an impossible value: %+v, want the instance as missing", got)
	}
	for what, text := range map[string]string{
		"endless": strings.Repeat(`{"workloads":[`, 10_000), "many objects": `{"workloads":[` + strings.Repeat("{},", 1000) + `{}]}`, "no JSON": "nonsense",
	} {
		r.answer = text
		if got := get(); len(got.Items) != 0 || len(got.Missing) != 1 || !strings.Contains(got.Missing[0].Reason, "read its answer") {
			t.Errorf("with an answer of %s: %+v, want the instance as missing, with a reason", what, got)
		}
	}
	// A silent node holds nobody for longer than its time.
	r.answer, r.stream = "", &silent{}
	began := time.Now()
	if got := get(); len(got.Missing) != 1 || !strings.Contains(got.Missing[0].Reason, "did not answer within") || time.Since(began) > 30*time.Second {
		t.Errorf("of a silent node after %s: %+v, want the instance as missing", time.Since(began), got)
	}
}

// silent is a stream without bytes, which ends when it is closed.
type silent struct{ closed atomic.Bool }

func (s *silent) Read([]byte) (int, error) {
	for !s.closed.Load() {
		time.Sleep(10 * time.Millisecond)
	}
	return 0, io.ErrClosedPipe
}

func (s *silent) Close() error { s.closed.Store(true); return nil }

// TestMeasurementsOfOneTenantLeaveRoomForOthers: beyond its share a tenant is refused, and a node is asked
// once, however many ask.
func TestMeasurementsOfOneTenantLeaveRoomForOthers(t *testing.T) {
	r := newRig(t)
	r.join("n1")
	ours := api.ServiceID("acme/shop.prod.web.v1").Instance(0)
	r.want(1, instance(ours, 10))
	r.run("n1", ours)
	var asked atomic.Int32
	goOn := make(chan struct{})
	r.hold = func() { asked.Add(1); <-goOn }
	r.answer = `{}`
	codes := make(chan int, 40)
	var all sync.WaitGroup
	for range cap(codes) {
		all.Go(func() { codes <- r.raw("otto", "GET", "/v1/usage/nodes", "").Code })
	}
	counts := map[int]int{}
	for counts[429] < cap(codes)-8 {
		code := <-codes
		counts[code]++
		if code != 429 {
			t.Fatalf("a measurement ended with %d before the node answered", code)
		}
	}
	if w := r.raw("operator", "GET", "/v1/usage/instances", ""); w.Code != 200 { // it has no instances here, so nothing is asked
		t.Errorf("another tenant meanwhile: %d %s", w.Code, w.Body)
	}
	close(goOn)
	all.Wait()
	for range 8 {
		counts[<-codes]++
	}
	if fmt.Sprint(counts) != "map[200:8 429:32]" || asked.Load() != 1 {
		t.Errorf("40 requests of one person end with %v and ask the node %d times, want 8 served by one answer", counts, asked.Load())
	}
}
