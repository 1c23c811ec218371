package docs

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const top = "../.."

// scripted are the commands that scripts/test runs itself.
var scripted = []string{"cd treeline", "scripts/up", "scripts/up --example shop", "scripts/down", "scripts/test", "scripts/test --short", "scripts/bare scripts/test --short", "scripts/soak --seeds 1:200"}

// TestEveryCommandIsMarked: each block of commands states which test runs it.
func TestEveryCommandIsMarked(t *testing.T) {
	for _, b := range all(t) {
		switch {
		case b.Info == "sh test", b.Info == "sh backup", b.Info == "sh restore", b.Info == "sh accept", strings.HasPrefix(b.Info, "sh of Test"):
		case b.Info == "sh scripts":
			for line := range strings.Lines(b.Text) {
				line, _, _ = strings.Cut(line, "  #")
				if line = strings.TrimSpace(line); line != "" && !slices.Contains(scripted, line) && !strings.HasPrefix(line, "git clone https://github.com/treeline-edge/treeline") {
					t.Errorf("%s: scripts/test does not run %q", b, line)
				}
			}
		case strings.HasPrefix(b.Info, "sh"), strings.HasPrefix(b.Info, "bash"), strings.HasPrefix(b.Info, "console"):
			t.Errorf("%s: the info string is %q, want `sh test`, `sh scripts`, `sh backup`, `sh restore`, `sh accept` or `sh of TestX`", b, b.Info)
		}
	}
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

func TestLinksLead(t *testing.T) {
	files, err := Documents(top)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(top, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			to, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(to, "://") || strings.ContainsAny(to, "[{?") { // a pattern, not a link
				continue
			}
			target := filepath.Join(top, file)
			if to != "" {
				target = filepath.Join(top, filepath.Dir(file), to)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", file, m[1], err)
			} else if anchor != "" && !slices.Contains(anchors(t, target), anchor) {
				t.Errorf("%s links to %s: the page has no such heading", file, m[1])
			}
		}
	}
}

var (
	heading     = regexp.MustCompile(`(?m)^#+ (.+)$`)
	punctuation = regexp.MustCompile("[^a-z0-9 _-]")
)

// anchors returns the anchors of the headings of a page.
func anchors(t *testing.T, page string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range heading.FindAllStringSubmatch(string(text), -1) {
		all = append(all, strings.ReplaceAll(punctuation.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return all
}

func TestDependenciesAreExplained(t *testing.T) {
	required := map[string]bool{}
	for _, file := range []string{"go.mod", "testbed/bench/go.mod"} {
		mod, err := os.ReadFile(filepath.Join(top, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^(?:require )?\t?(\S+\.\S+/\S+) v\S+$`).FindAllStringSubmatch(string(mod), -1) {
			required[m[1]] = true
		}
	}
	delete(required, "github.com/treeline-edge/treeline")
	page, err := os.ReadFile(filepath.Join(top, "docs/dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	want := slices.Sorted(maps.Keys(required))
	var have []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)`").FindAllStringSubmatch(string(page), -1) {
		have = append(have, m[1])
	}
	if !slices.Equal(want, have) {
		t.Errorf("docs/dependencies.md explains\n%s\nwant the modules of the go.mod files\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
}

func all(t *testing.T) []Block {
	t.Helper()
	files, err := Documents(top)
	if err != nil {
		t.Fatal(err)
	}
	var out []Block
	for _, f := range files {
		blocks, err := Blocks(top, f)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, blocks...)
	}
	return out
}
