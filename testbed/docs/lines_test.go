package docs

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/cli/command"
)

// TestCommandLinesInTextExist checks the command lines that no test runs, in text and in other blocks:
// each has an existing command and flags of treeline, and each path after treeline explain is one of
// the SLA.
func TestCommandLinesInTextExist(t *testing.T) {
	files, err := Documents(top)
	if err != nil {
		t.Fatal(err)
	}
	span := regexp.MustCompile("`([^`]+)`")
	seen := 0
	for _, file := range files {
		if file == "docs/reference/cli.md" {
			continue // it is made from the commands
		}
		text, err := os.ReadFile(filepath.Join(top, file))
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		blocks, err := Blocks(top, file)
		if err != nil {
			t.Fatal(err)
		}
		prose := string(text)
		for _, b := range blocks {
			prose = strings.Replace(prose, "```"+b.Info+"\n"+b.Text+"```", "", 1)
			if !strings.HasPrefix(b.Info, "sh ") {
				lines = append(lines, strings.Split(b.Text, "\n")...)
			}
		}
		for _, m := range span.FindAllStringSubmatch(prose, -1) {
			lines = append(lines, strings.ReplaceAll(m[1], "\n", " "))
		}
		for _, line := range lines {
			line, _, _ = strings.Cut(line, " #")
			words := strings.Fields(line)
			if len(words) < 2 || words[0] != "treeline" {
				continue
			}
			seen++
			if said := lineFault(t, words[1:]); said != "" {
				t.Errorf("%s: %s: %s", file, line, said)
			}
		}
	}
	if seen < 25 {
		t.Errorf("found %d command lines, want at least 25", seen)
	}
}

// lineFault returns why a command line is not valid, "" if it is.
func lineFault(t *testing.T, args []string) string {
	if args[0] != "explain" {
		args = append(slices.Clone(args), "--help")
	}
	var out, err bytes.Buffer
	code := command.Main(t.Context(), args, command.IO{
		In: strings.NewReader(""), Out: &out, Err: &err, Now: time.Now, Env: func(string) string { return "" },
	})
	switch _, usage, _ := strings.Cut(out.String(), "\nUsage:\n  treeline "); {
	case code != 0:
		return err.String()
	case strings.Contains(usage, "\nAvailable Commands:\n") && len(args) > 2 && !strings.HasPrefix(args[1], "-"):
		return "there is no such command: " + out.String()
	}
	return ""
}
