package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// Allowed are the skips that are no failure.
type Allowed struct{ tests map[test]bool }

// ReadAllowed reads lines of package (without the module's path), test and
// reason. Empty lines and those that begin with # say nothing. A line without a
// reason is an error.
func ReadAllowed(r io.Reader) (*Allowed, error) {
	a := &Allowed{tests: map[test]bool{}}
	in := bufio.NewScanner(r)
	for n := 1; in.Scan(); n++ {
		line := strings.TrimSpace(in.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		f := strings.Fields(line)
		if len(f) < 3 {
			return nil, fmt.Errorf("line %d: want package, test and a reason, have %q", n, line)
		}
		a.tests[test{f[0], f[1]}] = true
	}
	return a, in.Err()
}

// Has reports whether the skip is allowed. Who allows a test allows its subtests.
func (a *Allowed) Has(s Skip) bool {
	for name := s.Test; ; {
		if a.tests[test{short(s.Package), name}] {
			return true
		}
		i := strings.LastIndexByte(name, '/')
		if i < 0 {
			return false
		}
		name = name[:i]
	}
}
