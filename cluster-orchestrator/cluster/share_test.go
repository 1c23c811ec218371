package cluster

import (
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// An SLA that must be met in 80 % of the checks of the last five minutes may be violated for one
// minute in total.
func TestShortViolationsAddUpIfAShareOfChecksIsAgreed(t *testing.T) {
	for _, tt := range []struct {
		name  string
		share float64
		moves bool
	}{{"a share", 0.8, true}, {"the same time at a stretch", 0, false}} {
		t.Run(tt.name, func(t *testing.T) {
			w := line(t, 4, nil)
			w.wants(of(pre, 0, 1, onNode("n0")))
			w.step(Cordon{"n0", true})
			k := near("pre.prod", 15)
			k.Rigidness, k.Share = 60, tt.share
			w.wants(of(web, 0, 2, k))
			w.beat()
			if n := w.nodeOf(web.Instance(0)); n != "n1" {
				t.Fatalf("within 15 ms of n0 it is on %q", n)
			}
			w.stands("n2", 12) // would meet it too
			where := map[api.NodeID]bool{}
			follow := func() {
				for range 30 {
					w.pass(time.Second)
					w.beat()
					where[w.at(0).Node] = true
				}
			}
			for range 4 { // 30 s of violation in each minute
				w.stands("n1", 50)
				follow()
				w.stands("n1", 10)
				follow()
			}
			if moved := len(where) > 1; moved != tt.moves {
				t.Errorf("it was on %v", where)
			}
		})
	}
}
