package faults

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/testbed/lab"
)

// TestEveryCellIsDecided checks that each component has a cell for each fault, which is injected,
// covered by a test that exists, or has a reason.
func TestEveryCellIsDecided(t *testing.T) {
	seen := map[string]int{}
	for _, c := range cellsOf() {
		seen[c.Name()]++
	}
	if want := len(Components) * len(Faults); len(seen) != want {
		t.Errorf("%d different cells, want %d components × %d faults", len(seen), len(Components), len(Faults))
	}
	for name := range known {
		if seen[name] == 0 {
			t.Errorf("the table of known faults has %q, which is not a cell", name)
		}
	}
	for _, c := range Table() {
		ways := 0
		for _, has := range []bool{c.Inject != nil, c.By != "", c.Not != ""} {
			if has {
				ways++
			}
		}
		if ways != 1 || seen[c.Name()] != 1 || c.Inject != nil && c.Expect == "" {
			t.Errorf("%s: exists %d times, with %d of an injection, a test and a reason, want one of each; expectation %q", c.Name(), seen[c.Name()], ways, c.Expect)
		}
		if c.By == "" {
			continue
		}
		pkg, test, _ := strings.Cut(c.By, " ")
		files, err := filepath.Glob(filepath.Join("..", "..", pkg, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(files, func(path string) bool {
			text, _ := os.ReadFile(path)
			return strings.Contains(string(text), "\nfunc "+test+"(t *testing.T)")
		}) {
			t.Errorf("%s: package %s has no test %s", c.Name(), pkg, test)
		}
	}
}

// chosen are the cells that scripts/test runs.
var chosen = []string{"active root: kill -9", "cluster: kill -9", "broker: restart", "store: kill -9"}

// enough is the time that a cell needs at most, unless it fails: a bounded run begins none later.
const enough = 80 * time.Second

// TestFaults injects a choice of faults. scripts/soak runs it with the following variables, and
// with -timeout.
//
//	TREELINE_FAULTS       run the cells whose names contain one of the texts, separated by commas, or "all";
//	                      what is measured goes to testdata/measured.json and docs/faults.md
//	TREELINE_FAULTS_SEED  run random cells by this seed instead
func TestFaults(t *testing.T) {
	cells, hold, stop := injections(), longHold, longStop
	only, seed := os.Getenv("TREELINE_FAULTS"), os.Getenv("TREELINE_FAULTS_SEED")
	switch {
	case seed != "":
		mixed(t, cells, seed)
		return
	case only == "":
		hold, stop = shortHold, shortStop
		cells = slices.DeleteFunc(cells, func(c Cell) bool { return !slices.Contains(chosen, c.Name()) })
	case only != "all":
		cells = slices.DeleteFunc(cells, func(c Cell) bool {
			return !slices.ContainsFunc(strings.Split(only, ","), func(text string) bool { return strings.Contains(c.Name(), text) })
		})
	}
	if len(cells) == 0 {
		t.Fatalf("TREELINE_FAULTS=%q: no injected cell has one of these texts in its name", only)
	}
	m := load(t)
	if only != "" { // a bounded run continues where the previous one has ended
		slices.SortStableFunc(cells, func(a, b Cell) int { return strings.Compare(m[a.Name()].Date, m[b.Name()].Date) })
	}
	// A fault that is not recovered from ends its installation; the next one continues with the next fault.
	for n := 1; len(cells) > 0 && hasTime(t); n++ {
		t.Run(fmt.Sprintf("installation %d", n), func(t *testing.T) {
			w := open(t)
			for len(cells) > 0 && hasTime(t) && !t.Failed() {
				c := cells[0]
				cells = cells[1:]
				m[c.Name()] = w.run(t, c, hold, stop)
				if only != "" {
					m.save(t)
				}
			}
		})
		if only == "" {
			return
		}
	}
	t.Logf("%d cells were not run", len(cells))
}

// injections returns the cells that this package injects.
func injections() []Cell {
	return slices.DeleteFunc(Table(), func(c Cell) bool { return c.Inject == nil })
}

// hasTime reports whether another cell can end before the test's deadline.
func hasTime(t *testing.T) bool {
	end, bounded := t.Deadline()
	return !bounded || time.Until(end) > enough
}

// recorder notes the first failure of a test.
type recorder struct {
	*testing.T
	first string
}

func (r *recorder) note(format string, args ...any) {
	if r.first == "" {
		r.first, _, _ = strings.Cut(fmt.Sprintf(format, args...), "\n")
	}
}

func (r *recorder) Errorf(format string, args ...any) {
	r.Helper()
	r.note(format, args...)
	r.T.Errorf(format, args...)
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Helper()
	r.note(format, args...)
	r.T.Fatalf(format, args...)
}

// run runs a cell as a subtest.
func (w *World) run(t *testing.T, c Cell, hold, stop time.Duration) (r Result) {
	t.Run(c.Name(), func(t *testing.T) {
		rec := &recorder{T: t}
		defer w.For(rec)()
		r = Result{Date: time.Now().UTC().Format(time.DateTime), Kernel: kernel(), CPUs: runtime.NumCPU()}
		if slices.Contains([]string{"node engine", "netmanager", "shim", "workload", "whole machine"}, c.Component) {
			w.home(rec)
		}
		w.direct(rec)
		calls, from, active, processes := w.calls, w.calls.Sent()+1, w.Replicas.Active(), w.Workloads()
		defer func() { r.Failure = rec.first }()
		c.Inject(&injection{World: w, T: rec, hold: hold, stop: stop})
		r.Recovered = w.settled(rec).Seconds()
		r.Load = lab.LoadAverage(1)
		if w.calls != calls { // their process has ended: those after its start count
			from = 1
		}
		lost := w.calls.Lost(from)
		r.Sent, r.Lost = w.calls.Sent()-from+1, len(lost)
		if !c.Loses && len(lost) > 0 {
			rec.Errorf("%d of %d requests were lost, want none; the first: %v", r.Lost, r.Sent, lost[:min(5, len(lost))])
		}
		if now := w.Replicas.Active(); strings.Contains(c.Expect, takeover) && now == active {
			rec.Errorf("root %d is still active, want the other one", now)
		}
		for _, p := range processes {
			switch alive := p.Alive(); {
			case !alive && strings.Contains(c.Expect, unharmed):
				rec.Errorf("%s was stopped by the fault, want it to continue", p.Instance)
			case alive && p.Node == "n1" && strings.Contains(c.Expect, elsewhere):
				rec.Errorf("%s is still on n1, want it elsewhere", p.Instance)
			}
		}
		t.Logf("recovered within %.1f s; %d of %d requests lost", r.Recovered, r.Lost, r.Sent)
	})
	return r
}

// mixed injects faults in an order and for durations that the seed determines, until the time is up.
func mixed(t *testing.T, cells []Cell, seed string) {
	s, err := strconv.ParseUint(seed, 10, 64)
	if err != nil {
		t.Fatalf("TREELINE_FAULTS_SEED=%q: want a number", seed)
	}
	chance := rand.New(rand.NewPCG(s, 0)) //nolint:gosec // reproducible
	w := open(t)
	for n := 1; hasTime(t) && !t.Failed(); n++ {
		c := cells[chance.IntN(len(cells))]
		hold := time.Duration(2+chance.IntN(19)) * time.Second
		t.Logf("fault %d of seed %d: %s, for %s", n, s, c.Name(), hold)
		w.run(t, c, hold, hold)
	}
}

// TestPageIsCurrent checks that docs/faults.md shows the present table with what was measured.
func TestPageIsCurrent(t *testing.T) {
	m := load(t)
	for name := range m {
		if !slices.ContainsFunc(injections(), func(c Cell) bool { return c.Name() == name }) {
			t.Errorf("%s has a measurement of %q, which is not an injected cell: delete it", measuredPath, name)
		}
	}
	if *update {
		m.save(t)
	}
	if text, err := os.ReadFile(pagePath); err != nil || string(text) != page(m, cuts(t)) {
		t.Errorf("%s differs from the table (%v): run go test ./testbed/faults -run TestPageIsCurrent -update", pagePath, err)
	}
}

var update = flag.Bool("update", false, "write docs/faults.md anew, from what was measured")

const (
	measuredPath = "testdata/measured.json"
	cutsPath     = "testdata/powercuts.jsonl" // scripts/soak --power-cuts appends to it
	pagePath     = "../../docs/faults.md"
)

// measured has the results by the names of cells.
type measured map[string]Result

func load(t *testing.T) measured {
	t.Helper()
	m := measured{}
	text, err := os.ReadFile(measuredPath)
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil && !os.IsNotExist(err) {
		t.Fatalf("%v", err)
	}
	return m
}

// cuts returns the results of power cuts.
func cuts(t *testing.T) (all []lab.PowerCuts) {
	t.Helper()
	text, err := os.ReadFile(cutsPath)
	if err != nil {
		t.Fatalf("%v", err)
	}
	for line := range bytes.Lines(text) {
		var r lab.PowerCuts
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("%s: %v", cutsPath, err)
		}
		all = append(all, r)
	}
	return all
}

// save writes the results and the page.
func (m measured) save(t *testing.T) {
	t.Helper()
	text, err := json.MarshalIndent(m, "", "\t")
	if err == nil {
		err = errors.Join(os.WriteFile(measuredPath, append(text, '\n'), 0o644), os.WriteFile(pagePath, []byte(page(m, cuts(t))), 0o644)) //nolint:gosec // documentation
	}
	if err != nil {
		t.Fatalf("%v", err)
	}
}
