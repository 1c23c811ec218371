package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTroubleshootingHasWhatTreelineNames: the page of troubleshooting has every reason, every constraint and every check of doctor.
func TestTroubleshootingHasWhatTreelineNames(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(top, "docs/how-to/troubleshooting.md"))
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for _, s := range strings.Split(string(page), "\n## ") {
		title, text, _ := strings.Cut(s, "\n")
		sections[title] = text
	}
	for section, from := range map[string]struct {
		files string
		names *regexp.Regexp
		least int
	}{
		"Reasons of states and events": {"api/*.go", regexp.MustCompile(`\bReason\w+\s+Reason = "(\w+)"`), 40},
		"An instance has no place":     {"scheduler-plugins/sched/*.go", regexp.MustCompile(`\bConstraint\w+\s+= "(\w+:?)"`), 25},
		"What doctor checks":           {"cli/command/*.go", regexp.MustCompile(`\b(?:passed|warned|failed)\("([\w-]+)`), 12},
	} {
		files, err := filepath.Glob(filepath.Join(top, from.files))
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range from.names.FindAllStringSubmatch(string(text), -1) {
				seen[m[1]] = true
			}
		}
		if len(seen) < from.least {
			t.Errorf("found %d names in %s, want at least %d", len(seen), from.files, from.least)
		}
		for name := range seen {
			if !strings.Contains(sections[section], "`"+name) {
				t.Errorf("troubleshooting.md, %q does not have %s, which is in %s", section, name, from.files)
			}
		}
	}
}
