package docs

import (
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	metricInCode = regexp.MustCompile(`"((?:treeline|http_server)_[a-z0-9_]+)"`)
	metricInText = regexp.MustCompile(`\b(?:treeline|http_server)_[a-z0-9_]+\b`)
)

// metricsOfDaemons returns the names of metrics in the daemons' code.
func metricsOfDaemons(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, dir := range []string{"root-orchestrator", "cluster-orchestrator", "node-engine", "netmanager", "internal/daemon"} {
		err := filepath.WalkDir(filepath.Join("../..", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range metricInCode.FindAllStringSubmatch(string(text), -1) {
				found[m[1]] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

func TestReferenceHasAllMetrics(t *testing.T) {
	code := metricsOfDaemons(t)
	text, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	docs := map[string]bool{}
	for _, name := range metricInText.FindAllString(string(text), -1) {
		docs[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(code)) {
		if !docs[name] && !strings.HasSuffix(name, "_") {
			t.Errorf("docs/reference/metrics.md does not have %s", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(docs)) {
		if !code[name] {
			t.Errorf("docs/reference/metrics.md has %s, which no daemon has", name)
		}
	}
}

// TestDashboardsAndAlertsUseMetricsThatExist reads the files in deploy, and the runbooks that alerts refer to.
func TestDashboardsAndAlertsUseMetricsThatExist(t *testing.T) {
	code := metricsOfDaemons(t)
	files, err := filepath.Glob("../../deploy/grafana/*.json")
	if err != nil || len(files) < 3 {
		t.Fatal(files, err)
	}
	for _, path := range append(files, "../../deploy/prometheus/rules.yml") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Ext(path) == ".json" {
			var dashboard struct {
				Panels []struct{ Targets []struct{ Expr string } }
			}
			if err := json.Unmarshal(text, &dashboard); err != nil || len(dashboard.Panels) == 0 || dashboard.Panels[0].Targets[0].Expr == "" {
				t.Errorf("%s: %v, %d panels", path, err, len(dashboard.Panels))
			}
		}
		for _, name := range metricInText.FindAllString(string(text), -1) {
			if base := strings.TrimSuffix(name, "_bucket"); !code[base] {
				t.Errorf("%s uses %s, which no daemon has", path, name)
			}
		}
	}
	rules, err := os.ReadFile("../../deploy/prometheus/rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	runbook, err := os.ReadFile("../../docs/how-to/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(rules), -1) {
		if !strings.Contains(string(runbook), "\n### "+m[1]+"\n") || !strings.Contains(string(rules), "#"+strings.ToLower(m[1])+"\n") {
			t.Errorf("alert %s has no runbook", m[1])
		}
	}
}
