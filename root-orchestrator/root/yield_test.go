package root

import (
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/root-orchestrator/root/applications"
)

const urgent = api.InstanceID("acme/urgent.prod.web.prod#0")

// fullOf returns a world of clusters without free resources that can evict less urgent instances.
func fullOf(t *testing.T, clusters ...api.ClusterID) *world {
	w := newWorld(t, clusters...)
	for _, id := range clusters {
		w.twins[id].room = 0
		w.twins[id].yields = []api.Preemptible{{Urgency: 1, Free: free(500), Largest: free(500)}, {Urgency: 2, Free: free(2000), Largest: free(1000)}}
	}
	w.settle()
	return w
}

func free(milli int64) api.Resources { return api.Resources{MilliCPU: milli, MemoryMB: milli} }

func (w *world) applyUrgent(priority string, change ...func(*api.Microservice)) applications.Instance {
	w.t.Helper()
	app := application(1, append(change, func(m *api.Microservice) { m.Priority = priority })...)
	app.Name = "urgent"
	w.must(Apply{Tenant: "acme", Spec: app})
	return w.record(urgent)
}

func TestAnUrgentInstanceIsOfferedToAClusterThatCanPreempt(t *testing.T) {
	for _, tt := range []struct {
		name, priority string
		change         func(*api.Microservice)
		offered        bool
	}{
		{"enough yields", "high", func(*api.Microservice) {}, true},
		{"the less urgent get less", "normal", func(*api.Microservice) {}, false},
		{"nobody makes way for the least urgent", "low", func(*api.Microservice) {}, false},
		{"no one node would have so much", "high", func(m *api.Microservice) { m.VCPUs = 1.5 }, false},
		{"another constraint", "high", func(m *api.Microservice) { m.Arch = []string{"riscv64"} }, false},
		{"devices are not yielded", "high", func(m *api.Microservice) { m.VGPUs = 1 }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := fullOf(t, "a")
			in := w.applyUrgent(tt.priority, tt.change)
			if got := in.Cluster == "a"; got != tt.offered || got && !strings.Contains(in.Detail, "preempts less urgent instances") {
				t.Errorf("the instance is offered to %q (%q), want it offered to a: %v", in.Cluster, in.Detail, tt.offered)
			}
			w.checkBooks()
		})
	}
}

func TestPreemptedCapacityIsReservedOnce(t *testing.T) {
	w := fullOf(t, "a")
	app := application(4, func(m *api.Microservice) { m.Priority = "high" })
	w.must(Apply{Tenant: "acme", Spec: app})
	if n := w.on("a"); n != 2 {
		t.Errorf("%d instances are offered to a cluster that would have room for 2, want 2", n)
	}
	w.checkBooks()
}

func TestARefusingClusterIsNotAskedToPreemptAgain(t *testing.T) {
	w := fullOf(t, "a", "b")
	for _, tw := range w.twins {
		tw.full = true
	}
	in := w.applyUrgent("high", exclusive)
	for range 20 {
		for _, tw := range w.twins {
			tw.run()
			r := tw.report()
			r.Aggregate.Largest.MemoryMB += int64(tw.seq) // more free resources, but not enough
			r.Aggregate.Free.MemoryMB += int64(tw.seq)
			w.do(r)
		}
		w.now = w.now.Add(10 * time.Millisecond)
	}
	if n := w.record(in.ID).Tries; n != 2 {
		t.Errorf("two clusters that refuse were asked %d times, want once each", n)
	}
	w.checkBooks()
}

func TestAWaitingUrgentInstanceIsOfferedWhenAClusterCanPreempt(t *testing.T) {
	w := fullOf(t, "a")
	yields := w.twins["a"].yields
	w.twins["a"].yields = nil
	w.settle()
	in := w.applyUrgent("high")
	w.settle()
	if in = w.record(in.ID); in.Cluster != "" {
		t.Fatalf("the instance is on %s, want it waiting", in.Cluster)
	}
	w.twins["a"].yields = yields
	w.twins["a"].room = 0
	w.round()
	if w.record(in.ID).Tries != 1 {
		t.Error("the instance was not offered when others could be preempted")
	}
}

func TestARunningInstancePreemptsNone(t *testing.T) {
	w := placedOn(t, func(m *api.Microservice) { m.Priority = "high" })
	w.twins["b"].room = 0
	w.twins["b"].yields = []api.Preemptible{{Urgency: 1, Free: free(9000), Largest: free(9000)}}
	w.settle()
	w.violated("a", 0, true)
	w.settle()
	if in := w.instance(0); in.Next != nil || in.Cluster != "a" {
		t.Errorf("the instance is on %s with second placement %+v, want a and none", in.Cluster, in.Next)
	}
}

func TestPlanNamesPreemption(t *testing.T) {
	w := fullOf(t, "a")
	app := application(1, func(m *api.Microservice) { m.Priority = "high" })
	p, err := w.c.Plan(w.now, "acme", []api.Application{app}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Apps[0].Instances[0]; got.Action != PlanPlace || !got.Preempts || got.Cluster != "a" || len(p.Asks["a"]) != 1 {
		t.Errorf("planned %+v, want it placed on a, displacing others", got)
	}
}
