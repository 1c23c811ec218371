package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const top = "../.."

// scripted are the commands that scripts/test runs itself.
var scripted = []string{"cd treeline", "scripts/up", "scripts/down", "scripts/test", "scripts/test --short", "scripts/bare scripts/test --short", "scripts/soak --seeds 1:200"}

// TestEveryCommandIsMarked: a block of commands says who runs it.
func TestEveryCommandIsMarked(t *testing.T) {
	for _, b := range all(t) {
		switch {
		case b.Info == "sh test", b.Info == "sh backup", b.Info == "sh restore":
		case b.Info == "sh scripts":
			for line := range strings.Lines(b.Text) {
				line, _, _ = strings.Cut(line, "  #")
				if line = strings.TrimSpace(line); line != "" && !slices.Contains(scripted, line) && !strings.HasPrefix(line, "git clone https://github.com/treeline-edge/treeline") {
					t.Errorf("%s: scripts/test does not run %q", b, line)
				}
			}
		case strings.HasPrefix(b.Info, "sh"), strings.HasPrefix(b.Info, "bash"), strings.HasPrefix(b.Info, "console"):
			t.Errorf("%s: a block %q: want `sh test`, `sh scripts`, `sh backup` or `sh restore`", b, b.Info)
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
			to, _, _ := strings.Cut(m[1], "#")
			if to == "" || strings.Contains(to, "://") || strings.ContainsAny(to, "[{?") { // a pattern is no link
				continue
			}
			if _, err := os.Stat(filepath.Join(top, filepath.Dir(file), to)); err != nil {
				t.Errorf("%s links to %s: %v", file, m[1], err)
			}
		}
	}
}

func TestDependenciesAreExplained(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join(top, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(top, "docs/dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	var want, have []string
	for _, m := range regexp.MustCompile(`(?m)^(?:require )?\t?(\S+\.\S+/\S+) v\S+$`).FindAllStringSubmatch(string(mod), -1) {
		want = append(want, m[1])
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)`").FindAllStringSubmatch(string(page), -1) {
		have = append(have, m[1])
	}
	slices.Sort(want)
	if !slices.Equal(want, have) {
		t.Errorf("docs/dependencies.md explains\n%s\ngo.mod requires\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
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
