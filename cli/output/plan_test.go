package output_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cli/output"
)

// planned is a plan with one of everything: two changed services, an added and a removed one, two
// instances that would wait for the same reason at the root and one in a cluster, and clusters of
// all ages.
var planned = api.Plan{
	Apps: []api.AppPlan{
		{
			ID: "acme/video.prod", Action: "update", Revision: 42,
			Changes: []api.FieldChange{
				{Path: "detect.v1/memory", Old: "512 MiB", New: "768 MiB"},
				{Path: "detect.v1/constraints/1/threshold", New: "20 ms"},
				{Path: "pre.v1/priority", Old: "high"},
				{Path: "store.v1", New: "acme/store:1"},
				{Path: "old.v1", Old: "acme/old:1"},
			},
			Instances: []api.InstancePlan{
				{ID: "acme/video.prod.detect.v1#0", Action: "replace", Cluster: "munich", Node: "n07", Score: 0.8214, Headroom: []string{"memory 3.2 GiB", "latency 12 ms of 20"}},
				{ID: "acme/video.prod.detect.v1#1", Action: "wait", Why: &nowhere.Root},
				{ID: "acme/video.prod.detect.v1#2", Action: "wait", Why: &nowhere.Root},
				{ID: "acme/video.prod.store.v1#0", Action: "place", Cluster: "osaka", Score: 0.5},
				{ID: "acme/video.prod.detect.v1#3", Action: "place", Cluster: "munich", Node: "n09", After: 2.5, Headroom: []string{"latency -8.0 ms of 20 to store"}},
				{ID: "acme/video.prod.store.v1#2", Action: "place", Cluster: "munich", Node: "n08", Preempts: true, Preempted: []api.InstanceID{"acme/shop.prod.web.v1#0", "acme/shop.prod.web.v1#1"}, Others: 1},
				{ID: "acme/video.prod.store.v1#1", Action: "wait", Cluster: "munich", Why: &nowhere.Clusters[0].Answer},
				{ID: "acme/video.prod.pre.v1#0", Action: "stay", Cluster: "munich"},
				{ID: "acme/video.prod.old.v1#0", Action: "stop", Cluster: "dublin\x1b[2J"},
			},
		},
		{ID: "acme/shop.prod", Action: "none", Revision: 7, Instances: []api.InstancePlan{{ID: "acme/shop.prod.web.v1#0", Action: "stay"}, {ID: "acme/shop.prod.web.v1#1", Action: "stay"}}},
	},
	Clusters: []api.ClusterView{
		{Cluster: "munich", Age: 2.5, Asked: true},
		{Cluster: "osaka", Age: 14, Error: "it is not connected"},
		{Cluster: "dublin", Age: 0.4},
	},
}

func TestPlan(t *testing.T) {
	for _, f := range []output.Format{output.Text, output.Wide} {
		var b bytes.Buffer
		if err := output.Plan(printer(&b, f), planned); err != nil {
			t.Fatal(err)
		}
		golden(t, "plan."+string(f), b.Bytes())
	}
}

func TestAPlanOfManyInstancesStaysShort(t *testing.T) {
	p := api.Plan{Apps: []api.AppPlan{{ID: "acme/shop.prod", Action: "create", Changes: []api.FieldChange{{Path: "web.v1", New: "nginx"}}}}}
	for n := range 1000 {
		i := api.InstancePlan{ID: api.InstanceID(fmt.Sprintf("acme/shop.prod.web.v1#%d", n)), Action: "place", Cluster: "munich"}
		if n >= 500 {
			i.Action, i.Cluster, i.Why = "wait", "", &nowhere.Root
		}
		p.Apps[0].Instances = append(p.Apps[0].Instances, i)
	}
	var b bytes.Buffer
	if err := output.Plan(printer(&b, output.Text), p); err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(b.Bytes(), []byte("\n")); n > 40 || !bytes.Contains(b.Bytes(), []byte("and 980 more; -o wide shows them")) ||
		!bytes.Contains(b.Bytes(), []byte("shop.prod.web.v1#500 would wait, and 499 more for the same reason")) {
		t.Fatalf("%d lines:\n%s", n, b.Bytes())
	}
}

func TestChanges(t *testing.T) {
	if !output.Changes(planned) || output.Changes(api.Plan{Apps: planned.Apps[1:]}) || output.Changes(api.Plan{}) {
		t.Fatal("what changes is told wrong")
	}
}
