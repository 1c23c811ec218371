package placement

import (
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

func TestUnknownBandwidthIsExplainedWithItsFix(t *testing.T) {
	w := api.Why{Root: api.Explanation{Considered: 1, Nearest: &api.Rejection{
		Constraint: sched.ConstraintBandwidthIn, Need: "5 Mbit/s", Have: "unknown bandwidth on 3 of its nodes",
	}}}
	if help := WouldHelp(w); len(help) != 1 || !strings.Contains(help[0], "key bandwidth") {
		t.Errorf("WouldHelp returns %q, want the configuration key bandwidth", help)
	}
}
