package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Tally counts the events of `go test -json` and prints while it reads. A stream may contain several
// runs.
type Tally struct {
	Out io.Writer

	passed, failed int
	packages       int
	skips          []Skip
	output         map[test][]string // of tests, and with an empty name of packages, that have not ended
	failures       map[string]int    // failed tests of packages that have not ended
	broken         []string          // failures, for the summary
}

// Skip is a skipped test with its reason.
type Skip struct{ Package, Test, Reason string }

type test struct{ pkg, name string }

// event is an event of `go doc test2json` or of a build.
type event struct {
	Action, Package, Test, Output string
	ImportPath                    string // of a build
	FailedBuild                   string
	Elapsed                       float64 // seconds
}

// Read reads a stream to its end. Lines that are not events, such as compiler output, are printed.
func (t *Tally) Read(r io.Reader) error {
	t.output, t.failures = map[test][]string{}, map[string]int{}
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadBytes('\n')
		if line = bytes.TrimSpace(line); len(line) > 0 {
			var e event
			if line[0] != '{' || json.Unmarshal(line, &e) != nil {
				fmt.Fprintf(t.Out, "%s\n", line)
			} else {
				t.take(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read test events: %w", err)
		}
	}
}

func (t *Tally) take(e event) {
	k := test{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		fmt.Fprint(t.Out, e.Output)
	case "output":
		t.output[k] = append(t.output[k], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			t.endPackage(e)
		} else {
			t.endTest(e)
		}
		delete(t.output, k)
	}
}

func (t *Tally) endTest(e event) {
	k := test{e.Package, e.Test}
	switch e.Action {
	case "pass":
		t.passed++
	case "skip":
		t.skips = append(t.skips, Skip{e.Package, e.Test, reason(t.output[k])})
	case "fail":
		t.failed++
		t.failures[e.Package]++
		t.broken = append(t.broken, short(e.Package)+" "+e.Test+messages(t.output[k]))
		t.print(t.output[k])
	}
}

// endPackage prints the line that go test would print. A package can fail without a failed test: it
// does not build, panics, or exceeds the time limit.
func (t *Tally) endPackage(e event) {
	t.packages++
	if t.failures[e.Package] > 0 { // also for events that scripts/test writes
		e.Action = "fail"
	}
	took := time.Duration(e.Elapsed * float64(time.Second)).Round(10 * time.Millisecond)
	switch e.Action {
	case "pass":
		fmt.Fprintf(t.Out, "ok    %-45s %8s\n", short(e.Package), took)
	case "skip":
		fmt.Fprintf(t.Out, "-     %-45s no tests\n", short(e.Package))
	case "fail":
		t.unfinished(e.Package)
		t.print(t.output[test{e.Package, ""}])
		if t.failures[e.Package] == 0 {
			t.failed++
			t.broken = append(t.broken, short(e.Package))
		}
		fmt.Fprintf(t.Out, "FAIL  %-45s %8s\n", short(e.Package), took)
	}
	delete(t.failures, e.Package)
}

// unfinished prints the output of interrupted tests, which contains the reason of a panic or timeout.
func (t *Tally) unfinished(pkg string) {
	var cut []test
	for k := range t.output {
		if k.pkg == pkg && k.name != "" {
			cut = append(cut, k)
		}
	}
	slices.SortFunc(cut, func(a, b test) int { return strings.Compare(a.name, b.name) })
	for _, k := range cut {
		t.failed++
		t.failures[pkg]++
		t.broken = append(t.broken, short(pkg)+" "+k.name+" (cut off)"+messages(t.output[k]))
		t.print(t.output[k])
		delete(t.output, k)
	}
}

func (t *Tally) print(lines []string) {
	for _, l := range lines {
		fmt.Fprint(t.Out, l)
	}
}

// Close prints skipped and failed tests and the counts, and reports whether the run succeeded. If
// allowed is nil, every skip is allowed.
func (t *Tally) Close(allowed *Allowed) bool {
	if len(t.skips) > 0 {
		fmt.Fprintln(t.Out, "\nSkipped:")
	}
	forbidden := 0
	for _, s := range t.skips {
		mark := ""
		if allowed != nil && !allowed.Has(s) {
			mark = "  [not allowed here]"
			forbidden++
		}
		fmt.Fprintf(t.Out, "  %s %s: %s%s\n", short(s.Package), s.Test, s.Reason, mark)
	}
	if len(t.broken) > 0 {
		fmt.Fprintln(t.Out, "\nFailed:")
		for _, b := range t.broken {
			fmt.Fprintln(t.Out, " ", b)
		}
	}
	if t.packages == 0 {
		fmt.Fprintln(t.Out, "\nno package was tested")
	}
	fmt.Fprintf(t.Out, "\n%d passed, %d failed, %d skipped\n", t.passed, t.failed, len(t.skips))
	return t.failed == 0 && forbidden == 0 && t.packages > 0
}

// position matches the place that the testing package writes in front of a message.
var position = regexp.MustCompile(`^ *[a-z0-9_]+\.go:[0-9]+: `)

// messages returns the first messages of a failed test, a line each and cut, so that the summary
// says what failed although the output of the test has thousands of lines.
func messages(output []string) string {
	const most, width = 8, 300
	var b strings.Builder
	n := 0
	for _, l := range output {
		if !position.MatchString(l) {
			continue
		}
		if n++; n > most {
			b.WriteString("\n      …")
			break
		}
		l = strings.TrimSpace(l)
		b.WriteString("\n      " + strings.ToValidUTF8(l[:min(len(l), width)], ""))
	}
	return b.String()
}

// reason returns the last output line of a skipped test, without its position.
func reason(output []string) string {
	for _, l := range slices.Backward(output) {
		l = strings.TrimSpace(l)
		if l == "" || strings.HasPrefix(l, "--- ") || strings.HasPrefix(l, "=== ") {
			continue
		}
		if place, said, ok := strings.Cut(l, ": "); ok && strings.Contains(place, ".go:") {
			return said
		}
		return l
	}
	return "no reason given"
}

const module = "github.com/treeline-edge/treeline/"

func short(pkg string) string { return strings.TrimPrefix(pkg, module) }
