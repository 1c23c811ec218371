package lab_test

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/testbed/lab"
	"github.com/treeline-edge/treeline/testbed/promtest"
)

// unscraped are metrics of the reference that daemons of the overlay do not have: the jobs, and why.
var unscraped = map[string]struct{ jobs, why string }{
	"treeline_snapshot_age_seconds":        {"root cluster node net", "no snapshots are scheduled here; testbed/docs' TestBackupAsDocumented has a schedule"},
	"treeline_snapshot_interval_seconds":   {"root cluster node net", "likewise"},
	"treeline_sla_violations_total":        {"root cluster", "nothing is violated here; root has a test"},
	"treeline_unplaceable":                 {"root cluster", "no instance is unplaceable here; tiers' TestDashboardsFindTheirMetrics has one"},
	"http_server_request_duration_seconds": {"node net", "they serve no API"},
	"treeline_core_inputs_waiting":         {"node net", "root and cluster alone"},
	"treeline_store_save_duration_seconds": {"node net", "root and cluster alone"},
	"treeline_restore_held":                {"node net", "root and cluster alone"},
	"treeline_broker_connected":            {"cluster", "the broker is embedded here; tiers' TestClusterGoesOnWithOneOfTwoMosquittos has two"},
	"treeline_replicas":                    {"root cluster node net", "no replicas run here; tiers' TestReplicasTakeOver has some"},
	"treeline_store_save_seconds_total":    {"root cluster", "node engine and netmanager alone"},
}

// scrapesAllDaemons runs a Prometheus on the host of a cluster whose services talk, and compares what the root, the
// cluster, a node engine and its netmanager serve with docs/reference/metrics.md.
func scrapesAllDaemons(t *testing.T, o *lab.Overlay) {
	programtest.Need(t, "prometheus", "promtool")
	prom := promtest.Start(t, o.First.Scraped())
	sections := map[string]string{"treeline-root": "Root", "treeline-cluster": "Cluster", "treeline-node": "Node engine", "treeline-net": "Netmanager"}
	jobs := []string{"treeline-root", "treeline-cluster", "treeline-node", "treeline-net"}
	prom.Scrapes(t, jobs...)
	all := metricsIn(t, "All daemons")
	seen := map[string]map[string]bool{} // by job, in any scrape: those of connections come and go
	lab.Within(t, time.Minute, "all daemons have their metrics", func() error {
		var errs []error
		for _, job := range jobs {
			own := metricsIn(t, sections[job])
			names, err := prom.Values(fmt.Sprintf(`{__name__=~"(treeline|http)_.+",job=%q}`, job), "__name__")
			errs = append(errs, err)
			has := seen[job]
			if has == nil {
				has = map[string]bool{}
				seen[job] = has
			}
			for _, name := range names {
				for _, end := range []string{"_bucket", "_count", "_sum"} {
					name = strings.TrimSuffix(name, end)
				}
				has[name] = true
				if !own[name] && !all[name] {
					errs = append(errs, fmt.Errorf("%s has %s, which docs/reference/metrics.md does not have under %s", job, name, sections[job]))
				}
			}
			for _, listed := range []map[string]bool{own, all} {
				for name := range listed {
					if !has[name] && !slices.Contains(strings.Fields(unscraped[name].jobs), strings.TrimPrefix(job, "treeline-")) {
						errs = append(errs, fmt.Errorf("%s has no %s, which docs/reference/metrics.md has", job, name))
					}
				}
			}
		}
		return errors.Join(errs...)
	})
}

// metricsIn returns the names that the reference of metrics has in a section.
func metricsIn(t *testing.T, section string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "\n## "+section+"\n")
	if !ok {
		t.Fatalf("docs/reference/metrics.md has no section %s", section)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	all := map[string]bool{}
	for _, m := range regexp.MustCompile("`((?:treeline|http_server)_[a-z0-9_]+)").FindAllStringSubmatch(rest, -1) {
		all[m[1]] = true
	}
	return all
}
