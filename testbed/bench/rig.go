package main

import (
	"fmt"
	"io"
	"slices"

	"github.com/treeline-edge/treeline/testbed/lab"
)

// rig is the lab's T where there is no test: a failure ends the benchmark.
type rig struct {
	log      io.Writer
	failed   bool
	cleanups []func()
}

var _ lab.T = (*rig)(nil)

type failure struct{ text string }

// inLab runs a benchmark with a lab and ends the lab behind it.
func inLab(r *run, fn func(*lab.Lab) error) (err error) {
	g := &rig{log: r.log}
	defer func() {
		for _, f := range slices.Backward(g.cleanups) {
			f()
		}
		if err == nil && g.failed {
			err = fmt.Errorf("the lab failed")
		}
	}()
	defer func() {
		if p := recover(); p != nil {
			f, ok := p.(failure)
			if !ok {
				panic(p)
			}
			g.failed = true
			err = fmt.Errorf("%s", f.text)
		}
	}()
	l := lab.New(g, lab.Options{RootArgs: quiet})
	return fn(l)
}

// quiet are the daemons' own defaults, where a lab would log more.
var quiet = []string{"--log-level", "info"}

// Helper is lab.T's.
func (g *rig) Helper() {}

// Logf is lab.T's.
func (g *rig) Logf(format string, args ...any) { _, _ = fmt.Fprintf(g.log, format+"\n", args...) }

// Errorf is lab.T's.
func (g *rig) Errorf(format string, args ...any) {
	g.failed = true
	g.Logf(format, args...)
}

// Fatalf is lab.T's.
func (g *rig) Fatalf(format string, args ...any) { panic(failure{fmt.Sprintf(format, args...)}) }

// Failed is lab.T's.
func (g *rig) Failed() bool { return g.failed }

// Cleanup is lab.T's.
func (g *rig) Cleanup(fn func()) { g.cleanups = append(g.cleanups, fn) }
