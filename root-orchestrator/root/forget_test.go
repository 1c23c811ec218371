package root

import (
	"maps"
	"testing"
)

// The removal of the cluster was saved and its consequences for instances were not. Instances whose
// service was no longer in its application stayed leaving for ever.
func TestACrashDuringRemovalOfAClusterLeavesNoLeavingInstance(t *testing.T) {
	for name, withdraw := range map[string]func(*world){
		"scaled":  func(w *world) { w.must(Scale{Service: web, Replicas: 0}) },
		"deleted": func(w *world) { w.must(DeleteApp{App: shop}) },
		"service dropped": func(w *world) {
			app := application(1)
			app.Services[0].Name = "other"
			w.must(Apply{Tenant: "acme", Spec: app})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "a")
			w.apply(2)
			w.settle()
			w.twins["a"].off = true
			withdraw(w)
			before := maps.Clone(w.disk)
			w.must(RemoveCluster{"a"})
			for k, d := range before {
				if d.Kind != kindCluster {
					w.disk[k] = d
				}
			}
			delete(w.twins, "a")
			w.restart()
			w.checkBooks()
			for _, in := range w.c.Instances("") {
				id := in.ID
				if in.Leaving {
					t.Errorf("%s is leaving for ever", id)
				}
			}
		})
	}
}
