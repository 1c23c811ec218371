package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/testbed/bench/netbench"
)

// Every path works under every load, and the records are complete. The figures of one short
// sample mean nothing.
func TestQuickRunOfTheNetwork(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	programtest.Need(t, netbench.Programs...)
	file, svg := filepath.Join(t.TempDir(), "net.json"), filepath.Join(t.TempDir(), "net.svg")
	if err := Main(t.Context(), []string{"net", "-quick", "--json", file, "-svg", svg}, io.Discard, t.Output()); err != nil {
		t.Fatal(err)
	}
	out, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]Record{}
	for line := range strings.Lines(string(out)) {
		var r Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		have[r.Name] = r
	}
	var rows []row
	for _, w := range netRows {
		if !w.quick {
			continue
		}
		rows = append(rows, w)
		r := have["net."+w.name]
		if r.Held == "not measured" {
			t.Errorf("row %s was not measured", w.name)
		} else if r.N != 1 {
			t.Errorf("%s: %+v", w.name, r)
		}
	}
	for _, f := range figuresOf(rows, false) {
		if r := have["net."+f.String()]; r.N != 1 || !(r.Median > 0) && !strings.HasPrefix(f.load, "lookup") || r.Unit == "" { // a difference may be negative
			t.Errorf("%s: %+v", f, r)
		}
	}
	if text, err := os.ReadFile(svg); err != nil || !bytes.Contains(text, []byte("</svg>")) {
		t.Errorf("the drawing is incomplete: %v", err)
	}
}

// TestMissingProgramEndsTheBenchmarkAtOnce removes ping from PATH. Once, the benchmark mistook
// its absence for lost packets, for a minute on each path.
func TestMissingProgramEndsTheBenchmarkAtOnce(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	programtest.Need(t, netbench.Programs...)
	dir := t.TempDir()
	for _, p := range append([]string{"go"}, netbench.Programs...) {
		path, err := exec.LookPath(p)
		if err != nil {
			t.Fatal(err)
		}
		if p != "ping" {
			if err := os.Symlink(path, filepath.Join(dir, p)); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Setenv("PATH", dir)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := Main(ctx, []string{"net", "-quick"}, io.Discard, t.Output())
	if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "ping") {
		t.Errorf("without ping: %v, want an error at once that names ping", err)
	}
}

func TestRowsSayWhatTheyCompare(t *testing.T) {
	seen := map[string]bool{}
	for _, w := range netRows {
		if seen[w.name] || w.what == "" {
			t.Errorf("row %q exists twice or has no description", w.name)
		}
		seen[w.name] = true
		for _, f := range append([]figure{w.of, w.base}, w.beside...) {
			if f == (figure{}) {
				continue
			}
			if _, ok := netPaths[f.path]; !ok {
				t.Errorf("row %s: unknown path %q", w.name, f.path)
			}
			if _, ok := netLoads[f.load]; !ok {
				t.Errorf("row %s: unknown load %q", w.name, f.load)
			}
		}
	}
}

func TestRowsAreSelectedByPattern(t *testing.T) {
	rows, err := selectRows("sync, tunnel-r*")
	if err != nil || len(rows) != 2 || rows[1].name != "tunnel-rtt" {
		t.Errorf("%v, %v", rows, err)
	}
	rows, err = selectRows("tunnel-rtt,tunnel-r*,sync,*rtt")
	if err != nil || len(rows) != 2 || rows[0].name != "tunnel-rtt" || rows[1].name != "sync" {
		t.Errorf("two patterns that match the same row: %v, %v; want it once", rows, err)
	}
	if _, err := selectRows("speed"); err == nil || !strings.Contains(err.Error(), "route-tcp") {
		t.Errorf("error %q does not list the valid names", err)
	}
}

func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		v    verdict
		want string
	}{
		{verdict{row: row{limit: 2}, measured: 2, n: 5}, "pass"},
		{verdict{row: row{limit: 2}, measured: 1.99, n: 5}, "FAIL"},
		{verdict{row: row{limit: 1, atMost: true}, measured: 1.004, n: 5}, "pass"},
		{verdict{row: row{limit: 2, atMost: true}, measured: 2.01, n: 5}, "FAIL"},
		{verdict{row: row{limit: 2, atMost: true}, measured: 1, n: 5}, "pass"},
		{verdict{row: row{limit: 2, atMost: true}}, "not measured"},
		{verdict{row: row{}, measured: 1, n: 5}, ""},
	} {
		if got := c.v.held(); got != c.want {
			t.Errorf("%+v: %q, want %q", c.v, got, c.want)
		}
	}
}

func TestFiguresWithFewerSamplesThanRoundsAreShort(t *testing.T) {
	whole, less, none, without := figure{"raw", "rtt"}, figure{"routed", "rtt"}, figure{"vxlan", "rtt"}, figure{"ebpf-route", "rtt"}
	s := &session{
		taken:   map[figure]*series{whole: {values: []float64{1, 2}}, less: {values: []float64{1}}},
		without: map[string]error{without.path: errors.ErrUnsupported},
	}
	if n := s.short([]figure{whole, less, none, without}, 2); n != 2 {
		t.Errorf("%d figures are short", n)
	}
}

func TestASampleIsTheMedianOfItsSlices(t *testing.T) {
	f := figure{"routed", "connects"}
	s := &session{run: &run{log: t.Output()}, taken: map[figure]*series{}}
	s.keep(f, []netbench.Sample{{Value: 3}, {Value: 9}, {Value: 4}})
	s.keep(f, []netbench.Sample{{Value: 3}, {Value: 9, Foreign: 0.5}, {Value: 5}})
	s.keep(f, []netbench.Sample{{Value: 7}})
	got := s.taken[f]
	if want := []float64{4, 5, 7}; !slices.Equal(got.values, want) {
		t.Errorf("the samples are %v, want %v", got.values, want)
	}
	if want := []bool{false, true, false}; !slices.Equal(got.disturbed, want) || s.polluted != 1 {
		t.Errorf("the disturbed samples are %v and %d, want %v", got.disturbed, s.polluted, want)
	}
}

func TestFiguresOfALoadAreTakenTogether(t *testing.T) {
	all := figuresOf(netRows, true)
	seen := map[string]bool{}
	for len(all) > 0 {
		n := sameLoad(all)
		for _, f := range all[:n] {
			if f.load != all[0].load {
				t.Errorf("the figure %s is among those of the load %s", f, all[0].load)
			}
		}
		if seen[all[0].load] {
			t.Errorf("the load %s comes twice", all[0].load)
		}
		seen[all[0].load] = true
		all = all[n:]
	}
}

// The memory of idle processes is the median of the larger process and its maximum.
func TestMemoryAtRestIsTheLargerProcess(t *testing.T) {
	r := &rest{looks: [][]memory{
		{{resident: 8, anonymous: 6, peak: 8}, {resident: 8, anonymous: 6, peak: 9}, {resident: 14, anonymous: 6, peak: 15}},
		{{resident: 9, anonymous: 5, peak: 9}, {resident: 9, anonymous: 5, peak: 10}, {resident: 8, anonymous: 5, peak: 10}},
	}}
	if m, n := r.larger(); m != (memory{resident: 9, anonymous: 6, peak: 15}) || n != 3 {
		t.Errorf("got %+v in %d readings", m, n)
	}
}
