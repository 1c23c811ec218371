package nodelink

import (
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

func TestAWholeSetReplacesQueuedChanges(t *testing.T) {
	o := newOutbox()
	o.put("n1", wire.Desired{Gen: 1})
	o.put("n1", wire.Desired{Gen: 2, From: 1})
	o.put("n1", wire.Desired{Gen: 3})
	o.put("n1", wire.Desired{Gen: 4, From: 3})
	o.put("n1", wire.Lease{Seq: 1})
	o.put("n1", wire.Lease{Seq: 2})
	n, l, ok := o.next()
	if !ok || n != "n1" || l.whole.Gen != 3 || len(l.deltas) != 1 || l.deltas[0].Gen != 4 || l.lease.Seq != 2 {
		t.Fatalf("%s %+v %v", n, l, ok)
	}
}

func TestMessagesOfANodeAreSentByOneWorker(t *testing.T) {
	o := newOutbox()
	o.put("n1", wire.Desired{Gen: 1})
	if n, _, _ := o.next(); n != "n1" {
		t.Fatal(n)
	}
	o.put("n1", wire.Desired{Gen: 2}) // waits until the worker is done
	o.put("n2", wire.Desired{Gen: 1})
	if n, _, _ := o.next(); n != "n2" {
		t.Fatalf("%s is given to a second worker", n)
	}
	o.done("n1")
	if n, l, _ := o.next(); n != "n1" || l.whole.Gen != 2 {
		t.Fatalf("%s %+v", n, l)
	}
	o.done("n1")
	o.done("n2")
	if len(o.nodes) != 0 {
		t.Errorf("%d nodes are kept without letters", len(o.nodes))
	}
}

func TestOutboxIsBounded(t *testing.T) {
	o := newOutbox()
	for g := range api.Generation(maxDeltas + 10) {
		o.put("n1", wire.Desired{Gen: g + 2, From: g + 1})
	}
	if o.lost() != 10 {
		t.Errorf("%d dropped, want 10", o.lost())
	}
	o.clear("n1")
	if _, l, _ := o.next(); !l.clear || len(l.deltas) != 0 {
		t.Errorf("a node that is gone is still sent %+v", l)
	}
	o.close()
	o.put("n1", wire.Desired{Gen: 1})
	if _, _, ok := o.next(); ok {
		t.Error("a closed outbox gives letters out")
	}
}

func TestGeneratedNodeNames(t *testing.T) {
	for host, want := range map[string]string{
		"edge-7.example.org": "edge-7-", "Rack 3/A": "rack-3-a-", "": "node-", "---": "node-", "ümlaut": "mlaut-",
	} {
		n := nameFor(host)
		if !api.ValidMachineName(string(n)) || string(n[:len(n)-6]) != want {
			t.Errorf("%q is named %q, want %q and six letters", host, n, want)
		}
	}
}
