package lab_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// repeats returns the number of rounds of a randomised test: the value of the variable,
// which scripts/soak sets, or 3.
func repeats(t *testing.T, variable string) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return 3
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q: want a number from 1", variable, text)
	}
	return n
}

// settleWithin bounds the time from a power cut until every instance runs again and the root
// shows that. It includes the lease and the dead time of a node that reports late, the
// back-off, and starts on a busy machine.
const settleWithin = 90 * time.Second

// TestPowerCutsLeaveNothingBehind kills every process of an installation at once, including
// shims, guards, workloads and containerd, and starts the daemons again in random order. Within
// a bound every instance must have one process, and none may be shown as running without one.
// Cuts happen at random times, also during the recovery from the previous one, and under writes
// to the root: none that was acknowledged is lost.
func TestPowerCutsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	l := open(t, lab.Options{})
	c := l.Cluster("munich", lab.ClusterOptions{})
	nodes := []*lab.Node{c.Node("n1", containers(t)), c.Node("n2", lab.NodeOptions{}), c.Node("n3", lab.NodeOptions{})}
	l.Wait("the nodes take work", lab.Nodes("munich", len(nodes)))
	stops := func(m api.Microservice) api.Microservice {
		m.OnDisconnect = api.StopWhenCutOff
		return m
	}
	l.Apply(lab.App("shop",
		l.Container("web", 2), l.Process("db", 2), stops(l.Container("cache", 2)), stops(l.Process("queue", 3)),
		lab.Exclusive(l.Process("ledger", 1)), lab.Exclusive(l.Container("vault", 1))))
	const want = 11
	asWanted := func() error { return l.AsShown("shop", want) }
	lab.Within(t, settleWithin, "all run", asWanted)

	cuts := repeats(t, "TREELINE_POWER_CUTS")
	chance := rand.New(rand.NewPCG(uint64(cuts), uint64(time.Now().UnixNano()))) //nolint:gosec // any time will do
	writes := l.Write()
	var took []time.Duration // of the cuts that were recovered from
	done := 0
	for i := range cuts {
		if end, bounded := t.Deadline(); bounded && time.Until(end) < settleWithin+time.Minute && len(took) > 0 {
			t.Logf("stopped after %d of %d power cuts, before the test's deadline", i, cuts)
			break
		}
		l.PowerCut()
		done++
		if left := l.Workloads(); len(left) > 0 {
			t.Fatalf("after the power cut these workloads run: %+v", left)
		}
		since := lab.Stopwatch()
		starts := []func(){l.Containerd().Launch, c.Launch, l.Root.Launch}
		for _, n := range nodes {
			starts = append(starts, n.Launch)
		}
		chance.Shuffle(len(starts), func(i, j int) { starts[i], starts[j] = starts[j], starts[i] })
		for _, start := range starts {
			start()
		}
		l.Found(c)
		if chance.IntN(4) == 0 && i+1 < cuts { // another one during the recovery
			time.Sleep(time.Duration(chance.IntN(8000)) * time.Millisecond) // a random time
			continue
		}
		lab.Within(t, settleWithin, fmt.Sprintf("all run again after power cut %d of %d", i+1, cuts), asWanted)
		took = append(took, since())
		t.Logf("power cut %d: recovered after %s", i+1, took[len(took)-1].Round(time.Millisecond))
		writes.Kept(t)
	}
	slices.Sort(took)
	soon, _ := slices.BinarySearch(took, 10*time.Second)
	r := lab.PowerCuts{
		Date: time.Now().UTC().Format(time.DateTime), CPUs: runtime.NumCPU(), Load: lab.LoadAverage(5), Cuts: done, Recovered: len(took), Soon: soon,
		Median: took[len(took)/2].Seconds(), Longest: took[len(took)-1].Seconds(), Writes: writes.Acknowledged(),
	}
	t.Logf("%d of %d power cuts were recovered from within 10 s; %d writes were acknowledged, and none was lost: %+v", soon, len(took), r.Writes, r)
	if path := os.Getenv("TREELINE_POWER_CUTS_TO"); path != "" {
		if err := r.Append(path); err != nil {
			t.Error(err)
		}
	}
	l.Measured("power_cuts_median", took[len(took)/2])
	l.Measured("power_cuts_longest", took[len(took)-1])
}

// TestClusterRestartsCostNoLeases restarts the cluster orchestrator repeatedly, each time with
// more than a second of downtime: exclusive instances keep running. A restart that exceeds the
// guaranteed time on a busy machine proves nothing and is repeated.
func TestClusterRestartsCostNoLeases(t *testing.T) {
	t.Parallel()
	const promised = 2500 * time.Millisecond // docs/adr/0050
	l := open(t, lab.Options{})
	c := l.Cluster("munich", lab.ClusterOptions{})
	c.Node("n1", lab.NodeOptions{})
	c.Node("n2", lab.NodeOptions{})
	l.Wait("the nodes take work", lab.Nodes("munich", 2))
	l.Apply(lab.App("bank", lab.Exclusive(l.Process("ledger", 4))))
	l.Wait("all run", l.Running("bank", "ledger", 4))
	was := l.Workloads()
	n, late := repeats(t, "TREELINE_RESTARTS"), 0
	for i := 0; i < n; {
		away := lab.Stopwatch()
		c.Kill9()
		time.Sleep(1200 * time.Millisecond) // the cluster's downtime, without its start
		c.Start()
		heard := away()
		// An instance whose lease was lost would end within the duration of a lease.
		time.Sleep(time.Duration(3000+rand.IntN(3000)) * time.Millisecond)
		now := l.Workloads()
		switch {
		case slices.Equal(now, was):
			i++
		case heard > promised && late < 3*n:
			late++
			t.Logf("the cluster was down for %s, longer than %s: repeating the restart", heard, promised)
			lab.Within(t, settleWithin, "all run again", func() error { return l.AsShown("bank", 4) })
			was = l.Workloads()
		default:
			t.Fatalf("after restart %d of %d, with a downtime of %s, the workloads are %+v, want %+v\n%s", i+1, n, heard, now, was, l.Story())
		}
	}
}
