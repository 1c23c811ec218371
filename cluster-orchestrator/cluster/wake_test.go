package cluster

import (
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// light is an assignment that takes no room.
func light(a api.Assignment) api.Assignment {
	a.Spec.VCPUs, a.Spec.Memory = 0, 0
	return a
}

// racked joins a node with so much memory in a rack.
func (w *world) racked(id api.NodeID, rack string, memory int64) {
	info := nodeInfo(id, api.Resources{MilliCPU: 4000, MemoryMB: memory})
	info.Labels = map[string]string{"rack": rack}
	w.joins(info)
}

// joins has a node come with all that it says of itself.
func (w *world) joins(info api.NodeInfo) *twin {
	n := &twin{id: info.ID, boot: 1, has: map[api.InstanceID]api.Observed{}, want: map[api.InstanceID]api.Assignment{}}
	w.nodes[info.ID] = n
	w.step(JoinNode{Info: info})
	w.speak(info.ID)
	return n
}

// apartFrom keeps a service apart from others.
func apartFrom(by string, services ...string) api.Constraint {
	return api.Constraint{Type: api.ConstrainApart, By: by, Services: services}
}

// TestWhoIsKeptOutComesWhenTheOthersLeave: nodes gain no room by that.
func TestWhoIsKeptOutComesWhenTheOthersLeave(t *testing.T) {
	w := newWorld(t, 1)
	w.wants(light(of(pre, 0, 1)))
	w.beat()
	w.wants(light(of(web, 0, 2, apartFrom("", "pre.prod"))), light(of(web, 1, 2, apartFrom("", "pre.prod"))))
	w.beat()
	w.expect(0, api.Requested, "")
	w.drops(pre.Instance(0))
	w.beat()
	w.expect(0, api.Running, "n0")
	w.expect(1, api.Running, "n0")
	// And the other way round: what is to be apart leaves.
	w.wants(light(of(pre, 0, 3)))
	w.beat()
	if n := w.nodeOf(pre.Instance(0)); n != "" {
		t.Fatalf("it is beside who is to be apart from it, on %s", n)
	}
	w.drops(web.Instance(0), web.Instance(1))
	w.beat()
	if n := w.nodeOf(pre.Instance(0)); n != "n0" {
		t.Errorf("it is on %q", n)
	}
	w.checkBooks()
}

func TestWhoIsKeptOutOfARackComesToAnyNodeOfIt(t *testing.T) {
	for name, leave := range map[string]func(w *world){
		"it is deleted": func(w *world) { w.drops(pre.Instance(0)) },
		"its node goes to another rack": func(w *world) {
			info := nodeInfo("n0", api.Resources{MilliCPU: 4000, MemoryMB: 256})
			info.Labels = map[string]string{"rack": "r2"}
			n := w.nodes["n0"]
			n.seq++
			w.step(NodeReport{api.NodeReport{Node: "n0", Boot: 1, Seq: n.seq, Gen: n.gen, Info: &info}})
		},
		"its node is removed": func(w *world) {
			w.nodes["n0"].off = true
			w.pass(20 * time.Second)
			w.step(RemoveNode{"n0"})
		},
	} {
		w := newWorld(t, 0)
		w.racked("n0", "r1", 256)
		w.racked("n1", "r1", 4096)
		w.wants(of(pre, 0, 1, onNode("n0")))
		w.beat()
		a := of(web, 0, 3, apartFrom("rack", "pre.prod"))
		a.Spec.Memory = 1024
		w.wants(a)
		w.beat()
		w.expect(0, api.Requested, "")
		leave(w)
		w.pass(20 * time.Second)
		if in := w.at(0); in.Node != "n1" {
			t.Errorf("%s: it is on %q: %s", name, in.Node, in.Detail)
		}
		w.checkBooks()
	}
}

// TestASpreadServiceTakesThePlaceOfOneThatLeft: the rack's other node has room.
func TestASpreadServiceTakesThePlaceOfOneThatLeft(t *testing.T) {
	w := newWorld(t, 0)
	w.racked("n0", "r1", 256)
	w.racked("n1", "r1", 4096)
	racks := api.Constraint{Type: api.ConstrainSpread, By: "rack"}
	w.wants(of(web, 0, 1, racks, onNode("n0")))
	w.beat()
	big := of(web, 1, 2, racks)
	big.Spec.Memory = 1024
	w.wants(big)
	w.beat()
	w.expect(1, api.Requested, "")
	w.drops(web.Instance(0))
	w.beat()
	w.expect(1, api.Running, "n1")
	w.checkBooks()
}
