package root

import (
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// For each constraint that is not met, the explanation has a count and a suggestion.
func TestEveryConstraintHasAdvice(t *testing.T) {
	constrain := func(k api.Constraint) func(*api.Microservice) {
		return func(m *api.Microservice) { m.Constraints = []api.Constraint{k} }
	}
	tests := map[string]func(*api.Microservice){
		sched.ConstraintVCPUs:          func(m *api.Microservice) { m.VCPUs = 999 },
		sched.ConstraintMemory:         func(m *api.Microservice) { m.Memory = 1 << 30 },
		sched.ConstraintStorage:        func(m *api.Microservice) { m.Storage = 5 },
		sched.ConstraintBandwidthIn:    func(m *api.Microservice) { m.BandwidthIn = 5 },
		sched.ConstraintBandwidthOut:   func(m *api.Microservice) { m.BandwidthOut = 5 },
		sched.ConstraintDevice + "gpu": func(m *api.Microservice) { m.VGPUs = 1 },
		sched.ConstraintArch:           func(m *api.Microservice) { m.Arch = []string{"riscv64"} },
		sched.ConstraintVirtualization: func(m *api.Microservice) { m.Virtualization = "runsc" },
		sched.ConstraintPrivileged:     func(m *api.Microservice) { m.Privileged = true },
		sched.ConstraintFeatures:       healthy,
		sched.ConstraintAddons:         constrain(api.Constraint{Type: api.ConstrainAddons, Needs: []string{"x"}}),
		sched.ConstraintArea:           constrain(api.Constraint{Type: api.ConstrainGeo, Area: "fr"}),
		sched.ConstraintGeo:            constrain(api.Constraint{Type: api.ConstrainGeo, Location: "48,11", Threshold: 10}),
		sched.ConstraintCluster:        constrain(api.Constraint{Type: api.ConstrainClusters, Allowed: []string{"z"}}),
	}
	for constraint, change := range tests {
		w := newWorld(t, "a", "b")
		w.twins["a"].at, w.twins["b"].at = at(0, 0), at(1, 1)
		w.settle()
		w.apply(1, change)
		w.settle()
		why, _ := w.c.Why(web.Instance(0), w.now)
		sum := 0
		for _, c := range why.Root.Causes {
			sum += c.Count
		}
		if len(why.Root.Causes) != 1 || why.Root.Causes[0].Constraint != constraint || sum != 2 || why.Root.Considered != 2 {
			t.Errorf("%s: the causes are %+v, want only this constraint with 2 clusters", constraint, why.Root.Causes)
		}
		if len(why.WouldHelp) == 0 || why.Root.Nearest == nil || !strings.Contains(why.Summary, constraint) {
			t.Errorf("%s: summary %q, advice %q, nearest miss %+v, want all of them about this constraint", constraint, why.Summary, why.WouldHelp, why.Root.Nearest)
		}
	}
}

// If only nodes without an overlay network are left, the suggestion says how a service opts out.
func TestWhyOfTheOverlayNetworkSaysHowToOptOut(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.twins["a"].noOverlay, w.twins["b"].noOverlay = true, true
	w.settle()
	w.apply(1, func(m *api.Microservice) { m.Network = api.NetworkOverlay })
	w.settle()
	why, _ := w.c.Why(web.Instance(0), w.now)
	if len(why.Root.Causes) != 1 || why.Root.Causes[0].Constraint != sched.ConstraintNetwork || why.Root.Causes[0].Count != 2 {
		t.Errorf("the causes are %+v, want the constraint network for 2 clusters", why.Root.Causes)
	}
	if len(why.WouldHelp) != 1 || !strings.Contains(why.WouldHelp[0], "network: any") || !strings.Contains(why.WouldHelp[0], "plain processes") {
		t.Errorf("the advice is %q, want network: any", why.WouldHelp)
	}
	w.apply(1, func(m *api.Microservice) { m.Network = api.NetworkAny })
	w.settle()
	if why, _ = w.c.Why(web.Instance(0), w.now); why.Instance.Cluster == "" {
		t.Errorf("it opted out and waits: %s", why.Summary)
	}
}

func TestWhyOfWhatRunsComparesTheClusters(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	w.twins["a"].room = 1
	w.twins["b"].room = 0
	w.settle()
	w.apply(1, func(m *api.Microservice) {
		m.Constraints = []api.Constraint{{Type: api.ConstrainClusters, Allowed: []string{"a", "b"}}}
	})
	w.settle()
	why, _ := w.c.Why(web.Instance(0), w.now)
	if len(why.Ranked) != 1 || why.Ranked[0].Cluster != "a" || !strings.Contains(why.Summary, "no other cluster fits") {
		t.Errorf("summary %q and ranking %+v, want only cluster a", why.Summary, why.Ranked)
	}
	fits := 0
	for _, c := range why.Root.Causes {
		if c.Constraint == sched.Fits {
			fits = c.Count
		}
	}
	if fits != 1 || why.Root.Considered != 3 {
		t.Errorf("its own cluster, full with it, is said not to fit: %+v", why.Root.Causes)
	}
	w.twins["b"].room = 5
	w.settle()
	if why, _ = w.c.Why(web.Instance(0), w.now); len(why.Ranked) != 2 || !strings.Contains(why.Summary, "on b") {
		t.Errorf("the summary is %q, want cluster b and two ranked clusters", why.Summary)
	}
}
