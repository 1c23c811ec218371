package main

import (
	"fmt"
	"strings"
)

// routesEach is how many times more often than other figures the time is taken
// until a route is in use: of that the p99 is held.
const routesEach = 4

// inUse measures how soon a new instance is in use, with orchestrators and node
// engines as they are: that is route's, whose records become the figures of ours.
func (s *session) inUse(figures []figure) {
	wanted := map[string]figure{} // by the name of route's record
	for _, f := range figures {
		if kind, ok := strings.CutPrefix(f.load, "route-"); ok {
			wanted["route."+f.path+"."+kind] = f
		}
	}
	if len(wanted) == 0 {
		return
	}
	for name := range s.beds { // what waits there has no part in this
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
		for i := range r.Disturbed { // which of them is of no matter here
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
