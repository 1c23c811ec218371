package sim_test

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/testbed/sim"
)

const (
	seeds  = 2000
	shards = 8
)

func TestSeedsKeepEveryPromise(t *testing.T) {
	n := uint64(seeds)
	if testing.Short() {
		n = 200
	}
	for shard := range uint64(shards) {
		t.Run(fmt.Sprintf("shard %d", shard), func(t *testing.T) {
			t.Parallel()
			for seed := 1 + shard; seed <= n; seed += shards {
				if v := sim.Run(seed, sim.Options{}).Violation; v != nil {
					t.Errorf("seed %d: %v\nreplay it with: scripts/soak --replay %d", seed, v, seed)
				}
			}
		})
	}
}

// seeds.txt lists the seeds that once found a bug.
func TestRegressionSeeds(t *testing.T) {
	t.Parallel()
	f, err := os.Open("testdata/seeds.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		first, why, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		if first == "" || first == "#" {
			continue
		}
		seed, err := strconv.ParseUint(first, 10, 64)
		if err != nil || why == "" {
			t.Fatalf("seeds.txt: %q, want a seed and its reason", lines.Text())
		}
		if v := sim.Run(seed, sim.Options{}).Violation; v != nil {
			t.Errorf("seed %d (%s): %v", seed, strings.TrimSpace(why), v)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}

func TestReplayIsTheSameToTheByte(t *testing.T) {
	for seed := uint64(1); seed <= 12; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			a, b := sim.Trace(seed, sim.Options{}), sim.Trace(seed, sim.Options{})
			if a != b {
				i := 0
				for i < min(len(a), len(b)) && a[i] == b[i] {
					i++
				}
				t.Fatalf("two replays differ at byte %d:\n%s\n---\n%s", i, around(a, i), around(b, i))
			}
			if !strings.Contains(a, "sequenceDiagram") {
				t.Fatal("the replay has no sequence diagram")
			}
			if res := sim.Run(seed, sim.Options{}); !strings.Contains(a, fmt.Sprintf("%d steps", res.Steps)) {
				t.Fatalf("the run with a trace does not have the %d steps of the run without", res.Steps)
			}
		})
	}
}

// Plans that are requested each second do not change the run.
func TestPlansChangeNothing(t *testing.T) {
	for seed := uint64(1); seed <= 24; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			a, b := sim.Trace(seed, sim.Options{}), sim.Trace(seed, sim.Options{Plans: true})
			if a == b {
				return
			}
			i := 0
			for i < min(len(a), len(b)) && a[i] == b[i] {
				i++
			}
			t.Fatalf("the run with plans differs from byte %d on:\n%s\n---\n%s", i, around(a, i), around(b, i))
		})
	}
}

// A short restart of an orchestrator ends no lease, so that no exclusive instance stops.
func TestShortRestartsCostNoLeases(t *testing.T) {
	t.Parallel()
	for seed := uint64(1); seed <= 60; seed++ {
		if v := sim.Run(seed, sim.Options{Only: sim.OnlyRestarts}).Violation; v != nil {
			t.Errorf("seed %d: %v", seed, v)
		}
	}
}

// While the root is away for an hour, clusters place, restart, scale and run schedules. When it returns,
// all tiers agree again, and no run is repeated.
func TestAnHourWithoutTheRootKeepsEveryPromise(t *testing.T) {
	t.Parallel()
	for seed := uint64(1); seed <= 4; seed++ {
		if v := sim.Run(seed, sim.Options{Away: time.Hour, Scale: seed%2 == 0}).Violation; v != nil {
			t.Errorf("seed %d: %v", seed, v)
		}
	}
}

// Health checks that fail at random cause restarts and changes of readiness, and break no promise.
func TestHealthChecksKeepEveryPromise(t *testing.T) {
	t.Parallel()
	for seed := uint64(1); seed <= 60; seed++ {
		if v := sim.Run(seed, sim.Options{Health: true}).Violation; v != nil {
			t.Errorf("seed %d: %v", seed, v)
		}
	}
}

// Numbers of instances that follow a load that nodes invent break no promise. Services that nobody uses sleep, and those
// that are demanded wake.
func TestServicesThatScaleKeepEveryPromise(t *testing.T) {
	t.Parallel()
	woken := 0
	for seed := uint64(1); seed <= 60; seed++ {
		res := sim.Run(seed, sim.Options{Scale: true})
		if woken += res.Woken; res.Violation != nil {
			t.Errorf("seed %d: %v", seed, res.Violation)
		}
	}
	if woken < 5 {
		t.Errorf("%d sleeping services were demanded and woke, want at least 5 in 60 seeds", woken)
	}
}

// If several nodes fall silent at about the same time, each of their instances runs elsewhere
// within the bound.
func TestSeveralSilentNodesKeepTheBound(t *testing.T) {
	t.Parallel()
	for seed := uint64(1); seed <= 60; seed++ {
		if v := sim.Run(seed, sim.Options{Only: sim.OnlySilence}).Violation; v != nil {
			t.Errorf("seed %d: %v", seed, v)
		}
	}
}

func around(s string, i int) string { return s[max(0, i-200):min(len(s), i+200)] }

// The simulator must find planted faults, each by the guarantee that it violates. A quarter of
// the seeds or more find each, so that a change of the seeds' course does not hide one.
func TestPlantedBugsAreFound(t *testing.T) {
	for plant, promises := range map[sim.Plant][]string{
		sim.PlantIgnoreLeases: {"lease", "exclusive"},
		sim.PlantForgetNode:   {"durable", "settle", "exclusive", "journal", "capacity", "leftover", "delete", "calm"},
		sim.PlantForgetApp:    {"durable", "lost", "settle", "journal"},
		sim.PlantForgetSpot:   {"durable", "settle", "exclusive", "journal", "lost", "capacity", "calm"},
		sim.PlantOneDevice:    {"devices"},
		sim.PlantOldLabels:    {"settle", "delete"},
		sim.PlantHiddenStop:   {"ghost"},
		sim.PlantNoDemand:     {"wake"},
		sim.PlantNeverIdle:    {"sleep"},
	} {
		t.Run(string(plant), func(t *testing.T) {
			t.Parallel()
			found := map[string]int{}
			for seed := uint64(1); seed <= 40; seed++ {
				if v := sim.Run(seed, sim.Options{Plant: plant, Scale: promises[0] == "wake" || promises[0] == "sleep"}).Violation; v != nil {
					if slices.Contains(promises, v.Promise) {
						t.Logf("seed %d: %v", seed, v)
						return
					}
					found[v.Promise]++
				}
			}
			t.Fatalf("40 seeds do not find the planted fault; they find %v", found)
		})
	}
}
