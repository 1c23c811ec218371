package sched

import "slices"

// nearby caches, for each row of a table, the nearest of some places.
type nearby struct {
	places     *Places
	by         int       // byRTT or byKm
	generation uint64    // Places.generation for which rows is valid
	rows       []closest // parallel to the table's rows; an entry with another stamp is invalid
	used       uint64    // Table.uses at its last use
}

// maxNearby bounds the caches of a table. The least recently used one is replaced.
const maxNearby = 16

// nearby returns the table's cache for some places, measured by by.
func (t *Table) nearby(of *Places, by int) *nearby {
	i := slices.IndexFunc(t.caches, func(n *nearby) bool { return n.places == of && n.by == by })
	if i < 0 {
		if len(t.caches) < maxNearby {
			t.caches = append(t.caches, &nearby{})
			i = len(t.caches) - 1
		} else {
			for k := range t.caches {
				if i < 0 || t.caches[k].used < t.caches[i].used {
					i = k
				}
			}
		}
		*t.caches[i] = nearby{places: of, by: by, generation: of.generation, rows: t.caches[i].rows}
		clear(t.caches[i].rows)
	}
	n := t.caches[i]
	if n.generation != of.generation {
		n.generation = of.generation
		clear(n.rows)
	}
	if short := len(t.rows) - len(n.rows); short > 0 {
		n.rows = append(n.rows, make([]closest, short)...)
	}
	t.uses++
	n.used = t.uses
	return n
}
