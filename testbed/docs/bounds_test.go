package docs

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	_ "github.com/treeline-edge/treeline/cluster-orchestrator/wiring" // each daemon declares its bounds
	"github.com/treeline-edge/treeline/internal/fairshare"
	_ "github.com/treeline-edge/treeline/netmanager/wiring"
	_ "github.com/treeline-edge/treeline/node-engine/wiring"
	_ "github.com/treeline-edge/treeline/root-orchestrator/wiring"
	"github.com/treeline-edge/treeline/testbed/docsgen"
)

var update = flag.Bool("update", false, "write the table of bounds in docs/security.md")

// goFiles calls fn with the text of each Go file of the module.
func goFiles(t *testing.T, fn func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && d.Name() != ".." && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err == nil {
			rel, _ := filepath.Rel(top, path)
			fn(filepath.ToSlash(rel), string(text))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestTheTableOfBoundsIsTheCodes: docs/security.md has every bound that the daemons declare, with an
// existing test of each.
func TestTheTableOfBoundsIsTheCodes(t *testing.T) {
	path := filepath.Join(top, "docs", "security.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bounds := fairshare.Declared()
	want, err := docsgen.Embed(string(text), "bounds", boundsTable(bounds))
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Error("the table of bounds in docs/security.md is stale; write it with: go test ./testbed/docs -run Bounds -update")
	}
	tests, use := map[string]bool{}, map[string]bool{}
	name := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	bound := regexp.MustCompile(`\bDeclare\(`)
	declared := 0
	goFiles(t, func(path, text string) {
		if strings.HasSuffix(path, "_test.go") {
			for _, m := range name.FindAllStringSubmatch(text, -1) {
				tests[m[1]] = true
			}
			return
		}
		if !strings.HasPrefix(path, "internal/fairshare/") && strings.Contains(text, "internal/fairshare\"") {
			declared += len(bound.FindAllString(text, -1))
		}
		use[filepath.ToSlash(filepath.Dir(path))] = true
	})
	for _, b := range bounds {
		if !tests[b.Attack] {
			t.Errorf("bound %s: the test %s does not exist", b.Resource, b.Attack)
		}
		if !use[b.Where] {
			t.Errorf("bound %s: the package %s does not exist", b.Resource, b.Where)
		}
	}
	if declared != len(bounds) {
		t.Errorf("%d bounds are declared in the code, but only %d in the daemons: import the missing package", declared, len(bounds))
	}
}

// slots lists channels that are used as semaphores, with the reason why each needs no shares: it has
// one holder, or its requests are already divided.
var slots = map[string]string{
	"node-engine/clusterlink/link.go":             "probes that the cluster ordered, one round at a time; the pinger bounds them and refuses others",
	"scheduler-plugins/extsched/client/client.go": "the core makes one request at a time",
	"root-orchestrator/httpapi/why.go":            "parts of one request",
	"cluster-orchestrator/httpapi/usage.go":       "parts of one request, which has a place",
	"internal/bus/mqtt/mqtt.go":                   "publishes of the one client itself",
}

// TestNoSemaphoreWithoutShares: a channel used as a semaphore does not distinguish holders,
// so that one can take all places.
func TestNoSemaphoreWithoutShares(t *testing.T) {
	semaphore := regexp.MustCompile(`make\(chan struct\{\}, ([^)1][^)]*|1[^)]+)\)|semaphore\.NewWeighted`)
	used := map[string]bool{}
	daemons := []string{"root-orchestrator/", "cluster-orchestrator/", "node-engine/", "netmanager/", "internal/", "scheduler-plugins/"}
	goFiles(t, func(path, text string) {
		ours := slices.ContainsFunc(daemons, func(d string) bool { return strings.HasPrefix(path, d) })
		if !ours || strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "internal/fairshare/") || strings.Contains(path, "test/") {
			return
		}
		for _, m := range semaphore.FindAllString(text, -1) {
			if used[path] = true; slots[path] != "" {
				continue
			}
			t.Errorf("%s: %s is a semaphore without shares: use internal/fairshare, or add the reason why it needs none to slots", path, m)
		}
	})
	for path := range slots {
		if !used[path] {
			t.Errorf("%s has no such channel any more: remove it from slots", path)
		}
	}
}

// boundsTable returns the bounds as a Markdown table.
func boundsTable(bounds []fairshare.Bound) string {
	var b strings.Builder
	b.WriteString("| Resource | Bound in total | Share, per | Beyond | Where | Attack |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, d := range bounds {
		total := fmt.Sprint(d.Total)
		if d.Unit != "" {
			total += " " + d.Unit
		}
		share := d.Per
		if len(d.Share) > 0 {
			share = strings.Trim(fmt.Sprint(d.Share), "[]")
			share = strings.ReplaceAll(share, " ", ", then ") + ", per " + d.Per
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | `%s` | `%s` |\n", d.Resource, total, share, d.Beyond, d.Where, d.Attack)
	}
	return b.String()
}
