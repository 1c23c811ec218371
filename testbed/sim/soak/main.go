// Command soak runs the simulator over many seeds, or replays one. scripts/soak
// builds and starts it.
//
//	scripts/soak --seeds 1:2000
//	scripts/soak --replay 42
package main

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/testbed/sim"
)

func main() {
	seeds := flag.String("seeds", "", "run the seeds `FROM:TO`, both included")
	replay := flag.String("replay", "", "print the trace of one `SEED`")
	plant := flag.String("plant", "", "plant a `fault`, which the simulator should find: "+strings.Join(sim.Plants(), ", "))
	only := flag.String("only", "", "use only one `kind` of fault: "+strings.Join(sim.Onlys(), ", "))
	health := flag.Bool("health", false, "give services health checks, which fail at random while there are faults")
	scale := flag.Bool("scale", false, "let services scale, by a load that nodes invent while there are faults")
	away := flag.Duration("away", 0, "the root is away for this `time`, while clusters and nodes fail and their operators work")
	workers := flag.Int("workers", runtime.GOMAXPROCS(0), "number of seeds that run in parallel")
	flag.Parse()
	debug.SetGCPercent(800) // worlds are small and short-lived
	opts := sim.Options{Plant: sim.Plant(*plant), Only: sim.Only(*only), Health: *health, Scale: *scale, Away: *away}
	if *only != "" && !slices.Contains(sim.Onlys(), *only) {
		fail("--only %s: unknown kind, want one of %s", *only, strings.Join(sim.Onlys(), ", "))
	}
	if *plant != "" && !slices.Contains(sim.Plants(), *plant) {
		fail("--plant %s: unknown fault, want one of %s", *plant, strings.Join(sim.Plants(), ", "))
	}
	switch {
	case *replay != "" && *seeds == "":
		seed, err := strconv.ParseUint(*replay, 10, 64)
		if err != nil {
			fail("--replay %s is not a seed", *replay)
		}
		fmt.Print(sim.Trace(seed, opts))
	case *seeds != "" && *replay == "":
		from, to, err := parseRange(*seeds)
		if err != nil {
			fail("%v", err)
		}
		if violations := soak(from, to, *workers, opts); violations > 0 {
			os.Exit(1)
		}
	default:
		fail("want either --seeds FROM:TO or --replay SEED")
	}
}

func fail(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "soak: "+format+"\n", args...)
	os.Exit(2)
}

func parseRange(s string) (from, to uint64, err error) {
	a, b, ok := strings.Cut(s, ":")
	from, err1 := strconv.ParseUint(a, 10, 64)
	to, err2 := strconv.ParseUint(b, 10, 64)
	if !ok || err1 != nil || err2 != nil || to < from {
		return 0, 0, fmt.Errorf("--seeds %s: want FROM:TO with FROM ≤ TO", s)
	}
	return from, to, nil
}

// soak runs the seeds, prints each violation and how to replay it, and returns the number of
// violations.
func soak(from, to uint64, workers int, opts sim.Options) int {
	begun := time.Now()
	var (
		next  atomic.Uint64
		wg    sync.WaitGroup
		print sync.Mutex
		bad   []sim.Result
		steps atomic.Int64
	)
	next.Store(from)
	for range max(workers, 1) {
		wg.Go(func() {
			for {
				seed := next.Add(1) - 1
				if seed > to {
					return
				}
				res := sim.Run(seed, opts)
				steps.Add(int64(res.Steps))
				if res.Violation != nil {
					print.Lock()
					bad = append(bad, res)
					fmt.Printf("seed %d: %v\n", seed, res.Violation)
					print.Unlock()
				}
			}
		})
	}
	wg.Wait()
	n := to - from + 1
	took := time.Since(begun)
	if len(bad) > 0 {
		first := slices.MinFunc(bad, func(a, b sim.Result) int { return cmp.Compare(a.Seed, b.Seed) })
		fmt.Printf("replay the first with: scripts/soak --replay %d\n", first.Seed)
	}
	fmt.Printf("%.1f seeds/s, %d steps of cores\n", float64(n)/took.Seconds(), steps.Load())
	fmt.Printf("%d seeds, %d violations\n", n, len(bad))
	return len(bad)
}
