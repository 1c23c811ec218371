package main

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/testbed/bench/netbench"
	"github.com/treeline-edge/treeline/testbed/lab"
)

func TestMain(m *testing.M) {
	lab.Main()
	netbench.Main()
	m.Run()
}

// The figures of one or two samples mean nothing; the test checks that the records are
// complete.
func TestCheapBenchmarksWriteRecords(t *testing.T) {
	for name, want := range map[string][]string{
		"store":     {"store.save", "store.save-64-writers"},
		"bus":       {"bus.qos0", "bus.qos1"},
		"place":     {"place.best-of-100", "place.rank-100", "place.best-of-1000", "place.rank-1000", "place.best-of-10000", "place.rank-10000", "place.burst-10000-over-10000"},
		"sim":       {"sim.seeds", "sim.steps"},
		"flood":     {"flood.quiet", "flood.10000-silent"},
		"dashboard": {"dashboard.floor", "dashboard.sign-in", "dashboard.overview"},
		"fig10": {
			"fig10.rom-50", "fig10.rom-100", "fig10.rom-200", "fig10.rom-300", "fig10.rom-400", "fig10.rom-500", "fig10.rom-10000",
			"fig10.ldp-50", "fig10.ldp-100", "fig10.ldp-200", "fig10.ldp-300", "fig10.ldp-400", "fig10.ldp-500", "fig10.ldp-10000",
			"fig10.root-1000",
		},
		"fig2": {
			"fig2.root-1×45", "fig2.cluster-1×45", "fig2.root-3×15", "fig2.cluster-3×15", "fig2.root-5×9", "fig2.cluster-5×9",
			"fig2.root-9×5", "fig2.cluster-9×5", "fig2.root-15×3", "fig2.cluster-15×3", "fig2.root-45×1", "fig2.cluster-45×1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "dashboard" {
				programtest.NeedRoot(t)
				programtest.Need(t, "chromium")
			}
			var out bytes.Buffer
			if err := Main(t.Context(), []string{name, "--json", "-n", "2"}, &out, t.Output()); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(out.String()) {
				var r Record
				dec := json.NewDecoder(strings.NewReader(line))
				dec.DisallowUnknownFields()
				if err := dec.Decode(&r); err != nil {
					t.Fatalf("%v in %s", err, line)
				}
				if len(want) == 0 || r.Name != want[0] {
					t.Fatalf("record of %s, want one of %v next", r.Name, want)
				}
				want = want[1:]
				if r.Unit == "" || r.N != 2 || len(r.Samples) != 2 || !(r.Median > 0) || r.P99 < r.Median {
					t.Errorf("%+v", r)
				}
				if r.Baseline != nil && (r.Baseline.Name == "" || !(r.Baseline.Median > 0) || math.Abs(r.Ratio*r.Baseline.Median-r.Median) > 1e-9*r.Median) {
					t.Errorf("%s: the baseline %+v does not match the ratio %g", r.Name, r.Baseline, r.Ratio)
				}
			}
			if len(want) > 0 {
				t.Errorf("missing records: %v", want)
			}
		})
	}
}

func TestQuantiles(t *testing.T) {
	for _, c := range []struct {
		values      []float64
		median, p99 float64
	}{
		{nil, 0, 0},
		{[]float64{7}, 7, 7},
		{[]float64{4, 1}, 2.5, 4},
		{[]float64{3, 1, 2}, 2, 3},
	} {
		if m, p := quantile(c.values, 0.5), quantile(c.values, 0.99); m != c.median || p != c.p99 {
			t.Errorf("%v: got median %g and p99 %g, want %g and %g", c.values, m, p, c.median, c.p99)
		}
	}
}

func TestMedianOfUndisturbedSamples(t *testing.T) {
	var s series
	s.add(1, false)
	s.add(9, true)
	s.add(3, false)
	if r := s.record("x", "ms"); r.Median != 3 || r.Disturbed != 1 || r.Calm != 2 {
		t.Errorf("%+v", r)
	}
}

func TestUnknownNameIsRefused(t *testing.T) {
	err := Main(t.Context(), []string{"speed"}, t.Output(), t.Output())
	if err == nil || !strings.Contains(err.Error(), "deploy") {
		t.Errorf("error %q does not list the valid names", err)
	}
}

func TestCPUClockRuns(t *testing.T) {
	before, err := cpuOf(1)
	if err != nil {
		t.Fatal(err)
	}
	if after, err := cpuOf(1); err != nil || after < before {
		t.Errorf("the CPU clock is %s, before %s (%v), want it to grow", after, before, err)
	}
}

func TestReadinessIsFollowedByARoute(t *testing.T) {
	programtest.NeedRoot(t)
	programtest.Need(t, "containerd", "runc")
	var out bytes.Buffer
	if err := Main(t.Context(), []string{"ready", "--json", "-n", "2"}, &out, t.Output()); err != nil {
		t.Fatal(err)
	}
	var got []Record
	for line := range strings.Lines(out.String()) {
		var r Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		if got = append(got, r); r.N != 2 || !(r.Median > 0) {
			t.Errorf("%+v", r)
		}
	}
	if len(got) != 2 || got[0].Name != "ready.floor" || got[1].Name != "ready.to-route" || got[1].Baseline == nil || got[1].Limit != routeInCluster {
		t.Errorf("records: %+v", got)
	}
}
