package sched

import "slices"

// nearby caches, for each row of a table, the nearest of some places.
type nearby struct {
	of   *Places
	by   int       // byRTT or byKm
	life uint64    // Places.life for which rows is valid
	rows []closest // parallel to the table's rows; an entry with another stamp is invalid
	used uint64    // Table.asked at its last use
}

// maxNearby bounds the caches of a table. The least recently used one is replaced.
const maxNearby = 16

// nearby returns the table's cache for some places, measured by by.
func (t *Table) nearby(of *Places, by int) *nearby {
	i := slices.IndexFunc(t.near, func(n *nearby) bool { return n.of == of && n.by == by })
	if i < 0 {
		if len(t.near) < maxNearby {
			t.near = append(t.near, &nearby{})
			i = len(t.near) - 1
		} else {
			for k := range t.near {
				if i < 0 || t.near[k].used < t.near[i].used {
					i = k
				}
			}
		}
		*t.near[i] = nearby{of: of, by: by, life: of.life, rows: t.near[i].rows}
		clear(t.near[i].rows)
	}
	n := t.near[i]
	if n.life != of.life {
		n.life = of.life
		clear(n.rows)
	}
	if short := len(t.rows) - len(n.rows); short > 0 {
		n.rows = append(n.rows, make([]closest, short)...)
	}
	t.asked++
	n.used = t.asked
	return n
}
