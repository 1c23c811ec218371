package topic_test

import (
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/topic"
)

// The expected rights of a node by leaf: may publish, may subscribe.
var rights = map[string][2]bool{
	"desired":  {false, true},
	"delta":    {false, true},
	"lease":    {false, true},
	"stream":   {false, true},
	"observed": {true, false},
	"alive":    {true, false},
	"will":     {true, false},
	"routes":   {false, true},
	"interest": {true, false},
	"probe":    {false, true},
	"probed":   {true, false},
}

func TestRightsOfEveryLeafAndEveryIdentity(t *testing.T) {
	if len(rights) != len(topic.All) {
		t.Fatalf("there are %d leaves and %d rights", len(topic.All), len(rights))
	}
	ids := []api.NodeID{"n1", "n2", "n1-2", "n", "cluster"}
	for _, l := range topic.All {
		want, ok := rights[l.Name]
		if !ok {
			t.Errorf("%s has no rights here", l.Name)
		}
		for _, me := range ids {
			for _, other := range ids {
				name := l.Of(other)
				if got := topic.MayPublish(me, name); got != (want[0] && me == other) {
					t.Errorf("%s may publish to %s: %v", me, name, got)
				}
				if got := topic.MaySubscribe(me, name); got != (want[1] && me == other) {
					t.Errorf("%s may subscribe to %s: %v", me, name, got)
				}
			}
		}
	}
}

func TestNothingElseIsAllowed(t *testing.T) {
	for _, name := range []string{
		"", "#", "+", "nodes", "nodes/", "nodes/n1", "nodes/n1/", "nodes/n1/#", "nodes/n1/+", "nodes/+/desired",
		"nodes/#", "/nodes/n1/desired", "nodes/n1/desired/", "nodes/n1/desired/x", "nodes/n1//desired", "nodes//desired",
		"$SYS/broker/version", "$share/g/nodes/n1/desired", "nodes/N1/desired", "nodes/n1/Desired", "nodes/n1/desired\x00",
		"nodes/n1 /desired", "nodes/../n1/desired", "clusters/n1/desired",
	} {
		for _, id := range []api.NodeID{"n1", "", "+", "#", "N1", ".."} {
			if topic.MayPublish(id, name) || topic.MaySubscribe(id, name) {
				t.Errorf("%q may use %q", id, name)
			}
		}
	}
}

func TestParseIsOfBackwards(t *testing.T) {
	for _, l := range topic.All {
		n, got, ok := topic.Parse(l.Of("n-4f2a9c1b"))
		if !ok || n != "n-4f2a9c1b" || got != l {
			t.Errorf("Parse(%s) = %s, %+v, %v", l.Of("n-4f2a9c1b"), n, got, ok)
		}
		if l.Every() != l.Of("+") {
			t.Errorf("Every of %s is %s", l.Name, l.Every())
		}
	}
}
