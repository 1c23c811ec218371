package cluster

import (
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement"
	"github.com/treeline-edge/treeline/internal/wire"
)

func ref(name string, version uint64) wire.ValueRef {
	return wire.ValueRef{Kind: api.KindSecret, Name: name, Version: version, Digest: "d"}
}

func key(name string, version uint64) wire.ValueKey {
	return wire.ValueKey{Tenant: "acme", ValueRef: ref(name, version)}
}

// need gives an instance values, and returns what the store of values was told.
func (w *world) need(n int, refs ...wire.ValueRef) (told placement.Needed) {
	w.t.Helper()
	a := w.want[web.Instance(n)]
	if a.Instance == "" {
		a = assignment(n, 1, spec(1, 100))
	}
	a.Values = refs
	w.want[a.Instance] = a
	w.desire()
	for _, e := range w.last.Send {
		if m, ok := e.Msg.(placement.Needed); ok {
			told = m
		}
	}
	return told
}

func TestValuesChangeInPlace(t *testing.T) {
	w := newWorld(t, 2)
	if told := w.need(0, ref("db", 1)); !slices.Equal(told, placement.Needed{key("db", 1)}) {
		t.Errorf("the store of values was told %v, want version 1", told)
	}
	w.beat()
	in := w.c.Instances()[0]
	node := w.nodes[in.Node]
	epoch := node.want[in.ID].Epoch
	if told := w.need(0, ref("db", 2)); !slices.Equal(told, placement.Needed{key("db", 2)}) {
		t.Errorf("the store of values was told %v, want version 2 only", told)
	}
	a := node.want[in.ID]
	if a.Epoch != epoch || !slices.Equal(a.Values, []wire.ValueRef{ref("db", 2)}) {
		t.Errorf("the node has epoch %s and values %v, want epoch %s and version 2", a.Epoch, a.Values, epoch)
	}
	w.beat()
	if now := w.c.Instances()[0]; now.Node != in.Node || now.Epoch != in.Epoch || now.State != api.Running {
		t.Errorf("the instance is %+v, want it unchanged", now)
	}
	desired, _ := w.c.Digests()
	if want := w.want[in.ID].Digest(); desired != want {
		t.Errorf("digest of the desired set is %x, want %x", desired, want)
	}

	w.restart()
	w.beat()
	if got := w.c.Values(); !slices.Equal(got, placement.Needed{key("db", 2)}) {
		t.Errorf("after a restart the instances need %v, want version 2", got)
	}
	delete(w.want, in.ID)
	w.desire()
	w.pass(4 * time.Second)
	if got := w.c.Values(); len(got) > 0 {
		t.Errorf("without instances %v is needed", got)
	}
}

func TestAValueIsForNodesThatHaveItsInstances(t *testing.T) {
	w := newWorld(t, 2)
	w.need(0, ref("db", 1))
	w.beat()
	mine := w.c.Instances()[0].Node
	other := api.NodeID("n0")
	if mine == other {
		other = "n1"
	}
	want := key("db", 1).Want()
	if k, ok := w.c.ValueFor(mine, want); !ok || k != key("db", 1) {
		t.Errorf("the instance's node gets %v %v, want the value", k, ok)
	}
	for name, hostile := range map[string]struct {
		node api.NodeID
		want wire.WantValue
	}{
		"another node":    {other, want},
		"no node":         {"n9", want},
		"another name":    {mine, key("root", 1).Want()},
		"another version": {mine, key("db", 2).Want()},
		"another tenant":  {mine, wire.WantValue{Tenant: "evil", Kind: api.KindSecret, Name: "db", Version: 1}},
		"another kind":    {mine, wire.WantValue{Tenant: "acme", Kind: api.KindConfig, Name: "db", Version: 1}},
	} {
		if _, ok := w.c.ValueFor(hostile.node, hostile.want); ok {
			t.Errorf("%s gets the value", name)
		}
	}
	w.need(0, ref("db", 2))
	if _, ok := w.c.ValueFor(mine, want); ok {
		t.Error("the node gets a version that its instance no longer needs")
	}
}
