package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/membership"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/membership/nodecaps"
)

func cappedWorld(t *testing.T, nodes int, caps nodecaps.Policy) *world {
	w := newWorld(t, nodes)
	w.cfg.Caps = caps
	w.restart()
	w.pass(defaultDead)
	w.beat()
	return w
}

// describes makes a node report an Info modified by change.
func (w *world) describes(id api.NodeID, change func(*api.NodeInfo)) {
	w.t.Helper()
	info := w.claims[id]
	change(&info)
	r := w.nodes[id].whole()
	r.Info = &info
	w.step(r)
}

// greedy claims the maximum that the bounds of messages allow.
func greedy(i *api.NodeInfo) {
	i.Capacity = api.Resources{MilliCPU: 8_000_000, MemoryMB: 1 << 26, StorageMB: 1 << 30, InMbit: 1_000_000, OutMbit: 1_000_000}
	i.Privileged = true
	i.Runtimes = []string{"container", "process", "runsc"}
	i.Devices = nil
	for n := range 64 {
		i.Devices = append(i.Devices, api.NodeDevice{ID: fmt.Sprintf("x.org/gpu=%d", n), Kinds: []string{"gpu", "x.org/gpu"}})
	}
}

func (w *world) capNotices() (out []string) {
	for _, o := range w.c.uplink.Notices() {
		if o.Reason == api.ReasonCapped {
			out = append(out, o.Text)
		}
	}
	return out
}

// TestAReportAboveTheCapsIsReducedToThem: a hostile node claims as much as possible. The
// operator, the root and placement only see its caps.
func TestAReportAboveTheCapsIsReducedToThem(t *testing.T) {
	most := api.Resources{MilliCPU: 2000, MemoryMB: 1024, StorageMB: 100, InMbit: 10, OutMbit: 5}
	w := cappedWorld(t, 1, nodecaps.Policy{Default: nodecaps.Caps{
		Max: most, Devices: map[string]int{"gpu": 1}, Runtimes: []string{"container"}, Privileged: nodecaps.Deny,
	}})
	check := func(when string) {
		t.Helper()
		n, _ := w.c.Node("n0")
		if n.Capacity != most || n.Privileged || len(n.Devices) != 1 || len(n.Runtimes) != 1 || len(n.Capped) != 8 {
			t.Errorf("%s: the operator sees %s, privileged %v, %d devices, runtimes %v, capped %v", when, n.Capacity, n.Privileged, len(n.Devices), n.Runtimes, n.Capped)
		}
		a := w.c.Aggregate()
		if a.Nodes != 1 || a.Capacity != most || a.Free != most || a.Largest != most || len(a.Slots) != 1 {
			t.Fatalf("%s: the root is told %+v", when, a)
		}
		if s := a.Slots[0]; s.Runtime != "container" || s.Privileged || s.Largest != most || len(s.Devices) != 2 || s.Devices[0].Free != 1 {
			t.Errorf("%s: the root is told of a slot %+v", when, s)
		}
	}
	w.describes("n0", greedy)
	check("after its report")
	w.restart()
	w.pass(defaultDead)
	w.beat()
	check("after a restart")
	w.describes("n0", func(i *api.NodeInfo) { i.Labels = map[string]string{"a": "b"} })
	check("after another report")

	large, deep := assignment(0, 1, spec(3, 64)), assignment(1, 1, spec(0.5, 64))
	deep.Spec.Privileged = true
	w.wants(large, deep)
	w.beat()
	for id, want := range map[api.InstanceID]string{
		large.Instance: "vcpus", deep.Instance: "privileged",
	} {
		in := w.record(id)
		why := w.c.WhyOf(api.WhyRequest{Instance: id, Spec: in.Desired.Spec})
		if in.Node != "" || why.Nearest == nil || why.Nearest.Constraint != want {
			t.Errorf("%s is on %q: %+v", id, in.Node, why.Nearest)
			continue
		}
		if want == "privileged" && !strings.Contains(why.Nearest.Have, "node_caps.privileged") {
			t.Errorf("why does not name the setting: %+v", why.Nearest)
		}
		if want == "vcpus" && !strings.HasPrefix(why.Nearest.Have, "2 ") {
			t.Errorf("why does not show what counts: %+v", why.Nearest)
		}
	}
}

// TestAReportAboveTheCapsIsNotedOnce: a hostile node changes its claims with every report.
func TestAReportAboveTheCapsIsNotedOnce(t *testing.T) {
	w := cappedWorld(t, 1, nodecaps.Policy{Default: nodecaps.Caps{Max: api.Resources{MilliCPU: 2000, MemoryMB: 1024}}})
	if got := w.capNotices(); len(got) != 1 || !strings.Contains(got[0], "node n0 reports more than its caps") ||
		!strings.Contains(got[0], "memory (reports 4096 MiB, 1024 MiB is used)") {
		t.Fatalf("after the start under caps: %q", got)
	}
	flip := func(i int) {
		w.describes("n0", func(info *api.NodeInfo) {
			info.Capacity = api.Resources{MilliCPU: int64(3000 + i), MemoryMB: int64(2000 + i)}
			if i%2 == 0 {
				info.Capacity.MilliCPU = 1
			}
		})
	}
	for i := range 100 {
		flip(i)
	}
	if got := w.capNotices(); len(got) != 1 {
		t.Errorf("%d notices of 100 reports within a minute: %q", len(got), got)
	}
	for i := range 30 {
		w.pass(2 * time.Second)
		flip(i)
	}
	if got := w.capNotices(); len(got) > 3 {
		t.Errorf("%d notices within 2 minutes: %q", len(got), got)
	}
}

// TestNodesFromBeforeTheCapsStayPrivileged restores nodes that an earlier release saved. With
// Existing, nodes that accepted privileged workloads then continue to get them. Nodes that
// accept them only now, or that join, do not.
func TestNodesFromBeforeTheCapsStayPrivileged(t *testing.T) {
	w := newWorld(t, 2)
	w.describes("n0", func(i *api.NodeInfo) { i.Privileged = true })
	for k, d := range w.disk { // as the earlier release saved them
		if d.Kind != membership.Kind {
			continue
		}
		var rec map[string]any
		if err := json.Unmarshal(d.Data, &rec); err != nil {
			t.Fatal(err)
		}
		if _, ok := rec["existing_privileged"]; !ok {
			t.Fatalf("the record says nothing of caps: %s", d.Data)
		}
		delete(rec, "existing_privileged")
		d.Data, _ = json.Marshal(rec)
		w.disk[k] = d
	}
	w.cfg.Caps.Default.Privileged = nodecaps.Existing
	w.restart()
	w.pass(defaultDead)
	w.beat()
	w.join("n2", api.Resources{MilliCPU: 1000, MemoryMB: 1000})
	expect := func(when string, want map[api.NodeID]bool) {
		t.Helper()
		for id, is := range want {
			if n, _ := w.c.Node(id); n.Privileged != is {
				t.Errorf("%s: %s is privileged: %v, want %v", when, id, n.Privileged, is)
			}
		}
	}
	expect("after the upgrade", map[api.NodeID]bool{"n0": true, "n1": false, "n2": false})
	for _, id := range []api.NodeID{"n1", "n2"} {
		w.describes(id, func(i *api.NodeInfo) { i.Privileged = true })
	}
	w.describes("n0", func(i *api.NodeInfo) { i.Labels = map[string]string{"a": "b"} })
	expect("after all claim it", map[api.NodeID]bool{"n0": true, "n1": false, "n2": false})
	w.restart()
	expect("after a restart", map[api.NodeID]bool{"n0": true, "n1": false, "n2": false})
	w.step(JoinNode{Info: w.claims["n1"]}) // another join with the same key
	expect("after n1 joined again", map[api.NodeID]bool{"n0": true, "n1": false, "n2": false})

	w.cfg.Caps.Nodes = map[api.NodeID]nodecaps.Caps{"n0": {Privileged: nodecaps.Deny}, "n1": {Privileged: nodecaps.Allow}}
	w.restart()
	expect("with caps of their own", map[api.NodeID]bool{"n0": false, "n1": true, "n2": false})

	// A node that is removed and joins again counts as new.
	w.cfg.Caps.Nodes = nil
	w.restart()
	w.pass(defaultDead)
	w.beat()
	claims := w.claims["n0"]
	w.step(RemoveNode{Node: "n0"})
	w.step(JoinNode{Info: claims})
	expect("after n0 was removed and joined", map[api.NodeID]bool{"n0": false})
}

// TestCapsOfTheOperatorAndTheConfigurationBothApply: the lower cap counts, also after a restart and
// another join. Running instances stay. Lifting the order leaves the configured caps.
func TestCapsOfTheOperatorAndTheConfigurationBothApply(t *testing.T) {
	w := cappedWorld(t, 2, nodecaps.Policy{Default: nodecaps.Caps{Max: api.Resources{MilliCPU: 2000, MemoryMB: 1024}, Devices: map[string]int{"gpu": 2}}})
	w.describes("n0", greedy)
	w.describes("n1", func(i *api.NodeInfo) { i.Capacity = api.Resources{MilliCPU: 1, MemoryMB: 1} })
	runs := assignment(0, 1, spec(0.5, 512))
	runs.Spec.VGPUs = 2
	w.wants(runs)
	w.beat()
	if in := w.record(runs.Instance); in.Node != "n0" {
		t.Fatalf("%s is on %q, want n0", runs.Instance, in.Node)
	}
	order := api.Caps{MilliCPU: 4000, MemoryMB: 256, StorageMB: 10, Devices: map[string]int{"gpu": 1}, NoPrivileged: true}
	ordered := func(in CapNode) {
		t.Helper()
		if err := w.step(in).Err; err != nil {
			t.Fatal(err)
		}
	}
	ordered(CapNode{Node: "n0", Caps: order})
	check := func(when string) {
		t.Helper()
		n, _ := w.c.Node("n0")
		if n.Capacity.MilliCPU != 2000 || n.Capacity.MemoryMB != 256 || n.Capacity.StorageMB != 10 || len(n.Devices) != 1 || n.Privileged || !reflect.DeepEqual(n.Caps, order) {
			t.Errorf("%s: the operator sees %s, %d devices, privileged %v, caps %+v", when, n.Capacity, len(n.Devices), n.Privileged, n.Caps)
		}
		if a := w.c.Aggregate(); a.Largest.MemoryMB > 256 {
			t.Errorf("%s: the root is told %+v", when, a.Largest)
		}
	}
	check("after the order")
	w.beat()
	if in, _ := w.c.Instance(runs.Instance); in.Node != "n0" || in.State != api.Running {
		t.Errorf("what ran is on %q and %s", in.Node, in.State)
	}
	w.describes("n0", func(i *api.NodeInfo) { i.Labels = map[string]string{"a": "b"} })
	check("after another report")
	w.restart()
	w.pass(defaultDead)
	w.beat()
	check("after a restart")
	w.step(JoinNode{Info: w.claims["n0"]})
	check("after another join")

	more := assignment(1, 1, spec(0.1, 300))
	w.wants(runs, more)
	w.beat()
	in := w.record(more.Instance)
	why := w.c.WhyOf(api.WhyRequest{Instance: more.Instance, Spec: in.Desired.Spec})
	if in.Node != "" || !slices.ContainsFunc(why.Candidates, func(r api.Rejection) bool {
		return r.Candidate == "n0" && r.Constraint == "memory" && strings.HasSuffix(r.Have, " (capped)")
	}) {
		t.Errorf("%s is on %q; why says %+v", more.Instance, in.Node, why.Candidates)
	}

	for _, bad := range []api.Caps{{MemoryMB: -1}, {Nodes: 1}, {Devices: map[string]int{"": 1}}} {
		if err := w.step(CapNode{Node: "n0", Caps: bad}).Err; !errors.Is(err, api.ErrInvalid) {
			t.Errorf("caps %+v: %v", bad, err)
		}
	}
	if err := w.step(CapNode{Node: "n9"}).Err; !errors.Is(err, api.ErrNotFound) {
		t.Errorf("a node that is not there: %v", err)
	}
	check("after orders that were refused")
	ordered(CapNode{Node: "n0"})
	if n, _ := w.c.Node("n0"); n.Capacity.MilliCPU != 2000 || n.Capacity.MemoryMB != 1024 || len(n.Devices) != 2 {
		t.Errorf("without the order %s and %d devices count", n.Capacity, len(n.Devices))
	}
}
