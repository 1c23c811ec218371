package output_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cli/output"
)

var update = flag.Bool("update", false, "write the golden files anew")

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func printer(b *bytes.Buffer, f output.Format) output.Printer {
	return output.Printer{Out: b, Format: f, Tenant: "acme", Now: func() time.Time { return noon }}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (-update writes it anew):\n%s\nwant:\n%s", path, got, want)
	}
}

// nowhere is an instance without a place: of four clusters, one was asked.
var nowhere = api.Why{
	Instance: api.Instance{ID: "acme/video.prod.detect.v1#1", State: api.Requested, Reason: api.ReasonNoCluster, Since: noon.Add(-14 * time.Second)},
	Root: api.Explanation{
		Considered: 4,
		Causes: []api.Cause{
			{Constraint: "out", Count: 1, Detail: "no report for 3m"},
			{Constraint: "avoid", Count: 1},
			{Constraint: "virtualization", Count: 1, Detail: "need runsc, have container"},
			{Constraint: "memory", Count: 1, Detail: "need 512 MiB, best free 96 MiB"},
		},
		Candidates: []api.Rejection{
			{Candidate: "munich", Constraint: "avoid", Have: "refused or failed it just now", Shortfall: 1},
			{Candidate: "dublin", Constraint: "virtualization", Need: "runsc", Have: "container", Shortfall: 1},
			{Candidate: "osaka", Constraint: "memory", Need: "512 MiB", Have: "96 MiB", Short: "416 MiB", Shortfall: 0.81},
			{Candidate: "nairobi", Constraint: "out", Have: "no report for 3m", Shortfall: 1},
		},
	},
	Clusters: []api.ClusterWhy{{
		Cluster: "munich", At: noon.Add(-9 * time.Second),
		Answer: api.Explanation{
			Considered: 12,
			Causes: []api.Cause{
				{Constraint: "arch", Count: 3, Detail: "need amd64, have arm64"},
				{Constraint: "vcpus", Count: 2, Detail: "need 2, best free 1.5"},
				{Constraint: "memory", Count: 7, Detail: "need 512 MiB, best free 310 MiB"},
			},
			Nearest: &api.Rejection{Candidate: "n07", Constraint: "memory", Need: "512 MiB", Have: "310 MiB", Short: "202 MiB", Shortfall: 0.39},
			Candidates: []api.Rejection{
				{Candidate: "n07", Constraint: "memory", Need: "512 MiB", Have: "310 MiB", Short: "202 MiB", Shortfall: 0.39},
				{Candidate: "n11", Constraint: "arch", Need: "amd64", Have: "arm64", Shortfall: 1},
			},
		},
	}},
	NextTry:   noon.Add(21 * time.Second),
	WouldHelp: []string{"ask for 202 MiB less memory, or free it"},
}

func TestWhyNowhere(t *testing.T) {
	var b bytes.Buffer
	if err := output.Why(printer(&b, output.Text), nowhere); err != nil {
		t.Fatal(err)
	}
	golden(t, "why-nowhere.txt", b.Bytes())
}

// During the search for a place, the explanation contains its end and what happens then.
func TestWhyWhileAPlaceIsSearchedFor(t *testing.T) {
	w := nowhere
	w.SearchingUntil = noon.Add(4 * time.Second)
	var b bytes.Buffer
	if err := output.Why(printer(&b, output.Text), w); err != nil {
		t.Fatal(err)
	}
	const want = "\n  searching until 12:00:04 UTC (in 4s) for a place that meets its links to other services; then it is placed where they are violated least\n"
	if !strings.Contains(b.String(), want) {
		t.Errorf("got:\n%s\nwant in it:%s", b.String(), want)
	}
}

// An instance that was handed back has no place, although its last cluster may still place it.
func TestWhyOfWhatWasHandedBack(t *testing.T) {
	w := nowhere
	w.Instance.Cluster, w.Instance.Detail = "munich", "0 of 12 nodes fit"
	for n := range 9 {
		w.Placements = append(w.Placements, api.Placement{Epoch: api.EpochOf(api.Revision(n+1), 0), Cluster: "munich", At: noon.Add(time.Duration(n-9) * time.Minute), Reason: api.ReasonNoCapacity})
	}
	var b bytes.Buffer
	if err := output.Why(printer(&b, output.Text), w); err != nil {
		t.Fatal(err)
	}
	golden(t, "why-back.txt", b.Bytes())
}

func TestWhyOfWhatRuns(t *testing.T) {
	var b bytes.Buffer
	err := output.Why(printer(&b, output.Text), api.Why{
		Instance: api.Instance{
			ID: "acme/shop.prod.web.v1#0", State: api.Running, Cluster: "munich", Epoch: api.EpochOf(17, 1), Since: noon.Add(-time.Hour),
			Violated: "latency 34.9 ms, at most 20 ms to pre.v1", Devices: []string{"acme.com/gpu=0"},
		},
		Root: api.Explanation{
			Considered: 3, Causes: []api.Cause{{Constraint: "device:gpu", Count: 1, Detail: "need 1 gpu, best free 0 gpu"}, {Constraint: "fits", Count: 2}},
		},
		Ranked: []api.RankedCluster{{Cluster: "munich", Score: 0.7241}, {Cluster: "dublin", Score: 0.5}},
		Placements: []api.Placement{
			{Epoch: api.EpochOf(9, 0), Cluster: "dublin", At: noon.Add(-2 * time.Hour), Reason: api.ReasonClusterLost, Score: 0.5},
			{Epoch: api.EpochOf(17, 0), Cluster: "munich", At: noon.Add(-time.Hour), Score: 0.72},
		},
		Clusters: []api.ClusterWhy{{Cluster: "munich", At: noon, Answer: api.Explanation{
			Considered: 3, Causes: []api.Cause{{Constraint: "memory", Count: 1, Detail: "need 512 MiB, best free 310 MiB"}, {Constraint: "fits", Count: 2}},
			Candidates: []api.Rejection{{Candidate: "n07", Constraint: "memory", Need: "512 MiB", Have: "310 MiB", Short: "202 MiB"}},
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "why-running.txt", b.Bytes())
}

// TestPrintedCountsAddUp checks the lines of an explanation with counts: those of the root's
// clusters and of a cluster's nodes.
func TestPrintedCountsAddUp(t *testing.T) {
	var b bytes.Buffer
	if err := output.Why(printer(&b, output.Text), nowhere); err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^ .*\b(\d+) (clusters?|nodes?): (.+)$`).FindAllStringSubmatch(b.String(), -1)
	if len(lines) != 2 || lines[0][2] != "clusters" || lines[1][2] != "nodes" {
		t.Fatalf("lines with counts %q, want one of clusters and one of nodes in:\n%s", lines, b.String())
	}
	for _, line := range lines {
		sum := 0
		for part := range strings.SplitSeq(line[3], " · ") {
			word, _, _ := strings.Cut(part, " ")
			n, err := strconv.Atoi(word)
			if err != nil {
				t.Errorf("part %q does not begin with a count in line %q", part, line[0])
			}
			sum += n
		}
		if total, _ := strconv.Atoi(line[1]); sum != total {
			t.Errorf("counts add up to %d, want %d in line %q", sum, total, line[0])
		}
	}
}

func TestFormats(t *testing.T) {
	code := 137
	page := api.Page[api.Instance]{Revision: 40, Items: []api.Instance{
		{ID: "acme/shop.prod.web.v1#0", Service: "acme/shop.prod.web.v1", State: api.Running, Cluster: "munich", Epoch: api.EpochOf(17, 2), Since: noon.Add(-90 * time.Second), Tries: 1},
		{ID: "acme/shop.prod.web.v1#1", Service: "acme/shop.prod.web.v1", Number: 1, State: api.Failed, Reason: api.ReasonOutOfMemory, Detail: "killed\x1b[2J at\nits limit", Cluster: "osaka", Restarts: 3, ExitCode: &code, Since: noon.Add(-50 * time.Hour), Stale: true},
		{ID: "beta/shop.prod.web.v1#0", Service: "beta/shop.prod.web.v1", State: api.Requested, Reason: api.ReasonNoCluster, Since: noon},
	}}
	for _, f := range output.Formats {
		var b bytes.Buffer
		p := printer(&b, f)
		switch f {
		case output.JSONPath:
			_, p.Template, _ = output.Parse(`jsonpath={range .items[?(@.exit_code>136)]}{.id}{"\t"}{.exit_code}{"\t"}{.detail}{"\n"}{end}{.revision}`)
			p.Terminal = true
		case output.GoTemplate:
			_, p.Template, _ = output.Parse(`go-template={{range .items}}{{if eq .state "failed"}}{{.id}} {{.detail}}{{end}}{{end}}`)
		}
		if err := output.List(p, output.Instances, page); err != nil {
			t.Fatal(err)
		}
		golden(t, "instances."+string(f), b.Bytes())
	}
	var b bytes.Buffer
	if err := output.List(printer(&b, output.JSON), output.Instances, api.Page[api.Instance]{}); err != nil || !bytes.Contains(b.Bytes(), []byte(`"items": []`)) {
		t.Errorf("an empty list is a list: %s, %v", b.Bytes(), err)
	}
}

func TestColoursAreAskedFor(t *testing.T) {
	var b bytes.Buffer
	p := printer(&b, output.Text)
	if p.Paint(output.Good, "x") != "x" {
		t.Error("coloured without being asked")
	}
	if p.Colour = true; p.Paint(output.Good, "x") != "\x1b[32mx\x1b[0m" {
		t.Error("no colour")
	}
}

func TestDurations(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0ms", 20 * time.Millisecond: "20ms", 14 * time.Second: "14s", 3 * time.Minute: "3m", 192 * time.Second: "3m12s",
		47*time.Hour + 5*time.Minute: "47h5m", 76 * time.Hour: "3d4h",
	} {
		if got := output.Duration(d); got != want {
			t.Errorf("%s is %q, want %q", d, got, want)
		}
	}
}
