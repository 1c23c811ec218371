package main

import (
	"fmt"
	"io"
	"slices"

	"github.com/treeline-edge/treeline/testbed/lab"
)

// rig implements lab.T without a test: a failure ends the benchmark.
type rig struct {
	log      io.Writer
	failed   bool
	cleanups []func()
}

var _ lab.T = (*rig)(nil)

type failure struct{ text string }

// inLab runs a benchmark with a lab and then closes the lab.
func inLab(r *run, fn func(*lab.Lab) error) error {
	return inRig(r, func(g *rig) error { return fn(lab.New(g, lab.Options{RootArgs: quiet})) })
}

// inRig runs a benchmark with a rig that closes what it opens.
func inRig(r *run, fn func(*rig) error) (err error) {
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
	return fn(g)
}

// quiet sets the daemons' default log level; a lab would log more.
var quiet = []string{"--log-level", "info"}

// Helper implements lab.T, as do the methods below.
func (g *rig) Helper() {}

// Logf writes a line to the log.
func (g *rig) Logf(format string, args ...any) { _, _ = fmt.Fprintf(g.log, format+"\n", args...) }

// Errorf logs a failure.
func (g *rig) Errorf(format string, args ...any) {
	g.failed = true
	g.Logf(format, args...)
}

// Fatalf ends the benchmark with a failure.
func (g *rig) Fatalf(format string, args ...any) { panic(failure{fmt.Sprintf(format, args...)}) }

// Failed reports whether there was a failure.
func (g *rig) Failed() bool { return g.failed }

// Skip ends the benchmark.
func (g *rig) Skip(args ...any) { g.Fatalf("%s", fmt.Sprint(args...)) }

// Cleanup registers a function that runs at the end.
func (g *rig) Cleanup(fn func()) { g.cleanups = append(g.cleanups, fn) }
