package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestTally(t *testing.T) {
	const p = `"Package":"github.com/treeline-edge/treeline/a"`
	for _, c := range []struct {
		name, events string
		allow        string
		ok           bool
		says         []string
		hides        []string
	}{
		{
			name: "passed",
			events: `{"Action":"output",` + p + `,"Test":"TestA","Output":"chatter\n"}
{"Action":"pass",` + p + `,"Test":"TestA","Elapsed":0.1}
{"Action":"pass",` + p + `,"Elapsed":1.25}`,
			ok: true, says: []string{"ok    a ", "1.25s", "\n1 passed, 0 failed, 0 skipped\n"}, hides: []string{"chatter"},
		},
		{
			name: "failed",
			events: `{"Action":"output",` + p + `,"Test":"TestA","Output":"a_test.go:1: why\n"}
{"Action":"fail",` + p + `,"Test":"TestA"}
{"Action":"fail",` + p + `}`,
			says: []string{"why", "Failed:\n  a TestA\n      a_test.go:1: why\n", "\n0 passed, 1 failed, 0 skipped\n"},
		},
		{
			name: "does not build",
			events: `{"ImportPath":"a","Action":"build-output","Output":"a.go:1: undefined: x\n"}
{"Action":"fail",` + p + `,"FailedBuild":"a"}`,
			says: []string{"undefined: x", "\n0 passed, 1 failed, 0 skipped\n"},
		},
		{
			name: "ran out of time",
			events: `{"Action":"run",` + p + `,"Test":"TestA"}
{"Action":"output",` + p + `,"Test":"TestA","Output":"panic: test timed out\n"}
{"Action":"fail",` + p + `}`,
			says: []string{"test timed out", "a TestA (cut off)", "\n0 passed, 1 failed, 0 skipped\n"},
		},
		{
			name: "skipped, allowed",
			events: `{"Action":"output",` + p + `,"Test":"TestA/x","Output":"    a_test.go:1: no GPU here\n"}
{"Action":"output",` + p + `,"Test":"TestA/x","Output":"    --- SKIP: TestA/x (0.00s)\n"}
{"Action":"skip",` + p + `,"Test":"TestA/x"}
{"Action":"pass",` + p + `}`,
			allow: "# why\na TestA no machine of ours has one\n",
			ok:    true, says: []string{"  a TestA/x: no GPU here\n", "\n0 passed, 0 failed, 1 skipped\n"},
		},
		{
			name: "skipped, not allowed",
			events: `{"Action":"skip",` + p + `,"Test":"TestB"}
{"Action":"pass",` + p + `}`,
			allow: "a TestA no machine of ours has one\n",
			says:  []string{"a TestB: no reason given  [not allowed here]"},
		},
		{name: "nothing", says: []string{"no package was tested"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			allowed, err := ReadAllowed(strings.NewReader(c.allow))
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			tally := Tally{Out: &out}
			if err := tally.Read(strings.NewReader(c.events)); err != nil {
				t.Fatal(err)
			}
			if got := tally.Close(allowed); got != c.ok {
				t.Errorf("Close() = %v, want %v", got, c.ok)
			}
			for _, s := range c.says {
				if !strings.Contains(out.String(), s) {
					t.Errorf("want %q in the output:\n%s", s, out.String())
				}
			}
			for _, s := range c.hides {
				if strings.Contains(out.String(), s) {
					t.Errorf("the output contains %q", s)
				}
			}
			if last := strings.Split(strings.TrimSpace(out.String()), "\n"); !strings.HasSuffix(last[len(last)-1], " skipped") {
				t.Errorf("the last line is %q, want the counts", last[len(last)-1])
			}
		})
	}
}

func TestAllowedNeedsReasons(t *testing.T) {
	if _, err := ReadAllowed(strings.NewReader("a TestA\n")); err == nil {
		t.Error("a skip was allowed without a reason")
	}
}
