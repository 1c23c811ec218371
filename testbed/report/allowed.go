package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// Allowed are the skipped tests that are not failures.
type Allowed struct{ tests map[test]bool }

// ReadAllowed reads lines with package (without the module's path), test and reason. It ignores
// empty lines and those that begin with #. A line without a reason is an error.
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
			return nil, fmt.Errorf("line %d: %q, want package, test and reason", n, line)
		}
		a.tests[test{f[0], f[1]}] = true
	}
	return a, in.Err()
}

// Has reports whether the skip is allowed. An allowed test includes its subtests.
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
