package restored_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/restored"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func none(api.InstanceID) (api.Epoch, bool) { return 0, false }

func report(node api.NodeID, seq uint64, whole bool, ids ...int) wire.NodeReport {
	r := wire.NodeReport{Node: node, Boot: 1, Seq: seq, Whole: whole}
	for _, n := range ids {
		r.Observed = append(r.Observed, api.Observed{Instance: api.InstanceID(fmt.Sprintf("a/a.b.c.d#%d", n)), Epoch: api.EpochOf(1, 1), State: api.Running})
	}
	return r
}

func TestANodeThatReportsTooMuchIsBounded(t *testing.T) {
	m := restored.New(store.Restored{})
	m.Report(report("other", 1, true, 0))
	for part := range uint64(30) {
		r := report("hostile", part+1, part == 0)
		for n := range 1000 {
			r.Observed = append(r.Observed, report("", 0, false, int(part)*1000+n).Observed...)
		}
		m.Report(r)
	}
	if n := len(m.Observed()); n != 10_000 {
		t.Errorf("%d instances are kept, want 10000", n)
	}
	m.Forget("hostile")
	if n := len(m.Observed()); n != 1 {
		t.Errorf("%d instances are kept without the node, want 1", n)
	}
}

// TestAMissingReportIsRequestedAgain: a report that was lost may have had an instance without a record.
func TestAMissingReportIsRequestedAgain(t *testing.T) {
	m := restored.New(store.Restored{})
	m.Start(start, 0, 0)
	m.Desire(wire.Desired{Gen: 1}, start)
	members := func() []api.NodeID { return []api.NodeID{"n"} }
	lease := func(boot, seq uint64) wire.Lease {
		l, _ := m.Alive("n", wire.Alive{Boot: boot, Seq: seq}, start, members)
		return l
	}
	m.Report(report("n", 1, true))
	if !m.Ready(start, members, none) || lease(1, 1).RequestWhole {
		t.Fatal("not ready after a whole report without instances")
	}
	m.Report(report("n", 3, false))
	if m.Ready(start, members, none) || !lease(1, 2).RequestWhole || lease(1, 3).Seq != 0 {
		t.Error("ready without the report 2")
	}
	m.Report(report("n", 4, true, 7))
	m.Report(report("n", 4, true))
	if m.Ready(start, members, none) || len(m.Unknown(none)) != 1 {
		t.Error("a repeated report replaces a newer one")
	}
	if lease(2, 1); len(m.Silent(members())) != 1 {
		t.Error("a node that has started again needs no whole report")
	}
}

func TestChangesOfAnotherDesiredSetAreNotTaken(t *testing.T) {
	m := restored.New(store.Restored{})
	a := func(n int) wire.Assignment {
		return wire.Assignment{Instance: api.InstanceID(fmt.Sprintf("a/a.b.c.d#%d", n))}
	}
	for i, c := range []struct {
		d    wire.Desired
		ok   bool
		size int
	}{
		{wire.Desired{Gen: 5, From: 4, Put: []wire.Assignment{a(1)}}, false, 0},
		{wire.Desired{Gen: 5, Put: []wire.Assignment{a(1), a(2)}}, true, 2},
		{wire.Desired{Gen: 7, From: 6, Put: []wire.Assignment{a(3)}}, false, 2},
		{wire.Desired{Gen: 6, From: 5, Put: []wire.Assignment{a(3)}, Drop: []api.InstanceID{a(1).Instance}}, true, 2},
		{wire.Desired{Gen: 6, From: 5, Put: []wire.Assignment{a(4)}}, true, 2},
		{wire.Desired{Gen: 4}, true, 2},
		{wire.Desired{Gen: 9}, true, 0},
	} {
		if ok := m.Desire(c.d, start); ok != c.ok || len(m.Desired().Put) != c.size {
			t.Errorf("%d: got %t and %d instances, want %t and %d", i, ok, len(m.Desired().Put), c.ok, c.size)
		}
	}
}
