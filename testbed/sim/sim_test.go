package sim_test

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

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
					t.Errorf("seed %d: %v\nsee it again: scripts/soak --replay %d", seed, v, seed)
				}
			}
		})
	}
}

// Seeds that once found a bug are run for ever.
func TestRegressionSeeds(t *testing.T) {
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
			t.Fatalf("seeds.txt: %q: want a seed and why it is here", lines.Text())
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
				t.Fatal("the replay draws no diagram")
			}
			if res := sim.Run(seed, sim.Options{}); !strings.Contains(a, fmt.Sprintf("%d steps", res.Steps)) {
				t.Fatal("a traced run is another run than an untraced one")
			}
		})
	}
}

// What would be is asked each second, and nothing is otherwise for it.
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
			t.Fatalf("with plans it goes otherwise from byte %d:\n%s\n---\n%s", i, around(a, i), around(b, i))
		})
	}
}

// A restart of an orchestrator that takes no longer than a restart should costs no
// node a lease: nothing that must stop when cut off stops.
func TestShortRestartsCostNoLeases(t *testing.T) {
	for seed := uint64(1); seed <= 60; seed++ {
		if v := sim.Run(seed, sim.Options{Only: sim.OnlyRestarts}).Violation; v != nil {
			t.Errorf("seed %d: %v", seed, v)
		}
	}
}

// What silent nodes had runs elsewhere within the promised bound, each instance of
// it, when several nodes fall silent at about the same time.
func TestSeveralSilentNodesKeepTheBound(t *testing.T) {
	for seed := uint64(1); seed <= 60; seed++ {
		if v := sim.Run(seed, sim.Options{Only: sim.OnlySilence}).Violation; v != nil {
			t.Errorf("seed %d: %v", seed, v)
		}
	}
}

func around(s string, i int) string { return s[max(0, i-200):min(len(s), i+200)] }

// A simulator that cannot fail proves nothing: bugs that were put in on purpose
// must be found, and by the promise that they break. A quarter of the seeds or more
// find each, so that no change of what seeds do hides one.
func TestPlantedBugsAreFound(t *testing.T) {
	for plant, promises := range map[sim.Plant][]string{
		sim.PlantIgnoreLeases: {"lease", "exclusive"},
		sim.PlantForgetNode:   {"durable", "settle", "exclusive", "journal", "capacity", "leftover", "delete", "calm"},
		sim.PlantForgetApp:    {"durable", "lost", "settle", "journal"},
		sim.PlantForgetSpot:   {"durable", "settle", "exclusive", "journal", "lost", "capacity", "calm"},
		sim.PlantOneDevice:    {"devices"},
		sim.PlantOldLabels:    {"settle", "delete"},
		sim.PlantHiddenStop:   {"ghost"},
	} {
		t.Run(string(plant), func(t *testing.T) {
			t.Parallel()
			found := map[string]int{}
			for seed := uint64(1); seed <= 40; seed++ {
				if v := sim.Run(seed, sim.Options{Plant: plant}).Violation; v != nil {
					if slices.Contains(promises, v.Promise) {
						t.Logf("seed %d: %v", seed, v)
						return
					}
					found[v.Promise]++
				}
			}
			t.Fatalf("40 seeds do not find it; found %v", found)
		})
	}
}
