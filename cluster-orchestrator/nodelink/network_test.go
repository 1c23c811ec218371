package nodelink

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/internal/wire"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func TestAWholeNetworkMessageReplacesQueuedOnes(t *testing.T) {
	o := newOutbox()
	o.put("n1", wire.NetDown{Rev: 1, Lease: &wire.NetLease{Rev: 1}})
	o.put("n1", wire.NetDown{Rev: 2, RequestWhole: true})
	o.put("n1", wire.NetDown{Rev: 3, Whole: true})
	o.put("n1", wire.NetDown{Rev: 4})
	_, l, _ := o.next()
	if len(l.net) != 2 || l.net[0].Rev != 3 || l.net[0].Lease == nil || !l.net[0].RequestWhole || l.net[1].Rev != 4 {
		t.Fatalf("%+v", l.net)
	}
	o.done("n1")
	for range maxNet + 5 {
		o.put("n1", wire.NetDown{})
	}
	if o.lost() != 5 {
		t.Errorf("%d dropped, want 5", o.lost())
	}
}

// FuzzNetUp feeds a core arbitrary messages of a hostile node's netmanager.
func FuzzNetUp(f *testing.F) {
	self := wire.NetSelf{Key: api.PeerKey{1}, Chain: [][]byte{{1}}, Proof: []byte{2}}
	b, _ := json.Marshal(wire.NetUp{Boot: 1, Seq: 1, Self: &self, Whole: true, Subscribe: []wire.Subscription{{Service: "acme/a.b.c.d", For: "acme/a.b.c.d"}, {}}})
	f.Add(b)
	f.Add([]byte(`{"boot":1,"seq":1,"between":[{"local":"a/b.c.d.e","remote":"a/b.c.f.e","node":"n1","least_ns":5,"connections":1,"age_ns":7}]}`))
	f.Add([]byte(`{"boot":1,"seq":1,"add":[{"address":"10.16.0.0"}],"drop":[{"address":"::1%x"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		in, err := netUp("n1", b)
		if err != nil {
			return
		}
		c := cluster.New(cluster.Config{ID: "c"})
		c.Step(epoch, cluster.Start{})
		c.Step(epoch, cluster.JoinNode{Info: api.NodeInfo{ID: "n1"}})
		r := wire.DefaultNetRanges()
		c.Step(epoch, cluster.RootNet{RootNet: wire.RootNet{Rev: 1, Ranges: r, Shares: nil}})
		for _, e := range c.Step(epoch, in).Send {
			if _, err := json.Marshal(e.Msg); err != nil {
				t.Error(err)
			}
		}
	})
}
