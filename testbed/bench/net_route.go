package main

import (
	"fmt"
	"strings"
)

// routesEach is how many times more often than other figures the time until a route is in use is
// measured, because the limit applies to its p99.
const routesEach = 4

// inUse measures how soon a new instance is in use, with real orchestrators and node engines. It
// runs the benchmark route and converts its records.
func (s *session) inUse(figures []figure) {
	wanted := map[string]figure{} // by the name of the record in route
	for _, f := range figures {
		if kind, ok := strings.CutPrefix(f.load, "route-"); ok {
			wanted["route."+f.path+"."+kind] = f
		}
	}
	if len(wanted) == 0 {
		return
	}
	for name := range s.beds { // not needed for this measurement
		s.forget(name)
	}
	of := *s.run
	of.n = routesEach * s.n
	of.emit = func(r Record) {
		f, ok := wanted[r.Name]
		if !ok {
			return
		}
		delete(wanted, r.Name)
		s.taken[f] = &series{values: r.Samples, disturbed: make([]bool, len(r.Samples))}
		for i := range r.Disturbed { // only the number matters here
			s.taken[f].disturbed[i] = true
		}
		s.notes[f] = r.Note
		s.logf("  %s: p99 %s ms", f, number(r.P99))
	}
	err := routes(&of)
	if err == nil && len(wanted) > 0 {
		err = fmt.Errorf("%d figures are missing", len(wanted))
	}
	if err != nil {
		s.logf("routes in use: %v", err)
	}
}
