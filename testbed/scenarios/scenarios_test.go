package scenarios_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/testbed/sim"
)

var update = flag.Bool("update", false, "write the answers anew")

func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("*.txt")
	if err != nil || len(files) < 12 {
		t.Fatalf("found %d scenarios (%v), want at least 12", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(file, ".txt"), func(t *testing.T) {
			t.Parallel()
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			want := string(b)
			got := play(want)
			if got == want {
				return
			}
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Fatalf("%s has other outputs than expected (-update writes them):\n%s", file, difference(want, got))
		})
	}
}

const dashes = "----"

// play runs the commands of a scenario and returns its text with the actual outputs. Text outside of
// blocks stays unchanged.
func play(text string) string {
	console := sim.NewConsole()
	var out []string
	var command []string
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		switch {
		case line == dashes && len(command) > 0:
			answer := console.Do(strings.Join(command, "\n"))
			out = append(append(out, dashes), strings.TrimRight(answer, "\n"))
			command = nil
			for i+1 < len(lines) && lines[i+1] != "" {
				i++ // the old output
			}
			continue
		case line == "" || strings.HasPrefix(line, "#"):
			command = nil
		default:
			command = append(command, line)
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n") + "\n"
}

func difference(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			from := max(0, i-6)
			return strings.Join(a[from:i], "\n") + "\n- " + a[i] + "\n+ " + strings.Join(b[i:min(len(b), i+6)], "\n+ ")
		}
	}
	return "one ends earlier"
}
